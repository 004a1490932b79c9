#!/usr/bin/env bash
# usage: ffi/nginx/demo/run.sh MODULE PORT
#
# Starts an NGINX of its own with MODULE on 127.0.0.1:PORT, sends it three requests, and stays until
# Ctrl-C. Stops what it started and nothing else. Also works when run by root, or without a terminal.
set -euo pipefail

module=$(realpath "$1")
port=${2:-8080}
demo=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$demo/../../.." && pwd)/target/run/$port
url=http://127.0.0.1:$port
nginx=${TOLLGATE_NGINX:-$(PATH=$PATH:/usr/sbin command -v nginx)}

fail() {
    echo "run: $*" >&2
    exit 1
}

answers() {
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null
}

[[ "$port" =~ ^[0-9]{1,5}$ ]] && [ "$port" -ge 1 ] && [ "$port" -le 65535 ] ||
    fail "PORT=$port is not a port; it is a number from 1 to 65535"
! answers || fail "port $port is taken; stop what listens there, or choose another: make run PORT=18080"

mkdir -p "$prefix"
: >"$prefix/error.log"
user=
if [ "$(id -u)" -eq 0 ]; then
    # As root the workers would become `nobody`, who may not be able to read this folder.
    user="user root $(id -gn);"
fi
conf=$(<"$demo/nginx.conf.in")
conf=${conf//@MODULE@/"$module"}
conf=${conf//@WWW@/"$demo/www"}
conf=${conf//@PORT@/"$port"}
printf '%s\n' "${conf//@USER@/"$user"}" >"$prefix/nginx.conf"

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

# Away from this terminal: Ctrl-C reaches this script alone, and the script stops the server in order.
setsid "$nginx" -p "$prefix/" -c nginx.conf -e error.log -g 'daemon off;' </dev/null &
pid=$!
for _ in $(seq 100); do
    ! answers || break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
done
if ! kill -0 "$pid" 2>/dev/null || ! answers; then
    sed 's/^/  /' "$prefix/error.log" >&2
    fail "NGINX did not start; its log is above"
fi

echo
echo "Three requests at once, of a client that may send 2 and then 1 a second:"
for _ in 1 2 3; do
    echo
    echo "  \$ curl -i -H 'X-Api-Key: first-visit' $url/api/"
    curl -sS -i -H 'X-Api-Key: first-visit' "$url/api/" | tr -d '\r' |
        grep -iE '^(HTTP/|x-ratelimit|retry-after)|^\{' | sed 's/^/  /'
done
cat <<TEXT

  Try it      $url/
  The API     $url/api/      (limited by X-Api-Key, or by address without one)
  Counts      $url/status
  Prometheus  $url/metrics

Ctrl-C stops it.
TEXT
status=0
wait "$pid" || status=$?
pid=
sed 's/^/  /' "$prefix/error.log" | tail -5 >&2
fail "NGINX ended by itself (status $status); the end of its log is above"
