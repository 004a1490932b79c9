#!/bin/sh
# Builds target/tollgate_filter.wasm. Needs wasm-opt (Debian: binaryen; `make setup` installs it): a
# tenth of what rustc makes is left over.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. "$(.ci/wasm-target)"
out=${CARGO_TARGET_DIR:-$root/target}
home=${CARGO_HOME:-$HOME/.cargo}
# No path of this machine ends in the module. What is inlined must be small: the host compiles all of it
# at its start.
RUSTFLAGS="-C llvm-args=-inline-threshold=25 --remap-path-prefix=$root=/tollgate --remap-path-prefix=$home/registry/src=/deps ${RUSTFLAGS:-}" \
    cargo build --profile wasm -p tollgate-filter --target wasm32-unknown-unknown
command -v wasm-opt >/dev/null || { echo "build.sh: no wasm-opt; Debian: apt install binaryen" >&2; exit 1; }
exec 9>target/filter.lock && flock 9 # another make in this tree waits
echo "filter: making it small" >&2
# The features that rustc's own target has; whoever reads the module finds it whole or not at all.
wasm-opt -Oz --converge --enable-bulk-memory --enable-sign-ext --enable-nontrapping-float-to-int \
    --enable-mutable-globals --enable-reference-types --enable-multivalue \
    "$out/wasm32-unknown-unknown/wasm/tollgate_filter.wasm" -o target/tollgate_filter.new
mv target/tollgate_filter.new target/tollgate_filter.wasm
