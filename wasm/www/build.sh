#!/usr/bin/env bash
# usage: wasm/www/build.sh
#
# Lays the lab's page into target/lab/site, from this folder, the package in target/lab/pkg
# (LAB_PACKAGE= names another), and what package-lock.json names. Own code is copied as it is; only the
# rules editor, which CodeMirror's modules are part of, becomes one file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$root/target/lab
package=${LAB_PACKAGE:-$work/pkg}
site=$work/site
new=$work/site.new
[ -f "$package/tollgate.js" ] || { echo "lab: no package in $package; make lab-package builds it" >&2; exit 1; }

# npm's folder lies in target, too: nothing is written beside the sources.
npm=$work/npm
mkdir -p "$npm"
exec 9>"$work/lock" && flock 9 # another make in this tree waits
cp "$here/package.json" "$here/package-lock.json" "$npm/"
if ! cmp -s "$here/package-lock.json" "$npm/installed.json"; then
    echo "lab: fetching what package-lock.json names from npm, once" >&2
    npm ci --prefix "$npm" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
    cp "$here/package-lock.json" "$npm/installed.json"
fi
esbuild=$npm/node_modules/.bin/esbuild

rm -rf "$new"
mkdir -p "$new/lib" "$new/pkg"
cp -r "$here"/{index.html,icon.svg,lab.json,app,css,sections} "$new/"
cp "$package"/*.js "$package"/*.wasm "$new/pkg/"
rm -f "$new"/pkg/node*.js # for Node only
cp "$npm/node_modules/uplot/dist/uPlot.min.css" "$new/css/"
"$esbuild" "$npm/node_modules/uplot/dist/uPlot.esm.js" --minify --format=esm --legal-comments=inline \
    --outfile="$new/lib/uplot.js" --log-level=warning
if [ -f "$here/sections/rules/editor.js" ]; then
    NODE_PATH=$npm/node_modules "$esbuild" "$here/sections/rules/editor.js" --bundle --minify --format=esm \
        --target=es2022 --legal-comments=eof --outfile="$new/sections/rules/editor.js" --allow-overwrite --log-level=warning
fi

# What the page carries of others, with the words that they ask for; esbuild itself is not in it.
{
    echo "The lab is under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0). It carries:"
    for license in "$npm"/node_modules/{uplot,@codemirror/*,@lezer/*,@marijn/*,crelt,style-mod,w3c-keyname}/LICENSE; do
        name=${license#"$npm/node_modules/"}
        printf '\n---- %s\n\n' "${name%/LICENSE}"
        cat "$license"
    done
} >"$new/licenses.txt"

# The service worker's list, and as its version what all of it hashes to.
cd "$new"
files=$(find . -type f ! -name '*.map' | LC_ALL=C sort)
version=$(cat $files "$here/sw.js" | sha256sum | cut -c1-16)
list=$(sed 's|^\./|  "|; s|$|",|' <<<"$files")
awk -v version="$version" -v list="$list" \
    '{ gsub(/@VERSION@/, version); if (/@FILES@/) { sub(/\/\* @FILES@ \*\//, "\n" list "\n") } print }' \
    "$here/sw.js" >sw.js
cd "$work"
rm -rf "$site"
mv "$new" "$site"
