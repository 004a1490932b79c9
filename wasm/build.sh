#!/usr/bin/env bash
# Builds the package for JavaScript into target/lab/pkg.
#
# Three modules of one crate, each by wasm-bindgen for the web, which Node loads as well (package/node*.js):
# tollgate (limits, buckets, keyed limiters), compare (limits and traffic) and full (all of it: rules, replay
# and cluster as well). They are as small as the compiler makes them: wasm-opt was tried, and what it takes
# from the module it adds to what gzip makes of it.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
version=$(sed -n 's/^wasm-bindgen = "=\(.*\)"/\1/p' Cargo.toml)
tools=$root/target/wasm-bindgen-cli/out
bindgen=$tools/bin/wasm-bindgen
# The tool must be of the very version of the crate.
if [ "$("$bindgen" --version 2>/dev/null)" != "wasm-bindgen $version" ]; then
    echo "lab: building wasm-bindgen $version, once: some minutes" >&2
    CARGO_TARGET_DIR=$root/target/wasm-bindgen-cli cargo install --quiet wasm-bindgen-cli --version "$version" \
        --no-default-features --no-track --force --root "$tools"
fi
. "$(.ci/wasm-target)"
out=${CARGO_TARGET_DIR:-$root/target}/wasm32-unknown-unknown/lab/tollgate_lab.wasm
home=${CARGO_HOME:-$HOME/.cargo}
pkg=$root/target/lab/pkg
# No path of this machine ends in a module.
export RUSTFLAGS="--remap-path-prefix=$root=/tollgate --remap-path-prefix=$home/registry/src=/deps ${RUSTFLAGS:-}"

echo "lab: building the core for the browser, three times: some minutes" >&2
# module NAME FEATURES: one module, into $pkg.new
module() {
    cargo build --quiet --profile lab -p tollgate-lab --target wasm32-unknown-unknown --no-default-features --features "$2"
    "$bindgen" --target web --no-typescript --remove-name-section --remove-producers-section \
        --out-dir "$pkg.new" --out-name "$1" "$out"
}
mkdir -p "${pkg%/*}"
exec 9>"${pkg%/*}/lock" && flock 9 # another make in this tree waits
rm -rf "$pkg.new"
mkdir "$pkg.new"
module tollgate limiter
module compare traffic
module full full
cp wasm/package/* "$pkg.new/"
sed "s/@VERSION@/$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)/" wasm/package/package.json >"$pkg.new/package.json"
cp LICENSE "$pkg.new/"
rm -rf "$pkg"
mv "$pkg.new" "$pkg"
