"""A progress bar of one line where there is a terminal, plain lines from time to time where there is none."""

import sys
import time
from typing import TextIO

from scripts.harness.load.spec import Progress

LINE_EVERY_S = 10.0
BAR_WIDTH = 24


class Bar:
    """Shows a level: its name, requests done, tokens a second, time left. Use it as ``on_progress`` of a load.

    >>> with Bar("demo c4") as bar:  # doctest: +SKIP
    ...     load.run(spec, out, on_progress=bar)
    """

    def __init__(self, label: str, stream: TextIO | None = None, terminal: bool | None = None) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty() if terminal is None else terminal
        self._shown = 0
        self._last: tuple[str, float] | None = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, progress: Progress) -> None:
        """Show how far the load is."""
        if self._terminal:
            text = describe(self._label, progress, bar=True)
            self._stream.write("\r" + text + " " * max(0, self._shown - len(text)))
            self._shown = len(text)
            self._stream.flush()
            return
        now = time.monotonic()
        if self._last is None or self._last[0] != progress.phase or now - self._last[1] >= LINE_EVERY_S:
            self._last = (progress.phase, now)
            self._stream.write(describe(self._label, progress, bar=False) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the line as it is and go to the next."""
        if self._terminal and self._shown:
            self._stream.write("\n")
            self._stream.flush()
            self._shown = 0


def seconds_left(progress: Progress) -> float | None:
    """Return the time left at the pace so far; None as long as there is no pace.

    A request in flight counts as half done: otherwise the estimate jumps with every wave.
    """
    equivalent = progress.done + progress.in_flight / 2
    if progress.phase not in ("warmup", "load") or progress.done < 1 or progress.elapsed_s <= 0:
        return None
    return max(0.0, (progress.total - equivalent) * progress.elapsed_s / equivalent)


def describe(label: str, progress: Progress, bar: bool) -> str:
    """Return one line of text."""
    if progress.phase in ("starting", "converting"):
        return f"{label}  {progress.phase} …"
    share = progress.done / progress.total if progress.total else 0.0
    filled = int(BAR_WIDTH * share)
    parts = [label]
    if progress.phase == "warmup":
        parts.append("warm-up")
    if bar:
        parts.append("█" * filled + "·" * (BAR_WIDTH - filled))
    parts.append(f"{progress.done}/{progress.total} requests")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    parts.append(f"{progress.tok_s:,.{0 if progress.tok_s >= 10 or not progress.tok_s else 1}f} tok/s")
    left = seconds_left(progress)
    if left is not None and progress.done < progress.total:
        parts.append(f"{_clock(left)} left")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
