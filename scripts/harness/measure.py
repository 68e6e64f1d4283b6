"""Measure one concurrency level against the server of its sweep, and keep everything that was seen."""

import contextlib
import json
import os
import platform
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.harness import alone, engines, machine, plan, process, quiet, records, rounds, server, surroundings, tls
from scripts.harness.alone import Judgement
from scripts.harness.engines.base import Engine
from scripts.harness.errors import SweepError
from scripts.harness.plan import Sweep
from scripts.harness.server import Attached, Places, Wanted

OUTPUTS = (
    "cell.json",
    "requests.parquet",
    "chunks.parquet",
    "scrapes.parquet",
    "telemetry.parquet",
    "boot.json",
    "startup.log",
)
PACKAGES = (
    "httpx",
    "httpcore",
    "h11",
    "uvloop",
    "numpy",
    "pyarrow",
    "psutil",
    "nvidia-ml-py",
    "snakemake",
    "xllamacpp",
)
DESCRIPTORS_BESIDE_CONNECTIONS = 128
DYING_S = 20.0
"""Time a server with a dead engine may take to end, seconds."""
EARLIER_S = 12 * 3600.0
"""Levels of the sweep that are older than this are no measure of how fast the machine is today, seconds."""


@dataclass(frozen=True)
class Job:
    """One level to measure: the sweep's section, what the measurement depends on, and where it goes."""

    sweep: Sweep
    settings: Mapping[str, Any]
    level: int
    folder: Path
    title: str
    repeat: int = 1


def wanted(job_sweep: Sweep, settings: Mapping[str, Any], level: int | None) -> Wanted:
    """Return the server a sweep's level needs."""
    section = job_sweep.settings
    assert section is not None
    levels = tuple(sorted({*job_sweep.levels, *(() if level is None else (level,))}))
    return Wanted(
        machine=job_sweep.machine,
        round=job_sweep.round,
        sweep=job_sweep.name,
        engine=settings["engine"],
        identity=plan.server_identity(settings),
        server={
            **settings["server"],
            **{key: section["server"].get(key) for key in ("port", "api_key_env", "tls_ca", "tls_verify")},
        },
        workload=settings["workload"],
        levels=levels,
        level=level,
        ready_s=float(section["limits"]["ready_s"]),
    )


def check_machine(places: Places, results: Path, limits: Mapping[str, Any], level: int) -> None:
    """Ask before anything is started: disk, descriptors, permission. Raises SweepError with what to do."""
    results.mkdir(parents=True, exist_ok=True)
    if not os.access(results, os.W_OK):
        raise SweepError(f"{results} is not writable; give yourself write permission there")
    free_mb = machine.free_disk_bytes(results) / 1e6
    if free_mb < limits["free_disk_mb"]:
        raise SweepError(
            f"{free_mb:.0f} MB are free where {results} lies, limits.free_disk_mb asks for {limits['free_disk_mb']:g}; "
            "free some space, or lower the limit"
        )
    needed = 2 * level + DESCRIPTORS_BESIDE_CONNECTIONS
    found = machine.fd_limit()
    if found < needed:
        raise SweepError(
            f"concurrency {level} needs {needed} file descriptors, the limit is {found}; "
            f"raise it with `ulimit -n {needed}`"
        )


@dataclass(frozen=True)
class Run:
    """One measurement of a level: its folder, what cell.json says, and whether it was alone."""

    folder: Path
    cell: dict[str, Any]
    judgement: Judgement


def level(job: Job, places: Places, say: Callable[[str], None]) -> Path:
    """Measure one level. Returns the folder of the run; the level's own files are hard links to what lies there.

    Every run has a folder of its own below ``runs``, so that measuring again never loses what was measured before, and
    a run that was broken off leaves what it had. A run that was disturbed is followed by another one, up to
    ``load.remeasure_disturbed`` times; the level's own is then the first that was not disturbed, else the one whose
    worst disturbance was the smallest against its limit. Raises SweepError when the level could not be measured.
    """
    section = job.sweep.settings
    assert section is not None
    limits = section["limits"]
    check_machine(places, job.folder, limits, job.level)
    stops: list[threading.Event] = []
    watch = process.watch(process.owner(), lambda: _give_up(stops, places))
    try:
        with server.attach(wanted(job.sweep, job.settings, job.level), places, say) as attached:

            def measure(attempt: int) -> Run:
                stops.append(threading.Event())
                return _run(job, attached, places, limits, stops[-1], say, attempt)

            run = until_undisturbed(measure, int(section["load"]["remeasure_disturbed"]), _hint(job), say)
    finally:
        watch.set()
    publish(run.folder, job.folder)
    return run.folder


