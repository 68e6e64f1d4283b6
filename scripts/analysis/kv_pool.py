"""What is known of a boot's KV pool: the startup log first, the server's own page for what the log does not say."""

from collections.abc import Mapping
from typing import Any

from scripts.analysis.values import get
from scripts.harness.startup_log import sums

FROM_PAGE = {
    "kv_cache_tokens": "kv_cache_tokens",
    "max_concurrency_x": "max_concurrency_x",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "prefix_caching": "enable_prefix_caching",
}
EXTRA_FROM_PAGE = ("kv_cache_tokens_derived", "block_size", "num_gpu_blocks", "enable_prefix_caching")


def complete(log: Mapping[str, Any], page: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what ``startup_log.read`` read, with nulls filled in from what ``exposition.pool_of`` read (None: no page
    told it). ``pool_source`` says where the pool's size comes from: log, page, or null. Where tokens ÷ longest length
    is not the concurrency that log or page print, ``hybrid`` is true and ``warnings`` say so."""
    known = dict(log)
    extra = dict(known.get("extra") or {})
    source = None if known.get("kv_cache_tokens") is None else "log"
    for name, other in FROM_PAGE.items() if page is not None else ():
        if known.get(name) is None:
            known[name] = page.get(other) if page is not None else None
    for name in EXTRA_FROM_PAGE if page is not None else ():
        if extra.get(name) is None and page is not None and page.get(name) is not None:
            extra[name] = page[name]
    if source is None and known.get("kv_cache_tokens") is not None:
        source = "page"
    found = {**known, "extra": extra, "pool_source": source}
    several = max(len(known.get("engines") or ()), int((page or {}).get("engines") or 1))
    said = {warning.get("code") for warning in known.get("warnings") or ()}
    tokens, length, printed = (get(known, name) for name in ("kv_cache_tokens", "max_model_len", "max_concurrency_x"))
    if several > 1 or tokens is None or length is None or printed is None or "capacity_disagrees" in said:
        return found
    if sums.capacity_agrees(tokens, length, printed, get(extra, "block_size")) is False:
        warning = {"code": "capacity_disagrees", "line": None, "text": sums.conflict(tokens, length, printed)}
        found |= {"hybrid": True, "warnings": [*(known.get("warnings") or ()), warning]}
    return found
