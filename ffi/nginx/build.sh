#!/bin/bash
# Builds the module, and where needed the NGINX that loads it, below target/nginx/<kind>/.
#
#   build.sh debian    the module for the distribution's NGINX (package nginx-dev)
#   build.sh current   NGINX 1.28.3 and the module, from the source that the crate nginx-src carries
#   build.sh asan      the same under AddressSanitizer; each pool allocation is its own malloc, so
#                      that no overrun hides inside a pool
#   build.sh all       the three
#
# JOBS (default 2) is handed to make; TOLLGATE_INC and TOLLGATE_LIB are read by ./config.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${TOLLGATE_NGINX_OUT:-$root/target/nginx}
jobs=${JOBS:-2}

# configure runs elsewhere
[ -z "${TOLLGATE_INC:-}" ] || export TOLLGATE_INC=$(realpath "$TOLLGATE_INC")
[ -z "${TOLLGATE_LIB:-}" ] || export TOLLGATE_LIB=$(realpath "$TOLLGATE_LIB")

crate=nginx-src
crate_version=1.28.5+1.28.3
crate_sha256=60c9192630560c017a18e1da5b4c5de9d78450923f17325752c6f0f7f3911c86

say() {
    printf '%s\n' "nginx module: $*" >&2
}

# The archive comes through cargo's own client and is checked once more against the sum above.
crate_file() {
    # there may be no such folder yet
    find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name "$crate-$crate_version.crate" -print -quit \
        2>/dev/null || true
}

unpack_current() {
    local to=$1 file
    [ -f "$to/.complete" ] && return
    file=$(crate_file)
    if [ -z "$file" ]; then
        say "fetching $crate $crate_version"
        (cd / && cargo info --quiet --registry crates-io "$crate@$crate_version" >/dev/null)
        file=$(crate_file)
    fi
    [ -n "$file" ] || { say "cannot fetch $crate $crate_version"; exit 1; }
    echo "$crate_sha256  $file" | sha256sum --check --quiet
    rm -rf "$to" && mkdir -p "$to"
    tar -xzf "$file" -C "$to" --strip-components=2 "$crate-$crate_version/nginx"
    touch "$to/.complete"
}

# configure runs anew when its arguments, the addon description or the library's place changed.
configured() {
    local stamp=$1 now=$2
    [ -f objs/Makefile ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ]
}

fingerprint() {
    printf '%s\n' "$@" "${TOLLGATE_INC:-}" "${TOLLGATE_LIB:-}" | cat - "$here/config" | sha256sum
}

install_to() {
    local from=$1 to=$2
    cmp -s "$from" "$to" || install -m 755 "$from" "$to"
}

build_debian() {
    local dir=$out/debian src=/usr/share/nginx/src print
    [ -d "$src" ] || { say "no $src: apt-get install nginx-dev"; exit 1; }
    mkdir -p "$dir"
    [ -d "$dir/src" ] || cp -r "$src" "$dir/src"
    cd "$dir/src"
    # shellcheck disable=SC1091
    . ./conf_flags
    print=$(fingerprint "${NGX_CONF_FLAGS[@]}")
    if ! configured ../configured "$print"; then
        say "configuring, once"
        ./configure "${NGX_CONF_FLAGS[@]}" \
            --with-cc-opt="-g -O2 -fstack-protector-strong -Wformat -Werror=format-security -fPIC -Wdate-time -D_FORTIFY_SOURCE=2" \
            --with-ld-opt="-Wl,-z,relro -Wl,-z,now -fPIC" \
            --add-dynamic-module="$here" >../configure.log
        echo "$print" >../configured
    fi
    make -s -f objs/Makefile -j"$jobs" modules
    install_to objs/ngx_http_tollgate_module.so "$dir/ngx_http_tollgate_module.so"
    say "built $dir/ngx_http_tollgate_module.so"
}

build_current() {
    local kind=$1 cc_opt=$2 ld_opt=$3 dir=$out/$1 print
    mkdir -p "$dir"
    unpack_current "$dir/src"
    cd "$dir/src"
    set -- --prefix="$dir/prefix" --with-compat --with-threads --with-pcre-jit \
        --with-http_ssl_module --with-http_v2_module --with-http_realip_module \
        --with-http_auth_request_module --with-http_stub_status_module \
        --with-http_addition_module --with-http_sub_module --with-http_slice_module \
        --with-cc-opt="$cc_opt" --with-ld-opt="$ld_opt" \
        --add-dynamic-module="$here"
    print=$(fingerprint "$@")
    if ! configured ../configured "$print"; then
        say "configuring $kind, and building NGINX, once"
        auto/configure "$@" >../configure.log
        echo "$print" >../configured
    fi
    make -s -f objs/Makefile -j"$jobs"
    install_to objs/nginx "$dir/nginx"
    install_to objs/ngx_http_tollgate_module.so "$dir/ngx_http_tollgate_module.so"
    say "built $dir/nginx and $dir/ngx_http_tollgate_module.so"
}

build() {
    mkdir -p "$out"
    (
        flock 9
        case $1 in
            debian)  build_debian ;;
            current) build_current current "-g -O2 -fPIC" "-Wl,-z,relro -Wl,-z,now" ;;
            asan)    build_current asan \
                         "-g -O1 -fPIC -fno-omit-frame-pointer -fsanitize=address -DNGX_DEBUG_PALLOC=1" \
                         "-fsanitize=address" ;;
        esac
    ) 9>"$out/.lock"
}

case ${1:-} in
    debian|current|asan) build "$1" ;;
    all) build debian; build current; build asan ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
