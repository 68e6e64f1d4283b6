"""Pinning the KV pool: sizes, flags and the two recommendations."""

import pytest

from scripts.analysis import kv_pin

KIB56 = 57_344


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (8_471_115_264, 8_471_115_264),
        ("8471115264", 8_471_115_264),
        ("8_471_115_264", 8_471_115_264),
        (4e9, 4_000_000_000),
        ("7.5 GiB", 8_053_063_680),
        ("7.5gib", 8_053_063_680),
        (" 512MiB ", 536_870_912),
        (".5 GiB", 536_870_912),
        ("8 GB", 8_000_000_000),
        ("1 TiB", 1_099_511_627_776),
        ("0.1 GiB", 107_374_182),
    ],
)
def test_sizes_as_people_write_them(written: int | float | str, size: int) -> None:
    assert kv_pin.parse_size(written) == size


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (7.5, r"memory size 7\.5 has no unit; write all bytes, or '7\.5 GiB'"),
        ("8", "memory size '8' has no unit"),
        (0, "has no unit"),
        (2_000_000.5, "has no unit"),
        ("8G", "unit 'G' is not known; use b, kib"),
        ("8 gibibyte", "unit 'gibibyte' is not known"),
        ("-1 GiB", "expected bytes, or a number with a unit"),
        ("lots", "expected bytes, or a number with a unit"),
        ("", "expected bytes"),
        ("0 GiB", "must be above 0"),
        (True, "cannot be True"),
    ],
)
def test_sizes_that_are_refused(written: int | float | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_pin.parse_size(written)


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.6.3", None),
        ("0.9.2", None),
        ("0.10.1.1", None),
        ("0.10.2", "--kv-cache-memory-bytes"),
        ("v0.19.0rc2.dev3+gabc", "--kv-cache-memory-bytes"),
        ("0.27.1", "--kv-cache-memory-bytes"),
        ("0.33", "--kv-cache-memory-bytes"),
        ("1.0", "--kv-cache-memory-bytes"),
    ],
)
def test_the_flag_of_each_version(version: str, flag: str | None) -> None:
    assert kv_pin.flag(version) == flag


def test_the_servers_arguments() -> None:
    assert kv_pin.arguments("0.28.0", "2 GiB") == ["--kv-cache-memory-bytes", "2147483648"]
    with pytest.raises(ValueError, match=r"vLLM 0\.8\.5 cannot fix the KV pool in bytes .*--num-gpu-blocks-override"):
        kv_pin.arguments("0.8.5", "2 GiB")
    with pytest.raises(ValueError, match="vLLM version 'dev'"):
        kv_pin.flag("dev")


def test_pool_sizes_are_whole_blocks() -> None:
    assert kv_pin.pool_tokens(8_471_115_264, KIB56) == 147_712
    assert kv_pin.cap(147_712, 1280) == 115
    assert kv_pin.pool_tokens(KIB56 * 16 * 3 - 1, KIB56) == 32
    assert kv_pin.pool_tokens(KIB56 * 32 * 3, KIB56, block_size=32) == 96
    assert kv_pin.pool_tokens(100, KIB56) == 0
    for tokens in (16, 86_896, 120_064):
        assert kv_pin.pool_tokens(kv_pin.pool_bytes(tokens, KIB56), KIB56) == tokens
        assert kv_pin.pool_tokens(kv_pin.pool_bytes(tokens, 12_240.5), 12_240.5) == tokens
    with pytest.raises(ValueError, match="must be above 0"):
        kv_pin.pool_tokens(100, 0)


def test_a_larger_pool_is_recommended_with_its_margin() -> None:
    pin = kv_pin.recommend_larger(
        device_limit_bytes=8_471_115_264,
        current_bytes=120_064 * KIB56,
        kv_upper_bound_pct=68.23,
        kv_bytes_per_token=KIB56,
        request_tokens=1280,
    )
    assert (pin.rule, pin.outcome, pin.urgency) == ("R2", "holds", "optional")
    assert (pin.bytes, pin.tokens, pin.cap) == (8_471_115_264, 147_712, 115)
    assert pin.margin_bytes == 150 * 1024 * 1024
    assert pin.gib == pytest.approx(7.8893, abs=5e-5)


