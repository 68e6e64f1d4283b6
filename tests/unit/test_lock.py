"""Locks: exclusive between processes, dropped by the kernel with their holder."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from scripts.harness.lock import Lock, clear_stale_workflow_lock

HOLD = "import sys, time; from pathlib import Path; from scripts.harness.lock import Lock; "
HOLD += "lock = Lock(Path(sys.argv[1]), 'holder'); lock.acquire(); print('held', flush=True); time.sleep(60)"


def hold(path: Path) -> "subprocess.Popen[str]":
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_lock_that_is_held_is_not_given_and_says_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = hold(path)
    try:
        told: list[str] = []
        assert Lock(path, "second").acquire(lambda: False, told.append) is False
        assert told == [f"process {child.pid} (holder)"]
    finally:
        child.kill()
        child.wait()


def test_a_killed_holder_drops_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = hold(path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    lock = Lock(path, "next")
    deadline = time.monotonic() + 10
    assert lock.acquire(lambda: time.monotonic() < deadline) is True
    lock.release()


def test_a_released_lock_can_be_taken_again_and_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path, "first") as lock:
        assert "(first)" in lock.holder()
    assert Lock(path, "x").holder() == "another process"
    with Lock(path, "second") as lock:
        assert "(second)" in lock.holder()


def test_a_lock_file_that_was_removed_meanwhile_does_not_let_two_in(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = Lock(path, "first")
    first.acquire()
    path.unlink()
    second = Lock(path, "second")
    assert second.acquire(lambda: False) is True  # a new file: the first holder's is gone for good
    third = Lock(path, "third")
    assert third.acquire(lambda: False) is False
    second.release()
    first.release()


def test_what_a_killed_run_left_is_cleared_and_a_living_runs_lock_is_not(tmp_path: Path) -> None:
    locks = tmp_path / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").write_text("")
    child = hold(tmp_path / ".snakemake/run.lock")
    assert clear_stale_workflow_lock(tmp_path) is False
    assert (locks / "0.input.lock").exists()
    child.kill()
    child.wait()
    assert clear_stale_workflow_lock(tmp_path) is True
    assert not list(locks.iterdir())
