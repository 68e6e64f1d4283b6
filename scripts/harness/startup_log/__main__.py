"""Print what a startup log says, as one JSON object: ``python -m scripts.harness.startup_log FILE``."""

import argparse
import json
import sys
from pathlib import Path

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import explain, files, read


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="startup_log", description=__doc__)
    parser.add_argument("file", help="the log; - reads standard input")
    parser.add_argument("--engine", default=None, help="vllm or llama_cpp; found out from the log if not given")
    parser.add_argument("--model", default=None, help="the measured model, where several servers speak in the log")
    parser.add_argument("--port", type=int, default=None, help="the measured server's port, likewise")
    parser.add_argument("--explain", action="store_true", help="say why the server failed instead")
    parser.add_argument("--returncode", type=int, default=None, help="exit status of the server, for --explain")
    arguments = parser.parse_args(argv)
    try:
        text = files.decoded(sys.stdin.buffer) if arguments.file == "-" else files.text_of(Path(arguments.file))
    except OSError as error:
        print(f"error: cannot read the log {arguments.file}: {error.strerror}.", file=sys.stderr)
        return 2
    try:
        if arguments.explain:
            result = explain(text, arguments.returncode, arguments.engine)
        else:
            result = read(text, arguments.engine, arguments.file, {"model": arguments.model, "port": arguments.port})
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    json.dump(result, sys.stdout, indent=1, ensure_ascii=False, default=str)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
