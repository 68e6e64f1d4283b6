"""A small sweep whose every audit holds; tests change one thing and see what follows."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import pandas as pd

from scripts.analysis import findings
from scripts.analysis.derive import Derived, derive
from scripts.analysis.finding import Finding

N_IN, N_OUT = 100, 20
LEVELS = (1, 2, 4, 8, 16)

CONTEXT: dict[str, Any] = {
    "engine": "vllm",
    "input_tokens": N_IN,
    "output_tokens": N_OUT,
    "model": {
        "layers": 2,
        "hidden": 64,
        "intermediate": 128,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab": 100,
        "dtype_bytes": 2,
    },
    "peak_tflop_s": 2e-4,
    "peak_bandwidth_gb_s": 0.02,
    "max_num_seqs": 32,
    "max_model_len": 400,
    "gpu_memory_utilization": 0.9,
    "memory_total_gib": 10.0,
    "slo_ttft_p99_s": [0.1, 0.3, 1.0],
    "operating_slo_s": 0.3,
    "startup": {
        "kv_pool_tokens": 2400,
        "available_kv_gib": 3.0,
        "weights_plus_non_torch_gib": 5.0,
        "peak_activation_gib": 1.0,
        "cuda_graph_gib": 0.2,
    },
    "server_arguments": {"enable_prefix_caching": False, "enable_chunked_prefill": True, "max_num_batched_tokens": 200},
    "client_arguments": {"temperature": 0, "ignore_eos": True},
    "versions": {"vllm": "9.1.0"},
    "driver": "500.10",
    "gpu": "Card A",
}

# made so that T x E2EL / n_out = C, and the running mean is C
RATES = {1: 20.0, 2: 38.0, 4: 70.0, 8: 110.0, 16: 150.0}
ITL_P99 = {1: 42.0, 2: 43.0, 4: 44.0, 8: 190.0, 16: 230.0}
TTFT_P99 = {1: 104.0, 2: 118.0, 4: 146.0, 8: 202.0, 16: 360.0}
ITL_P50 = {1: 40.0, 2: 41.0, 4: 42.0, 8: 45.0, 16: 50.0}


def levels() -> pd.DataFrame:
    """Return the table of levels of the case."""
    return _levels().copy()


@cache
def _levels() -> pd.DataFrame:
    """Make the table once."""
    rows = []
    for level in LEVELS:
        rate = RATES[level]
        requests = 10 * level
        latency = 1000 * level * N_OUT / rate
        ttft = 0.08 * latency
        rows.append(
            {
                "C": level,
                "requests": requests,
                "requests_ok": requests,
                "requests_failed": 0,
                "requests_short": 0,
                "output_tokens_total": requests * N_OUT,
                "prompt_tokens_total": requests * N_IN,
                "server_generation_tokens": requests * N_OUT,
                "itl_samples": requests * (N_OUT - 1),
                "identity_residual_max_ms": 0.01,
                "output_tok_s": rate,
                "ttft_p50_ms": 96.0 if level == 1 else ttft,
                "ttft_p99_ms": TTFT_P99[level],
                "tpot_p50_ms": (latency - ttft) / (N_OUT - 1),
                "itl_p50_ms": ITL_P50[level],
                "itl_p90_ms": ITL_P50[level] + 1 if level < 16 else 200.0,
                "itl_p99_ms": ITL_P99[level],
                "itl_mean_ms": (latency - ttft) / (N_OUT - 1),
                "e2el_p50_ms": latency,
                "e2el_mean_ms": latency,
                "running_mean": float(level),
                "waiting_peak": max(0, level - 4),
                "waiting_drain_s": TTFT_P99[level] / 1000,
                "waiting_steady_share_zero_pct": 95.0,
                "burst_share_above_p95_pct": 100.0,
                "ttft_p99_without_burst_ms": 55.0,
                "kv_mean_pct": 100 * level * 110.0123 / 2400,
                "kv_peak_pct": 100 * level * 115 / 2400,
                "preemptions": 0,
                "tok_per_iter": 6.0 * level,
                "power_w_mean": 100.0 + level,
                "temp_c_mean": 50.0 + level,
                "throttled": False,
                "client_cpu_pct": 20.0,
                "lost_stamp_frac": 0.0,
                "prefix_hits": 0,
                "stall_share_pct": 100 * (level - 1) / 19,
                "stall_share_expected_pct": 100 * (level - 1) / 19,
            }
        )
    table = pd.DataFrame(rows)
    # the counters say what the formula says
    found = derive(table, CONTEXT).levels
    table["tflop_s"] = found["predicted_tflop_s"]
    table["read_gb_s"] = found["predicted_read_gb_s"]
    return table


def context(**changes: Any) -> dict[str, Any]:
    """Return a copy of the case's context with ``changes``; None removes a key."""
    made = {**copy.deepcopy(CONTEXT), **changes}
    return {name: value for name, value in made.items() if value is not None}


def evaluate(
    table: pd.DataFrame | None = None,
    settings: Mapping[str, Any] | None = None,
    previous: tuple[Derived, Mapping[str, Any]] | None = None,
) -> dict[str, Finding]:
    """Return the rules' outcomes by id."""
    used = CONTEXT if settings is None else settings
    derived = derive(levels() if table is None else table, used)
    before, before_context = previous if previous else (None, None)
    return {one.id: one for one in findings.evaluate(derived, used, before, before_context)}


def changed(column: str, **values: Any) -> pd.DataFrame:
    """Return the case's levels with ``column`` set at levels (``C4=…``) or at all of them (``all=…``)."""
    table = levels().astype({column: object}) if column in levels().columns else levels().assign(**{column: None})
    for where, value in values.items():
        rows = slice(None) if where == "all" else table["C"] == int(where.removeprefix("C"))
        table.loc[rows, column] = value
    return table


def slower_tokens(**values: float) -> pd.DataFrame:
    """Return the case's levels with every ITL percentile at least these at levels (``C4=…``): a slower decode."""
    table = levels()
    for where, value in values.items():
        for place, name in enumerate(("itl_p50_ms", "itl_p90_ms", "itl_p99_ms")):
            table.loc[table["C"] == int(where.removeprefix("C")), name] = value + place
    return table


def even(p99: float | None = None) -> pd.DataFrame:
    """Return the case's levels without a tail of ITL; ``p99`` sets it at every level."""
    table = levels()
    tail = table["itl_p50_ms"] + 2
    return table.assign(itl_p90_ms=table["itl_p50_ms"] + 1, itl_p99_ms=tail if p99 is None else p99)


def without(*columns: str) -> pd.DataFrame:
    """Return the case's levels without ``columns``."""
    return levels().drop(columns=list(columns))
