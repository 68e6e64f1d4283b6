"""Write docs/metrics.md from the data contract: ``python -m scripts.analysis.document --write`` (or ``--check``)."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.analysis import schema, stalls, trend

TARGET = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

INTRODUCTION = """# Metrics

Every column the pipeline writes. This page is generated from `scripts/analysis/schema.py`
(`python -m scripts.analysis.document --write`); a test keeps the two equal.

Missing is null, never 0 and never −1. Times in raw files are monotonic nanoseconds of the measuring machine.
Percentages (`_pct`) run from 0 to 100, shares of a whole (`_frac`) from 0 to 1. Percentiles are linear
interpolation between samples (numpy's default): position `p · (n − 1)` of the sorted samples.
"""

GLOSSARY = (
    (
        "TTFT",
        "time to first token",
        "First frame that carries a token − end of the request's write. Holds the queue, the prefill and "
        "the server's front end; not the client's own delay nor connecting, which have columns of their "
        "own.",
    ),
    (
        "ITL",
        "inter-token latency",
        "Gap between two distinct arrivals of one request; pooled over all requests. Never zero. With "
        "several tokens an arrival it is larger than the time per token: then see `itl_token_…`, gap ÷ "
        "tokens, each weighted by its tokens.",
    ),
    (
        "TPOT",
        "time per output token",
        "(E2EL − TTFT) ÷ (output tokens − 1) of one request. Null with fewer than two tokens. The mean of"
        " that request's ITL when each token came alone.",
    ),
    (
        "E2EL",
        "end-to-end latency",
        "Last frame that carries a token − end of the request's write.",
    ),
    (
        "output throughput",
        "",
        "Output tokens of requests that succeeded ÷ wall clock from the release of the first request to "
        "the end of the last one. Not 1 ÷ TPOT.",
    ),
    (
        "C",
        "concurrency level",
        "Requests kept in flight by the closed loop: C slots, each sends its next request as soon as its "
        "last one ends.",
    ),
    (
        "wave",
        "",
        "The n-th request of every slot; the first wave (0) is the launch burst.",
    ),
    (
        "steady state",
        "",
        "From the moment all C slots are busy and the first wave has its first tokens to the moment a "
        "slot stays empty.",
    ),
    (
        "stall",
        "",
        "A gap that holds the prefill of another request.",
    ),
    (
        "MFU, MBU",
        "model FLOP and bandwidth utilisation",
        "Share of the card's peak, from the server's own estimates of FLOPs and bytes read (no hardware counter).",
    ),
    (
        "KV pool",
        "",
        "Tokens whose keys and values fit the memory the server set aside for them.",
    ),
    (
        "identity",
        "",
        "E2EL = TTFT + sum of ITL = TTFT + (n − 1) · TPOT. Exact for each request; for means when all "
        "lengths are equal; not for percentiles.",
    ),
)

FRAMES = (
    (
        "text",
        "Carries a token: starts TTFT if it is the first, ends a gap otherwise.",
    ),
    (
        "reasoning (`reasoning`, `reasoning_content`)",
        "The same as text: it is output. Kept in `text` with it.",
    ),
    (
        "token ids, log probabilities, tool call",
        "Carries as many tokens as it names, with or without text.",
    ),
    (
        'role only (`delta: {role, content: ""}`)',
        "Carries none: never starts TTFT, never ends a gap.",
    ),
    (
        "empty (no text, no ids), also with the finish reason",
        "Carries none, unless a running usage count grew (below).",
    ),
    (
        "usage only (`choices: []`)",
        "Carries none; its counts are taken. It does not end E2EL.",
    ),
    (
        "usage in every frame",
        "The last one decides the totals, they are never added. Where it is a running count, its growth "
        "marks the arrival of tokens, text or not: TTFT is at the first growth.",
    ),
    (
        "several tokens in one frame",
        "One arrival, one gap. Token counts come from usage, else token ids, else frames; where usage and"
        " frames differ the tokens are spread over the frames.",
    ),
    (
        "several frames in one read",
        "Frames with one stamp are one arrival. If the reader was late, all but the last are marked "
        "`stamp_lost`: they arrived after the previous stamp and not after this one, and bounds are "
        "given.",
    ),
    (
        "comment (`: keep-alive`), `event:`, `id:`, `retry:`, blank lines",
        "Ignored. The space after `data:` is optional; lines may end with LF, CR LF or CR; bytes may be "
        "cut anywhere, also inside a character.",
    ),
    (
        "error object inside a 200 stream, also as the first frame",
        "Failed, `server_error_in_stream`, with the server's words. Its tokens are in no throughput and no percentile.",
    ),
    (
        "finish reason, then no `[DONE]`",
        "Succeeded: `[DONE]` is not needed after a finish reason.",
    ),
    (
        "neither finish reason nor `[DONE]`",
        "Failed, `truncated`.",
    ),
    (
        "fewer tokens than asked for under `ignore_eos`",
        "Failed, `short`, with both numbers and the finish reason.",
    ),
    (
        "ended well without any token",
        "Failed, `no_tokens`.",
    ),
    (
        "one token",
        "Succeeded; TPOT and ITL are null and counted in `requests_one_token`.",
    ),
    (
        "a frame that is not JSON",
        "Failed, `bad_frame`, with the text that could not be read.",
    ),
    (
        "connection closed before any byte, on a reused connection",
        "Sent again on a fresh connection with its clock restarted, counted in `stale_retries`. Any other"
        " break is a failure.",
    ),
)

CONFIDENCE = """Intervals are 95% bootstrap intervals (percentile method, 200 draws, seeded by the level): whole
requests are drawn with replacement, so the gaps of a request stay together, and so do requests that ran
side by side: C of them, released one after the other, are one block (a quarter of the requests where
there are fewer than four waves). Throughput of a draw is the measured throughput × (tokens ÷ slot time
of the draw) ÷ (the same of the run). Fewer than five requests give none. They do not see drift between
runs. A percentile needs two samples above it: p99 rests on at least 200 requests, p90 on 20.
"""


def render() -> str:
    """Return the page."""
    parts = [INTRODUCTION, "## Glossary\n", _glossary(), "## What a frame is\n"]
    parts.append("One rule for each kind of frame of a streamed response.\n")
    parts.append(_rows(("Frame", "Rule"), FRAMES))
    parts += ["## Levels\n", "One row a level: `levels.parquet`, and the same as CSV.\n"]
    for title, columns in schema.LEVEL_SECTIONS.items():
        parts.append(f"### {title}\n")
        if title == "Stalls":
            parts.append(_paragraphs(stalls.__doc__))
        if title == "Trend":
            parts.append(_paragraphs(trend.__doc__))
        if title == "Confidence":
            parts.append(CONFIDENCE)
        parts.append(_columns(columns))
    for name, columns in schema.TABLES.items():
        if name == "levels":
            continue
        parts.append(f"## {name}\n")
        parts.append(_columns(columns))
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Write the page, or tell whether it is up to date (status 1 if not)."""
    parser = argparse.ArgumentParser(prog="python -m scripts.analysis.document", description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true", help="write docs/metrics.md")
    choice.add_argument("--check", action="store_true", help="fail if docs/metrics.md is not what --write would write")
    parser.add_argument("--file", type=Path, default=TARGET, help="the page (default: docs/metrics.md)")
    options = parser.parse_args(argv)
    page = render()
    if options.write:
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text(page, encoding="utf-8")
        return 0
    found = options.file.read_text(encoding="utf-8") if options.file.exists() else None
    if found == page:
        return 0
    state = "is missing" if found is None else "differs from scripts/analysis/schema.py"
    print(f"error: {options.file} {state}; run python -m scripts.analysis.document --write", file=sys.stderr)
    return 1


def _glossary() -> str:
    return _rows(("Word", "In full", "Meaning"), GLOSSARY)


def _columns(columns: Iterable[schema.Column]) -> str:
    rows = [
        (f"`{c.name}`", c.type, c.unit, c.meaning + ("" if c.nullable else "; never null"), c.formula) for c in columns
    ]
    return _rows(("Column", "Type", "Unit", "Meaning", "Formula"), rows)


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str | None) -> str:
    """Return a module's docstring after its first line, reStructuredText's double backticks as single ones."""
    return (text or "").split("\n", 1)[1].strip().replace("``", "`") + "\n"


if __name__ == "__main__":
    sys.exit(main())
