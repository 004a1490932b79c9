#!/usr/bin/env bash
# usage: ffi/nginx/demo/run.sh MODULE PORT
#
# Starts an NGINX of its own with MODULE on 127.0.0.1:PORT, which serves a limited API and the lab,
# if that is built, sends it three requests, and stays until Ctrl-C. Stops what it started and nothing
# else. Also works when run by root, or without a terminal.
set -euo pipefail

name=run
module=$(realpath "$1")
port=${2:-8080}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../wasm/demo/gateway.sh"
prefix=$root/target/run/$port
nginx=${TOLLGATE_NGINX:-$(PATH=$PATH:/usr/sbin command -v nginx)}

mkdir -p "$prefix"
: >"$prefix/error.log"
places='        location = /status {
            set $args format=json;
            tollgate_metrics;
        }
        location = /metrics {
            tollgate_metrics;
        }'
conf=$(<"$here/nginx.conf.in")
conf=${conf//@LAB@/"$(lab_conf NGINX "$port" 'tollgate_policies zone=main;' \
    ', "status": "status", "metrics": "metrics"' "$places")"}
conf=${conf//@MODULE@/"$module"}
conf=${conf//@RULES@/"$demo/rules.json"}
printf '%s\n' "${conf//@USER@/"$(user_line)"}" >"$prefix/nginx.conf"

start "$prefix/start.log" "$port" "$nginx" -p "$prefix/" -c nginx.conf -e error.log -g 'daemon off;'

echo
echo "Three requests at once, of a client that may send 2 and then 1 a second:"
for _ in 1 2 3; do
    echo
    echo "  \$ curl -i -H 'X-Api-Key: first-visit' $url/api/"
    curl -sS -i -H 'X-Api-Key: first-visit' "$url/api/" | tr -d '\r' |
        grep -iE '^(HTTP/|x-ratelimit|retry-after)|^\{' | sed 's/^/  /'
done
cat <<TEXT

  $(lab_line NGINX)
  The API     $url/api/      (limited by X-Api-Key and address)
  Its rules   $demo/rules.json (change them: the next second obeys)
  Counts      $url/status
  Prometheus  $url/metrics

Ctrl-C stops it.
TEXT
stay "$prefix/error.log"
