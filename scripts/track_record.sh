#!/usr/bin/env bash
# Seeds the bugs of docs/track-record.md, one at a time, and runs the tests that the table names for each: all of them
# have to pass without the bug, and every one has to fail with it. track_record.sh [BUG ...], all bugs by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
export REDIS_LOCK_SERVERS=${REDIS_LOCK_SERVERS:-$target/servers}
# A directory of its own: no module with a seeded bug can be taken for one without. Nothing is optimized, so that all
# that is needed is compiled once; and a test that fails on purpose leaves no case to try again.
export CARGO_TARGET_DIR=$target/seeded CARGO_PROFILE_TEST_OPT_LEVEL=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
export REDIS_LOCK_MODULE=$CARGO_TARGET_DIR/debug/libredis_lock.so
unset LOCK_SEEDED_BUG

table=$(sed -n 's/^| `\([a-z0-9-]*\)` | .* | \(`.*`\) |$/\1 \2/p' docs/track-record.md | tr -d '`,')
wanted=" ${*:-$(cut -d ' ' -f 1 <<<"$table" | tr '\n' ' ')} "
output=$(mktemp)
trap 'rm -f "$output"' EXIT

cargo build --locked --features seeded-bugs
binary() { # TARGET ...: the path of the test program
    cargo test --locked --features seeded-bugs --no-run "$@" 2>&1 | tee "$output" | sed -n 's/.*Executable.*(\(.*\))$/\1/p'
}
units=$(binary --lib)
blackbox=$(binary --test blackbox)
simulation=$(binary --test simulation)
[ -x "$units" ] && [ -x "$blackbox" ] && [ -x "$simulation" ] || { cat "$output" >&2; exit 1; }

run() { # TEST: a unit test by its path, a simulation, or a black-box test on every server; what it printed is in $output
    case $1 in
        core::*) "$units" --exact "$1" >"$output" 2>&1 ;;
        simulation::*) "$simulation" --exact "${1#*::}" >"$output" 2>&1 ;;
        *) "$blackbox" "$1::" >"$output" 2>&1 ;;
    esac
}
has_result() { # WORDS: whether that is how the test ended, and whether there was one
    grep -q "^test result: $1" "$output" && ! grep -q '^running 0 tests' "$output"
}

missed=0
printf '%-32s %-8s %s\n' BUG RESULT TEST
while read -r bug tests; do
    [[ $wanted == *" $bug "* ]] || continue
    for test in $tests; do
        result=caught
        if ! run "$test" || ! has_result 'ok\. [1-9][0-9]* passed; 0 failed'; then
            result=BROKEN # it fails without the bug
        elif LOCK_SEEDED_BUG=$bug run "$test" || ! has_result 'FAILED\. 0 passed; [1-9][0-9]* failed'; then
            result=MISSED
        fi
        printf '%-32s %-8s %s\n' "$bug" "$result" "$test"
        if [ "$result" != caught ]; then
            missed=$((missed + 1))
            tail -n 30 "$output" >&2
        fi
    done
done <<<"$table"
[ "$missed" -eq 0 ] || { echo "$missed of them went unnoticed, or failed without a bug" >&2; exit 1; }
