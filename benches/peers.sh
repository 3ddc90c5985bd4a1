#!/usr/bin/env bash
# Installs one peer for `cargo bench --bench overhead -- --peers`: peers.sh FOLDER KIND REQUIREMENT...
# KIND is `pip` (a virtual environment in FOLDER) or `npm` (node_modules in FOLDER). Does nothing where the same
# requirements are installed already.
set -euo pipefail

folder=$1 kind=$2
shift 2
if [ "$(cat "$folder/installed" 2> /dev/null)" = "$*" ]; then exit 0; fi
rm -rf "$folder"
mkdir -p "$folder"
case $kind in
    pip)
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
        ;;
    npm)
        npm install --silent --no-fund --no-audit --prefix "$folder" "$@"
        ;;
    *)
        echo "peers.sh: KIND must be pip or npm, not $kind" >&2
        exit 2
        ;;
esac
printf '%s' "$*" > "$folder/installed"
