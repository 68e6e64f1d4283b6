"""Counts in narrow logarithmic buckets: percentiles of any number of values in little memory."""

from collections.abc import Mapping

_BITS = 7
"""Significant bits kept: a bucket is at most 1/64 of its value wide."""


class Histogram:
    """Non-negative whole numbers; quantiles are exact to 1.6%, the maximum is exact."""

    def __init__(self, counts: Mapping[int, int] | None = None, maximum: int | None = None) -> None:
        self.counts: dict[int, int] = dict(counts) if counts is not None else {}
        self.maximum = maximum

    def add(self, value: int, times: int = 1) -> None:
        """Count a value (below 0 counts as 0)."""
        value = max(0, value)
        if self.maximum is None or value > self.maximum:
            self.maximum = value
        shift = value.bit_length() - _BITS
        bucket = (value >> shift) << shift if shift > 0 else value
        self.counts[bucket] = self.counts.get(bucket, 0) + times

    def merge(self, other: "Histogram") -> None:
        """Add another histogram's counts."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
        if other.maximum is not None:
            self.maximum = other.maximum if self.maximum is None else max(self.maximum, other.maximum)

    @property
    def total(self) -> int:
        """Number of values."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> int | None:
        """Return the lower bound of the bucket that holds the value of rank ``ceil(share * total)``; None if empty."""
        total = self.total
        if not total:
            return None
        if share >= 1:
            return self.maximum
        wanted, seen = max(1, -(-total * share // 1)), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return bucket
        return self.maximum

    def to_json(self) -> dict[str, object]:
        """Return the counts for a file."""
        return {"counts": sorted(self.counts.items()), "max": self.maximum}
