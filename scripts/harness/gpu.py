"""Whether the GPUs a server is about to use are free."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from scripts.harness import machine
from scripts.harness.errors import SweepError

WAIT_S = 30.0
"""Time a process that is ending may take to give its memory back, seconds."""


def visible(environment: Mapping[str, str]) -> set[int] | None:
    """Return the indices ``CUDA_VISIBLE_DEVICES`` names; None when it is not set or names GPUs in another way."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return {int(part) for part in parts} if all(part.isdigit() for part in parts) else None


def wait_until_free(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    busy: Callable[[], list[Any]] = machine.gpu_busy,
    wait_s: float = WAIT_S,
) -> None:
    """Wait until no process computes on the GPUs the server will see, so that its memory profile is its own.

    Raises SweepError, naming the processes, when they are not free within ``wait_s`` seconds. No GPU: returns at once.
    """
    chosen = visible(environment)
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        found = [one for one in busy() if one.kind == "compute" and (chosen is None or one.gpu in chosen)]
        if not found:
            return
        names = ", ".join(_named(one) for one in found)
        if time.monotonic() >= deadline:
            raise SweepError(
                f"the GPU is not free: {names}; end that process, or choose another GPU with CUDA_VISIBLE_DEVICES in "
                "server.environment"
            )
        if not told:
            say(f"waiting for the GPU to be free: {names}")
            told = True
        time.sleep(0.5)


def _named(one: Any) -> str:
    memory = "" if one.memory_bytes is None else f", {one.memory_bytes / 2**30:.1f} GiB"
    name = "name unknown" if one.name is None else one.name
    return f"GPU {one.gpu}: process {one.pid} ({name}{memory})"
