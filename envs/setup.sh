#!/usr/bin/env bash
# Create the virtual environment $1 and install requirements.txt into it, every file checked against its hash.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "error: Python 3.11 or later is needed, found $("$python" --version 2>&1 || echo none); run again as: make PYTHON=/path/to/python3.11 …"
    exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
    say "creating $venv"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$venv"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$venv"  # Debian ships venv without pip's wheel unless python3-venv is there
    else
        say "error: $python can make no virtual environment here; install the package python3-venv (apt-get install python3-venv) and run again"
        exit 1
    fi
fi
if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    pip=("$venv/bin/python" -m pip)
else
    pip=("$python" -m pip --python "$venv/bin/python")
fi
say "installing requirements.txt (about a minute)"
if ! "${pip[@]}" install --quiet --disable-pip-version-check --no-input --require-hashes --no-deps -r requirements.txt; then
    say "error: the packages of requirements.txt could not be installed; see pip's words above, then run again"
    exit 1
fi