def test_a_larger_margin_makes_a_smaller_pool() -> None:
    pin = kv_pin.recommend_larger(
        device_limit_bytes=8 * kv_pin.GIB, current_bytes=6 * kv_pin.GIB, margin_bytes=kv_pin.GIB
    )
    assert pin.bytes == 7 * kv_pin.GIB + 150 * kv_pin.MIB
    assert (pin.margin_bytes, pin.tokens, pin.cap, pin.urgency) == (kv_pin.GIB, None, None, None)
    narrow = kv_pin.recommend_larger(
        device_limit_bytes=8 * kv_pin.GIB, current_bytes=6 * kv_pin.GIB, margin_bytes=3 * kv_pin.GIB
    )
    assert (narrow.outcome, narrow.bytes, narrow.gib) == ("fails", None, None)


@pytest.mark.parametrize(("bound", "urgency"), [(89.99, "optional"), (90.0, "urgent"), (140.0, "urgent")])
def test_how_urgent_a_larger_pool_is(bound: float, urgency: str) -> None:
    pin = kv_pin.recommend_larger(
        device_limit_bytes=8 * kv_pin.GIB, current_bytes=6 * kv_pin.GIB, kv_upper_bound_pct=bound
    )
    assert pin.urgency == urgency


def test_no_larger_pool_without_room_or_without_the_log() -> None:
    same = kv_pin.recommend_larger(device_limit_bytes=6 * kv_pin.GIB, current_bytes=6 * kv_pin.GIB)
    assert same.outcome == "fails"
    unknown = kv_pin.recommend_larger(device_limit_bytes=None, current_bytes=6 * kv_pin.GIB)
    assert (unknown.outcome, unknown.missing) == ("not_evaluable", ("device_limit_bytes",))


def test_two_unlike_pools_are_pinned_to_the_smaller() -> None:
    pin = kv_pin.recommend_common(
        pool_tokens_a=86_896, pool_tokens_b=120_064, kv_bytes_per_token=KIB56, request_tokens=1280
    )
    assert (pin.rule, pin.outcome, pin.tokens, pin.cap) == ("R4", "holds", 86_896, 67)
    assert pin.bytes == 4_982_964_224
    assert pin.gib == pytest.approx(4.64, abs=0.005)
    assert pin.margin_bytes is None
    other = kv_pin.recommend_common(
        pool_tokens_a=120_064,
        pool_tokens_b=86_896,
        kv_bytes_per_token=KIB56,
        device_limit_bytes_a=8_471_115_264,
        device_limit_bytes_b=7_000_000_000,
    )
    assert other.margin_bytes == 7_000_000_000 + 150 * kv_pin.MIB - 4_982_964_224


@pytest.mark.parametrize(
    ("other", "outcome"), [(105_000, "fails"), (105_016, "holds"), (95_248, "fails"), (95_200, "holds")]
)
def test_pools_within_five_percent_are_alike(other: int, outcome: str) -> None:
    pin = kv_pin.recommend_common(pool_tokens_a=100_000, pool_tokens_b=other, kv_bytes_per_token=1000)
    assert pin.outcome == outcome


def test_a_common_pool_needs_both_pools_and_the_bytes_of_a_token() -> None:
    one = kv_pin.recommend_common(pool_tokens_a=None, pool_tokens_b=16, kv_bytes_per_token=None)
    assert (one.outcome, one.missing) == ("not_evaluable", ("pool_tokens_a", "kv_bytes_per_token"))
    none = kv_pin.recommend_common(pool_tokens_a=16, pool_tokens_b=32, kv_bytes_per_token=None)
    assert (none.outcome, none.missing) == ("not_evaluable", ("kv_bytes_per_token",))
    with pytest.raises(ValueError, match="KV pools of 0 and 16 tokens"):
        kv_pin.recommend_common(pool_tokens_a=0, pool_tokens_b=16, kv_bytes_per_token=1)
