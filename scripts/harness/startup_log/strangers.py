"""Logs of no server that is read here: what they are, and what to do about it."""

import re

NAMES = {
    "SGLang": re.compile(
        r"\bsglang\b|server_args=ServerArgs\(|KV Cache is allocated\. #tokens|max_total_num_tokens=|"
        r"The server is fired up and ready to roll|mem_fraction_static|Load weight (?:begin|end)\.|"
        r"Memory pool end\. avail mem|Capture cuda graph (?:begin|end)\.|(?:Prefill|Decode) batch[.,:] #",
        re.IGNORECASE,
    ),
    "TensorRT-LLM": re.compile(
        r"\[TensorRT-LLM\]|\[TRT-LLM\]|\btensorrt[_-]llm\b|\btrtllm\b|\bTensorRT-LLM\b|\[MemUsageChange\]|"
        r"\[TRT\] \[[IWE]\]",
        re.IGNORECASE,
    ),
    "LMDeploy": re.compile(r"\blmdeploy\b|\bturbomind\b|\[TM\]\[(?:INFO|WARN|WARNING|ERROR|DEBUG)\]", re.IGNORECASE),
    "Text Generation Inference": re.compile(r"\btext[_-]generation[_-](?:launcher|router|server|inference)\b"),
    "Triton Inference Server": re.compile(r"\btritonserver\b|Started GRPCInferenceService|model_lifecycle\.cc"),
    "MLC LLM": re.compile(r"\bmlc[_-](?:llm|serve)\b", re.IGNORECASE),
    "ExLlama": re.compile(r"\bexllama(?:v[23])?\b|\btabbyapi\b", re.IGNORECASE),
    "Aphrodite": re.compile(r"\baphrodite\b", re.IGNORECASE),
    "OpenVINO Model Server": re.compile(r"\bOpenVINO Model Server\b|\bovms\b|\[modelmanager\]\["),
    "LiteLLM": re.compile(r"\blitellm\b", re.IGNORECASE),
    "KTransformers": re.compile(r"\bktransformers\b", re.IGNORECASE),
    "Text Embeddings Inference": re.compile(r"\btext[_-]embeddings[_-](?:router|inference)\b"),
}
ADVICE = (
    "Memory and KV pool are read from the logs of vLLM and llama.cpp only. Give the log of the server that was "
    "measured (server.log in the round's file), or none: everything the client measures is reported without it."
)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*", re.MULTILINE)
# control characters that no log holds, and what the decoder puts in place of bytes that are no text
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
PACKED = {"\x1f\ufffd": "gzip", "PK\x03\x04": "zip", "(\ufffd/\ufffd": "zstd", "\ufffd7zXZ": "xz", "BZh": "bzip2"}


def lines_of(sample: str) -> dict[str, int]:
    """Return how many lines of the sample speak like each of the servers that are not read here."""
    counts = dict.fromkeys(NAMES, 0)
    for raw in sample.split("\n"):
        for name, pattern in NAMES.items():
            if pattern.search(raw):
                counts[name] += 1
    return counts


def packed(text: str) -> str | None:
    """Return the name of the compression a file was packed with, by its first bytes; None for text."""
    return next((name for mark, name in PACKED.items() if text.startswith(mark)), None)


def is_text(sample: str) -> bool:
    """False for what is no text: more than one character in twenty is none."""
    head = sample[:20_000]
    return len(_NO_TEXT.findall(head)) * 20 <= len(head)


def describe(text: str, raw: str) -> tuple[str, str]:
    """Return (code, sentence) of a log in which no server that is read here speaks: what it is, and what to do."""
    if not text.strip():
        return "empty_log", f"The log is empty, so it says nothing of memory and KV pool. {ADVICE}"
    kind = packed(raw)
    if kind is not None:
        return "no_text", f"This file is no text but packed with {kind}: unpack it and give the log inside. {ADVICE}"
    if not is_text(raw):
        return "no_text", f"This file is no text, so it is no server's log. {ADVICE}"
    counts = lines_of(text[:400_000])
    name = max(counts, key=lambda one: counts[one])
    if counts[name]:
        return "another_server", f"This is {article(name)} {name} log, which is not read here. {ADVICE}"
    exceptions = _EXCEPTION.findall(text[-20_000:])
    if _TRACEBACK.search(text):
        ended = f" It ended with “{exceptions[-1].strip()[:200]}”." if exceptions else ""
        return "no_server", f"This is a Python traceback of no server that is read here.{ended} {ADVICE}"
    first = next(line.strip() for line in text.split("\n") if line.strip())
    return "no_server", f"This is the log of no server that is read here; it begins “{first[:200]}”. {ADVICE}"


def article(name: str) -> str:
    """Return the article before a name: an SGLang log, a TensorRT-LLM log."""
    return "an" if name[0] in "AEIO" or name.startswith(("SG", "LM", "ML")) else "a"
