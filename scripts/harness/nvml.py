"""NVIDIA's management library through ``nvidia-ml-py``: opened lazily, silent where there is no driver."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Nvml:
    """An open NVML session. ``lib`` is the ``pynvml`` module; ``error`` says why it could not be opened, although a
    driver library is installed (``lib`` is then None)."""

    lib: Any = None
    error: str | None = None

    def ask(self, function: str, *args: Any) -> Any:
        """Call ``pynvml.function(*args)``; return None for what this hardware, driver or user cannot be told.

        A lost GPU is None too: the caller decides by ``lost``.
        """
        return self.ask_or_error(function, *args)[0]

    def ask_or_error(self, function: str, *args: Any) -> tuple[Any, str | None]:
        """Call ``pynvml.function(*args)``; return (value, None) or (None, NVML's words)."""
        call: Callable[..., Any] | None = getattr(self.lib, function, None)
        if call is None:
            return None, f"{function} is not in this nvidia-ml-py"
        try:
            return call(*args), None
        except self.lib.NVMLError as error:
            return None, str(error)

    def count(self) -> int:
        """Number of GPUs NVML knows, those this user may not open included."""
        value = self.ask("nvmlDeviceGetCount")
        return 0 if value is None else int(value)


@contextmanager
def session() -> Iterator[Nvml | None]:
    """Open NVML for the duration of a ``with``. Gives None where no NVIDIA driver is installed or loaded.

    The library is looked for before ``pynvml`` is imported: on a machine without a GPU this costs microseconds.
    """
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield None
        return
    try:
        import pynvml
    except ImportError:
        yield Nvml(error="the driver is installed but the Python package nvidia-ml-py is not")
        return
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield None
        return
    except pynvml.NVMLError as error:
        yield Nvml(error=str(error))
        return
    try:
        yield Nvml(lib=pynvml)
    finally:
        with suppress(pynvml.NVMLError):  # nothing is left to free in a library that has gone
            pynvml.nvmlShutdown()
