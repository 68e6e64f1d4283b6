"""Pinning the KV pool: sizes as people write them, the flag that sets one, and which size to recommend.

Rule R2: a pool larger than the profiler chose, when the startup log says the device has room. Rule R4: the same pool
on both sides of a comparison, when two runs of one command got pools that differ.
"""

import math
import re
from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20
UNITS = {"b": 1, "kib": 1 << 10, "mib": MIB, "gib": GIB, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9}
# vLLM's second suggestion leaves this much of the device's free memory: free at start - consumed - peak activation
# - CUDA graph - 150 MiB
DEVICE_LIMIT_RESERVE_BYTES = 150 * MIB
# a KV pool below this is no pool: a bare number that small was meant in another unit
SMALLEST_BARE_BYTES = MIB
POOLS_DIFFER_FRAC = 0.05
URGENT_KV_UPPER_BOUND_PCT = 90.0
FIRST_VERSION = (0, 10, 2)
FLAG = "--kv-cache-memory-bytes"


@dataclass(frozen=True)
class Pin:
    """A recommended pool. ``outcome``: holds, fails (nothing to recommend) or not_evaluable (``missing`` says what).

    ``tokens``: whole blocks of the pool; ``cap``: requests of full length that fit; ``margin_bytes``: device memory
    left when it is served, None where that is not known; ``urgency``: urgent or optional (R2).
    """

    rule: str
    outcome: str
    bytes: int | None = None
    tokens: int | None = None
    cap: int | None = None
    margin_bytes: int | None = None
    urgency: str | None = None
    missing: tuple[str, ...] = ()

    @property
    def gib(self) -> float | None:
        """Return the size in GiB."""
        return None if self.bytes is None else self.bytes / GIB


def parse_size(size: int | float | str) -> int:
    """Return a memory size in bytes: a whole number of bytes, or a number with a unit.

    ``8471115264`` → 8471115264 · ``"7.5 GiB"`` → 8053063680 · ``"512MiB"`` → 536870912 · ``"8 GB"`` → 8000000000.
    Raises ValueError for a bare number below 1 MiB (7.5 what?), a bare letter (``8G`` is 1000 or 1024 based,
    depending on whom one asks), and anything that is not above 0.
    """
    if isinstance(size, bool):
        raise ValueError(f"a memory size cannot be {size!r}; write bytes, or a number with a unit such as '7.5 GiB'")
    found = re.fullmatch(r"\s*([\d_,]*\.?\d+)\s*([A-Za-z]*)\s*", str(size))
    if found is None:
        raise ValueError(f"memory size {size!r}: expected bytes, or a number with a unit such as '7.5 GiB'")
    number, unit = float(re.sub("[_,]", "", found.group(1))), found.group(2).lower()
    if unit == "":
        if number < SMALLEST_BARE_BYTES or number != int(number):
            raise ValueError(f"memory size {size!r} has no unit; write all bytes, or '{found.group(1)} GiB'")
        return int(number)
    if unit not in UNITS:
        raise ValueError(f"memory size {size!r}: unit {found.group(2)!r} is not known; use {', '.join(UNITS)}")
    result = math.floor(number * UNITS[unit])
    if result <= 0:
        raise ValueError(f"memory size {size!r}: must be above 0")
    return result


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers a version starts with: ``0.27.1`` → (0, 27, 1), ``v0.19.0rc2.dev3+g1`` → (0, 19, 0)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if found is None:
        raise ValueError(f"vLLM version {text!r}: expected numbers such as 0.27.1")
    return tuple(int(part) for part in found.group(1).split("."))


def flag(version: str) -> str | None:
    """Return vLLM's flag that fixes the pool in bytes per GPU, or None before 0.10.2, which has none (there the number
    of blocks can be set: ``--num-gpu-blocks-override``).

    It was never called anything else: the ``--kv-cache-memory`` that logs before 0.28 suggest is taken only as its
    abbreviation, which not every entry point allows.
    """
    return FLAG if version_of(version) >= FIRST_VERSION else None


def arguments(version: str, size: int | float | str) -> list[str]:
    """Return the server's arguments that pin the pool to ``size``. Raises ValueError where the version cannot."""
    name = flag(version)
    if name is None:
        raise ValueError(
            f"vLLM {version} cannot fix the KV pool in bytes (0.10.2 is the first that can); remove "
            "server.kv_cache_memory, or set the number of blocks with --num-gpu-blocks-override"
        )
    return [name, str(parse_size(size))]


def pool_tokens(size_bytes: int, kv_bytes_per_token: float, block_size: int = 16) -> int:
    """Return the tokens a pool holds: floor(bytes / (k x block)) x block."""
    if kv_bytes_per_token <= 0 or block_size <= 0:
        raise ValueError(f"KV bytes per token {kv_bytes_per_token} and block size {block_size} must be above 0")
    return math.floor(size_bytes / (kv_bytes_per_token * block_size)) * block_size


def pool_bytes(tokens: int, kv_bytes_per_token: float) -> int:
    """Return the bytes that give a pool of exactly ``tokens`` (whole blocks)."""
    return math.ceil(tokens * kv_bytes_per_token)


