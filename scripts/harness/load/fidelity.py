"""The fidelity block: how well the client saw, and whether it was the limit."""

from typing import Any

from scripts.analysis.schema import UNSEEN_FRAC
from scripts.harness.load.convert import Observed
from scripts.harness.load.frames import PACKED_TOKENS
from scripts.harness.load.histogram import Histogram
from scripts.harness.load.spec import FidelityLimits

_WHO = "something between server and client buffers them, such as a proxy, or the server itself sends them so"
UNSEEN = {
    "one_arrival": f"came in one arrival: {_WHO}; their time to first token is their whole latency, and no speed per "
    "token is given",
    "bursts": f"came in bursts of many frames at once: {_WHO}, which cannot be told apart; no speed per token is given",
    "packed": f"hold more than {PACKED_TOKENS} tokens an arrival: they were not seen one by one, because the server "
    "packs them into few frames or something in between does; no speed per token is given",
    "late_reader": "came in one arrival because the client read too late; no speed per token is given",
    "hidden_reasoning": "hold reasoning tokens that the server counts and does not send: those were not seen; time to "
    "first token and the speed per token are those of the tokens that were",
    "summarised_reasoning": "hold far more reasoning tokens than the reasoning text that was sent, as a summary does: "
    "most were not seen; no speed per token is given",
    "several_choices": "hold several choices in one stream: no speed per token is given",
}
"""What is said of answers whose tokens were not seen one by one, by reason."""
USAGE = {
    "zeros": "say 0 output tokens in their usage, although text came",
    "missing": "came without usage",
}


