"""Send one level of load to any OpenAI-compatible server and write what was measured.

    python -m scripts.harness.load --base-url http://127.0.0.1:8000 --model NAME --concurrency 16 --requests 64
                                   --input-tokens 1024 --output-tokens 256 --out DIR

Writes requests.parquet, chunks.parquet and summary.json to DIR and prints the summary. Exit status 0 only if at least
one request succeeded and the files are whole.
"""

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.harness import tls
from scripts.harness.errors import SweepError
from scripts.harness.load.driver import run, salvage
from scripts.harness.load.secrets import checked_key
from scripts.harness.load.spec import PROMPT, LoadSpec, Timeouts
from scripts.harness.progress import Bar

ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def arguments() -> argparse.ArgumentParser:
    """Return the door's arguments."""
    defaults = Timeouts()
    parser = argparse.ArgumentParser(
        prog="python -m scripts.harness.load", description="One level of load against any OpenAI-compatible server."
    )
    add = parser.add_argument
    add("--base-url", help="server, such as http://127.0.0.1:8000; a path is kept as it is, without one it is /v1")
    add("--model", help="model name as the server knows it")
    add("--concurrency", type=int, help="requests in flight")
    add("--requests", type=int, help="requests in all, warm-up apart")
    add("--input-tokens", type=int, help="prompt length")
    add("--output-tokens", type=int, help="answer length asked for")
    add("--out", type=Path, required=True, help="folder to write to")
    add("--endpoint", choices=sorted(ENDPOINTS), default="completions")
    add("--warmup", type=int, default=0, metavar="N", help="requests sent before the level (default 0)")
    add("--seed", type=int, default=0, help="prompts are drawn from it (default 0)")
    add("--processes", default="auto", help="client processes: auto or a number (default auto)")
    add("--prompt", choices=("token_ids", "text"), help="default: token_ids for completions, text for chat")
    add(
        "--vocabulary",
        type=int,
        nargs=2,
        default=(1000, 30000),
        metavar=("FIRST", "END"),
        help="token ids to draw from",
    )
    add("--stagger-s", type=float, default=0.0, help="start slots this far apart instead of all at once")
    add("--no-ignore-eos", action="store_true", help="let the model end; a short answer is then no failure")
    add("--extra-body", type=json.loads, default={}, metavar="JSON", help="more fields of the request body")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    add("--timeout-connect", type=float, default=defaults.connect_s, metavar="S")
    add("--timeout-first-token", type=float, default=defaults.first_token_s, metavar="S")
    add("--timeout-between-tokens", type=float, default=defaults.between_tokens_s, metavar="S")
    add("--timeout-total", type=float, default=defaults.total_s, metavar="S")
    add("--user-stamps", action="store_true", help="do not use the kernel's receive stamps")
    add("--tls-ca", metavar="FILE", help="certificate (PEM) to trust the server by: its authority's, or its own")
    add("--no-tls-verify", "--insecure", action="store_true", help="take any TLS certificate of the server")
    add("--keep-journal", action="store_true", help="keep the raw journal (every byte with its stamps)")
    add("--salvage", action="store_true", help="only convert what a broken-off load left in --out")
    return parser


