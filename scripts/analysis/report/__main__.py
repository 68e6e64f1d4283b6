"""Build the whole report from a table of levels: ``python -m scripts.analysis.report --levels FILE --out DIR``."""

import argparse
import sys
from pathlib import Path

from scripts.harness.errors import SweepError


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m scripts.analysis.report", description=__doc__)
    made.add_argument("--levels", required=True, help="table with one row a level: CSV, parquet or JSON")
    made.add_argument("--context", help="JSON file: workload, pool, peaks, memory lines, thresholds")
    made.add_argument("--out", required=True, help="folder to write to; made if it is not there")
    made.add_argument("--language", default="en", choices=("en", "zh"))
    made.add_argument("--no-png", action="store_true", help="write the figures as SVG only")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run the door: 0 when the report is written (its path is the last line), else 1 or 2 with one sentence."""
    arguments = parser().parse_args(argv)
    try:
        from scripts.analysis.load_levels import read_context, read_levels
        from scripts.analysis.report.build import build

        levels = read_levels(arguments.levels)
        context = read_context(arguments.context)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        page = build(
            levels,
            context,
            {"levels_file": Path(arguments.levels).name},
            arguments.out,
            language=arguments.language,
            formats=("svg",) if arguments.no_png else ("svg", "png"),
        )
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        print(f"error: cannot write the report to {arguments.out}: {error.strerror}{place}", file=sys.stderr)
        return 1
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
