"""Draw figures by name and write them to disk, with the same bytes for the same data."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

NAMES = (
    "tradeoff",
    "scaling",
    "marginal",
    "utilization",
    "itl_split",
    "e2el",
    "kv_pool",
    "itl_distribution",
    "ttft_by_launch",
    "timeline",
    "request_timeline",
)
PNG_DPI = 200


def draw(
    name: str,
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    *,
    extras: style.Extras | None = None,
) -> Figure:
    """Draw one figure in the house style. A table without levels gives a figure that says so."""
    if name not in NAMES:
        raise ValueError(f"there is no figure {name!r}; the figures are {', '.join(NAMES)}")
    words = Words(language)
    with style.house_style():
        if derived.levels.empty:
            title = words(f"{name}.title", C="–") if "{C}" in words(f"{name}.title") else words(f"{name}.title")
            return style.missing(title, words("missing.levels"), context, words)
        module = import_module(f"scripts.analysis.figures.{name}")
        figure: Figure = module.draw(derived, context, list(findings), language, extras)
        return figure


def to_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as svg or png bytes: no date, no version, ids that depend on the content only."""
    buffer = io.BytesIO()
    with style.house_style():
        if kind == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
            return _with_fallback_fonts(buffer.getvalue().decode()).encode()
        if kind == "png":
            figure.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None})
            return buffer.getvalue()
    raise ValueError(f"a figure can be written as svg or png, not {kind!r}")


def _with_fallback_fonts(svg: str) -> str:
    """Let viewers without the packaged font fall back to a Chinese and then to any sans-serif one."""
    ours = ", ".join(f"'{name}'" for name in style.font_families())
    more = ", ".join(name if name == "sans-serif" else f"'{name}'" for name in style.FALLBACK_FONTS)
    return re.sub(re.escape(ours), f"{ours}, {more}", svg)


def render(
    name: str,
    derived: style.Sweep,
    context: Mapping[str, Any],
    findings: Iterable[Any],
    out_dir: str | Path,
    *,
    formats: Sequence[str] = ("svg", "png"),
    language: str = "en",
    extras: style.Extras | None = None,
) -> dict[str, Path]:
    """Draw one figure and write ``<out_dir>/<name>.<format>``; return the paths by format."""
    figure = draw(name, derived, dict(context), findings, language, extras=extras)
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for kind in formats:
        path = folder / f"{name}.{kind}"
        path.write_bytes(to_bytes(figure, kind))
        paths[kind] = path
    return paths