def until_undisturbed(measure: Callable[[int], Run], again: int, hint: str, say: Callable[[str], None]) -> Run:
    """Measure until a run was not disturbed, ``again`` further times at most, and return the one to keep.

    Its cell.json then says how often the level was measured (``tries``) and why the others were not kept
    (``remeasured``, in order). ``hint`` says how to measure it once more.
    """
    runs = [measure(0)]
    while runs[-1].judgement.disturbed and len(runs) <= again:
        say(f"the measurement was not alone: {_why(runs[-1])}; measuring again ({len(runs)} of {again})")
        runs.append(measure(len(runs)))
    kept = min(runs, key=lambda run: (bool(run.judgement.disturbed), run.judgement.severity))
    if kept.judgement.disturbed:
        say(f"the measurement is marked as disturbed: {_why(kept)}; {hint}")
    kept.cell["tries"] = len(runs)
    kept.cell["remeasured"] = [
        {"run_id": run.folder.name, "disturbances": [reason.as_dict() for reason in run.judgement.reasons]}
        for run in runs
        if run is not kept
    ]
    _write_cell(kept.folder, kept.cell)
    return kept


def _why(run: Run) -> str:
    return "; ".join(alone.sentence(reason) for reason in run.judgement.reasons)


def _hint(job: Job) -> str:
    if job.repeat > 1:
        return "to measure it again, remove its folder and run again"
    return (
        "`make level "
        f"ROUND={job.sweep.round} SWEEP={job.sweep.name} LEVEL={job.level}` measures it again when the machine is quiet"
    )


def _run(
    job: Job,
    attached: Attached,
    places: Places,
    limits: Mapping[str, Any],
    stop: threading.Event,
    say: Callable[[str], None],
    attempt: int,
) -> Run:
    """Measure a level once, into a folder of its own, and judge whether it was alone."""
    run_id = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + uuid.uuid4().hex[:6]
    run = job.folder / "runs" / run_id
    run.mkdir(parents=True)
    cell = _measure(job, attached, places, run, limits, stop, say, attempt)
    cell["files"] = rounds.digests(run, OUTPUTS[1:])
    judgement = judge(cell, run / "telemetry.parquet")
    _write_cell(run, cell)
    return Run(run, cell, judgement)


def judge(cell: dict[str, Any], telemetry: Path) -> Judgement:
    """Judge whether a measurement was alone, and note in its cell what later levels are held against."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from scripts.analysis import telemetry_summary

    window = (int(cell["window"]["load_start_ns"]), int(cell["window"]["load_end_ns"]))
    try:
        numbers = telemetry_summary.summarize(pq.read_table(telemetry), window)
    except (OSError, ValueError, KeyError, pa.ArrowException):  # telemetry that was lost takes no measurement with it
        numbers = {}
    showed = ("cpu_clock_mhz_fastest", "gpu_clock_mhz_busy")
    cell["alone"]["showed"] = {name: numbers.get(name) for name in showed}
    return alone.judge(numbers | alone.drifts(cell), cell)


def earlier_cells(job: Job) -> list[dict[str, Any]]:
    """Return cell.json of what was measured of the sweep in the last ``EARLIER_S``, earlier runs included."""
    sweep = job.folder.parents[2] if job.repeat > 1 else job.folder.parent
    found = []
    for level in (*sweep.glob("c*"), *sweep.glob("repeats/*/c*")):
        for path in (level / "cell.json", *level.glob("runs/*/cell.json")):
            with contextlib.suppress(SweepError, OSError, KeyError, TypeError):
                cell = records.read_cell(path)
                if 0 <= time.time_ns() - cell["clock"]["wall_ns"] < EARLIER_S * 1e9:
                    found.append(cell)
    return found


def _write_cell(run: Path, cell: Mapping[str, Any]) -> None:
    temporary = run / "cell.json.tmp"
    temporary.write_text(json.dumps(cell, indent=1, ensure_ascii=False), encoding="utf-8")
    temporary.replace(run / "cell.json")


def calibrated(say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return how fast the machine is just now; None where it refuses (no thread, no memory)."""
    from scripts.harness import calibration

    try:
        return calibration.calibrate()
    except (RuntimeError, MemoryError, OSError) as error:
        say(f"how fast the machine is could not be measured: {error}")
        return None


