//! `tollgate envoy-config`: a complete configuration of Envoy with the filter,
//! from a few flags and a rules file.
//!
//! What Envoy is told is put together as text, so that it reads as people
//! write it. What the filter is told of it is read by the core first, as the
//! filter will read it: what it would refuse is refused here.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use tollgate_core::policy::plugin::Plugin;
use tollgate_core::policy::{RuleError, Rules, Store};

use crate::args::{EnvoyConfigArgs, RedisTransport};
use crate::failure::Failure;
use crate::rules::{in_order, lines, read, seed, shown};
use crate::screen;

/// Prints the configuration; 1 if the rules are wrong.
pub(crate) fn envoy_config(args: &EnvoyConfigArgs) -> Result<ExitCode, Failure> {
    let text = read(&args.rules)?;
    if args.redis_cluster && args.redis_transport == RedisTransport::Post {
        return Err(Failure::Usage(
            "--redis-cluster: only by a stream; a POST leads to one server, whatever the key".to_owned(),
        ));
    }
    let plugin = plugin(args, &text);
    check(args, &text, &plugin)?;
    let front = front(args, &plugin);
    let listeners = args.lds.as_deref().map(std::path::absolute).transpose()?;
    if let Some(path) = &listeners {
        warn_of_other_flags(args, path);
        replace(path, &in_file(&front))?;
    }
    let mut out = std::io::stdout().lock();
    out.write_all(bootstrap(args, &front, listeners.as_deref()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Would the filter take it? What is wrong in the rules is told with its place
/// in their file.
fn check(args: &EnvoyConfigArgs, rules: &str, plugin: &str) -> Result<(), Failure> {
    if args.redis.is_none()
        && let Ok(rules) = Rules::parse_at(rules, seed(), 0)
        && rules.policies().iter().any(|policy| policy.store() == Store::Redis)
    {
        return Err(Failure::Rules(format!(
            "{}: a policy has \"store\": \"redis\": name the server with --redis HOST:PORT",
            shown(&args.rules)
        )));
    }
    let Err(errors) = Plugin::parse(plugin, seed(), 0) else { return Ok(()) };
    let above = plugin.lines().take_while(|line| *line != "\"rules\":").count() + 1;
    let (inside, outside): (Vec<_>, Vec<_>) = errors.into_iter().partition(|error| error.line > above);
    if let Some(error) = outside.first() {
        return Err(Failure::Usage(format!("{}: {}", error.path, error.message)));
    }
    let inside = inside.into_iter().map(|error| RuleError {
        line: error.line - above,
        path: error.path.strip_prefix("rules").unwrap_or(&error.path).trim_start_matches('.').to_owned(),
        ..error
    });
    let told = lines(&args.rules, &in_order(inside.collect()));
    Err(Failure::Rules(format!("{}: the filter would refuse it:\n{}", shown(&args.rules), told.trim_end())))
}

/// The listener that clients connect to, as Envoy wants it in a file.
fn in_file(front: &str) -> String {
    LISTENERS.replace("@front@", &item(&[LISTENER, front].concat(), 0))
}

/// Envoy takes with the rules whatever else is in the file: where that is not
/// what was there, a flag may have been forgotten.
fn warn_of_other_flags(args: &EnvoyConfigArgs, path: &Path) {
    let Ok(old) = fs::read_to_string(path) else { return }; // it is the first
    let without_rules = in_file(&front(args, &plugin(args, "")));
    let Some((before, after)) = without_rules.split_once("\n\n") else { return }; // where they would be
    let differs = |(new, old): &(&str, &str)| new != old;
    let changed = before.lines().zip(old.lines()).find(differs);
    let changed = changed.or_else(|| after.lines().rev().zip(old.lines().rev()).find(differs));
    if let Some((new, old)) = changed {
        screen::warn(&format!(
            "{}: not only the rules change: `{}` becomes `{}`; give the flags of the last time, or start Envoy \
             with what is printed now",
            shown(path),
            screen::clean(old.trim()),
            screen::clean(new.trim())
        ));
    }
}

/// Puts a file in the place of another at one instant, as Envoy wants it: what
/// is written in place it does not see.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| Failure::Write { path: path.to_owned(), error };
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, text).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

/// What the filter is told.
fn plugin(args: &EnvoyConfigArgs, rules: &str) -> String {
    let rules = rules.strip_prefix('\u{feff}').unwrap_or(rules); // a byte order mark, ignored where rules begin
    let instance = args.instance.map(|instance| format!(", \"instance\": {instance}"));
    let redis = args.redis.as_ref().map(|_| {
        REDIS_PLUGIN
            .replace("@connection@", &connection(args))
            .replace("@timeout@", &args.timeout_ms.to_string())
            .replace("@instances@", &args.instances.to_string())
            .replace("@instance@", &instance.unwrap_or_default())
            .replace("@workers@", &args.concurrency.to_string())
    });
    ["{\n", &redis.unwrap_or_default(), "\"rules\":\n", rules.trim_end(), "\n}\n"].concat()
}

/// The members of the plugin's `redis` that say how to reach it.
fn connection(args: &EnvoyConfigArgs) -> String {
    let way = match args.redis_transport {
        RedisTransport::Stream => r#""cluster": "tollgate_bridge""#,
        RedisTransport::Post => r#""cluster": "redis", "transport": "post""#,
    };
    if args.redis_cluster {
        return way.to_owned(); // redis_proxy says who it is
    }
    let given = [("username", &args.redis_username), ("password_env", &args.redis_password_env)];
    let who = given.map(|(name, value)| {
        value.as_ref().map_or(String::new(), |value| format!(", \"{name}\": {}", quoted(value)))
    });
    [way, &who.concat()].concat()
}

fn is_bridged(args: &EnvoyConfigArgs) -> bool {
    args.redis.is_some() && args.redis_transport == RedisTransport::Stream
}

/// The members of the listener that clients connect to.
fn front(args: &EnvoyConfigArgs, plugin: &str) -> String {
    FRONT
        .replace("@address@", &address(args.listen))
        .replace("@plugin@", &indented(plugin, 16))
        .replace("@vm@", &indented(&vm(args), 12))
}

fn address(socket: SocketAddr) -> String {
    format!("{{ address: \"{}\", port_value: {} }}", socket.ip(), socket.port())
}

fn vm(args: &EnvoyConfigArgs) -> String {
    let variable = args.redis_password_env.as_ref().filter(|_| !args.redis_cluster);
    let variables = variable.map(|variable| ENVIRONMENT.replace("@variable@", variable));
    VM.replace("@module@", &quoted(&args.module.to_string_lossy()))
        .replace("@environment@", &variables.unwrap_or_default())
}

/// All but the listener that clients connect to, where that has a file of its
/// own.
fn bootstrap(args: &EnvoyConfigArgs, front: &str, listeners: Option<&Path>) -> String {
    // Which variable Envoy must be given, but not what is in it.
    let password = args.redis_password_env.as_ref().map(|variable| format!("{variable}=… "));
    let mut yaml = START
        .replace("@password@", &password.unwrap_or_default())
        .replace("@workers@", &args.concurrency.to_string())
        .replace("@admin@", &args.admin_port.to_string());
    if let Some(path) = listeners {
        yaml.push_str(&LDS.replace("@path@", &quoted(&path.to_string_lossy())));
    }
    if is_bridged(args) {
        yaml.push_str(INTERNAL);
    }
    yaml.push_str("static_resources:\n");
    let proxy = if args.redis_cluster { REDIS_PROXY } else { TCP_PROXY };
    let bridge = [&BRIDGE.replace("@vm@", &indented(&vm(args), 8)), proxy].concat();
    let bridge = Some(bridge).filter(|_| is_bridged(args));
    let here: Vec<&str> =
        Some(front).filter(|_| listeners.is_none()).into_iter().chain(bridge.as_deref()).collect();
    if !here.is_empty() {
        yaml.push_str("  listeners:\n");
        yaml.extend(here.iter().map(|members| item(members, 2)));
    }
    let address = |cluster: &str, (host, port): &(String, u16)| {
        cluster.replace("@host@", host).replace("@port@", &port.to_string())
    };
    yaml.push_str(&address(UPSTREAM, &args.upstream));
    let Some(redis) = &args.redis else { return yaml };
    if is_bridged(args) {
        yaml.push_str(BRIDGE_CLUSTER);
        yaml.push_str(AS_TCP);
    }
    let kind = if args.redis_cluster { REDIS_CLUSTER } else { "    type: STRICT_DNS\n" };
    yaml.push_str(&address(REDIS, redis).replace("@kind@", kind));
    if !is_bridged(args) {
        yaml.push_str(AS_TCP);
        yaml.push_str(ONE_CALL);
    } else if let Some(variable) = args.redis_password_env.as_ref().filter(|_| args.redis_cluster) {
        let user = args.redis_username.as_ref().map(|user| USERNAME.replace("@user@", &quoted(user)));
        yaml.push_str(&PASSWORD.replace("@variable@", variable).replace("@user@", &user.unwrap_or_default()));
    }
    if let Some(ca) = &args.redis_ca {
        yaml.push_str(&address(TLS, redis).replace("@ca@", &quoted(&ca.to_string_lossy())));
    }
    yaml
}

/// A string of JSON, and so of YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:1$}{line}\n", "", if line.is_empty() { 0 } else { by })).collect()
}

/// Members of an object as an item of a list, which is indented by so much.
fn item(members: &str, by: usize) -> String {
    let mut item = indented(members, by + 2);
    item.replace_range(by..by + 2, "- ");
    item
}

const START: &str = r#"# Made by `tollgate envoy-config`. Start it with: @password@envoy -c FILE --concurrency @workers@
admin: { address: { socket_address: { address: 127.0.0.1, port_value: @admin@ } } }
stats_config:
  stats_tags: # the policy's name becomes a label of Prometheus
  - { tag_name: policy, regex: "^wasmcustom\\.tollgate\\.policy(\\.(.+))\\.(?:allowed|denied|would_deny|store_errors)$" }
"#;

const LDS: &str = "node: { id: tollgate, cluster: tollgate }
dynamic_resources: # Envoy takes new rules when another file is moved to this name
  lds_config: { resource_api_version: V3, path_config_source: { path: @path@ } }
";

const LISTENERS: &str =
    "# Made by `tollgate envoy-config --lds`; once more with changed rules, and Envoy takes them.
resources:
@front@";

const LISTENER: &str = "\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener
";

const FRONT: &str = r#"name: front
address: { socket_address: @address@ }
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: front
      use_remote_address: true # else any client's X-Forwarded-For is believed
      normalize_path: true # as the filter does for the rules' `path`: else `/x/../login` is no route's `/login`
      merge_slashes: true
      route_config:
        virtual_hosts:
        - name: all
          domains: ["*"]
          routes: # a route's name, or its metadata `tollgate: { route: … }`, is `route` in the rules
          - { name: all, match: { prefix: / }, route: { cluster: upstream } }
      http_filters:
      - name: envoy.filters.http.wasm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
          config:
            name: tollgate
            root_id: tollgate
            configuration:
              "@type": type.googleapis.com/google.protobuf.StringValue
              value: |
@plugin@@vm@      - name: envoy.filters.http.router
        typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
"#;

/// Whoever names one `vm_id` shares its counts.
const VM: &str = "vm_config:
  vm_id: tollgate
  runtime: envoy.wasm.runtime.v8
  code: { local: { filename: @module@ } }
@environment@failure_policy: FAIL_RELOAD
";

/// The password is Envoy's variable: nothing of it is in a configuration.
const ENVIRONMENT: &str = "  environment_variables: { host_env_keys: [ @variable@ ] }
";

const REDIS_PLUGIN: &str = r#""redis": { @connection@, "timeout_ms": @timeout@, "instances": @instances@@instance@, "workers": @workers@ },
"#;

const UPSTREAM: &str = "  clusters:
  - name: upstream
    type: STRICT_DNS
    dns_lookup_family: V4_PREFERRED # Envoy tries no other address of a name
    connect_timeout: 1s
    load_assignment:
      cluster_name: upstream
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: @host@, port_value: @port@ } } } } ] } ]
";

