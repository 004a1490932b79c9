#!/bin/sh
# Builds the filters beside which ours is measured: target/peers/{empty,webdis}.wasm.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
. "$(.ci/wasm-target)"
export CARGO_TARGET_DIR="$root/target/peers"
cargo build --quiet --locked --release --examples --target wasm32-unknown-unknown \
    --manifest-path benches/peers/Cargo.toml
for name in empty webdis; do
    cp "$CARGO_TARGET_DIR/wasm32-unknown-unknown/release/examples/$name.wasm" "$CARGO_TARGET_DIR/$name.wasm"
done
