#!/usr/bin/env bash
# Build .venv from requirements/dev.lock and install this tree into it. Safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    # `python3` may be an old one while a fitting one is installed under its full name.
    for candidate in python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import venv' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "PairBus needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Name another: make setup PYTHON=python3.12" >&2
    exit 1
fi
if [ ! -x .venv/bin/python ]; then
    echo "making .venv with $("$python" -V)"
    if ! "$python" -m venv .venv; then
        echo "could not make a virtual environment: does this Python have its venv module (Debian: python3-venv)?" >&2
        rm -rf .venv
        exit 1
    fi
fi
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
alone=$(mktemp)
trap 'rm -f "$alone"' EXIT
# Install one package of the lock by itself: locked NAME [OPTION…]
locked() {
    local name=$1
    shift
    sed -n "/^$name==/,/[^\\\\]\$/p" requirements/dev.lock >"$alone"
    "${pip[@]}" --require-hashes --no-deps "$@" -r "$alone"
}
echo "installing the locked requirements"
# The build backend comes from the lock too, so nothing unpinned is fetched.
locked setuptools
# PySpark comes as source alone: older pips would build it the legacy way and warn, and all would fetch a backend.
locked pyspark --use-pep517 --no-build-isolation
"${pip[@]}" --require-hashes -r requirements/dev.lock
"${pip[@]}" --no-deps --no-build-isolation -e .
