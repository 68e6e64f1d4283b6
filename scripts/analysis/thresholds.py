"""Every threshold the rules use, in one place; ``context["thresholds"]`` overrides them by name."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from scripts.analysis.values import number
from scripts.harness.errors import SweepError


@dataclass(frozen=True)
class Thresholds:
    """Defaults reproduce the published Round 2 report; each comment gives the interval that does."""

    jitter_ratio: float = 2.0  # ITL p99 / p50 from which a level jitters; (1.12, 6.13]
    jitter_jump: float = 2.0  # ITL p99 over the previous level's; (1.81, 5.80]
    scaling_efficiency_pct: float = 92.0  # below it scaling has left linear; (90.3, 92.9)
    marginal_share: float = 0.65  # marginal throughput over T(1) below which it falls fast; (0.58, 0.70)
    marginal_floor: float = 0.2  # a new slot that buys less than this share of the first (F3)
    saturation_gain: float = 1.05  # T(last) / T(previous) under which the sweep is saturated
    operating_itl_growth_pct: float = 10.0  # side condition of the operating point: ITL p50 against C=1
    itl_p50_growth_pct: float = 50.0  # F4: the median hides it below this growth …
    itl_p99_growth: float = 5.0  # … while the tail grew by more than this factor
    stall_p90_ratio: float = 2.0  # F6d: ITL p90 over p50
    plateau_tolerance_pct: float = 25.0  # F6c: long intervals against the time of a prefill step
    tail_prefill_share_pct: float = 0.5  # F6c: p99 jumps where 1% of the intervals hold a prefill; half cannot move it
    onset_bound_pct: float = 50.0  # F6b: KV upper bound at the onset
    memory_bound_pct: float = 80.0  # F3b: KV upper bound below which memory is not the cause
    pool_change_pct: float = 20.0  # F6b, F12b: pools that differ enough to tell
    pin_pool_pct: float = 5.0  # F16, R4: pools that differ too much to compare
    drain_tolerance_pct: float = 10.0  # F7: drain against p99 TTFT
    queue_empty_pct: float = 90.0  # F7: share of later samples with nobody waiting
    attained_fall_points: float = 10.0  # F9
    cross_check_points: float = 2.0  # F9b
    kv_reconcile_pct: float = 0.5  # A6: target
    kv_alarm_pct: float = 1.5  # A4: alarm
    kv_against_level_pct: float = 8.0  # KV mean proportional to C
    account_gib: float = 0.02  # A11: two roundings
    account_delta_gib: float = 0.03  # F12c: three roundings
    itl_samples_pct: float = 0.1  # A8: ITL samples against tokens less one a request
    little_pct: float = 3.0  # A9
    window_tok_pct: float = 2.0  # A10: tokens a step at C=1
    window_formula_pct: float = 3.0  # A10: counters against the formula
    power_fall_pct: float = 2.0  # A12: mean power under a lower level's by more than this
    temperature_fall_c: float = 1.0  # A12
    run_noise_pct: float = 5.0  # comparison: standard deviation from run to run where nothing was repeated …
    run_noise_tail_pct: float = 10.0  # … and of p99
    in_step_pct: float = 25.0  # comparison: streams in step from here on, by chance as long as nothing was repeated
    knee_agreement_pct: float = 5.0  # comparison: knees that agree in fewer resampled pairs have moved
    identity_ms: float = 1.0  # A7
    client_cpu_pct: float = 100.0  # A14: one core's worth
    client_bunched_pct: float = 5.0  # A14: token stamps that arrived bunched
    decode_share: float = 0.8  # F15
    ttft_share_pct: float = 10.0  # F15
    urgent_bound_pct: float = 90.0  # R2

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> "Thresholds":
        """Return the defaults with ``context["thresholds"]`` laid over them.

        Names that are not ours belong to other steps and are passed over, and so is null; a value that is no number is
        an error.
        """
        given = context.get("thresholds") or {}
        names = {field.name for field in fields(cls)}
        values: dict[str, float] = {}
        for name, value in given.items():
            if name not in names or value is None:
                continue
            found = number(value)
            if found is None:
                raise SweepError(f"threshold {name!r} in the context must be a number, found {value!r}")
            values[name] = found
        return cls(**values)