def publish(run: Path, folder: Path) -> None:
    """Make the files of a run the level's own. cell.json comes last: where it is, the level is whole."""
    for name in OUTPUTS:
        (folder / name).unlink(missing_ok=True)
    for name in reversed(OUTPUTS):
        _link(run / name, folder / name)


def _give_up(stops: Sequence[threading.Event], places: Places) -> None:
    """The run's owner is gone: end the load, what a dead supervisor left of the server, and this process."""
    for stop in stops:
        stop.set()
    try:
        server.end_orphans(places)
        time.sleep(2.0)
    finally:
        os._exit(143)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _measure(
    job: Job,
    attached: Attached,
    places: Places,
    run: Path,
    limits: Mapping[str, Any],
    stop: threading.Event,
    say: Callable[[str], None],
    attempt: int,
) -> dict[str, Any]:
    from scripts.harness import load, progress
    from scripts.harness.scrape import Scraper
    from scripts.harness.telemetry import Telemetry

    record, engine = attached.record, attached.engine
    assert job.sweep.settings is not None
    (run / "boot.json").write_text(json.dumps(_public(record), indent=1), encoding="utf-8")
    (run / "startup.log").write_text(attached.startup_log, encoding="utf-8")
    spec = _load_spec(job, attached, limits, run.name, attempt)
    targets = engine.scrape_targets(str(record["base_url"]), record["resolved"])
    interval_s = float(limits["scrape_interval_s"])
    scraper = Scraper(targets, spec.headers, run / "scrapes.parquet", interval_s, tls.of(record["resolved"]))
    belongs = quiet.belonging(attached, places)
    on_gpu = belongs.known != "elsewhere" and (engine.uses_gpu(record["resolved"]) or engine.attaches_only)
    before_level, waited = _when_quiet(belongs, on_gpu, float(limits["quiet_s"]), stop, say)
    telemetry = Telemetry(
        run / "telemetry.parquet",
        belongs.server,
        [os.getpid()],
        interval_s=float(limits["telemetry_interval_s"]),
        harness_pids=belongs.harness,
    )
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    clock = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
    window: dict[str, Any] = {}
    death: list[str] = []

    def watch_server() -> None:
        while not stop.wait(0.3):
            reason = server.died(places, record)
            if reason is not None:
                death.append(reason)
                stop.set()

    sampling = threading.Thread(target=telemetry.start, name="telemetry-start")  # while the client starts and warms up

    def before() -> None:
        sampling.join()
        window["drained_before"] = scraper.drained(_in_flight, float(limits["drain_s"]))
        scraper.scrape("before")
        window["counters_start_ns"] = time.monotonic_ns()
        scraper.start()

    if not engine.attaches_only:
        threading.Thread(target=watch_server, name="server-watch", daemon=True).start()
    with contextlib.ExitStack() as closing:
        closing.callback(scraper.close)
        problem: list[str | None] = []
        closing.callback(lambda: problem.append(telemetry.stop()))
        closing.callback(sampling.join)
        sampling.start()
        with progress.Bar(f"  {job.sweep.round}/{job.sweep.name} C={job.level}") as bar:
            result = load.run(spec, run, on_progress=bar, stop=stop, before_load=before)
        scraper.stop()
        if not death:
            window["drained_after"] = scraper.drained(_in_flight, float(limits["drain_s"]))
            scraper.scrape("after")
            window["counters_end_ns"] = time.monotonic_ns()
    stopped = stop.is_set()
    stop.set()
    if not engine.attaches_only and not death:
        reason = _death(places, record, engine, bool(result.counts.get("requests_failed")))
        death += [] if reason is None else [reason]
    if death:
        server.stop(places)  # what it started may live on, and its supervisor may be gone
        raise SweepError(
            f"level {job.level}: the server died while it was measured: {death[0]}\n  what was measured: {run}"
        )
    if stopped or result.stopped:
        raise SweepError(f"level {job.level}: the measurement was broken off; what was measured: {run}")
    counts = result.counts
    if counts.get("requests_ok") == 0:
        raise SweepError(f"level {job.level}: no request succeeded ({_first_error(result)}); what was measured: {run}")
    window |= {"load_start_ns": result.load_start_ns, "load_end_ns": result.load_end_ns}
    after_level = calibrated(say)
    order = plan.order_of(job.sweep)
    return {
        "schema": records.CELL_SCHEMA,
        "machine": job.sweep.machine,
        "round": job.sweep.round,
        "sweep": job.sweep.name,
        "level": job.level,
        "repeat": job.repeat,
        "run_id": run.name,
        "order": order.index(job.level) if job.level in order else None,
        "title": job.title,
        "levels_off": list(job.sweep.settings["load"]["levels_off"]),
        "plan": {**job.settings, "limits": dict(limits), "requests": spec.requests},
        "boot": _public(record),
        "booted_here": attached.booted_here,
        "sent": result.sent,
        "versions": {"python": platform.python_version(), **_package_versions(), "server": record["version"]},
        "project": server.project_revision(places.root),
        "started_at": started_at,
        "clock": clock,
        "window": window,
        "client": result.fidelity,
        "counts": counts,
        "scrape_problems": scraper.problems(),
        "telemetry_problem": next((text for text in problem if text), None),
        "host": {"load_average": machine.load_average()},
        "calibration": {"before": before_level, "after": after_level},
        "quiet_wait_s": round(waited.seconds, 3),
        "busy_before": [reason.as_dict() for reason in waited.reasons] or None,
        "alone": {
            "cores": surroundings.usable_cores(),
            "server": belongs.known,
            "on_gpu": on_gpu and not engine.attaches_only,
            "reference": _reference(job),
        },
    }


