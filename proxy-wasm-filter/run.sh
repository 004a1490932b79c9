#!/usr/bin/env bash
# usage: proxy-wasm-filter/run.sh ENVOY PORT
#
# Starts an Envoy with envoy.yaml on 127.0.0.1:PORT, sends it a few requests, and stays until
# Ctrl-C. Stops what it started and nothing else.
set -euo pipefail

envoy=$1
port=${2:-10000}
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/target/run/envoy-$port
url=http://127.0.0.1:$port

fail() {
    echo "run-envoy: $*" >&2
    exit 1
}

answers() {
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null
}

[[ "$port" =~ ^[0-9]{1,5}$ ]] && [ "$port" -ge 1 ] && [ "$port" -le 65535 ] ||
    fail "PORT=$port is not a port; it is a number from 1 to 65535"
! answers || fail "port $port is taken; stop what listens there, or choose another: make run-envoy PORT=18080"

mkdir -p "$home"
# The admin interface on any free port: 9901 may be another Envoy's.
sed -e "s/port_value: 10000/port_value: $port/" -e "s/port_value: 9901/port_value: 0/" \
    "$root/proxy-wasm-filter/envoy.yaml" >"$home/envoy.yaml"

pid=
stop() {
    trap - INT TERM HUP EXIT
    if [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null; then
        wait "$pid" 2>/dev/null || true
        echo
        echo "Stopped."
    fi
    exit "$1"
}
trap 'stop 0' INT TERM HUP
trap 'stop $?' EXIT

cd "$root"
setsid "$envoy" -c "$home/envoy.yaml" --disable-hot-restart --concurrency 2 --log-level error \
    </dev/null >"$home/log" 2>&1 &
pid=$!
for _ in $(seq 200); do
    ! answers || break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
done
answers || fail "Envoy did not start: $(cat "$home/log")"

echo "Envoy with the filter on $url, two workers, one count. Five orders at once, then 2 a second:"
for _ in 1 2 3 4 5 6 7; do
    curl -s -o /dev/null -w '  %{http_code}' -H 'x-api-key: demo' "$url/orders"
done
echo
curl -s -i -H 'x-api-key: demo' "$url/orders" | sed 's/^/  /'
echo
echo "Its configuration: $home/envoy.yaml; its log: $home/log. Ctrl-C ends it."
wait "$pid" || fail "Envoy ended: $(cat "$home/log")"
