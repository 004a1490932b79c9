# shellcheck shell=bash
# What `make run` and `make run-envoy` have in common, for their run.sh to source: a port that is
# free, servers that are started away from the terminal and end with the script, however it ends, and
# the files of the lab.
#
# Before this: `name`, of the make target; `port`, where the gateway will listen.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
demo=$root/wasm/demo
site=$root/target/lab/site
url=http://127.0.0.1:$port
pids=()

fail() {
    echo "$name: $*" >&2
    exit 1
}

# Does anybody listen there?
answers() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Who ends make ends this script by that, and by a signal to all of their group once more: heard once.
stop() {
    trap '' TERM HUP
    trap - INT EXIT
    local pid said=
    for pid in "${pids[@]}"; do
        if kill -TERM "$pid" 2>/dev/null; then
            wait "$pid" 2>/dev/null || true
            said='\nStopped.\n'
        fi
    done
    printf "$said" || true # nobody may listen any more
    exit "$1"
}

# start LOG PORT COMMAND...: starts a server, and returns when it answers on that port.
# Away from this terminal: Ctrl-C reaches this script alone, and the script stops the servers in order.
# Should the script be killed, the system ends them.
start() {
    local log=$1 at=$2
    shift 2
    setsid setpriv --pdeathsig TERM "$@" </dev/null >"$log" 2>&1 &
    pids+=($!)
    local i
    for i in $(seq 200); do
        ! answers "$at" || break
        kill -0 "${pids[-1]}" 2>/dev/null || break
        sleep 0.05
    done
    if ! kill -0 "${pids[-1]}" 2>/dev/null || ! answers "$at"; then
        sed 's/^/  /' "$log" >&2
        fail "$(basename "$1") did not start; its log is above"
    fi
}

# Waits until one of the servers ends, which none should.
stay() {
    local status=0
    wait -n "${pids[@]}" || status=$?
    sed 's/^/  /' "$1" | tail -5 >&2
    fail "a server ended by itself (status $status); the end of its log is above"
}

# lab_conf GATEWAY PORT LIMIT MORE PLACES: NGINX's server for the lab, from lab.conf.in. LIMIT stands in
# the place /api/, MORE are fields of lab.json, and PLACES further places.
lab_conf() {
    local conf
    conf=$(<"$demo/lab.conf.in")
    conf=${conf//@GATEWAY@/"$1"}
    conf=${conf//@PORT@/"$2"}
    conf=${conf//@LIMIT@/"$3"}
    conf=${conf//@MORE@/"$4"}
    conf=${conf//@PLACES@/"$5"}
    conf=${conf//@SITE@/"$site"}
    printf '%s' "${conf//@DEMO@/"$demo"}"
}

# The line that says where the lab is. It takes minutes to build, and no gateway needs it.
lab_line() {
    if [ -f "$site/index.html" ]; then
        echo "The lab     $url     (its section Live sends requests through this $1)"
    else
        echo "The lab     is not built: \`make lab-site\` (some minutes) puts it at $url"
    fi
}

# As root NGINX's workers would become `nobody`, who may not be able to read this folder.
user_line() {
    [ "$(id -u)" -ne 0 ] || printf 'user root %s;' "$(id -gn)"
}

"$demo/port.sh" "$name" "$port" || exit 1
trap 'stop 0' INT TERM HUP
trap 'stop $?' EXIT