def _reference(job: Job) -> dict[str, Any] | None:
    """Return what earlier levels showed; None also where their records are damaged, which concerns no measurement."""
    try:
        return alone.reference(earlier_cells(job))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _when_quiet(
    belongs: quiet.Belonging, on_gpu: bool, limit_s: float, stop: threading.Event, say: Callable[[str], None]
) -> tuple[dict[str, Any] | None, quiet.Waited]:
    """Wait until the machine is quiet; return how fast it is then, and how long that took.

    The first look covers the calibration, so that a quiet machine costs no time of its own.
    """
    begun = time.monotonic()
    look = quiet.Look(belongs, on_gpu)
    speed = calibrated(say)
    stop.wait(max(0.0, quiet.FIRST_LOOK_S - (time.monotonic() - begun)))
    waited = quiet.wait(look, limit_s, say, stop.wait)
    return calibrated(say) if waited.seconds else speed, waited


def _death(places: Places, record: Mapping[str, Any], engine: Engine, failures: bool) -> str | None:
    """Return why the server died, None when it lives.

    After failed requests it has to say that it is healthy: a server whose engine died answers with errors for a moment
    before it ends, and its log names the cause only then.
    """
    deadline = time.monotonic() + DYING_S
    while (reason := server.died(places, record)) is None and failures:
        with contextlib.suppress(SweepError):
            if engine.ready(str(record["base_url"]), record["resolved"]) is not None:
                return None
        if time.monotonic() > deadline:
            return f"requests failed, and the server has not said that it is ready for {DYING_S:g} s"
        time.sleep(0.1)
    return reason


