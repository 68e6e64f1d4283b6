"""A made-up /proc and /sys: processes with CPU times in ticks, and the pages beside them."""

import shutil
from pathlib import Path

TICK_S = 0.01


class FakeProc:
    """Files below ``root`` as the kernel writes them; times are in ticks of 10 ms."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def task(self, pid: int, name: str, parent: int, used: int, reaped: int = 0, started: int = 100) -> None:
        """``used`` and ``reaped`` are half user, half system time."""
        times = f"{used - used // 2} {used // 2} {reaped - reaped // 2} {reaped // 2}"
        rest = f"S {parent} {pid} {pid} 0 -1 4194560 9 0 0 0 {times} 20 0 1 0 {started} 1000000 50 184467440737"
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {rest}\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / "proc" / str(pid))

    def stat(self, busy: int, running: int = 1, cores: tuple[int, ...] = ()) -> None:
        """``busy`` ticks of all cores, or of each of ``cores``."""
        each = [f"cpu{n} {ticks} 0 0 1000 0 7 7 0 0 0\n" for n, ticks in enumerate(cores)]
        self.write("proc/stat", f"cpu  {busy} 0 0 1000 0 70 70 0 0 0\n{''.join(each)}ctxt 5\nprocs_running {running}\n")

    def pressure(self, what: str, some_us: int, full_us: int) -> None:
        averages = "avg10=0.00 avg60=0.00 avg300=0.00"
        self.write(f"proc/pressure/{what}", f"some {averages} total={some_us}\nfull {averages} total={full_us}\n")
