"""What every measuring rule's script shares: words for the terminal and the log, one sentence for a mistake."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.harness.errors import SweepError


@contextmanager
def job(log: str) -> Iterator[Callable[[str], None]]:
    """Give a rule's body a way to say things: to standard error and, with the time, to the rule's log.

    A SweepError ends the script with its sentence and status 1, without a traceback.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def say(text: str) -> None:
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            file.flush()
            print(f"  {text}", file=sys.stderr, flush=True)

        try:
            yield say
        except SweepError as error:
            file.write(f"{time.strftime('%H:%M:%S')} error: {error}\n")
            print(f"error: {error}", file=sys.stderr, flush=True)
            sys.exit(1)
