"""The machine's facts, name and fitness, from made-up system files and from this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.harness import machine
from scripts.harness.errors import SweepError

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def processor(number: int, core: int, socket: int, model: str = "Intel(R) Core(TM) i7-13700K CPU @ 3.40GHz") -> str:
    return (
        f"processor\t: {number}\nmodel name\t: {model}\nphysical id\t: {socket}\ncore id\t\t: {core}\n"
        "flags\t\t: fpu vme avx2\n"
    )


@pytest.fixture
def intel(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "proc/cpuinfo": "\n".join(processor(n, n // 2, 0) for n in range(4)),
            "proc/meminfo": "MemTotal:       65536000 kB\nMemFree:         1000 kB\n",
            "etc/machine-id": "00112233445566778899aabbccddeeff\n",
            "etc/os-release": 'NAME="Fedora Linux"\nPRETTY_NAME="Fedora Linux 42 (Server)"\n',
            "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "5400000\n",
        },
    )


def gpu(name: str, uuid: str | None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "name": name, "uuid": uuid}


def facts(*gpus: dict[str, Any], model: str | None = "AMD EPYC 9354 32-Core Processor") -> dict[str, Any]:
    cpu = {"model": model, "logical": 64}
    return {"gpus": list(gpus), "cpu": cpu, "architecture": "x86_64", "id_hash": "0a" * 8}


def test_facts_of_a_machine_without_gpu(intel: Path) -> None:
    found = machine.describe(intel)
    cpu = found["cpu"]
    assert cpu["model"] == "Intel(R) Core(TM) i7-13700K CPU @ 3.40GHz"
    assert (cpu["logical"], cpu["physical"], cpu["sockets"], cpu["max_mhz"]) == (4, 2, 1, 5400.0)
    assert found["memory_total_bytes"] == 65536000 * 1024
    assert found["os"] == "Fedora Linux 42 (Server)"
    assert found["virtual"] is False
    assert found["hypervisor"] is None
    assert found["cgroup"] == {"cpus": None, "memory_bytes": None}


def test_facts_hold_no_host_name_no_user_no_path_no_machine_id(intel: Path) -> None:
    text = json.dumps(machine.describe(intel))
    assert "00112233445566778899aabbccddeeff" not in text
    assert str(intel) not in text
    assert os.uname().nodename not in text
    assert json.loads(text) == machine.describe(intel)


def test_what_the_system_does_not_say_is_null(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    assert found["memory_total_bytes"] is None
    assert found["id_hash"] is None
    assert found["virtual"] is None
    assert (found["cpu"]["model"], found["cpu"]["physical"], found["cpu"]["max_mhz"]) == (None, None, None)


@pytest.mark.parametrize("text", ["", "uninitialized\n", "0011\n"])
def test_a_machine_id_that_is_none_is_null(intel: Path, text: str) -> None:
    write(intel, {"etc/machine-id": text})
    assert machine.describe(intel)["id_hash"] is None


def test_arm_cores_are_known_by_implementer_and_part(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"})
    assert machine.describe(tmp_path)["cpu"]["model"].endswith("implementer 0x41 part 0xd4f")


def test_a_hypervisor_is_named_by_its_vendor(intel: Path) -> None:
    write(
        intel, {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}
    )
    found = machine.describe(intel)
    assert (found["virtual"], found["hypervisor"]) == (True, "QEMU")


def test_cgroup_v2_takes_the_tightest_limit_of_all_parents(intel: Path) -> None:
    write(
        intel,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/user.slice/job/memory.max": f"{6 * GIB}\n",
        },
    )
    assert machine.describe(intel)["cgroup"] == {"cpus": 1.5, "memory_bytes": 6 * GIB}


def test_cgroup_v1_reads_quota_and_limit_and_knows_no_limit(intel: Path) -> None:
    groups = "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n"
    write(
        intel,
        {
            "proc/self/cgroup": groups,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert machine.describe(intel)["cgroup"] == {"cpus": 2.0, "memory_bytes": None}
    write(intel, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n"})
    assert machine.describe(intel)["cgroup"] == {"cpus": None, "memory_bytes": 4096}


def test_names_are_the_slug_and_a_stable_hash() -> None:
    one = machine.fingerprint(facts(gpu("NVIDIA GeForce RTX 4090", "GPU-aa")))
    assert one == "nvidia-geforce-rtx-4090-7243e673"
    two = machine.fingerprint(facts(gpu("NVIDIA L4", "GPU-a"), gpu("NVIDIA L4", "GPU-b", 1)))
    assert two.startswith("2x-nvidia-l4-")
    mixed = machine.fingerprint(facts(gpu("NVIDIA L4", "GPU-a"), gpu("Tesla T4", "GPU-b", 1)))
    assert mixed.startswith("1x-nvidia-l4-1x-tesla-t4-")
    assert machine.fingerprint(facts()).startswith("amd-epyc-9354-")
    assert machine.fingerprint(facts(model="Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz")).startswith(
        "intel-xeon-gold-6338-"
    )
    assert all(machine.NAME_PATTERN.fullmatch(text) for text in (one, two, mixed))


def test_the_order_of_gpus_does_not_change_the_name() -> None:
    forward = facts(gpu("NVIDIA L4", "GPU-a", 0), gpu("NVIDIA L4", "GPU-b", 1))
    backward = facts(gpu("NVIDIA L4", "GPU-b", 0), gpu("NVIDIA L4", "GPU-a", 1))
    assert machine.fingerprint(forward) == machine.fingerprint(backward)


def test_another_card_or_machine_has_another_name() -> None:
    names = {
        machine.fingerprint(facts(gpu("NVIDIA L4", "GPU-a"))),
        machine.fingerprint(facts(gpu("NVIDIA L4", "GPU-b"))),
        machine.fingerprint(facts()),
        machine.fingerprint(facts() | {"id_hash": "0b" * 8}),
        machine.fingerprint(facts() | {"id_hash": None}),
        machine.fingerprint(facts() | {"cpu": {"model": "AMD EPYC 9354 32-Core Processor", "logical": 32}}),
        machine.fingerprint(facts(gpu("NVIDIA L4", None))),
    }
    assert len(names) == 7


def test_identity_is_enough_for_the_name(intel: Path) -> None:
    assert machine.fingerprint(machine.identity(intel)) == machine.fingerprint(machine.describe(intel))
    assert machine.fingerprint(machine.identity()) == machine.fingerprint(machine.describe())


def test_a_configured_name_is_honoured() -> None:
    here = facts(gpu("NVIDIA L4", "GPU-a"))
    own = machine.fingerprint(here)
    machines = {"lab-left": {"fingerprint": own}, "lab-right": {"fingerprint": "other"}, "unbound": {}}
    assert machine.name(machines, facts=here) == "lab-left"
    assert machine.name({}, facts=here) == own
    assert machine.name(None, facts=here) == own
    assert machine.name(machines, explicit="desk", facts=here) == "desk"


def test_bad_names_are_refused_with_a_proposal() -> None:
    with pytest.raises(SweepError, match=r"'My_Desk' cannot name a machine; use a-z.*'my-desk'"):
        machine.name(explicit="My_Desk")
    here = facts(gpu("NVIDIA L4", "GPU-a"))
    own = machine.fingerprint(here)
    with pytest.raises(SweepError, match=r"claimed by 2 files in config/machines: a, b"):
        machine.name({"b": {"fingerprint": own}, "a": {"fingerprint": own}}, facts=here)
    with pytest.raises(SweepError, match=r"config/machines/Lab 1\.yaml"):
        machine.name({"Lab 1": {"fingerprint": own}}, facts=here)


def test_free_disk_is_asked_where_the_folder_will_be(tmp_path: Path) -> None:
    free = machine.free_disk_bytes(tmp_path / "not" / "yet" / "there")
    stat = os.statvfs(tmp_path)
    assert abs(free - stat.f_bavail * stat.f_frsize) < GIB


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 700));"
        "from scripts.harness import machine; print(machine.fd_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["700", "(700, 700)\n"]


def test_load_average_has_three_values() -> None:
    load = machine.load_average()
    assert load is not None
    assert len(load) == 3
    assert min(load) >= 0


def test_only_the_standard_library_is_imported() -> None:
    code = "import sys; from scripts.harness import machine; machine.name(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "scripts.harness.machine" in loaded
    assert not loaded & {"numpy", "pandas", "pyarrow", "psutil", "yaml"}


def test_the_door_prints_name_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.main([]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["machine"] == machine.name()
    assert printed["facts"] == machine.describe()
