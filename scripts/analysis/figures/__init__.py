"""Figures: functions from a table of levels to a picture. ``render(name, …)`` writes one; ``NAMES`` lists them."""

from scripts.analysis.figures.render import NAMES, draw, render, to_bytes
from scripts.analysis.figures.style import Extras

__all__ = ["NAMES", "Extras", "draw", "render", "to_bytes"]
