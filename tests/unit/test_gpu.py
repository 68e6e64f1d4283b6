"""Before a server starts, the GPUs it will see have to be free."""

from typing import Any

import pytest

from scripts.harness import gpu
from scripts.harness.errors import SweepError
from scripts.harness.machine import GpuProcess

OTHER = GpuProcess(0, 4711, "compute", "python", 10 * 2**30)
DESKTOP = GpuProcess(0, 12, "graphics", "Xorg", None)


def sequence(*answers: list[GpuProcess]) -> Any:
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_a_machine_without_a_gpu_or_with_a_desktop_only_is_free() -> None:
    gpu.wait_until_free({}, pytest.fail, sequence([]))
    gpu.wait_until_free({}, pytest.fail, sequence([DESKTOP]))


def test_a_process_that_ends_is_waited_for() -> None:
    said: list[str] = []
    gpu.wait_until_free({}, said.append, sequence([OTHER], [OTHER], []))
    assert said == ["waiting for the GPU to be free: GPU 0: process 4711 (python, 10.0 GiB)"]


def test_a_process_that_stays_is_named() -> None:
    with pytest.raises(SweepError, match=r"the GPU is not free: GPU 0: process 4711 \(python, 10\.0 GiB\)"):
        gpu.wait_until_free({}, lambda text: None, sequence([OTHER]), wait_s=0)


def test_a_gpu_the_server_does_not_see_may_be_busy() -> None:
    gpu.wait_until_free({"CUDA_VISIBLE_DEVICES": "1, 2"}, pytest.fail, sequence([OTHER]))
    with pytest.raises(SweepError):
        gpu.wait_until_free({"CUDA_VISIBLE_DEVICES": "0"}, lambda text: None, sequence([OTHER]), wait_s=0)
    assert gpu.visible({"CUDA_VISIBLE_DEVICES": "GPU-1a2b"}) is None
