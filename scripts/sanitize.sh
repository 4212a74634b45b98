#!/usr/bin/env bash
# Runs black-box tests with a tool that watches every use of memory: sanitize.sh asan|valgrind [FILTER ...].
#
# The module takes its memory from the system, whose allocator the tool replaces. The tool has to find two bugs seeded
# for it first (src/server/canary.rs). What it reports later, with this module in the stack, fails the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=$1
shift
target=$(realpath "${CARGO_TARGET_DIR:-target}")
servers=$(realpath "${REDIS_LOCK_SERVERS:-$target/servers}")
work=$target/$tool
export CARGO_TARGET_DIR=$target/seeded CARGO_PROFILE_TEST_OPT_LEVEL=0
features=(--locked --features seeded-bugs,system-alloc)
unset LOCK_SEEDED_BUG
rm -rf "$work"
mkdir -p "$work/reports"

case $tool in
    asan)
        kinds=(redis-7.0 valkey-9.1)
        filters=(acquire:: release:: extend:: shared:: upgrade:: holds:: waiting:: undelivered:: payload:: keyspace::
            guard_effects:: replication::both_agree restart::a_plain_aof)
        # The compiler has the sanitizer, behind a flag that the stable one takes only so. For a named target, build
        # scripts and macros stay plain.
        host=$(rustc -vV | sed -n 's/^host: //p')
        RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo build "${features[@]}" --target "$host"
        module=$CARGO_TARGET_DIR/$host/debug/libredis_lock.so
        runtime=$(realpath "$("${CC:-gcc}" -print-file-name=libasan.so)")
        [ -e "$runtime" ] || { echo "asan: the C compiler has no libasan.so: install gcc's libasan" >&2; exit 1; }
        "${CC:-gcc}" -shared -fPIC -O1 -o "$work/no_deepbind.so" tests/sanitizers/no_deepbind.c -ldl
        # Servers leave their memory to the end of the process, and see to their own crashes.
        wrapped="env LD_PRELOAD=$work/no_deepbind.so:$runtime"
        wrapped+=" ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0:handle_segv=0:allocator_may_return_null=1:log_path=$work/reports/report"
        ;;
    valgrind)
        command -v valgrind >/dev/null || { echo "valgrind is missing: install it" >&2; exit 1; }
        kinds=(redis-7.0)
        filters=(acquire::a_free_lock_is_granted_in_five_elements release:: holds::both_ways_can_be_sent_again
            waiting::a_release_hands_over_in_its_own_command)
        cargo build "${features[@]}"
        module=$CARGO_TARGET_DIR/debug/libredis_lock.so
        wrapped="valgrind --quiet --trace-children=yes --num-callers=40 --soname-synonyms=somalloc=*jemalloc* --log-file=$work/reports/report.%p"
        ;;
    *) echo "no such tool: $tool" >&2; exit 2 ;;
esac
[ $# -eq 0 ] || filters=("$@")

for kind in "${kinds[@]}"; do
    mkdir -p "$work/servers/$kind"
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$wrapped" "$servers/$kind/server" >"$work/servers/$kind/server"
    chmod +x "$work/servers/$kind/server"
done

blames_us() { # whether a report has this module in a stack
    grep -rq redis_lock "$work/reports"
}
for kind in "${kinds[@]}"; do
    for bug in use-after-free heap-overflow; do
        (cd "$work" && LOCK_SEEDED_BUG=$bug timeout 120 "$work/servers/$kind/server" --port 0 --unixsocket canary.sock --save '' \
            --loadmodule "$module" --loadmodule "$work/none.so" >"$work/canary.log" 2>&1) || true
        blames_us || { cat "$work/canary.log" >&2; echo "$tool on $kind does not see a seeded $bug" >&2; exit 1; }
        echo "$tool on $kind sees a seeded $bug"
        rm -f "$work"/reports/*
    done
done

# These measure memory: the tool takes much itself, and that of the module does not belong to the server's here.
counting='^(keyspace::(memory_usage_is_what_a_lock_costs|flushes_drop_every_lock_and_no_fence_goes_back)'
counting+='|payload::a_forged_length_costs_no_memory)::'
status=0
blackbox=$(cargo test --locked --features seeded-bugs --no-run --test blackbox 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
names=$("$blackbox" --list --format terse | sed -n 's/: test$//p' | grep -E "::($(tr ' .-' '|__' <<<"${kinds[*]}"))$" |
    grep -E "^($(tr ' ' '|' <<<"${filters[*]}"))" | grep -vE "$counting")
# shellcheck disable=SC2086 # a list of names
REDIS_LOCK_SERVERS=$work/servers REDIS_LOCK_MODULE=$module "$blackbox" --exact $names || status=1
if blames_us; then
    cat "$work"/reports/* >&2
    status=1
fi
exit $status