def cap(tokens: int, request_tokens: int) -> int:
    """Return how many requests of full length fit: floor(tokens / (input + output))."""
    return tokens // request_tokens


def recommend_larger(
    *,
    device_limit_bytes: int | None,
    current_bytes: int | None,
    kv_upper_bound_pct: float | None = None,
    margin_bytes: int = DEVICE_LIMIT_RESERVE_BYTES,
    kv_bytes_per_token: float | None = None,
    block_size: int = 16,
    request_tokens: int | None = None,
) -> Pin:
    """Rule R2: pin the pool to what the device has room for, if that is more than the pool has now.

    ``device_limit_bytes``: the log's suggestion to use the whole device, which leaves 150 MiB; a larger
    ``margin_bytes`` is taken off it. Holds when the result exceeds ``current_bytes``. Urgent from a KV upper bound of
    90% on (at the operating point or the top level), optional below, None if that is not known.
    """
    missing = _missing(device_limit_bytes=device_limit_bytes, current_bytes=current_bytes)
    if device_limit_bytes is None or current_bytes is None:
        return Pin("R2", "not_evaluable", missing=missing)
    size = device_limit_bytes + DEVICE_LIMIT_RESERVE_BYTES - margin_bytes
    if size <= current_bytes:
        return Pin("R2", "fails")
    urgency = None
    if kv_upper_bound_pct is not None:
        urgency = "urgent" if kv_upper_bound_pct >= URGENT_KV_UPPER_BOUND_PCT else "optional"
    tokens = None if kv_bytes_per_token is None else pool_tokens(size, kv_bytes_per_token, block_size)
    fitting = None if tokens is None or request_tokens is None else cap(tokens, request_tokens)
    return Pin("R2", "holds", size, tokens, fitting, margin_bytes, urgency)


def recommend_common(
    *,
    pool_tokens_a: int | None,
    pool_tokens_b: int | None,
    kv_bytes_per_token: float | None,
    device_limit_bytes_a: int | None = None,
    device_limit_bytes_b: int | None = None,
    request_tokens: int | None = None,
) -> Pin:
    """Rule R4: pin both runs to the smaller pool, if the pools differ by more than 5% of it.

    Both machines have served at least that much, so it fits on either. ``margin_bytes`` is what the tighter device
    then has left: its device limit + 150 MiB - the pin; None unless both limits are known.
    """
    missing = _missing(pool_tokens_a=pool_tokens_a, pool_tokens_b=pool_tokens_b, kv_bytes_per_token=kv_bytes_per_token)
    if pool_tokens_a is None or pool_tokens_b is None:
        return Pin("R4", "not_evaluable", missing=missing)
    small, large = sorted((pool_tokens_a, pool_tokens_b))
    if small <= 0:
        raise ValueError(f"KV pools of {pool_tokens_a} and {pool_tokens_b} tokens: both must be above 0")
    if large - small <= POOLS_DIFFER_FRAC * small:
        return Pin("R4", "fails")
    if kv_bytes_per_token is None:
        return Pin("R4", "not_evaluable", missing=missing)
    size = pool_bytes(small, kv_bytes_per_token)
    left = margin(size, device_limit_bytes_a, device_limit_bytes_b)
    return Pin("R4", "holds", size, small, None if request_tokens is None else cap(small, request_tokens), left)


def recommend_common_bytes(
    *,
    pool_bytes_a: int | None,
    pool_bytes_b: int | None,
    device_limit_bytes_a: int | None = None,
    device_limit_bytes_b: int | None = None,
) -> Pin:
    """Rule R4 for pools whose tokens cannot be compared (``kv.compared_in`` says GiB): the smaller pool in bytes, if
    the two differ by more than 5% of it. Two boots with the same bytes need no pin, whatever tokens their logs print.
    """
    missing = _missing(pool_bytes_a=pool_bytes_a, pool_bytes_b=pool_bytes_b)
    if pool_bytes_a is None or pool_bytes_b is None:
        return Pin("R4", "not_evaluable", missing=missing)
    small, large = sorted((pool_bytes_a, pool_bytes_b))
    if small <= 0:
        raise ValueError(f"KV pools of {pool_bytes_a} and {pool_bytes_b} bytes: both must be above 0")
    if large - small <= POOLS_DIFFER_FRAC * small:
        return Pin("R4", "fails")
    left = margin(small, device_limit_bytes_a, device_limit_bytes_b)
    return Pin("R4", "holds", small, None, None, left)


def margin(size: float | None, limit_a: float | None, limit_b: float | None) -> int | None:
    """Return the bytes that the tighter of two devices has left with a pool of ``size``; None unless both limits
    (vLLM's suggestion for the whole device, which leaves 150 MiB) are known."""
    if size is None or limit_a is None or limit_b is None:
        return None
    return int(min(limit_a, limit_b) + DEVICE_LIMIT_RESERVE_BYTES - size)


def _missing(**values: object) -> tuple[str, ...]:
    return tuple(name for name, value in values.items() if value is None)
