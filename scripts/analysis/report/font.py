"""The packaged font, cut down to what a page needs, so that Chinese shows on a machine without Chinese fonts."""

import base64
import io
import logging

from scripts.analysis.figures.style import font_path

FAMILY = "Report Sans"


def face(text: str) -> str:
    """Return an ``@font-face`` rule with the glyphs of ``text`` as a data URI; empty where the font is not installed.

    The same text gives the same bytes: no time stamp is written.
    """
    path = font_path()
    if path is None:
        return ""
    from fontTools import subset

    logging.getLogger("fontTools").setLevel(logging.ERROR)
    options = subset.Options(flavor="woff", hinting=False, layout_features=["kern"], notdef_outline=True)
    options.name_IDs = [0, 13, 14]
    options.drop_tables += ["vhea", "vmtx", "VORG", "GSUB", "BASE", "DSIG"]
    font = subset.load_font(str(path), options)
    cutter = subset.Subsetter(options)
    cutter.populate(text="".join(sorted(set(text) | set(map(chr, range(32, 127))))))
    cutter.subset(font)
    buffer = io.BytesIO()
    subset.save_font(font, buffer, options)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f"@font-face{{font-family:'{FAMILY}';src:url(data:font/woff;base64,{data}) format('woff');font-display:block}}"
    )
