"""Read and check the configuration: one sentence for each mistake, defaults filled in from the schemas."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from scripts.harness.addresses import plain_url
from scripts.harness.errors import SweepError


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error; plain YAML silently keeps the last one."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise yaml.constructor.ConstructorError(None, None, "a key has to be a word", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises SweepError with the place of a mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SweepError(
            f"{path} does not exist; check the name, or copy config/rounds/demo.yaml and edit it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SweepError(f"{path} cannot be read: {error}") from None
    try:
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise SweepError(f"{path}{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from None


def check_readable(path: Path) -> None:
    """Raise SweepError unless the file holds YAML with keys at its top level, each of them once."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        found = "nothing" if values is None else type(values).__name__
        raise SweepError(f"{path}: expected keys such as `rounds: [demo]`, found {found}")


def validate(values: Any, schema_path: Path, source: str) -> dict[str, Any]:
    """Check ``values`` against a JSON schema and return a copy with the schema's defaults filled in.

    Raises SweepError that names the key, what was expected and what was found, and ``source`` as the place.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = json.loads(schema_path.read_text(encoding="utf-8"))
    for place, value in _numbers(values):
        if not math.isfinite(value):
            raise SweepError(f"{source}: {place}: expected a finite number, found {value}")
    error = best_match(Draft202012Validator(schema).iter_errors(values))
    if error is not None:
        raise SweepError(_sentence(error, source))
    checked: dict[str, Any] = _with_defaults(deepcopy(values), schema, schema.get("$defs", {}))
    return checked


def _numbers(values: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of nested lists and mappings that is not whole by its type, with its place."""
    if isinstance(values, float):
        yield place, values
    elif isinstance(values, Mapping | list):
        for key, value in values.items() if isinstance(values, Mapping) else enumerate(values):
            yield from _numbers(value, f"{place}.{key}" if place else str(key))


def _with_defaults(values: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    if isinstance(values, dict):
        for key, sub in schema.get("properties", {}).items():
            target = definitions[sub["$ref"].removeprefix("#/$defs/")] if "$ref" in sub else sub
            if key not in values and "default" in target:
                values[key] = deepcopy(target["default"])
            if key in values:
                values[key] = _with_defaults(values[key], target, definitions)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for key in values:
                if key not in schema.get("properties", {}):
                    values[key] = _with_defaults(values[key], extra, definitions)
    if isinstance(values, list) and isinstance(schema.get("items"), dict):
        return [_with_defaults(value, schema["items"], definitions) for value in values]
    if isinstance(values, float) and schema.get("type") == "integer":
        return int(values)  # 16.0 is an integer to JSON schema
    return values


def _sentence(error: Any, source: str) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    found = error.instance
    where = f"{source}: {place}" if place else source
    if place.endswith("server.api_key_env"):
        return f"{where}: expected the name of an environment variable (what was found is not shown: it may be the key)"
    if ".server.environment" in place:
        return f"{where}: expected strings (what was found is not shown: it may be a secret)"
    if place.endswith("server.url") and isinstance(found, str):
        found = plain_url(found)
    kind, value = error.validator, error.validator_value
    if kind == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(found) - set(known), key=str)
        names = ", ".join(repr(str(name)) for name in unknown)
        hint = _closest(str(unknown[0]), known) if unknown else ""
        return f"{where}: unknown key {names}{hint}; known here: {', '.join(known)}"
    if kind == "required":
        missing = [key for key in value if key not in found]
        return f"{where}: the key {missing[0]!r} is missing; it has to be there"
    words: dict[str, Callable[[], str]] = {
        "type": lambda: f"expected {' or '.join([value] if isinstance(value, str) else value)}",
        "enum": lambda: f"expected one of {', '.join(map(str, value))}",
        "minimum": lambda: f"expected at least {value}",
        "maximum": lambda: f"expected at most {value}",
        "exclusiveMinimum": lambda: f"expected more than {value}",
        "minItems": lambda: f"expected at least {value} entry" + ("" if value == 1 else "s"),
        "maxItems": lambda: f"expected at most {value} entries",
        "minProperties": lambda: f"expected at least {value} entry",
        "minLength": lambda: "expected a text that is not empty",
        "uniqueItems": lambda: "expected every entry once",
        "pattern": lambda: f"expected a text that matches {value}",
        "anyOf": lambda: "expected " + " or ".join(_alternative(option) for option in value),
    }
    expected = words[kind]() if kind in words else str(error.message)
    return f"{where}: {expected}, found {json.dumps(found, ensure_ascii=False, default=str)}"


def _alternative(schema: Mapping[str, Any]) -> str:
    return repr(schema["const"]) if "const" in schema else str(schema.get("type", schema))


def _closest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    match = get_close_matches(name, known, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
