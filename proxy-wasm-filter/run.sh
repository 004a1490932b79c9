#!/usr/bin/env bash
# usage: proxy-wasm-filter/run.sh ENVOY PORT
#
# Starts an Envoy with the filter on 127.0.0.1:PORT, sends it a few requests, and stays until Ctrl-C.
# Envoy serves no files: behind it stands a plain NGINX with the API and, if it is built, the lab,
# which knows of no limit. Stops what it started and nothing else.
set -euo pipefail

name=run-envoy
envoy=$1
port=${2:-8080}
. "$(cd "$(dirname "$0")/.." && pwd)/wasm/demo/gateway.sh"
home=$root/target/run/envoy-$port
nginx=${TOLLGATE_NGINX:-$(PATH=$PATH:/usr/sbin command -v nginx)}
tollgate=${TOLLGATE:-$root/target/release/tollgate}

# Below the ports that clients are given.
behind=0
for try in $(seq 20); do
    behind=$((port % 10000 + 20000 + try * 97))
    answers $behind || break
done

mkdir -p "$home"
: >"$home/error.log"
cat >"$home/nginx.conf" <<TEXT
$(user_line)
worker_processes 1;
pid nginx.pid;
error_log error.log;
events { worker_connections 256; }
http {
$(lab_conf Envoy $behind '' '' '')
}
TEXT
# As anybody would make it, but on loopback only, and with the admin interface on any free port.
"$tollgate" envoy-config "$demo/rules.json" --upstream 127.0.0.1:$behind --listen "127.0.0.1:$port" \
    --admin-port 0 --module "$root/target/tollgate_filter.wasm" --concurrency 2 >"$home/envoy.yaml"

start "$home/start.log" $behind "$nginx" -p "$home/" -c nginx.conf -e error.log -g 'daemon off;'
rm -f "$home/admin"
start "$home/log" "$port" "$envoy" -c "$home/envoy.yaml" --disable-hot-restart --concurrency 2 \
    --log-level error --admin-address-path "$home/admin"

echo "Envoy with the filter on $url, two workers, one count. Two requests at once, then 1 a second:"
for _ in 1 2 3; do
    curl -s -o /dev/null -w '  %{http_code}' -H 'x-api-key: demo' "$url/api/"
done
echo
curl -s -i -H 'x-api-key: demo' "$url/api/" | sed 's/^/  /'
cat <<TEXT

  $(lab_line Envoy)
  The API     $url/api/      (limited by X-Api-Key and address)
  Its rules   $demo/rules.json (change them, and start it again)
  Prometheus  http://$(cat "$home/admin")/stats/prometheus
  Envoy's     $home/envoy.yaml; its log: $home/log

Ctrl-C stops it.
TEXT
stay "$home/log"
