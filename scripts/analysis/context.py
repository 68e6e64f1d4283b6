"""What the analysis has to know beside the levels: workload, server, memory, model, peaks, machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.analysis import attached

CLIENT_KEYS = ("endpoint", "prompt", "vocabulary", "seed")
LENGTHS = ("max_tokens", "max_completion_tokens", "min_tokens", "n_predict")
"""Fields of a request's body that say how long the answer may or must be."""
NOT_A_SETTING = ("model", "prompt", "messages", *LENGTHS)
"""Fields of a request's body that are no setting of the client: what else the context says under names of its own."""


def build(
    cells: Sequence[Mapping[str, Any]],
    kv_pool: Mapping[str, Any],
    machine: Mapping[str, Any],
    peaks: Mapping[str, Any] | None,
    report: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the context of one sweep.

    ``cells`` are the levels' cell.json, ``kv_pool`` what the startup log of the sweep's first boot says, ``machine``
    machine.json, ``peaks`` the round's peak rates (None: not known). ``report`` holds what the configuration adds:
    title and levels_off (None: as measured), slo, thresholds, peaks (override or None), model (overrides of the shape).
    What is not known is null.

    Lengths, temperature, ``ignore_eos`` and the rest of a request are those of the body as it was sent, not of the
    plan; ``sent`` has them level by level (``sent_of``), empty where none was recorded.

    Raises ValueError when the levels were not measured under one workload.
    """
    first = cells[0]
    sent = {str(cell["level"]): found for cell in cells if (found := sent_of(cell)) is not None}
    lengths = {(cell["plan"]["workload"]["input_tokens"], cell["plan"]["workload"]["output_tokens"]) for cell in cells}
    if len(lengths) > 1:
        raise ValueError(f"levels of one sweep were measured with different lengths (input, output): {sorted(lengths)}")
    planned = dict(zip(("input_tokens", "output_tokens"), lengths.pop(), strict=True))
    input_tokens = _first(agreed(sent, "input_tokens"), planned["input_tokens"])
    output_tokens = _first(agreed(sent, "max_tokens"), planned["output_tokens"])
    boot = first["boot"]
    resolved = boot["resolved"]
    shape = boot.get("model_shape")
    model = None if shape is None or "error" in shape else {**shape, **report["model"]}
    log = kv_pool["log"]
    peaks = report["peaks"] if report["peaks"] is not None else peaks
    off = report["levels_off"] if report["levels_off"] is not None else first["levels_off"]
    return {
        "title": report["title"] if report["title"] is not None else first["title"],
        "machine": first["machine"],
        "round": first["round"],
        "sweep": first["sweep"],
        "engine": first["plan"]["engine"],
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "workload": planned,
        "peak_tflop_s": None if peaks is None else peaks["tflop_s"],
        "peak_bandwidth_gb_s": None if peaks is None else peaks["bandwidth_gb_s"],
        "peaks": None if peaks is None else dict(peaks),
        "model": model,
        "model_name": boot["model"],
        "model_fingerprint": first["plan"].get("model_fingerprint"),
        "max_num_seqs": _capacity(resolved),
        "max_model_len": _first(log.get("max_model_len"), resolved.get("context_per_slot")),
        "gpu_memory_utilization": log.get("gpu_memory_utilization"),
        "memory_total_gib": _first((log.get("extra") or {}).get("total_gpu_gib"), _card_gib(machine)),
        "slo_ttft_p99_s": list(report["slo"]["ttft_p99_s"]),
        "startup": log,
        "server_arguments": _arguments(resolved),
        "server_command": boot["command"],
        "client_arguments": _client(first),
        "sent": sent,
        "started_at": min((str(cell["started_at"]) for cell in cells if cell.get("started_at")), default=None),
        "versions": dict(first["versions"]),
        "driver": machine.get("gpu_driver") if machine["gpus"] else "no GPU",
        "cuda": machine.get("cuda_driver"),
        "clocks": _clocks(machine),
        "devices": [gpu["name"] for gpu in machine["gpus"]] or [machine["cpu"]["model"]],
        "cpu": machine["cpu"],
        "host": machine,
        "boots": boots(cells),
        "attached": attached.conditions(cells),
        "levels_off": sorted(off),
        "order": {str(cell["level"]): cell["order"] for cell in cells},
        "project": {str(cell["level"]): cell["project"] for cell in cells},
        "fidelity": {str(cell["level"]): cell["client"] for cell in cells},
        "files": {f"c{cell['level']}/{name}": digest for cell in cells for name, digest in cell["files"].items()},
        "thresholds": {**report["thresholds"], "operating_slo_s": report["slo"]["operating_point_s"]},
    }


def boots(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the boots the levels were measured on, in order of their start, with their levels."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        boot = cell["boot"]
        entry = found.setdefault(
            boot["boot_id"],
            {key: boot.get(key) for key in ("boot_id", "started_at", "ready_s", "version", "max_level")}
            | {"levels": []},
        )
        entry["levels"].append(cell["level"])
    return sorted(found.values(), key=lambda entry: str(entry["boot_id"]))


def _arguments(resolved: Mapping[str, Any]) -> dict[str, Any]:
    known = dict(resolved.get("arguments") or {})
    return {**known, **{f"environment.{name}": value for name, value in (resolved.get("environment") or {}).items()}}


def sent_of(cell: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a level's requests really asked for, from the body as it was sent; None when it was not recorded.

    ``temperature``, ``ignore_eos``, ``max_tokens``, ``min_tokens``, ``stream``, ``seed`` (of the sampling) and
    ``include_usage`` are null where the body had no such field: the server's own default held then. ``prompt`` is
    ``token_ids`` or ``text``, ``prompts_seed`` what the prompts were drawn from, ``exact_output`` whether an answer
    shorter than asked for counted as a failure, ``further`` every other field of the body.
    """
    sent = cell.get("sent")
    body = sent.get("body") if isinstance(sent, Mapping) else None
    if not isinstance(sent, Mapping) or not isinstance(body, Mapping):
        return None
    load = sent["load"] if isinstance(sent.get("load"), Mapping) else {}
    options = body["stream_options"] if isinstance(body.get("stream_options"), Mapping) else {}
    named = ("temperature", "ignore_eos", "stream", "seed")
    return {
        **{name: body.get(name) for name in named},
        "max_tokens": _first(*(body.get(name) for name in LENGTHS if name != "min_tokens")),
        "min_tokens": body.get("min_tokens"),
        "include_usage": options.get("include_usage"),
        "endpoint": sent.get("endpoint"),
        "prompt": load.get("prompt_kind"),
        "input_tokens": load.get("input_tokens"),
        "prompts_seed": load.get("seed"),
        "exact_output": load.get("exact_output"),
        "further": {key: value for key, value in body.items() if key not in (*named, *NOT_A_SETTING, "stream_options")},
    }


def agreed(sent: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    """Return what every level sent under ``name``; None when they differ, or none was recorded."""
    values = [one.get(name) for one in sent.values()]
    return values[0] if values and all(value == values[0] for value in values) else None


def _client(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's settings: how the load was made, and every field of the body as it was sent."""
    workload, load, found = cell["plan"]["workload"], cell["plan"]["load"], sent_of(cell)
    settings = {**{key: workload.get(key) for key in CLIENT_KEYS}, **load}
    if found is None:
        return settings
    sent = {name: found[name] for name in ("temperature", "ignore_eos", "stream", "include_usage")}
    sent |= {} if found["seed"] is None else {"sampling_seed": found["seed"]}
    form = settings["prompt"] if found["prompt"] is None else found["prompt"]
    return {**settings, "prompt": form, **sent, **found["further"]}


def _capacity(resolved: Mapping[str, Any]) -> int | None:
    slots = resolved.get("slots")
    arguments = resolved.get("arguments") or {}
    found = _first(slots, arguments.get("max-num-seqs"))
    return None if found is None else int(found)


def _clocks(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest clocks of each GPU as the driver gives them; what it does not say is left out."""
    return {
        f"gpu{place}.{name}": gpu[name]
        for place, gpu in enumerate(machine["gpus"])
        for name in ("sm_clock_max_mhz", "memory_clock_max_mhz")
        if gpu.get(name) is not None
    }


def _card_gib(machine: Mapping[str, Any]) -> float | None:
    total = machine["gpus"][0].get("memory_total_bytes") if machine["gpus"] else None
    return None if total is None else float(total) / 2**30


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