def spec_of(options: argparse.Namespace) -> LoadSpec:
    """Return the load the options ask for. Raises SweepError where they do not make one."""
    missing = [
        "--" + name.replace("_", "-")
        for name in ("base_url", "model", "concurrency", "requests", "input_tokens", "output_tokens")
        if getattr(options, name) is None
    ]
    if missing:
        raise SweepError(f"missing {', '.join(missing)}")
    headers: dict[str, str] = {}
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key or not key.strip():
            raise SweepError(f"environment variable {options.api_key_env} (--api-key-env) is not set; export it first")
        headers["authorization"] = f"Bearer {checked_key(key, options.api_key_env)}"
    if not isinstance(options.extra_body, dict):
        raise SweepError("--extra-body must be a JSON object")
    try:
        processes: Any = "auto" if options.processes == "auto" else int(options.processes)
    except ValueError:
        raise SweepError(f"--processes is {options.processes!r}; give auto or a number") from None
    chat = options.endpoint == "chat"
    prompt: Any = options.prompt if options.prompt is not None else ("text" if chat else "token_ids")
    if chat and prompt == "token_ids":
        raise SweepError("the chat endpoint takes no token ids; use --prompt text")
    body: dict[str, Any] = {"model": options.model}
    body.update({"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT})
    body.update({"max_tokens": options.output_tokens, "temperature": 0, "stream": True})
    body["stream_options"] = {"include_usage": True}
    if not options.no_ignore_eos:
        body["ignore_eos"] = True
    body.update(options.extra_body)
    base_url, endpoint = _split(options.base_url, options.endpoint)
    if options.tls_ca is not None and options.no_tls_verify:
        raise SweepError("--tls-ca names whom to trust and --no-tls-verify trusts everybody; keep one")
    verify: tls.Verify = not options.no_tls_verify
    if options.tls_ca is not None:
        if not base_url.startswith("https://"):
            raise SweepError("--tls-ca is for a --base-url that begins with https://")
        verify = options.tls_ca
        tls.context(verify, "--tls-ca")
    return LoadSpec(
        base_url=base_url,
        endpoint=endpoint,
        kind=options.endpoint,
        headers=headers,
        body=body,
        concurrency=options.concurrency,
        requests=options.requests,
        warmup_requests=options.warmup,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        start="staggered" if options.stagger_s > 0 else "burst",
        stagger_s=options.stagger_s,
        prompt_kind=prompt,
        vocabulary=tuple(options.vocabulary),
        seed=options.seed,
        exact_output=not options.no_ignore_eos,
        processes=processes,
        timeouts=Timeouts(
            options.timeout_connect, options.timeout_first_token, options.timeout_between_tokens, options.timeout_total
        ),
        kernel_stamps=not options.user_stamps,
        tls_verify=verify,
    )


def _split(url: str, kind: str) -> tuple[str, str]:
    """Return the address and the path of the endpoint below it: as given where a path is given, else below /v1."""
    plain = url.rstrip("/").removesuffix(ENDPOINTS[kind].removeprefix("/v1"))
    if plain.endswith("/v1"):
        return plain.removesuffix("/v1"), ENDPOINTS[kind]
    try:
        path = urlsplit(plain).path
    except ValueError:
        path = ""
    return plain, ENDPOINTS[kind].removeprefix("/v1") if path else ENDPOINTS[kind]


def main(argv: list[str] | None = None) -> int:
    """Run the door; return its exit status."""
    options = arguments().parse_args(argv)
    try:
        if options.salvage:
            print(json.dumps(salvage(options.out), indent=1))
            return 0
        return _load(options)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: cannot write to {options.out}: {error}", file=sys.stderr)
        return 1


def _load(options: argparse.Namespace) -> int:
    from scripts.harness.load.summary import summarize

    try:
        spec = spec_of(options)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, lambda *_: stop.set())
    with Bar(f"c{spec.concurrency}") as bar:
        result = run(spec, options.out, on_progress=bar, stop=stop, keep_journal=options.keep_journal)
    summary = summarize(result.requests_path, result.chunks_path, spec.concurrency, result.fidelity)
    summary["sent"] = result.sent
    summary["stopped"] = result.stopped
    text = json.dumps(summary, indent=1, ensure_ascii=False)
    whole = options.out / "summary.json.new"
    whole.write_text(text + "\n")
    whole.rename(options.out / "summary.json")
    print(text)
    if result.stopped:
        print(
            "error: the load was stopped before its end; the files hold what was measured until then", file=sys.stderr
        )
        return 130
    if not summary["requests_ok"]:
        why = _why(result.requests_path)
        hint = ""
        refused = why.startswith(("http_status 400", "http_status 422"))
        if refused and "ignore_eos" in why and "ignore_eos" in spec.body:
            hint = " (--no-ignore-eos leaves the field out; answers may then be shorter)"
        elif refused and spec.prompt_kind == "token_ids":
            hint = " (if the server takes no token ids as prompt, use --prompt text)"
        print(f"error: none of the {spec.requests} requests succeeded: {why}{hint}", file=sys.stderr)
        return 1
    length = summary["prompt_length"]
    if length["mean"] is not None and (length["min"], length["max"]) != (spec.input_tokens, spec.input_tokens):
        print(
            f"note: by the server's count prompts had {length['min']} to {length['max']} tokens, not the"
            f" {spec.input_tokens} asked for",
            file=sys.stderr,
        )
    return 0


def _why(requests_path: Path) -> str:
    """Return the first failure's kind and words."""
    import pyarrow.parquet as pq

    table = pq.read_table(requests_path, columns=["warmup", "error_kind", "error_message", "http_status"])
    for row in table.to_pylist():
        if row["error_kind"] is not None and not row["warmup"]:
            status = "" if row["http_status"] in (None, 200) else f" {row['http_status']}"
            return f"{row['error_kind']}{status}: {row['error_message']}"
    return "no request was sent"


if __name__ == "__main__":
    sys.exit(main())
