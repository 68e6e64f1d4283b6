"""Live tests run only when asked for: ``-m live``."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked live unless the marker is in the expression given with -m."""
    if "live" in str(config.getoption("markexpr")):
        return
    for item in items:
        if item.get_closest_marker("live") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a real server; run with -m live"))
