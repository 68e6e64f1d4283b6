"""Make a figure's SVG part of a page: ids of its own, colours that follow the page's light or dark scheme."""

import re

from scripts.analysis.figures import style
from scripts.analysis.report.font import CHINESE, LATIN

COLORS: dict[str, str] = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.PAPER: "paper",
    style.BAND: "band",
    style.ACCENT: "accent",
    **{color: f"r{place}" for place, color in enumerate(style.ROUND_COLORS)},
}


def inline(svg: str, prefix: str, label: str) -> str:
    """Return the ``<svg>`` element alone, sized by the page, with ``label`` for screen readers.

    Ids that the drawing refers to get a prefix; others, such as names of artists, are dropped: an id occurs once.
    """
    start = svg.index("<svg")
    text = svg[start:]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    used = set(re.findall(r'href="#([^"]*)"', text)) | set(re.findall(r"url\(#([^)]*)\)", text))
    text = re.sub(r'\sid="([^"]*)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(xlink:href|href)="#([^"]*)"', rf'\1="#{prefix}-\2"', text)
    text = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r"(font(?:-family)?:[^;\"]*?)('[^']*', )", rf"\1'{LATIN}', '{CHINESE}', \2", text)
    for color, name in COLORS.items():
        text = re.sub(rf"(:\s*){color}\b", rf"\1var(--f-{name})", text, flags=re.IGNORECASE)
    head_end = text.index(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", text[:head_end])
    return f'{head} role="img" aria-label="{_attribute(label)}"{text[head_end:]}'


def css_colors(dark: bool) -> str:
    """Return the declarations of the figure colours for one scheme."""
    darker = {
        style.INK: "#e6edf3",
        style.MUTED: "#9da7b3",
        style.GRID: "#30363d",
        style.PAPER: "#161b22",
        style.BAND: "#8b949e",
        style.ACCENT: "#f0b429",
        style.ROUND_COLORS[0]: "#4aa3e0",
        style.ROUND_COLORS[1]: "#3fb98b",
        style.ROUND_COLORS[4]: "#f0883e",
    }
    return "".join(f"--f-{name}:{darker.get(color, color) if dark else color};" for color, name in COLORS.items())


def _attribute(text: str) -> str:
    """Escape a text for an attribute."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
