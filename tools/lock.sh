#!/usr/bin/env bash
# Write requirements/*.lock anew from pyproject.toml and requirements/*.in.
# The locks hold hashes and no address: any index that serves the public files will do.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    local output=$1
    shift
    uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-header --no-annotate "$@" --output-file "$output"
    if grep -nE '://' "$output"; then
        echo "$output names an address (above); a lock must not." >&2
        exit 1
    fi
}
PATH=$PWD/.venv/bin:$PATH
compile requirements/base.lock pyproject.toml "$@"
compile requirements/dev.lock pyproject.toml --extra dev --constraint requirements/base.lock "$@"
compile requirements/postgres.lock pyproject.toml --extra postgres --constraint requirements/dev.lock "$@"
compile requirements/conformance.lock requirements/conformance.in --constraint requirements/dev.lock "$@"
compile requirements/docs.lock requirements/docs.in --constraint requirements/dev.lock "$@"
compile requirements/browser.lock requirements/browser.in --no-deps "$@"
