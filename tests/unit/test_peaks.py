"""Peaks: the table of vendors' numbers, its overrides, and measuring a CPU."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness import peaks
from scripts.harness.errors import SweepError
from tests import more_cases


def rows() -> list[dict[str, str]]:
    with peaks.TABLE.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_gpu_is_found_by_its_exact_name() -> None:
    peak = peaks.lookup("NVIDIA GeForce RTX 4090", "float16")
    assert (peak.tflop_s, peak.bandwidth_gb_s, peak.accumulate, peak.dtype) == (165.2, 1008, "fp32", "fp16")
    assert peak.label == "NVIDIA GeForce RTX 4090, FP16 dense, FP32 accumulate"
    assert peak.source.startswith("NVIDIA Ada GPU Architecture whitepaper")


@pytest.mark.parametrize(
    ("name", "dtype", "rate", "bandwidth"),
    [
        ("NVIDIA L40", "bfloat16", 181.05, 864),
        ("NVIDIA L40S", "bfloat16", 362.05, 864),
        ("NVIDIA L40S", "fp8", 733, 864),
        ("NVIDIA A100-PCIE-40GB", "half", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312, 2039),
        ("NVIDIA H100 80GB HBM3", "fp8_e4m3", 1978.9, 3350),
        ("NVIDIA H100 PCIe", "bfloat16", 756, 2000),
        ("Tesla T4", "float16", 65, 320),
        ("AMD Instinct MI300X", "bfloat16", 1307.4, 5300),
    ],
)
def test_numbers_of_the_table(name: str, dtype: str, rate: float, bandwidth: float) -> None:
    peak = peaks.lookup(name, dtype)
    assert (peak.tflop_s, peak.bandwidth_gb_s) == (rate, bandwidth)


def test_every_row_is_whole_and_no_name_is_there_twice() -> None:
    names = [row["device_name"] for row in rows()]
    assert len(names) == len(set(names)) > 25
    for row in rows():
        assert row["source"], row
        assert row["accumulate"] in {"", "fp32"}, row
        assert 50 < float(row["fp16_tflop_s"]) < 10_000, row
        assert 200 < float(row["bandwidth_gb_s"]) < 20_000, row
        assert row["bf16_tflop_s"] in {"", row["fp16_tflop_s"]}, row
        # FP8 runs at twice the FP16 rate on every card that has it, up to what the vendor rounds
        if row["fp8_tflop_s"]:
            assert float(row["fp8_tflop_s"]) == pytest.approx(2 * float(row["fp16_tflop_s"]), rel=0.015), row


def test_the_table_says_the_same_as_the_reference() -> None:
    reference = more_cases.folder("golden") / "gpu_peaks.csv"
    if not reference.exists():
        pytest.skip("MORE_CASES names no further table of peaks")
    with reference.open(newline="") as lines:
        told = {name: row for row in csv.DictReader(lines) for name in row["device_names"].split("|")}
    for row in rows():
        other = told.pop(row["device_name"])
        assert float(row["fp16_tflop_s"]) == float(other["fp16_bf16_dense_tflops"])
        assert float(row["bandwidth_gb_s"]) == float(other["bandwidth_gb_s"])
        assert bool(row["bf16_tflop_s"]) == (other["bf16"] == "yes")
        assert bool(row["accumulate"]) == (other["accumulate"] != "not stated")
    assert not told


@pytest.mark.parametrize(
    "name", ["NVIDIA H100", "nvidia l4", "NVIDIA L4 ", "NVIDIA GeForce RTX 4090 D", "GeForce RTX 4090"]
)
def test_an_unknown_gpu_is_an_error_that_says_what_to_do(name: str) -> None:
    with pytest.raises(SweepError) as caught:
        peaks.lookup(name, "bfloat16", machine_name="lab")
    text = str(caught.value)
    assert repr(name) in text
    assert "config/machines/lab.yaml" in text
    assert "peaks: {tflop_s: 123.4, bandwidth_gb_s: 567" in text


def test_similar_names_are_named_but_not_taken() -> None:
    with pytest.raises(SweepError, match=r"'NVIDIA GeForce RTX 4080', .*which are other devices"):
        peaks.lookup("NVIDIA GeForce RTX 4080 SUPER", "bfloat16")


@pytest.mark.parametrize(("name", "dtype"), [("Tesla T4", "bfloat16"), ("NVIDIA A40", "fp8"), ("NVIDIA L4", "float32")])
def test_a_type_the_vendor_gives_no_rate_for_is_an_error(name: str, dtype: str) -> None:
    with pytest.raises(SweepError, match=f"no peak is known for {dtype} arithmetic on '{name}'; .* has fp16"):
        peaks.lookup(name, dtype)


def test_an_override_wins_and_says_so() -> None:
    peak = peaks.lookup("NVIDIA Unheard Of", "bf16", {"tflop_s": 12.5, "bandwidth_gb_s": 300}, machine_name="lab")
    assert (peak.tflop_s, peak.bandwidth_gb_s, peak.dtype) == (12.5, 300.0, "bf16")
    assert (peak.label, peak.source) == ("NVIDIA Unheard Of, as configured for lab", "config/machines/lab.yaml")
    named = peaks.lookup("NVIDIA L4", "bf16", {"tflop_s": 1, "bandwidth_gb_s": 2, "label": "mine", "source": "a book"})
    assert (named.tflop_s, named.label, named.source) == (1, "mine", "a book")


def test_an_override_of_one_number_leaves_the_other_to_the_table() -> None:
    peak = peaks.lookup("NVIDIA L4", "bf16", {"bandwidth_gb_s": 280})
    assert (peak.tflop_s, peak.bandwidth_gb_s) == (121, 280)
    lacking = peaks.lookup("NVIDIA L4", "float32", {"tflop_s": 30.3})
    assert (lacking.tflop_s, lacking.bandwidth_gb_s) == (30.3, 300)
    with pytest.raises(SweepError, match="no peak is known for the GPU 'X'"):
        peaks.lookup("X", "bf16", {"tflop_s": 1})
    assert peaks.lookup("NVIDIA L4", "bf16", {"tflop_s": None}) == peaks.lookup("NVIDIA L4", "bf16")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"tflops": 1}, r"config/machines/lab\.yaml, peaks: 'tflops' is not known; use tflop_s"),
        ({"tflop_s": 0}, "tflop_s must be a number above 0, not 0"),
        ({"bandwidth_gb_s": "fast"}, "bandwidth_gb_s must be a number above 0, not 'fast'"),
        ({"tflop_s": True}, "tflop_s must be a number above 0, not True"),
    ],
)
def test_a_bad_override_is_refused(override: dict[str, Any], message: str) -> None:
    with pytest.raises(SweepError, match=message):
        peaks.lookup("NVIDIA L4", "bf16", override, machine_name="lab")


def facts(*names: str, mig: bool | None = False) -> dict[str, Any]:
    gpus = [{"index": index, "name": name, "uuid": str(index), "mig": mig} for index, name in enumerate(names)]
    return {"gpus": gpus, "cpu": {"model": "Some CPU"}}


def test_the_gpus_of_a_server_are_multiplied() -> None:
    two = peaks.of_machine(facts("NVIDIA L4", "NVIDIA L4", "Tesla T4"), "fp16", gpus=[0, 1])
    assert two is not None
    assert (two.tflop_s, two.bandwidth_gb_s) == (242, 600)
    assert two.label == "2 x NVIDIA L4, FP16 dense"
    third = peaks.of_machine(facts("NVIDIA L4", "NVIDIA L4", "Tesla T4"), "fp16", gpus=[2])
    assert third is not None
    assert third.tflop_s == 65
    assert peaks.of_machine(facts(), "fp16") is None
    cpu = peaks.of_machine(facts(), "float32", {"tflop_s": 0.5, "bandwidth_gb_s": 40}, "lab")
    assert cpu is not None
    assert cpu.label == "Some CPU, as configured for lab"


def test_unlike_missing_and_partitioned_gpus_are_refused() -> None:
    with pytest.raises(SweepError, match=r"\[0, 1\] are NVIDIA L4, Tesla T4: one peak holds only"):
        peaks.of_machine(facts("NVIDIA L4", "Tesla T4"), "fp16", gpus=[0, 1])
    with pytest.raises(SweepError, match=r"\[3\] are not there"):
        peaks.of_machine(facts("NVIDIA L4"), "fp16", gpus=[3])
    with pytest.raises(SweepError, match=r"partitioned \(MIG\)"):
        peaks.of_machine(facts("NVIDIA H100 PCIe", mig=True), "fp16")
    override = {"tflop_s": 100, "bandwidth_gb_s": 250}
    assert peaks.of_machine(facts("NVIDIA H100 PCIe", mig=True), "fp16", override) is not None


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = peaks.measure_cpu(seconds=0.0)
    details = peak.details
    assert peak.source == "measured"
    assert (peak.dtype, peak.accumulate) == ("float32", "fp32")
    assert peak.tflop_s == max(details["tflop_s"])
    assert peak.bandwidth_gb_s == max(details["bandwidth_gb_s"])
    assert len(details["tflop_s"]) == len(details["bandwidth_gb_s"]) >= 3
    assert 0.001 < peak.tflop_s < 100
    assert 0.5 < peak.bandwidth_gb_s < 5000
    assert f"{details['cores']} logical cores" in peak.label
    monkeypatch.setattr(peaks.sys, "executable", "/bin/false")
    with pytest.raises(SweepError, match=r"measuring the CPU's peaks failed \(status 1\)"):
        peaks.measure_cpu(seconds=0.0)


def test_threads_start_together_and_return_in_order() -> None:
    took, results = peaks._in_threads([lambda n=n: n * n for n in range(5)])
    assert results == [0, 1, 4, 9, 16]
    assert took >= 0


def test_the_door(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert peaks.main(["--device", "NVIDIA L4", "--dtype", "fp8"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tflop_s"] == 242.5
    assert peaks.Peak(**printed) == peaks.lookup("NVIDIA L4", "fp8")
    assert peaks.main(["--device", "NVIDIA L"]) == 1
    assert capsys.readouterr().err.startswith("error: no peak is known for the GPU 'NVIDIA L'")
