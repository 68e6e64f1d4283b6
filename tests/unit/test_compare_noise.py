"""The noise a comparison is held against: by hand, and by simulation where the truth is known."""

import math
import random

import pytest

from scripts.analysis import noise


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.95, 5, 2.0150),
        (0.995, 10, 3.1693),
        (0.975, 30, 2.0423),
    ],
)
def test_students_quantiles_are_those_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert noise.student(probability, freedom) == pytest.approx(expected, abs=1e-4)


def test_student_approaches_the_normal_distribution() -> None:
    assert noise.student(0.975, 2000) == pytest.approx(1.96, abs=2e-3)


def test_noise_between_runs_is_pooled_over_levels() -> None:
    # ln(1.1)^2 / 2 and ln(1.2)^2 / 2, one degree of freedom each
    found = noise.between([(100, 110), (10, 12), (5,)], 0.03)
    expected = math.sqrt((math.log(1.1) ** 2 / 2 + math.log(1.2) ** 2 / 2) / 2)
    assert found.sd == pytest.approx(expected)
    assert (found.freedom, found.origin) == (2, "repeats")


def test_without_repeats_the_default_holds() -> None:
    assert noise.between([(100,), ()], 0.03) == noise.Between(0.03, None, 0.03)
    assert noise.between([], 0.03).origin == "default"


def test_noise_within_a_run_comes_from_the_draws_else_from_the_interval() -> None:
    assert noise.within_of(1, 2, [math.e, 1 / math.e]) == pytest.approx(2.0)
    assert noise.within_of(90, 110, None) == pytest.approx((math.log(110 / 90) / 3.919928) ** 2)
    assert noise.within_of(None, 110, None) is None
    assert noise.within_of(0, 110, [math.nan]) is None


def test_repeats_replace_the_default_and_are_averaged() -> None:
    one, two = noise.Value((100,), 0.0001), noise.Value((100, 121), 0.0001)
    assert two.centre == pytest.approx(110)
    known = noise.Between(0.05, 4)
    band = noise.band(one, two, known, 1, 0.95)
    assert band is not None
    assert band.sd == pytest.approx(math.sqrt(0.05**2 + 0.05**2 / 2))
    assert band.quantile == pytest.approx(2.776, abs=1e-3)
    assert noise.band(noise.Value((1,), None), one, noise.Between(0.03, None), 1, 0.95) is None


def test_the_default_of_a_tail_grows_where_it_rests_on_few() -> None:
    assert noise.default_sd("itl_p50_ms", 0.03, [10, 10], 0.06) == 0.03
    assert noise.default_sd("ttft_p99_ms", 0.03, [200, 500], 0.06) == 0.06
    assert noise.default_sd("ttft_p99_ms", 0.03, [50, 500], 0.06) == pytest.approx(0.12)
    assert noise.default_sd("ttft_p99_ms", 0.03, [None, None], 0.06) == 0.06


def test_the_family_of_comparisons_gives_a_false_alarm_in_one_of_twenty() -> None:
    """Runs that differ by noise only, 24 independent comparisons each: at most about 5% of the families alarm."""
    chance = random.Random(4)
    alarms = 0
    families = 600
    for _ in range(families):
        for _ in range(24):
            values = [math.exp(chance.gauss(0, math.hypot(0.02, 0.03))) for _ in range(2)]
            left, right = (noise.Value((value,), 0.02**2) for value in values)
            band = noise.band(left, right, noise.Between(0.03, None), 24, 0.95)
            assert band is not None
            if abs(math.log(right.centre / left.centre)) > band.log:
                alarms += 1
                break
    assert 0.02 < alarms / families < 0.08


def test_halving_the_speed_is_seen_through_that_noise() -> None:
    band = noise.band(noise.Value((50,), 0.02**2), noise.Value((100,), 0.02**2), noise.Between(0.03, None), 24, 0.95)
    assert band is not None
    assert math.log(2) > 3 * band.log


def test_agreement_of_two_sides() -> None:
    assert noise.agreement({4: 0.5, 8: 0.5}, {8: 0.8, None: 0.2}) == pytest.approx(0.4)


def test_few_repeats_do_not_hide_what_the_default_lets_through() -> None:
    """One degree of freedom has a quantile of hundreds; the default stands beside it."""
    single, twice = noise.Value((100,), 0.02**2), noise.Value((100, 102), 0.02**2)
    plain = noise.band(single, single, noise.between([(100,), (100,)], 0.05), 8, 0.95)
    once_more = noise.band(twice, single, noise.between([(100, 102), (100,)], 0.05), 8, 0.95)
    assert plain is not None
    assert once_more is not None
    assert once_more.log < 2 * plain.log
    assert once_more.origin == "default"
    student_alone = noise.quantile(8, 0.95, 1) * 0.02
    assert once_more.log < student_alone / 5


def test_few_repeats_that_spread_more_than_the_default_widen_the_band() -> None:
    single, twice = noise.Value((100,), 0.02**2), noise.Value((100, 130), 0.02**2)
    plain = noise.band(single, single, noise.between([(100,), (100,)], 0.05), 8, 0.95)
    spread = noise.band(twice, single, noise.between([(100, 130), (100,)], 0.05), 8, 0.95)
    assert plain is not None
    assert spread is not None
    assert spread.log > 2 * plain.log
    assert spread.origin == "repeats"


def test_a_noisy_level_has_its_own_noise() -> None:
    quiet, loud = (100, 101, 100), (100, 130, 110)
    runs = [quiet, quiet, quiet, quiet, loud, loud]
    assert noise.between(runs, 0.05, [loud, loud]).sd > 2 * noise.between(runs, 0.05).sd / math.sqrt(3)
    assert noise.between(runs, 0.05, [loud, loud]).freedom == 4
    assert noise.between(runs, 0.05, [quiet, quiet]) == noise.between(runs, 0.05)


def family(chance: random.Random, runs: int, factor: float = 1.0, sd: float = 0.02) -> int:
    """Return how many of 24 comparisons (3 levels, 8 metrics that move together) are called moved.

    Noise of ``sd`` from run to run and of 2% within a run.
    """
    moved = 0
    values: dict[tuple[int, int, int], list[float]] = {}
    for side in range(2):
        for level in range(3):
            for _ in range(runs):
                shared = chance.gauss(0, 0.8)
                for metric in range(8):
                    log = sd * (shared + chance.gauss(0, 0.6)) + chance.gauss(0, 0.02)
                    values.setdefault((side, level, metric), []).append((factor if side else 1) * math.exp(log))
    for metric in range(8):
        every = [values[side, level, metric] for side in range(2) for level in range(3)]
        for level in range(3):
            pair = [noise.Value(tuple(values[side, level, metric]), 0.02**2) for side in range(2)]
            own = [values[side, level, metric] for side in range(2)]
            band = noise.band(*pair, noise.between(every, 0.05, own), 24, 0.95)
            assert band is not None
            moved += abs(math.log(pair[1].centre / pair[0].centre)) > band.log
    return moved


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_back_to_back_pairs_are_quiet_and_a_loss_of_a_third_is_seen(runs: int) -> None:
    chance = random.Random(runs)
    assert sum(family(chance, runs) > 0 for _ in range(60)) <= 6
    assert all(family(chance, runs, 0.65) == 24 for _ in range(5))


@pytest.mark.parametrize("sd", [0.1, 0.25])
def test_repeats_on_a_machine_louder_than_the_default_do_not_raise_alarms(sd: float) -> None:
    chance = random.Random(7)
    assert sum(family(chance, 2, sd=sd) > 0 for _ in range(60)) <= 8
