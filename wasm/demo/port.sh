#!/usr/bin/env bash
# usage: wasm/demo/port.sh TARGET PORT
#
# Is PORT of 127.0.0.1 free for that target of make? Else says what to do. The Makefile asks before
# anything is built, and gateway.sh before anything is started.
set -euo pipefail

name=$1
port=${2-}
fail() {
    echo "$name: $*" >&2
    exit 1
}

[[ "$port" =~ ^[1-9][0-9]{0,4}$ ]] && [ "$port" -le 65535 ] ||
    fail "PORT=$port is not a port; it is a number from 1 to 65535"
# Does anybody listen there?
! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null ||
    fail "port $port of 127.0.0.1 is taken; stop what listens there, or choose another:" \
        "make $name PORT=$((port % 50000 + 10000))"
