"""Bad input: one clear sentence, a non-zero exit, nothing lost and nothing left running."""

import copy
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import ROUND, Project

DIES = "import sys; print('loading the weights'); print('error: the weights are damaged', file=sys.stderr); sys.exit(3)"
NEVER = "import time; print('still loading', flush=True); time.sleep(600)"
UNAVAILABLE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503); self.end_headers(); self.wfile.write(b'{"error": "unavailable"}')
    do_POST = do_GET
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def changed(path: str, value: Any) -> dict[str, Any]:
    settings = copy.deepcopy(ROUND)
    target: Any = settings["sweeps"]["llama_cpp"]
    *parents, last = path.split("/")
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return settings


def refused(project: Project, *words: str) -> str:
    done = project.run("all", timeout=120)
    assert done.returncode != 0, done.stdout
    for word in words:
        assert word in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    assert project.gone(5.0) == []
    return done.stdout


def binary(project: Project, text: str) -> str:
    path = project.root / "server-binary"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("load/levls", [1], "did you mean 'levels'"),
        ("load/levels", [0, 1], "load.levels.0: expected at least 1, found 0"),
        ("load/levels", [2, 2], "expected every entry once"),
        ("server/model", "models/none.gguf", "the model file models/none.gguf does not exist"),
        (
            "server/arguments",
            {"ctx-size": 64, "parallel": 1, "kv-unified": True, "nonsense": 1},
            "no option 'nonsense'",
        ),
        ("workload/input_tokens", 4000, "a slot's context is"),
        ("limits/free_disk_mb", 1e12, "limits.free_disk_mb"),
    ],
)
def test_a_mistake_in_a_round_is_one_sentence(project: Project, path: str, value: Any, words: str) -> None:
    settings = changed(path, value)
    if path == "workload/input_tokens":
        settings["sweeps"]["llama_cpp"]["server"]["arguments"] = {"ctx-size": 1024}
    project.round(settings)
    refused(project, words)


def test_a_mistake_in_the_configuration_is_one_sentence(project: Project) -> None:
    project.configure(raports={})
    refused(project, "unknown key 'raports'")


def test_a_file_that_is_no_gguf_is_named(project: Project) -> None:
    (project.root / "model.gguf").write_text("not a model")
    project.round(changed("server/model", "model.gguf"))
    refused(project, "model.gguf is not a GGUF file")


def test_a_damaged_gguf_is_explained_with_the_servers_words(project: Project) -> None:
    from scripts.harness import plan

    bundled = plan.bundled_model()
    assert bundled is not None
    (project.root / "cut.gguf").write_bytes(bundled.read_bytes()[:2_000_000])
    project.round(changed("server/model", "cut.gguf"))
    refused(project, "the server ended before it was ready", "last lines of")


@pytest.mark.parametrize("length", [8, 500])
def test_a_gguf_that_ends_in_its_header_is_explained(project: Project, length: int) -> None:
    from scripts.harness import plan

    bundled = plan.bundled_model()
    assert bundled is not None
    (project.root / "cut.gguf").write_bytes(bundled.read_bytes()[:length])
    project.round(changed("server/model", "cut.gguf"))
    refused(project, "the server ended before it was ready", "model_file_corrupt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"parallel": "x"}, "arguments.parallel: expected a whole number, found 'x'"),
        ({"ctx-size": True}, "arguments.ctx-size: expected a whole number, found True"),
        ({"threads": {"a": 1}}, "arguments.threads: expected one value"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(arguments: dict[str, Any], words: str) -> None:
    from scripts.harness.engines.llama_cpp import LlamaCppEngine
    from scripts.harness.errors import SweepError

    workload = {"input_tokens": 16, "output_tokens": 8}
    with pytest.raises(SweepError, match=words):
        LlamaCppEngine().resolve({"model": "bundled", "arguments": arguments}, workload, [1, 2])
    empty = {"model": "bundled", "arguments": {"parallel": None, "ctx-size": None}}
    assert LlamaCppEngine().resolve(empty, workload, [1, 2])["slots"] == 2


@pytest.mark.parametrize("content", [b"", b"- small\n", b"rounds: [small]\nrounds: [other]\n", b"\xff\xfe"])
def test_a_configuration_that_is_none_is_one_sentence(project: Project, content: bytes) -> None:
    (project.root / "config/config.yaml").write_bytes(content)
    refused(project, "config.yaml")


def test_a_python_in_a_folder_with_blanks_runs_every_rule(project: Project, tmp_path: Path) -> None:
    venv = tmp_path / "a folder with blanks/.venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    (venv / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}").mkdir(parents=True)
    (venv / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages").symlink_to(packages)
    machine = next((project.root / "config/machines").glob("*.yaml")).stem
    target = f"results/raw/{machine}/small/peaks.json"
    command = [str(venv / "bin/python"), "-m", "snakemake", "--cores", "1", target]
    done = subprocess.run(
        command, cwd=project.root, capture_output=True, text=True, env=project.environment(), timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project.root / target).exists()


def test_a_port_that_is_taken_is_named_with_its_process(project: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        project.round(changed("server/port", port))
        refused(project, f"port {port} of 127.0.0.1 is taken", f"process {os.getpid()}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DIES, ("the server ended before it was ready", "the weights are damaged")),
        (NEVER, ("was not ready within limits.ready_s = 3 s", "still loading")),
        (UNAVAILABLE, ("was not ready within limits.ready_s = 3 s",)),
    ],
    ids=["dies", "never-ready", "always-503"],
)
def test_a_server_that_does_not_start_is_explained(project: Project, text: str, words: tuple[str, ...]) -> None:
    settings = changed("server/binary", binary(project, text))
    settings["sweeps"]["llama_cpp"]["limits"]["ready_s"] = 3
    project.round(settings)
    refused(project, *words)


def test_a_binary_that_is_not_there_is_named(project: Project) -> None:
    project.round(changed("server/binary", "/nonexistent/llama-server"))
    refused(project, "server.binary: /nonexistent/llama-server is not there")


def test_a_round_that_needs_another_gpu_is_refused_before_anything_starts(project: Project) -> None:
    project.round({**ROUND, "requires_gpu": "NVIDIA Imaginary 9000"})
    refused(project, "this round needs the GPU 'NVIDIA Imaginary 9000'")


def test_too_few_file_descriptors_are_refused_with_the_number_needed(project: Project) -> None:
    project.round(changed("load/levels", [200]))
    limited = "import os, resource, sys; "
    limited += "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", limited, sys.executable, "-m", "snakemake", "--cores", "1", "all"]
    done = subprocess.run(
        command, cwd=project.root, capture_output=True, text=True, env=project.environment(), timeout=120, check=False
    )
    assert done.returncode != 0
    assert "concurrency 200 needs 528 file descriptors, the limit is 256" in done.stdout + done.stderr


def test_results_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    from scripts.harness import wiring
    from scripts.harness.errors import SweepError

    for name in ("results/raw", "results/metrics", ".snakemake"):
        (tmp_path / name).mkdir(parents=True)
    wiring.check_writable(tmp_path)
    for name in ("results", "metrics", ".snakemake", "raw"):
        refuse: Callable[[Path, int], bool] = lambda path, mode, name=name: path.name != name  # type: ignore[misc]  # noqa: E731
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "access", refuse)
            if name == "raw":
                wiring.check_writable(tmp_path)  # what was measured may be read-only: it is read
                continue
            with pytest.raises(SweepError, match=f"{name} is not writable for you"):
                wiring.check_writable(tmp_path)
