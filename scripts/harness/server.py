"""The server's life as a measuring job sees it: boot one, attach to the one that runs, end it."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.harness import engines, gpu, process, supervisor, tls
from scripts.harness.engines.base import Engine
from scripts.harness.errors import SweepError
from scripts.harness.load.secrets import scrub_text, secrets_of
from scripts.harness.lock import MACHINE_LOCK, Lock
from scripts.harness.startup_log.common import redact_log

HOST = "127.0.0.1"
GRACE_S = 2.0
TAIL_LINES = 15


@dataclass(frozen=True)
class Wanted:
    """The server a measuring job needs.

    ``identity`` is ``plan.server_identity``; ``levels`` are all levels of the sweep, which a fresh boot is made to fit;
    ``level`` is the one at hand, which a running server has to fit.
    """

    machine: str
    round: str
    sweep: str
    engine: str
    identity: str
    server: Mapping[str, Any]
    workload: Mapping[str, Any]
    levels: tuple[int, ...]
    level: int | None
    ready_s: float


@dataclass(frozen=True)
class Places:
    """Where things lie: ``runtime`` holds the running server's state, ``logs`` keeps every server's full output."""

    root: Path
    runtime: Path
    logs: Path

    @classmethod
    def of(cls, root: Path) -> "Places":
        """Return the places of a project folder, created where they do not exist."""
        places = cls(root, root / ".server", root / "logs/server")
        for folder in (places.runtime, places.logs):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SweepError(
                    f"{folder} cannot be created: {error.strerror}; make the project's folder writable"
                ) from None
        return places

    @property
    def record(self) -> Path:
        """Boot record of the server that runs, or ran last."""
        return self.runtime / "boot.json"

    @property
    def state(self) -> Path:
        """State the supervisor writes."""
        return self.runtime / "state.json"


def project_revision(root: Path) -> dict[str, Any]:
    """Return the revision of the project's files and whether they are unchanged; nulls where git cannot say."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    revision = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"revision": revision, "clean": None if revision is None or changed is None else changed == ""}


def running(places: Places) -> dict[str, Any] | None:
    """Return the boot record of the server that runs now, or None."""
    state = supervisor.read_state(places.state)
    if state.get("status") != "running" or not _lives(state):
        return None
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # none yet, or damaged
        record: dict[str, Any] = json.loads(places.record.read_text(encoding="utf-8"))
        if record["token"] == state["token"]:
            return record
    return None


def _lives(state: Mapping[str, Any]) -> bool:
    try:
        return "supervisor" in state and process.Identity.parse(str(state["supervisor"])).alive()
    except ValueError:  # a damaged file
        return False


def stop(places: Places, timeout_s: float = 30.0) -> None:
    """End the server of this checkout, if one runs, and wait until it and its supervisor are gone."""
    state = supervisor.read_state(places.state)
    if not _lives(state):
        end_orphans(places)
        return
    identity = process.Identity.parse(str(state["supervisor"]))
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(ProcessLookupError):
        os.kill(identity.pid, 15)
    while identity.alive():
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, 9)
        time.sleep(0.05)
    process.end_all(str(state["token"]), GRACE_S)


def end_orphans(places: Places) -> None:
    """End what is left of a server whose supervisor and watchdog are gone: children outlive it even then."""
    state = supervisor.read_state(places.state)
    if "token" in state and not _lives(state):
        process.end_all(str(state["token"]), GRACE_S)


def died(places: Places, record: Mapping[str, Any]) -> str | None:
    """Return one sentence when the server of a boot record no longer runs, else None."""
    state = supervisor.read_state(places.state)
    if state.get("token") != record["token"]:
        return "the server was replaced by another one while it was measured"
    if state.get("status") == "exited":
        return failure(engines.get(record["engine"]), Path(str(record["output"])), state.get("returncode"))
    if not _lives(state) or state.get("status") in ("ending", "ended"):
        return "the server's supervisor was ended while the server was measured"
    return None


def failure(engine: Engine, output: Path, returncode: int | None) -> str:
    """Say why a server ended: reason, advice, the last lines of its log and where the whole log is."""
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    reason = engine.explain_failure(text, returncode)
    tail = "\n".join(f"    {line}" for line in text.splitlines()[-TAIL_LINES:])
    said = reason.sentence if reason.sentence.endswith((".", "!", "?")) else f"{reason.sentence}."
    advice = f" {reason.advice}" if reason.advice else ""
    return f"{said}{advice} [{reason.code}]\n  last lines of {output}:\n{tail}"


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raise SweepError when somebody listens on the port, naming the process where it can be seen."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise SweepError(
                f"port {port} of {HOST} is taken{_listener(port)} ({error.strerror}); "
                "end that process, or set server.port to a free port or to null"
            ) from None


