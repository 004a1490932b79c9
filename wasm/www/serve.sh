#!/usr/bin/env bash
# usage: wasm/www/serve.sh PORT
#
# Serves the built lab (target/lab/site) on 127.0.0.1:PORT by Debian's NGINX, without a limit and
# without a gateway, until Ctrl-C. Any other server does as well: the page is files.
set -euo pipefail

name=lab
port=${1:-8081}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../demo/gateway.sh"
prefix=$root/target/run/lab-$port
nginx=${TOLLGATE_NGINX:-$(PATH=$PATH:/usr/sbin command -v nginx)}

[ -f "$site/index.html" ] || fail "the lab is not built: make lab-site"
mkdir -p "$prefix"
: >"$prefix/error.log"
# The server of the demos, up to where it speaks of a gateway.
server=$(lab_conf nobody "$port" '' '' '' | sed '/# The page asks here/,$d')
cat >"$prefix/nginx.conf" <<CONF
$(user_line)
worker_processes 1;
pid nginx.pid;
error_log error.log;
events {}
http {
$server
    }
}
CONF
start "$prefix/start.log" "$port" "$nginx" -p "$prefix/" -c nginx.conf -e error.log -g 'daemon off;'
cat <<TEXT

  The lab     $url

Ctrl-C stops it. (Its section Live needs a gateway, which serves the page too: make run, or make run-envoy.)
TEXT
stay "$prefix/error.log"
