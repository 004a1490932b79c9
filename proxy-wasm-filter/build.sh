#!/bin/sh
# Builds target/tollgate_filter.wasm.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. "$(.ci/wasm-target)"
out=${CARGO_TARGET_DIR:-$root/target}
home=${CARGO_HOME:-$HOME/.cargo}
# No path of this machine ends in the module.
RUSTFLAGS="--remap-path-prefix=$root=/tollgate --remap-path-prefix=$home/registry/src=/deps ${RUSTFLAGS:-}" \
    cargo build --profile wasm -p tollgate-filter --target wasm32-unknown-unknown
cp "$out/wasm32-unknown-unknown/wasm/tollgate_filter.wasm" target/tollgate_filter.wasm
