#!/usr/bin/env bash
# usage: tests/lab/setup.sh
#
# What the tests of the lab need: Chromium from Debian, if there is none, and the packages that
# package-lock.json names, in target/lab/test-npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
npm=$here/../../target/lab/test-npm
if [ ! -x "${CHROMIUM:-/usr/bin/chromium}" ]; then
    sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -q >&2 && $sudo apt-get install -qy --no-install-recommends chromium >&2
fi
mkdir -p "$npm"
cp "$here/package.json" "$here/package-lock.json" "$npm/"
if ! cmp -s "$here/package-lock.json" "$npm/installed.json"; then
    npm ci --prefix "$npm" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
    cp "$here/package-lock.json" "$npm/installed.json"
fi
