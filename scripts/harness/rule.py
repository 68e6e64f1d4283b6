"""What every measuring rule's script shares: words for the terminal and the log, one sentence for a mistake."""

import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.harness import process
from scripts.harness.errors import SweepError

DISK_SAYS_NO = {
    errno.ENOSPC: "free some space, or put results on a larger disk",
    errno.EDQUOT: "free some of your quota, or put results elsewhere",
    errno.EROFS: "put results where they can be written",
    errno.EACCES: "give yourself write permission there",
    errno.EMFILE: "raise the limit of open files with `ulimit -n 4096`",
}
"""What to do about what the system refuses, whatever rule meets it."""

ABANDONED_S = 3.0
"""Time a job may take to end by itself after the run's owner is gone, seconds."""


class _WithoutPandas:
    """An import finder that has no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse pandas; leave everything else to the finders after this one."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=name)


def keep_pandas_out() -> None:
    """Keep pyarrow from importing pandas, which it does to build any array and which takes half a second.

    For the main block of scripts that never use pandas; an ``import pandas`` in this process fails from here on.
    """
    sys.meta_path.insert(0, _WithoutPandas())


@contextmanager
def job(log: str) -> Iterator[Callable[[str], None]]:
    """Give a rule's body a way to say things: to standard error and, with the time, to the rule's log.

    A SweepError, a refusal of the file system, a damaged file and Ctrl-C end the script with one sentence and a status
    that is not 0; a traceback there is, if any, goes to the log.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:

        def note(text: str) -> None:
            with suppress(OSError):  # a full disk takes no word: the terminal still does
                file.write(f"{time.strftime('%H:%M:%S')} {text}\n".encode())

        def say(text: str) -> None:
            note(text)
            print(f"  {text}", file=sys.stderr, flush=True)

        watch = process.watch(process.owner(), _abandoned)
        try:
            yield say
        except KeyboardInterrupt:
            note(f"broken off by Ctrl-C\n{traceback.format_exc()}")
            sys.exit(130)
        except (SweepError, OSError, ValueError) as error:
            text = _sentence(error)
            if text is None:
                raise
            if not isinstance(error, SweepError):
                note(traceback.format_exc())
            note(f"error: {text}")
            print(f"error: {text}", file=sys.stderr, flush=True)
            sys.exit(1)
        finally:
            watch.set()


def _abandoned() -> None:
    """The run's owner is gone, by SIGKILL perhaps: so is this job, once a measurement has kept what it has."""
    time.sleep(ABANDONED_S)
    os._exit(143)


def _sentence(error: Exception) -> str | None:
    """Return what to tell of an error that is not the program's own, None for one that is."""
    if isinstance(error, SweepError):
        return str(error)
    if isinstance(error, OSError):
        if error.errno not in DISK_SAYS_NO:
            return None
        return f"{error.strerror} ({error.filename or Path('results').absolute()}); {DISK_SAYS_NO[error.errno]}"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) or type(error).__name__ == "ArrowInvalid":
        return (
            f"a file cannot be read ({error}); `make verify` names it where it was measured, "
            "`make clean` drops what was computed"
        )
    return None
