#!/bin/bash
# Compute the lock files from pyproject.toml in a new environment. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

dependencies() {  # EXPRESSION on the [project] table
    "$new/bin/python" -c "
import tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
print(*$1, sep='\n')"
}
freeze() {  # WHAT
    echo "# $1, exactly. Computed by \`make lock\` from pyproject.toml."
    "$new/bin/pip" freeze --all --disable-pip-version-check | grep -v '^pip=='
}

"${PYTHON:-python3}" -m venv "$new"
pip=("$new/bin/pip" install -q --disable-pip-version-check)
# setuptools: to install nearmetal itself without fetching an unpinned one.
dependencies "project['dependencies']" >"$new/wanted"
"${pip[@]}" -r "$new/wanted" 'setuptools>=77'
freeze "What running nearmetal needs" >"$new/requirements.lock"
dependencies "project['optional-dependencies']['dev']" >"$new/wanted"
"${pip[@]}" -r "$new/wanted"
freeze "What testing nearmetal needs" >"$new/requirements-dev.lock"
mv "$new"/requirements.lock "$new"/requirements-dev.lock .
