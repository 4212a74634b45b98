#!/usr/bin/env bash
# Gets the lock libraries of other languages that the tests run beside the module, in the versions that tests/interop
# pins:
#
#   ${CARGO_TARGET_DIR:-target}/interop/python/venv         Python with its packages
#   ${CARGO_TARGET_DIR:-target}/interop/node/node_modules   those of Node.js
#
# What is there in the right version is not fetched again, so a second run needs no network. One that cannot be had is
# an error: the tests promise all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${CARGO_TARGET_DIR:-target}/interop

python() {
    python3 -m venv venv
    venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
}

node() {
    npm install --silent --no-package-lock --no-audit --no-fund --ignore-scripts
}

prepare() { # LANGUAGE PINS: installs what the file PINS of that language names, if it has not been
    local dir=$cache/$1 pins=tests/interop/$1/$2
    if ! cmp -s "$pins" "$dir/installed"; then
        echo "clients: installing those of $1"
        rm -rf "$dir"
        mkdir "$dir"
        cp "$pins" "$dir"
        (cd "$dir" && "$1") || {
            echo "clients: those of $1 could not be installed: the reason is above" >&2
            exit 1
        }
        cp "$pins" "$dir/installed"
    fi
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9 # two runs at once install once
prepare python requirements.txt
prepare node package.json
echo 'clients: all are there'