def _listener(port: int) -> str:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def boot(wanted: Wanted, places: Places, say: Callable[[str], None]) -> dict[str, Any]:
    """End whatever server of this checkout runs, start the wanted one, wait until it is ready, return its boot record.

    The record and the startup log (what the server printed until it was ready) are left in ``places.runtime`` as
    boot.json and startup.log. Raises SweepError with the reason when the server cannot start.
    """
    stop(places)
    engine = engines.get(wanted.engine)
    resolved = engine.resolve(wanted.server, wanted.workload, wanted.levels)
    boot_id = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + uuid.uuid4().hex[:6]
    token = uuid.uuid4().hex
    output = places.logs / wanted.machine / wanted.round / wanted.sweep / f"{boot_id}.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    port = wanted.server.get("port")
    if port is not None and not engine.attaches_only:
        check_port(int(port))
    port = int(port) if port is not None else free_port()
    base_url = engine.base_url(resolved, HOST, port)
    record: dict[str, Any] = {
        "boot_id": boot_id,
        "token": token,
        "machine": wanted.machine,
        "round": wanted.round,
        "sweep": wanted.sweep,
        "engine": wanted.engine,
        "identity": wanted.identity,
        "max_level": max(wanted.levels),
        "resolved": resolved,
        "host": HOST,
        "port": port,
        "base_url": base_url,
        "output": str(output.relative_to(places.root)),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "project": project_revision(places.root),
    }
    begun = time.monotonic()
    if engine.attaches_only:
        say(f"attaching to the server at {base_url}")
        record |= {"command": None, "environment": {}}
    else:
        command = engine.command(resolved, HOST, port)
        record |= {"command": list(command.argv), "environment": dict(command.env)}
        if engine.uses_gpu(resolved):
            gpu.wait_until_free({**os.environ, **command.env}, say)
        handed = {name: os.environ[name] for name in command.secret_env if name in os.environ}
        say(f"starting {wanted.engine} on {HOST}:{port}, output in {record['output']}")
        places.state.unlink(missing_ok=True)
        spec = supervisor.Spec(
            argv=list(command.argv),
            environment={**_plain_environment(), **command.env, **handed},
            cwd=command.cwd or str(places.root),
            token=token,
            owner=str(process.owner()),
            output=str(output),
            state=str(places.state),
            lock=str(MACHINE_LOCK),
            purpose=f"{wanted.round}/{wanted.sweep}",
            grace_s=GRACE_S,
        )
        supervisor_identity = supervisor.start(spec)
        _wait_for_machine(places, supervisor_identity, say)
        begun = time.monotonic()
    try:
        record["model_shape"] = _model_shape(resolved, places.root)  # while the server loads
        record["model"] = _wait_ready(engine, record, places, output, wanted.ready_s, say)
        once = _once(places, say)
        found = engine.survey(base_url, resolved, wanted.workload, record["model"], once)
        record["resolved"] = resolved = {**resolved, **found}
    except BaseException:
        if not engine.attaches_only:
            stop(places)
        raise
    record["ready_s"] = round(time.monotonic() - begun, 3)
    text = _startup_text(engine, resolved, output)
    record["version"] = engine.version(base_url, text, record["resolved"])
    record["kv_pool"] = _kv_pool(engine, record)
    record["startup_log_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (places.runtime / "startup.log").write_text(text, encoding="utf-8")
    temporary = places.record.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
    temporary.replace(places.record)
    say(f"server ready after {record['ready_s']:.1f} s")
    return record


def _once(places: Places, say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a way to say what holds for every level of a run only once in it: each level attaches anew."""
    path, owner = places.runtime / "said.json", str(process.owner())

    def once(text: str) -> None:
        said: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(path.read_text(encoding="utf-8"))
        lines = said.get("lines", []) if isinstance(said, dict) and said.get("owner") == owner else []
        if text not in lines:
            say(text)
            with contextlib.suppress(OSError):
                path.write_text(json.dumps({"owner": owner, "lines": [*lines, text]}), encoding="utf-8")

    return once


def _kv_pool(engine: Engine, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the server's own page says of its KV pool: all there is of a server whose log cannot be read."""
    from scripts.harness import exposition
    from scripts.harness.engines import http

    url = engine.scrape_targets(str(record["base_url"]), record["resolved"]).get("metrics")
    if url is None:
        return None
    resolved = record["resolved"]
    with http.Session(engine.headers(resolved), 10.0, tls.of(resolved), diagnose=False) as session:
        answer = session.get(url, follow=True)
    return None if http.page_problem(answer) is not None else exposition.pool_of(exposition.parse(answer.text))


def _model_shape(resolved: Mapping[str, Any], root: Path) -> dict[str, Any] | None:
    """Return the served model's shape from its own files; null when nothing here says it, or says it in a way that is
    not known (the report then names what cannot be evaluated)."""
    from scripts.harness import model_shape, plan

    model, arguments = resolved.get("model"), resolved.get("arguments") or {}
    if model is None:
        return None
    cache = arguments.get("kv-cache-dtype", arguments.get("cache-type-k"))
    try:
        shape = model_shape.of_model(plan.model_path(str(model), root) or str(model), arguments.get("dtype"), cache)
    except SweepError as error:
        return {"error": str(error)}
    except Exception as error:  # a damaged file breaks its reader anywhere; the server says what is wrong with it
        return {"error": f"the model's files cannot be read: {type(error).__name__}: {error}"}
    return None if shape is None else shape.as_dict()


def _plain_environment() -> dict[str, str]:
    """Return the caller's environment without what belongs to this pipeline and its virtual environment."""
    dropped = {process.OWNER, process.TOKEN, "PYTHONPATH", "PYTHONHASHSEED", "PYTHONNOUSERSITE"}
    return {key: value for key, value in os.environ.items() if key not in dropped}


def _wait_for_machine(places: Places, identity: process.Identity, say: Callable[[str], None]) -> None:
    told = False
    while True:
        state = supervisor.read_state(places.state)
        status = state.get("status")
        if status in ("running", "exited"):
            return
        if not identity.alive():
            log = places.state.with_suffix(".log")
            raise SweepError(f"the server's supervisor ended before it started the server; {log} says why")
        if status == "waiting" and not told:
            say(f"another measurement holds this machine: {state['waiting_for']}; waiting for it to end")
            told = True
        time.sleep(0.05)


def _wait_ready(
    engine: Engine, record: Mapping[str, Any], places: Places, output: Path, limit_s: float, say: Callable[[str], None]
) -> str:
    deadline = time.monotonic() + limit_s
    next_word = time.monotonic() + 10
    while True:
        if not engine.attaches_only:
            state = supervisor.read_state(places.state)
            if state.get("status") == "exited":
                if state.get("error"):
                    raise SweepError(
                        f"the server could not be started: {state['error']}; "
                        "check server.binary, server.command and server.environment"
                    )
                raise SweepError(
                    "the server ended before it was ready: " + failure(engine, output, state.get("returncode"))
                )
            if not _lives(state) or state.get("status") in ("ending", "ended"):
                raise SweepError("the server's supervisor was ended before the server was ready; run again")
        model = engine.ready(str(record["base_url"]), record["resolved"])
        if model is not None:
            return model
        if time.monotonic() > deadline:
            tail = ""
            if output.exists():
                lines = output.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
                tail = f"\n  last lines of {output}:\n" + "\n".join(f"    {line}" for line in lines)
            raise SweepError(
                f"the server at {record['base_url']} was not ready within limits.ready_s = {limit_s:g} s; "
                f"raise the limit, or see what it waits for{tail}"
            )
        if time.monotonic() > next_word:
            say(f"waiting for the server, {deadline - time.monotonic():.0f} s left")
            next_word += 10
        time.sleep(0.1)


def _startup_text(engine: Engine, resolved: Mapping[str, Any], output: Path) -> str:
    if engine.attaches_only:
        log = resolved.get("log")
        output = Path(str(log)) if log is not None else output
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    if not engine.attaches_only:
        return text
    # Somebody else's log may show the key its server was started with, and what is kept here travels.
    return scrub_text(redact_log(text), secrets_of(engine.headers(resolved)))


@dataclass(frozen=True)
class Attached:
    """A server this job may measure now: nobody else is attached to it."""

    record: Mapping[str, Any]
    startup_log: str
    engine: Engine
    booted_here: bool


@contextlib.contextmanager
def attach(wanted: Wanted, places: Places, say: Callable[[str], None]) -> Iterator[Attached]:
    """Attach to the running server if it is the wanted one and fits the level; boot it otherwise.

    One job at a time: a second one waits until the first lets go. The server goes on running afterwards.
    """
    engine = engines.get(wanted.engine)
    with contextlib.ExitStack() as held:
        attachment = Lock(places.runtime / "attached.lock", f"{wanted.round}/{wanted.sweep} c{wanted.level}")
        attachment.acquire(on_wait=lambda holder: say(f"waiting for {holder} to finish its level"))
        held.callback(attachment.release)
        if engine.attaches_only:
            machine = Lock(MACHINE_LOCK, f"{wanted.round}/{wanted.sweep}")
            machine.acquire(on_wait=lambda holder: say(f"another measurement holds this machine: {holder}; waiting"))
            held.callback(machine.release)
        record = running(places) if not engine.attaches_only else None
        booted = record is None or not _fits(record, wanted, engine)
        if booted:
            if record is not None:
                say("another server is needed: ending the one that runs")
            record = boot(wanted, places, say)
        assert record is not None
        startup = (places.runtime / "startup.log").read_text(encoding="utf-8")
        yield Attached(record, startup, engine, booted)


def _fits(record: Mapping[str, Any], wanted: Wanted, engine: Engine) -> bool:
    if record["identity"] != wanted.identity or record["machine"] != wanted.machine:
        return False
    if wanted.level is not None and record["max_level"] < wanted.level:
        return False
    try:
        return engine.ready(str(record["base_url"]), record["resolved"]) is not None
    except SweepError:
        return False
