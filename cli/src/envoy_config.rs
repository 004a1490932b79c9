//! `tollgate envoy-config`: a complete configuration of Envoy with the filter,
//! from a few flags and a rules file.
//!
//! What Envoy is told is put together as text, so that it reads as people
//! write it; the rules are checked as the filter will check them.

use std::io::Write as _;
use std::process::ExitCode;

use tollgate_core::key::Seed;
use tollgate_core::policy::{Rules, Store};

use crate::args::{EnvoyConfigArgs, RedisTransport};
use crate::failure::Failure;

/// Prints the configuration; 1 if the rules are wrong.
pub(crate) fn envoy_config(args: &EnvoyConfigArgs) -> Result<ExitCode, Failure> {
    let read = std::fs::read_to_string(&args.rules);
    let text = read.map_err(|error| Failure::Read { path: args.rules.clone(), error })?;
    let wrong = |message: String| Failure::Rules(format!("{}: {message}", args.rules.display()));
    let rules = Rules::parse_at(&text, Seed([1, 2]), 0).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        wrong(errors.join("\n"))
    })?;
    if args.redis.is_none() && rules.policies().iter().any(|policy| policy.store() == Store::Redis) {
        return Err(wrong(
            "a policy has \"store\": \"redis\": name the server with --redis HOST:PORT".to_owned(),
        ));
    }
    if args.redis_cluster && args.redis_transport == RedisTransport::Post {
        return Err(Failure::Usage(
            "--redis-cluster: only by a stream; a POST leads to one server, whatever the key".to_owned(),
        ));
    }
    let mut out = std::io::stdout().lock();
    out.write_all(document(args, &text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn document(args: &EnvoyConfigArgs, rules: &str) -> String {
    let is_bridged = args.redis.is_some() && args.redis_transport == RedisTransport::Stream;
    let variable = args.redis_password_env.as_ref().filter(|_| !is_bridged);
    let variables = variable.map(|variable| ENVIRONMENT.replace("@variable@", variable));
    let vm = VM
        .replace("@module@", &args.module.display().to_string())
        .replace("@environment@", &variables.unwrap_or_default());
    let plugin = match args.redis {
        Some(_) => REDIS_PLUGIN
            .replace("@connection@", &connection(args))
            .replace("@timeout@", &args.timeout_ms.to_string())
            .replace("@instances@", &args.instances.to_string())
            .replace("@workers@", &args.concurrency.to_string()),
        None => "{ \"rules\":\n".to_owned(),
    };
    let plugin = indented(&[&plugin, rules.trim_end(), "\n}"].concat(), 20);
    let mut yaml = FRONT
        .replace("@workers@", &args.concurrency.to_string())
        .replace("@admin@", &args.admin_port.to_string())
        .replace("@port@", &args.port.to_string())
        .replace("@internal@", if is_bridged { INTERNAL } else { "" })
        .replace("@plugin@", &plugin)
        .replace("@vm@", &indented(&vm, 16));
    if is_bridged {
        yaml.push_str(&BRIDGE.replace("@vm@", &indented(&vm, 12)));
    }
    let address = |cluster: &str, (host, port): &(String, u16)| {
        cluster.replace("@host@", host).replace("@port@", &port.to_string())
    };
    yaml.push_str(&address(UPSTREAM, &args.upstream));
    let Some(redis) = &args.redis else { return yaml };
    if is_bridged {
        yaml.push_str(BRIDGE_CLUSTER);
        yaml.push_str(AS_TCP);
    }
    let kind = if args.redis_cluster { REDIS_CLUSTER } else { "    type: STRICT_DNS\n" };
    yaml.push_str(&address(REDIS, redis).replace("@kind@", kind));
    if !is_bridged {
        yaml.push_str(AS_TCP);
        yaml.push_str(ONE_CALL);
    } else if let Some(variable) = &args.redis_password_env {
        yaml.push_str(&PASSWORD.replace("@variable@", variable));
    }
    if let Some(ca) = &args.redis_ca {
        yaml.push_str(&address(TLS, redis).replace("@ca@", &ca.display().to_string()));
    }
    yaml
}

fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}

/// The members of the plugin's `redis` that say how to reach it.
fn connection(args: &EnvoyConfigArgs) -> String {
    match (args.redis_transport, &args.redis_password_env) {
        (RedisTransport::Stream, _) => r#""cluster": "tollgate_bridge""#.to_owned(),
        (RedisTransport::Post, None) => r#""cluster": "redis", "transport": "post""#.to_owned(),
        (RedisTransport::Post, Some(variable)) => {
            format!(r#""cluster": "redis", "transport": "post", "password_env": "{variable}""#)
        }
    }
}

const FRONT: &str = r#"# Made by `tollgate envoy-config`. Start it with: envoy -c FILE --concurrency @workers@
admin: { address: { socket_address: { address: 127.0.0.1, port_value: @admin@ } } }
stats_config:
  stats_tags: # the policy's name becomes a label of Prometheus
  - { tag_name: policy, regex: "^wasmcustom\\.tollgate\\.policy(\\.(.+))\\.(?:allowed|denied|would_deny|store_errors)$" }
@internal@static_resources:
  listeners:
  - name: front
    address: { socket_address: { address: 0.0.0.0, port_value: @port@ } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          use_remote_address: true # else any client's X-Forwarded-For is believed
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
@plugin@@vm@          - name: envoy.filters.http.router
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

const REDIS_PLUGIN: &str = r#"{ "redis": { @connection@, "timeout_ms": @timeout@, "instances": @instances@, "workers": @workers@ },
  "rules":
"#;

const UPSTREAM: &str = "  clusters:
  - name: upstream
    type: STRICT_DNS
    connect_timeout: 1s
    load_assignment:
      cluster_name: upstream
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: @host@, port_value: @port@ } } } } ] } ]
";

const REDIS: &str = "  - name: redis
@kind@    connect_timeout: 0.1s
    load_assignment:
      cluster_name: redis
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: @host@, port_value: @port@ } } } } ] } ]
";

const PASSWORD: &str = r#"    typed_extension_protocol_options:
      envoy.filters.network.redis_proxy:
        "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProtocolOptions
        auth_password: { environment_variable: @variable@ }
"#;

const TLS: &str = r#"    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: @host@
        common_tls_context: { validation_context: { trusted_ca: { filename: "@ca@" } } }
"#;

const INTERNAL: &str = "bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: { \"@type\": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener }
";

/// The messages of streams to it lose their heads, and are the protocol of Redis.
const BRIDGE: &str = "  - name: tollgate_bridge
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
@vm@      - name: envoy.filters.network.redis_proxy
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
