"""Energy per output token."""

from scripts.analysis.values import Row, get, ratio


def joule_per_output_token(row: Row, prefix: str = "") -> float | None:
    """Joules per output token: the energy of the window over the tokens of the same window; else mean W / tok/s.

    The two agree when the power samples cover the window; the energy counter is taken where there is one.
    """
    counted = ratio(get(row, f"{prefix}energy_j"), get(row, f"{prefix}output_tokens_total"))
    if counted is not None:
        return counted
    power = get(row, f"{prefix}power_w_mean")
    return ratio(power, get(row, f"{prefix}output_tok_s"))
