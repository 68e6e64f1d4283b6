"""The trend within a level: never on a server that is steady, always on one that slows down for good."""

import dataclasses
import heapq
import math
from itertools import count

import numpy as np
import pytest

from scripts.analysis import metrics, schema, trend
from scripts.analysis.metrics import Level
from scripts.analysis.steady import steady_window
from tests.unit import levels

N_OUT = 8


def load(
    concurrency: int,
    requests: int,
    *,
    noise: float,
    alike: float = 0.0,
    in_step: bool = False,
    slowed: float = 1.0,
    failing: bool = False,
    seed: int = 0,
) -> Level:
    """Return a level of a closed loop whose requests take a second, more or less by ``noise``.

    The noise of a moment resembles the moment before by ``alike``; streams run ``in_step`` or not. From the middle of
    the requests on the server runs at ``slowed`` of its speed, or ``failing``.
    """
    random = np.random.default_rng([seed, concurrency, requests])
    course = [random.normal() * noise]
    for step in random.normal(size=4 * requests + 50) * noise * math.sqrt(1 - alike**2):
        course.append(alike * course[-1] + step)
    rows, frames = [], {}
    free = [(0.0, slot, 0) for slot in range(concurrency)]
    for number in range(requests):
        start, slot, wave = heapq.heappop(free)
        took = 1000 * math.exp(-course[min(int(start / 1000), len(course) - 1)])
        took *= math.exp((0.002 if in_step else noise) * random.normal())
        took *= 1 if in_step or wave else 0.5 + random.random()
        late = number >= requests / 2
        took /= slowed if late else 1
        arrivals = list(np.linspace(start + 0.3 * took, start + took, N_OUT))
        lost = {"status": "failed", "error_kind": "reset"} if late and failing else {}
        rows.append(levels.request(number, slot=slot, wave=wave, sent_ms=start, arrivals_ms=arrivals, **lost))
        frames[number] = arrivals
        heapq.heappush(free, (start + took + 0.1, slot, wave + 1))
    table = levels.requests(rows)
    cell = {"level": concurrency, "client": {}}
    return metrics.read(cell, table, levels.streams(frames), steady_window(table, concurrency))


SHAPES = [(c, n) for c in (1, 2, 4, 8) for n in (16, 24, 32, 48, 64)]


@pytest.mark.parametrize(("noise", "alike"), [(0.02, 0.0), (0.08, 0.0), (0.03, 0.5), (0.15, 0.3)])
def test_a_steady_server_is_never_said_to_drift(noise: float, alike: float) -> None:
    seeds = count()
    found = [
        trend.of_level(load(c, n, noise=noise, alike=alike, in_step=in_step, seed=next(seeds)))["not_steady"]
        for c, n in SHAPES
        for in_step in (False, True)
    ]
    assert not [one for one in found if one]
    assert None in found, "a level with too few requests is not called steady"
    assert noise > 0.1 or found.count(False) > 10


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize(("concurrency", "requests"), [(1, 32), (2, 48), (4, 64), (8, 160)])
def test_a_second_half_at_seven_tenths_of_the_speed_is_found(concurrency: int, requests: int, in_step: bool) -> None:
    slow = trend.of_level(load(concurrency, requests, noise=0.02, in_step=in_step, slowed=0.7))
    assert slow["not_steady"] is True
    low, value, high = (slow[name] for name in ("trend_low_pct", "trend_pct", "trend_high_pct"))
    assert low is not None and value is not None and high is not None
    assert low < value < high < 0 and -35 < value < -15
    fast = trend.of_level(load(concurrency, requests, noise=0.02, in_step=in_step, slowed=1 / 0.7))
    assert fast["not_steady"] is True and (fast["trend_pct"] or 0) > 15


def test_few_requests_say_nothing_and_neither_does_a_wide_interval() -> None:
    few = trend.of_level(load(8, 16, noise=0.02, slowed=0.7))
    assert few["not_steady"] is None and few["trend_pct"] is None
    assert few["quarter_1_tok_s"] is not None, "the quarters need no test"
    wild = trend.of_level(load(2, 16, noise=0.6))
    assert wild["not_steady"] is None and wild["trend_low_pct"] is None


def test_quarters_add_up_to_the_steady_throughput() -> None:
    level = load(2, 40, noise=0.05)
    row, whole = trend.of_level(level), metrics.steady(level, None)["steady_output_tok_s"]
    quarters = [row[name] for name in trend.QUARTERS]
    assert sum(value for value in quarters if value is not None) / 4 == pytest.approx(whole, rel=0.02)


def test_without_a_steady_state_or_with_failures_nothing_is_said() -> None:
    level = load(1, 40, noise=0.02)
    assert set(trend.of_level(dataclasses.replace(level, window=None)).values()) == {None}
    assert trend.of_level(load(1, 40, noise=0.02, failing=True))["not_steady"] is None


def test_the_columns_are_in_the_contract() -> None:
    known = {column.name for column in schema.LEVELS}
    assert set(trend.COLUMNS) <= known