const REDIS: &str = "  - name: redis
@kind@    dns_lookup_family: V4_PREFERRED
    wait_for_warm_on_init: false # Envoy starts without it, too
    connect_timeout: 0.1s
    load_assignment:
      cluster_name: redis
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: @host@, port_value: @port@ } } } } ] } ]
";

const PASSWORD: &str = r#"    typed_extension_protocol_options:
      envoy.filters.network.redis_proxy:
        "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProtocolOptions
@user@        auth_password: { environment_variable: @variable@ }
"#;

const USERNAME: &str = "        auth_username: { inline_string: @user@ }
";

const TLS: &str = r#"    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: @host@
        common_tls_context: { validation_context: { trusted_ca: { filename: @ca@ } } }
"#;

const INTERNAL: &str = "bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: { \"@type\": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener }
";

/// The messages of streams to it lose their heads, and are the protocol of Redis.
const BRIDGE: &str = "name: tollgate_bridge
internal_listener: {}
drain_type: MODIFY_ONLY # not while Envoy fails health checks: requests still come
filter_chains:
- filters:
  - name: envoy.filters.network.wasm
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm
      config:
        name: tollgate_bridge
        root_id: tollgate_bridge
        configuration: { \"@type\": type.googleapis.com/google.protobuf.StringValue, value: '{ \"role\": \"bridge\" }' }
@vm@";

/// One server: its protocol as it is.
const TCP_PROXY: &str = "  - name: envoy.filters.network.tcp_proxy
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tollgate_redis
      cluster: redis
      idle_timeout: 0s # a connection lasts as long as the stream
";

/// A Redis Cluster: it knows on which server a key is.
const REDIS_PROXY: &str = "  - name: envoy.filters.network.redis_proxy
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
      stat_prefix: tollgate_redis
      settings: { op_timeout: 0.25s } # policies give up sooner, by their own timeout
      prefix_routes: { catch_all_route: { cluster: redis } }
";

const BRIDGE_CLUSTER: &str = "  - name: tollgate_bridge
    load_assignment:
      cluster_name: tollgate_bridge
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { envoy_internal_address: { server_listener_name: tollgate_bridge } } } } ] } ]
";

const AS_TCP: &str = "    upstream_config: # bodies as they are, over a TCP connection each
      name: envoy.filters.connection_pools.http.tcp
      typed_config: { \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.tcp.v3.TcpConnectionPoolProto }
";

const ONE_CALL: &str = "    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        common_http_protocol_options: { max_requests_per_connection: 1 } # one that has ended a call takes no other
        explicit_http_config: { http_protocol_options: {} }
";

const REDIS_CLUSTER: &str = "    cluster_type:
      name: envoy.clusters.redis
      typed_config:
        \"@type\": type.googleapis.com/google.protobuf.Struct
        value: { cluster_refresh_rate: 5s, cluster_refresh_timeout: 1s, redirect_refresh_interval: 1s, redirect_refresh_threshold: 1 }
    lb_policy: CLUSTER_PROVIDED
";
