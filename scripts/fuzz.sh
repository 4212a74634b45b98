#!/usr/bin/env bash
# Fuzzes each target of fuzz/ for FUZZ_SECONDS (60): fuzz.sh [TARGET ...]. What makes one fail is kept in
# fuzz/artifacts/, and what leads to new code in fuzz/corpus/, beside the few inputs in fuzz/seeds/ to start from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export PATH=$target/tools/bin:$PATH CARGO_TARGET_DIR=$target/fuzz
command -v cargo-fuzz >/dev/null || cargo install --locked --root "$target/tools" cargo-fuzz
# The compiler has what fuzzing needs, behind flags that the stable one takes only so.
export RUSTC_BOOTSTRAP=1

targets=("$@")
[ $# -gt 0 ] || targets=(payload command steps)
for name in "${targets[@]}"; do
    options=(-max_total_time="${FUZZ_SECONDS:-60}" -max_len=4096 -timeout=20)
    [ ! -e "fuzz/$name.dict" ] || options+=(-dict="fuzz/$name.dict")
    mkdir -p "fuzz/corpus/$name"
    cargo fuzz run "$name" "fuzz/corpus/$name" "fuzz/seeds/$name" -- "${options[@]}"
done
