"""A small discrete-event model of a chunked-prefill engine under a closed loop, with the truth about every gap."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tests.unit import levels


@dataclass
class _Live:
    request_id: int
    slot: int
    wave: int
    sent_ms: float
    arrives_ms: float
    left: int
    times_ms: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Simulated:
    """Raw tables of the run, and per gap (ordered by request, then time) whether its step computed another prompt."""

    requests: pa.Table
    chunks: pa.Table
    held: np.ndarray
    gaps_ms: np.ndarray


def simulate(
    concurrency: int,
    waves: int,
    *,
    output_tokens: int = 64,
    input_tokens: int = 1000,
    budget: int = 2048,
    slots: int | None = None,
    stagger_ms: float = 0.0,
    seed: int = 0,
    vary: int = 0,
    spread_ms: float = 1.5,
) -> Simulated:
    """Run a closed loop to its end.

    A step takes 15 ms, 0.05 ms a running request and 0.08 ms a prompt token, plus noise; the budget holds decode tokens
    first, then prompt pieces in order of arrival. Tokens of a step leave within ``spread_ms`` in random order. A
    request takes 2 ms to reach the scheduler, the client 0.5 ms to send the next one. ``vary`` spreads the lengths.
    """
    rng = np.random.default_rng(seed)
    slots = concurrency if slots is None else slots
    remaining = dict.fromkeys(range(concurrency), waves)
    waves_done = dict.fromkeys(range(concurrency), 0)
    waiting: list[_Live] = []
    running: list[_Live] = []
    done: list[_Live] = []
    number = 0

    def send(slot: int, now: float) -> None:
        nonlocal number
        if remaining[slot] == 0:
            return
        remaining[slot] -= 1
        tokens = output_tokens + (int(rng.integers(-vary, vary + 1)) if vary else 0)
        live = _Live(number, slot, waves_done[slot], now, now + 2, input_tokens)
        wanted[number] = tokens
        waves_done[slot] += 1
        number += 1
        waiting.append(live)

    wanted: dict[int, int] = {}
    for slot in range(concurrency):
        send(slot, slot * stagger_ms)
    clock = 0.0
    while waiting or running:
        queue = [r for r in waiting if r.arrives_ms <= clock][: max(0, slots - len(running))]
        if not queue and not running:
            clock = min(r.arrives_ms for r in waiting)
            continue
        room = budget - len(running)
        pieces = 0
        finished_prefill: list[_Live] = []
        for live in queue:
            piece = min(live.left, room)
            live.left -= piece
            room -= piece
            pieces += piece
            if piece and live.left == 0:
                finished_prefill.append(live)
        clock += 15 + 0.05 * len(running) + 0.08 * pieces + float(rng.gamma(2, 0.1))
        ended: list[tuple[_Live, float]] = []
        for live in [*running, *finished_prefill]:
            stamp = clock + float(rng.uniform(0, spread_ms))
            if live.times_ms:
                live.held.append(pieces > 0)
            live.times_ms.append(stamp)
            if len(live.times_ms) == wanted[live.request_id]:
                ended.append((live, stamp))
        waiting = [r for r in waiting if r.left > 0]
        running += finished_prefill
        for live, stamp in ended:
            running.remove(live)
            done.append(live)
            send(live.slot, stamp + 0.5)
    done.sort(key=lambda r: r.request_id)
    rows = [
        levels.request(
            r.request_id, r.times_ms, sent_ms=r.sent_ms, slot=r.slot, wave=r.wave, prompt_tokens=input_tokens
        )
        for r in done
    ]
    return Simulated(
        requests=levels.requests(rows),
        chunks=levels.streams({r.request_id: r.times_ms for r in done}),
        held=np.array([h for r in done for h in r.held]),
        gaps_ms=np.concatenate([np.diff(r.times_ms) for r in done]),
    )
