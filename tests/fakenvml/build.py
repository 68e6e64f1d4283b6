"""Compile the stand-in library and point a child process at it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
PROJECT = Path(__file__).parents[2]


def compiler() -> list[str] | None:
    """Return the command of a C compiler, or None."""
    for name in (os.environ.get("CC", "cc"), "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def build(folder: Path, *flags: str) -> Path:
    """Compile ``libnvidia-ml.so.1`` into ``folder`` and return it."""
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler: neither cc nor the Python package ziglang is installed")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([*command, "-shared", "-fPIC", "-O1", *flags, "-o", str(target), str(SOURCE)], check=True)
    return target


def environment(library: Path, script: Path) -> dict[str, str]:
    """Return the environment in which a child process loads ``library`` and gets the answers of ``script``."""
    return os.environ | {
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML": str(script),
        "PYTHONPATH": str(PROJECT),
    }