def _load_spec(job: Job, attached: Attached, limits: Mapping[str, Any], run_id: str, attempt: int) -> Any:
    from scripts.harness import load

    workload, settings, record = job.settings["workload"], job.settings["load"], attached.record
    parts = [workload["seed"], job.sweep.machine, job.sweep.round, job.sweep.name, job.level, job.repeat]
    if attached.engine.attaches_only:  # such a server outlives the run: measured again, it must not know the prompts
        parts.append(run_id)
    elif attempt:  # the server has just seen the prompts of the try before
        parts.append(f"again {attempt}")
    seed = load.mix_seed(*parts)
    first, last = workload["vocabulary"]
    return load.LoadSpec(
        base_url=str(record["base_url"]),
        body=attached.engine.request_body(workload, str(record["model"]), load.PROMPT),
        headers=attached.engine.headers(record["resolved"]),
        endpoint=attached.engine.endpoint(workload, record["resolved"]),
        kind=workload["endpoint"],
        concurrency=job.level,
        requests=plan.requests_of(job.level, settings),
        warmup_requests=settings["warmup_requests"],
        start=settings["start"],
        stagger_s=settings["stagger_s"],
        input_tokens=workload["input_tokens"],
        output_tokens=workload["output_tokens"],
        prompt_kind=attached.engine.prompt_form(
            str(record["base_url"]), record["resolved"], workload, str(record["model"])
        ),
        vocabulary=(first, last + 1),
        seed=seed,
        exact_output=workload.get("ignore_eos", True),
        tls_verify=tls.of(record["resolved"]),
        processes=settings["processes"],
        timeouts=load.Timeouts(
            connect_s=limits["connect_s"],
            first_token_s=limits["first_token_s"],
            between_tokens_s=limits["between_tokens_s"],
            total_s=limits["request_s"],
        ),
        fidelity=load.FidelityLimits(**limits["fidelity"]),
    )


def _in_flight(pages: Mapping[str, str]) -> int | None:
    """Return how many requests the server has running or waiting, by its own /metrics; None when it does not say."""
    from scripts.harness import exposition

    page = pages.get("metrics")
    if page is None:
        return None
    reading = exposition.read(page, "/metrics")
    running, waiting = reading.get("running"), reading.get("waiting")
    return None if running is None else int(running) + (0 if waiting is None else int(waiting))


def _first_error(result: Any) -> str:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(result.requests_path, columns=["status", "error_kind", "error_message", "http_status"])
    failed = table.filter(pc.equal(table["status"], "failed")).slice(0, 1).to_pylist()
    if not failed:
        return "none was sent"
    first = failed[0]
    status = "" if first["http_status"] is None else f", HTTP {first['http_status']}"
    return f"the first one: {first['error_kind']}{status}: {first['error_message']}"


def _public(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "token"}


def _package_versions() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def describe_machine(round_settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the machine says of itself.

    Raises SweepError when the round asks for a GPU it does not have, or for a server that cannot be: so that a mistake
    shows before anything is measured.
    """
    facts = machine.describe()
    needed = None if round_settings is None else round_settings.get("requires_gpu")
    names = [gpu["name"] for gpu in facts["gpus"]]
    if needed is not None and needed not in names:
        found = ", ".join(names) if names else "no GPU"
        raise SweepError(
            f"this round needs the GPU {needed!r} (requires_gpu), this machine has {found}; "
            "run it on such a machine, or "
            "copy config/rounds and name your own card"
        )
    for sweep in ({} if round_settings is None else round_settings["sweeps"]).values():
        engines.get(sweep["engine"]).resolve(sweep["server"], sweep["workload"], sweep["load"]["levels"])
    return facts


def start(
    sweep: Sweep,
    settings: Mapping[str, Any],
    places: Places,
    boot_json: Path,
    startup_log: Path,
    say: Callable[[str], None],
) -> None:
    """Start the sweep's server, or attach to it where it already runs, and keep its boot record and startup log."""
    section = sweep.settings
    assert section is not None
    check_machine(places, boot_json.parent, section["limits"], max(sweep.levels))
    engines.get(settings["engine"])
    watch = process.watch(process.owner(), lambda: _give_up([], places))
    try:
        with server.attach(wanted(sweep, settings, None), places, say) as attached:
            boot_json.write_text(json.dumps(_public(attached.record), indent=1), encoding="utf-8")
            startup_log.write_text(attached.startup_log, encoding="utf-8")
    finally:
        watch.set()