def fidelity_block(observed: Observed, limits: FidelityLimits, itl_p50_ms: float | None) -> dict[str, Any]:
    """Return the block. ``itl_p99_reliable`` is None where there is no ITL sample to judge.

    Keys: ``stamp_source`` (kernel, user, or mixed), read lag (user stamp - kernel stamp, ms) p50, p99, max, tokens
    whose stamp was lost and their share, client delay (ms), event-loop lag (ms), CPU share of one core of each client
    process, clock steps, stale connections; ``warnings`` are sentences, ``client_limited`` says the client was the
    limit.
    """
    with_stamp = observed.reads - observed.reads_without_stamp
    if not observed.reads:
        source = None
    elif not with_stamp:
        source = "user"
    else:
        source = "kernel" if observed.reads_without_stamp <= observed.reads * limits.lost_stamps_frac else "mixed"
    lost_frac = observed.lost_tokens / observed.tokens if observed.tokens else None
    lag_p99_ms = _ms(observed.lag, 0.99, 1e6) if source == "kernel" else _ms(observed.loop_lag, 0.99, 1e3)
    loads = [phase for phase in observed.phases if phase["phase"] == "load"]
    cpu = [phase["cpu_s"] / phase["wall_s"] if phase["wall_s"] > 0 else None for phase in loads]
    cpu_s = sum(phase["cpu_s"] for phase in loads)
    warnings: list[str] = []
    reliable: bool | None = None if itl_p50_ms is None else True
    if lost_frac is not None and lost_frac > limits.lost_stamps_frac:
        reliable = None if itl_p50_ms is None else False
        warnings.append(
            f"{lost_frac:.2%} of the tokens have no arrival stamp of their own (limit {limits.lost_stamps_frac:.2%}):"
            " the client read too late; ITL p99 is known only within bounds"
        )
    if source in ("user", "mixed") and itl_p50_ms is not None and lag_p99_ms is not None:
        allowed = limits.lag_frac_of_itl * itl_p50_ms
        if lag_p99_ms > allowed:
            reliable = False
            warnings.append(
                f"arrivals are stamped by the client, whose lag p99 of {lag_p99_ms:.2f} ms is over {allowed:.2f} ms"
                f" ({limits.lag_frac_of_itl:.0%} of ITL p50): ITL p99 is not reliable"
            )
    unseen = unseen_sentences(observed)
    warnings += unseen
    bunched = sum(count for name, count in observed.unseen.items() if name != "hidden_reasoning")
    if bunched > UNSEEN_FRAC * observed.answers:
        reliable = False
    for name, text in USAGE.items():
        if name in observed.usage_problems:
            warnings.append(
                f"{_of(observed.usage_problems[name], observed.answers)} {text}: what their frames hold was counted "
                "instead, one token a frame with text where nothing else tells"
            )
    limited = False
    busiest = max((share for share in cpu if share is not None), default=None)
    if busiest is not None and busiest > limits.cpu_frac:
        limited = True
        warnings.append(
            f"a client process used {busiest:.0%} of a core (limit {limits.cpu_frac:.0%}): the client was the limit;"
            " give it more processes"
        )
    delay_frac = observed.delay_ns / observed.slot_ns if observed.slot_ns else None
    if delay_frac is not None and delay_frac > limits.client_delay_frac:
        limited = True
        warnings.append(
            f"slots spent {delay_frac:.1%} of their time waiting for the client to send (limit"
            f" {limits.client_delay_frac:.0%}): the client was the limit"
        )
    if observed.clock_steps_ns:
        steps = ", ".join(f"{step / 1e6:+.3f} ms" for step in observed.clock_steps_ns)
        warnings.append(f"the wall clock was stepped during the load ({steps}); arrivals were put right")
    return {
        "stamp_source": source,
        "reads": observed.reads,
        "reads_without_stamp": observed.reads_without_stamp,
        "read_lag_p50_ms": _ms(observed.lag, 0.5, 1e6),
        "read_lag_p99_ms": _ms(observed.lag, 0.99, 1e6),
        "read_lag_max_ms": _ms(observed.lag, 1.0, 1e6),
        "tokens": observed.tokens,
        "lost_stamp_tokens": observed.lost_tokens,
        "lost_stamp_frac": lost_frac,
        "client_delay_p50_ms": _ms(observed.delay, 0.5, 1e6),
        "client_delay_p99_ms": _ms(observed.delay, 0.99, 1e6),
        "client_delay_max_ms": _ms(observed.delay, 1.0, 1e6),
        "client_delay_frac": delay_frac,
        "loop_lag_p50_ms": _ms(observed.loop_lag, 0.5, 1e3),
        "loop_lag_p99_ms": _ms(observed.loop_lag, 0.99, 1e3),
        "loop_lag_max_ms": _ms(observed.loop_lag, 1.0, 1e3),
        "processes": len(observed.metas),
        "event_loop": observed.metas[0]["loop"] if observed.metas else None,
        "priority": observed.metas[0]["priority"] if observed.metas else None,
        "cpu_frac": cpu,
        "peak_rss_mib": [phase["peak_rss_mib"] for phase in loads],
        "cpu_s_per_1k_tokens": 1000 * cpu_s / observed.tokens if observed.tokens else None,
        "clock_steps_ms": [step / 1e6 for step in observed.clock_steps_ns],
        "stale_connections": observed.stale_retries,
        "connects": observed.connects,
        "answers": observed.answers,
        "answers_unseen": dict(observed.unseen),
        "answers_usage_problem": dict(observed.usage_problems),
        "unfinished_requests": observed.unfinished,
        "ttft_rule": "first growth of the usage count"
        if observed.running_usage
        else "first frame that carries a token",
        "itl_p99_reliable": reliable,
        "client_limited": limited,
        "warnings": warnings,
    }


def unseen_sentences(observed: Observed) -> list[str]:
    """Return, for each reason, how many answers came otherwise than token by token, and what that means."""
    return [
        f"{_of(observed.unseen[name], observed.answers)} {text}"
        for name, text in UNSEEN.items()
        if name in observed.unseen
    ]


def _of(count: int, answers: int) -> str:
    return f"{count} of {answers} answers"


def _ms(histogram: Histogram, share: float, unit: float) -> float | None:
    value = histogram.quantile(share)
    return None if value is None else value / unit
