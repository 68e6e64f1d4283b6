"""llama.cpp: a ``llama-server`` binary, or the same server from the ``xllamacpp`` wheel under a host of ours."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.harness import plan, tls
from scripts.harness.engines import http, openai_api
from scripts.harness.engines.base import Command, Failure, PromptForm
from scripts.harness.errors import SweepError

ROOT = Path(__file__).resolve().parents[3]
HOST_MODULE = "scripts.harness.engines.host_llama_cpp"
OPTIONS_NOT_OURS = frozenset({"host", "port", "model"})
SLOT_MULTIPLE = 256
"""The server rounds a slot's context up to this many tokens."""


class LlamaCppEngine:
    """See ``base.Engine``. Settings of ``server``: model, binary, arguments, environment, port."""

    name = "llama_cpp"
    attaches_only = False

    def resolve(self, server: Mapping[str, Any], workload: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
        """Fill in slots (``parallel``, the highest level) and context (``ctx-size``, slots × (input + output))."""
        tls.check(server, "http://")
        model = server.get("model")
        if model is None:
            raise SweepError("server.model is missing; give the path of a GGUF file, or `bundled`")
        path = plan.model_path(str(model), ROOT)
        if path is None:
            hint = "install the wheels of requirements.txt" if model == "bundled" else "check server.model"
            raise SweepError(f"the model file {model} does not exist; {hint}")
        if path.is_dir():
            raise SweepError(f"server.model: expected a GGUF file, found the folder {model}")
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise SweepError(
                f"the model file {model} is not a GGUF file (it begins with {magic!r}); check server.model"
            )
        binary = server.get("binary")
        if binary is not None and shutil.which(str(binary)) is None:
            raise SweepError(
                f"server.binary: {binary} is not there or cannot be run; give the path of a llama-server binary"
            )
        arguments = {str(key).replace("_", "-"): value for key, value in dict(server.get("arguments") or {}).items()}
        ours = sorted(OPTIONS_NOT_OURS & set(arguments))
        if ours:
            raise SweepError(f"server.arguments: {ours[0]} is set by the pipeline; use server.model or server.port")
        nested = sorted(key for key, value in arguments.items() if isinstance(value, dict | list))
        if nested:
            raise SweepError(f"server.arguments.{nested[0]}: expected one value, found {arguments[nested[0]]}")
        if binary is None:
            from scripts.harness.engines.host_llama_cpp import OPTIONS

            unknown = sorted(set(arguments) - OPTIONS)
            if unknown:
                raise SweepError(
                    f"server.arguments: the server of the wheel has no option {unknown[0]!r}; "
                    f"known: {', '.join(sorted(OPTIONS))}; "
                    "set server.binary to use a llama-server of yours"
                )
        tokens = int(workload["input_tokens"]) + int(workload["output_tokens"])
        slots = _whole(arguments, "parallel", max(levels))
        if slots < 1:
            raise SweepError(f"server.arguments.parallel: expected at least 1 slot, found {slots}")
        context = _whole(arguments, "ctx-size", slots * tokens)
        shared = bool(arguments.get("kv-unified"))
        per_slot = context if shared else -(-(context // slots) // SLOT_MULTIPLE) * SLOT_MULTIPLE
        if per_slot < tokens:
            raise SweepError(
                f"a slot's context is {per_slot} tokens (ctx-size {context} over {slots} slots), but a request needs "
                f"{tokens} (input {workload['input_tokens']} + output {workload['output_tokens']}); raise ctx-size to "
                f"{slots * tokens}, or leave it out"
            )
        arguments.setdefault("alias", path.stem)
        for option, value in {
            "metrics": True,
            "slots": True,
            "verbosity": 4,
            "no-cache-prompt": True,
            "cache-ram": 0,
        }.items():
            arguments.setdefault(option, value)
        if arguments.pop("no-slots", False):
            arguments["slots"] = False
        return {
            "model": str(model),
            "binary": binary,
            "arguments": arguments,
            "environment": dict(server.get("environment") or {}),
            "slots": slots,
            "context_per_slot": per_slot,
        }

    def command(self, resolved: Mapping[str, Any], host: str, port: int) -> Command:
        """Return the command line; the model's path is looked up anew, so that the settings stay free of it."""
        path = plan.model_path(str(resolved["model"]), ROOT)
        if path is None:
            raise SweepError(f"the model file {resolved['model']} does not exist; check server.model")
        binary = resolved["binary"]
        argv = [str(binary)] if binary is not None else [_below_root(Path(sys.executable)), "-m", HOST_MODULE]
        argv += ["--model", _below_root(path), "--host", host, "--port", str(port)]
        for option, value in resolved["arguments"].items():
            if value is True:
                argv.append(f"--{option}")
            elif value is not None and value is not False:
                argv += [f"--{option}", str(value)]
        environment = dict(resolved["environment"])
        if binary is None:
            environment["PYTHONPATH"] = "."
        return Command(tuple(argv), environment)

    def uses_gpu(self, resolved: Mapping[str, Any]) -> bool:
        """A binary of the user's may; the wheel's server does not."""
        return resolved["binary"] is not None  # the wheel is built for the CPU

    def base_url(self, resolved: Mapping[str, Any], host: str, port: int) -> str:
        """Return the server's own address."""
        return f"http://{host}:{port}"

    def ready(self, base_url: str, resolved: Mapping[str, Any]) -> str | None:
        """Ready is when /health says so; the model's name is what /v1/models lists."""
        if http.ask(f"{base_url}/health").status != 200:
            return None
        return http.first_model(http.ask(f"{base_url}/v1/models"))

    def explain_failure(self, log_text: str, returncode: int | None) -> Failure:
        """Read the reason from the server's log."""
        from scripts.harness import startup_log

        return Failure.of(startup_log.explain(log_text, returncode, self.name))

    def read_startup_log(self, log_text: str) -> dict[str, Any]:
        """See ``scripts.harness.startup_log``."""
        from scripts.harness import startup_log

        found: dict[str, Any] = startup_log.read(log_text, engine=self.name)
        return found

    def survey(
        self,
        base_url: str,
        resolved: Mapping[str, Any],
        workload: Mapping[str, Any],
        model: str,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Nothing is left to find out of a server that was started here."""
        return {}

    def endpoint(self, workload: Mapping[str, Any], resolved: Mapping[str, Any] | None = None) -> str:
        """Return the path of the API."""
        return "/v1/chat/completions" if workload["endpoint"] == "chat" else "/v1/completions"

    def prompt_form(
        self, base_url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> PromptForm:
        """Token ids wherever the API takes them, unless text is asked for."""
        return "text" if workload["endpoint"] == "chat" or workload["prompt"] == "text" else "token_ids"

    def request_body(self, workload: Mapping[str, Any], model: str, prompt: Sequence[int] | str) -> dict[str, Any]:
        """Return the body: exact lengths, greedy, streamed with usage, no prompt cache."""
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": int(workload["output_tokens"]),
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = openai_api.as_asked(workload, body)
        if workload["endpoint"] == "chat":
            return {**body, "messages": [{"role": "user", "content": prompt}]}
        return {**body, "prompt": prompt if isinstance(prompt, str) else list(prompt)}

    def headers(self, resolved: Mapping[str, Any]) -> dict[str, str]:
        """No header is needed."""
        return {}

    def scrape_targets(self, base_url: str, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return /metrics, and /slots for the KV usage no gauge tells."""
        targets = {"metrics": f"{base_url}/metrics"}
        if resolved["arguments"].get("slots"):
            targets["slots"] = f"{base_url}/slots"
        return targets

    def version(self, base_url: str, log_text: str, resolved: Mapping[str, Any] | None = None) -> str | None:
        """Return build_info of /props; the wheel's version where the server is the wheel's."""
        from importlib.metadata import PackageNotFoundError, version

        properties = http.ask(f"{base_url}/props").json()
        build = properties.get("build_info") if isinstance(properties, dict) else None
        if build and not str(build).startswith("b0-"):
            return str(build)
        try:
            return f"xllamacpp {version('xllamacpp')}"
        except PackageNotFoundError:
            return str(build) if build else None


def _whole(arguments: dict[str, Any], option: str, default: int) -> int:
    """Return an option that is a whole number; fill it in where it is left out."""
    if arguments.get(option) is None:
        arguments[option] = default
    value = arguments[option]
    if isinstance(value, bool) or not str(value).lstrip("-").isdecimal():
        raise SweepError(f"server.arguments.{option}: expected a whole number, found {value!r}")
    return int(value)


def _below_root(path: Path) -> str:
    """Return the path relative to the project's folder, the server's working directory, where it lies below it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
