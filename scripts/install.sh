#!/usr/bin/env bash
# Installs what is missing on Debian and Ubuntu: install.sh NEED ..., each one of
#   build   Rust (checked only), a C compiler, libclang for the bindings to the module API
#   lint    rustfmt and clippy (checked only)
#   redis   a server and its command line client
#   pip     Python's package client, through which the Valkey servers of the tests come
#   venv    Python's environments, in which lock libraries of the tests and the contention benchmark are
#   node    Node.js and npm, through which others of them come
#   keys    what Debian's packages are signed with, from which the Redis servers of the tests come
# Where it cannot (no root and no passwordless sudo, no apt), it says what to type, and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=() packages=()

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

exists() { # FILE ...: one of these files exists
    local file
    for file in "$@"; do
        [ ! -e "$file" ] || return 0
    done
    return 1
}

check_rust() {
    local need have
    need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    { have=$(rustc --version | cut -d ' ' -f 2) && cargo --version; } >/dev/null 2>&1 ||
        fail "Missing: Rust $need or newer. Install it with rustup, or as packages where those are new enough, and try again."
    [ "$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)" = "$need" ] ||
        fail "Rust is $have here, and $need is the oldest that will do. Type: rustup update"
}

missing() { # WHAT PACKAGE ...
    what+=("$1")
    packages+=("${@:2}")
}

for need in "$@"; do
    case $need in
        build)
            check_rust
            echo '#include <stdio.h>' | cc -E -x c - >/dev/null 2>&1 || missing 'a C compiler' gcc libc6-dev
            # The library alone will not do: it reads the C headers that come with clang.
            [ -n "${LIBCLANG_PATH:-}" ] ||
                { exists /usr/lib*/{,*/}libclang*.so* /usr/lib*/llvm*/lib*/libclang*.so* &&
                    exists /usr/lib*/{,llvm*/lib*/}clang/*/include/stddef.h; } ||
                missing 'libclang' libclang-dev
            ;;
        lint)
            { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
                fail 'Missing: rustfmt or clippy. Type: rustup component add rustfmt clippy'
            ;;
        redis)
            # Not redis-server, which would start a service: redis-tools holds the same program.
            { command -v redis-cli && command -v redis-check-rdb; } >/dev/null ||
                { command -v valkey-cli && command -v valkey-server; } >/dev/null ||
                missing 'a Redis server' redis-tools
            ;;
        pip)
            python3 -m pip --version >/dev/null 2>&1 || missing 'pip for Python 3' python3-pip
            ;;
        venv)
            python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing "Python's environments" python3-venv
            ;;
        node) { node --version && npm --version; } >/dev/null 2>&1 || missing 'Node.js with npm' nodejs npm ;;
        keys) exists /usr/share/keyrings/debian-archive-keyring.gpg || missing "Debian's keys" debian-archive-keyring ;;
        *) fail "install.sh: no such need: $need" ;;
    esac
done

[ ${#packages[@]} -gt 0 ] || exit 0
list=$(printf ', %s' "${what[@]}")
command -v apt-get >/dev/null ||
    fail "Missing: ${list:2}. There is no apt here to install it with:" \
        "install with this machine's package manager what Debian calls ${packages[*]}, and try again."
root=(env)
if [ "$(id -u)" != 0 ]; then
    root=(sudo -n env)
    sudo -n true 2>/dev/null ||
        fail "Missing: ${list:2}. Type: sudo apt-get install ${packages[*]}"
fi
echo "Installing ${list:2}: ${packages[*]}"
# Packages may still be had from the old lists when some source is out of reach.
"${root[@]}" apt-get -qq update || true
"${root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    install -y --no-install-recommends "${packages[@]}" >/dev/null ||
    fail "Missing: ${list:2}. apt could not install ${packages[*]}: its reason is above."
