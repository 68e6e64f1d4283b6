"""What a report shows beside its table of levels: tables below the level, machine, client, provenance."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.harness import records

if TYPE_CHECKING:
    import pandas as pd

BELOW = {
    "itl_histogram": "itl_histogram",
    "launch": "launch",
    "timeline": "gauges",
    "requests": "request_spans",
    "stalls": "stall_spans",
}
"""Name in the figures' ``Extras`` to table of the contract."""

CLIENT_COLUMNS = (
    "stamp_source", "read_lag_p50_ms", "read_lag_p99_ms", "read_lag_max_ms", "lost_stamp_tokens", "client_delay_p50_ms",
    "client_delay_p99_ms", "loop_lag_p99_ms", "processes", "cpu_frac", "itl_p99_reliable", "client_limited",
)  # fmt: skip


def below(given: Any) -> dict[str, "pd.DataFrame"]:
    """Return the tables below the level, those of all levels together; ``given`` names their files by table."""
    import pandas as pd

    return {
        name: pd.concat([pd.read_parquet(path) for path in getattr(given, table)], ignore_index=True)
        for name, table in BELOW.items()
    }


def beside(cells: Sequence[str], context: str) -> dict[str, Any]:
    """Return machine, client, startup lines and provenance for the page."""
    found = [records.read_cell(path) for path in cells]
    known = records.read(context)
    revisions = sorted({str(cell["project"]["revision"]) for cell in found})
    folder = f"results/raw/{known['machine']}/{known['round']}/{known['sweep']}"
    files = []
    for path, cell in zip(cells, found, strict=True):
        for name, digest in cell["files"].items():
            file = Path(path).parent / name
            size = file.stat().st_size if file.exists() else None
            files.append({"path": f"{folder}/c{cell['level']}/{name}", "bytes": size, "sha256": digest})
    return {
        "levels_file": f"results/metrics/{known['machine']}/{known['round']}/{known['sweep']}/levels.csv",
        "machine": _flat(known["host"]),
        "boots": known["boots"],
        "startup_lines": startup_lines(known["startup"]),
        "fidelity": [
            {"C": cell["level"]} | {name: _plain(cell["client"].get(name)) for name in CLIENT_COLUMNS} for cell in found
        ],
        "provenance": {
            "revision": ", ".join(revisions),
            "clean": all(cell["project"]["clean"] is True for cell in found),
            "versions": known["versions"],
            "arguments": {"server": known["server_arguments"], "client": known["client_arguments"]},
            "files": files,
        },
    }


def passes(files: Sequence[str]) -> dict[str, Any]:
    """Return every pass through the sweep for the page, from the table ``repeats``; nothing where there is none."""
    import pandas as pd

    return {"repeats": pd.read_parquet(files[0]).to_dict("records")} if files else {}


def startup_lines(startup: dict[str, Any]) -> list[str]:
    """Return the lines of the startup log that the readings of memory and pool were taken from, in their order."""
    found: dict[int, str] = {}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("line"), int) and isinstance(value.get("text"), str):
                found[value["line"]] = value["text"].strip()
            else:
                for inner in value.values():
                    collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)

    collect(startup.get("lines"))
    return [found[line] for line in sorted(found)]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        elif value is not None:
            flat[name] = _plain(value)
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(str(_plain(entry)) for entry in value)
    if isinstance(value, float):
        return round(value, 4)
    return value
