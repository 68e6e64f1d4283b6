"""The packaged font, cut down to what a page needs, so that Chinese shows on a machine without Chinese fonts."""

import base64
import io
import logging
from functools import cache

from scripts.analysis.figures.style import font_path

LATIN = "Report Latin"
CHINESE = "Report Chinese"
_FIRST_CHINESE = 0x2E80


def faces(text: str) -> str:
    """Return ``@font-face`` rules with the glyphs of ``text`` as data URIs: one for Latin and symbols, one for Chinese.

    Two families, so that a page can take Chinese from here and leave Latin to the reader's own fonts, while figures
    take both and show as they were measured. Empty where the font is not installed. The same text gives the same bytes.
    """
    path = font_path()
    if path is None:
        return ""
    wanted = set(text) | set(map(chr, range(32, 127)))
    parts = {
        LATIN: ("U+0-2E7F", sorted(one for one in wanted if ord(one) < _FIRST_CHINESE)),
        CHINESE: ("U+2E80-10FFFF", sorted(one for one in wanted if ord(one) >= _FIRST_CHINESE)),
    }
    return "".join(
        f"@font-face{{font-family:'{family}';unicode-range:{span};font-display:block;"
        f"src:url(data:font/woff;base64,{_subset(str(path), ''.join(characters))}) format('woff')}}"
        for family, (span, characters) in parts.items()
        if characters
    )


@cache
def _subset(path: str, text: str) -> str:
    """Return a WOFF font with the glyphs of ``text`` only, in base64; no time stamp is written."""
    from fontTools import subset  # type: ignore[import-untyped]

    logging.getLogger("fontTools").setLevel(logging.ERROR)
    options = subset.Options(flavor="woff", hinting=False, layout_features=["kern"], notdef_outline=True)
    options.name_IDs = [0, 13, 14]
    options.drop_tables += ["vhea", "vmtx", "VORG", "GSUB", "BASE", "DSIG"]
    font = subset.load_font(path, options)
    cutter = subset.Subsetter(options)
    cutter.populate(text=text)
    cutter.subset(font)
    buffer = io.BytesIO()
    subset.save_font(font, buffer, options)
    return base64.b64encode(buffer.getvalue()).decode()
