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
    let vm = |id: &str| {
        let variable =
            args.redis_password_env.as_ref().filter(|_| args.redis_transport == RedisTransport::Post);
        let variables = variable.map(|variable| ENVIRONMENT.replace("@variable@", variable));
        VM.replace("@id@", id)
            .replace("@module@", &args.module.display().to_string())
            .replace("@environment@", &variables.unwrap_or_default())
    };
    let plugin = match args.redis {
        Some(_) => REDIS_PLUGIN
            .replace("@connection@", &connection(args))
            .replace("@timeout@", &args.timeout_ms.to_string())
            .replace("@instances@", &args.instances.to_string())
            .replace("@workers@", &args.concurrency.to_string()),
        None => "{ \"rules\":\n".to_owned(),
    };
    let plugin = plugin.lines().chain(rules.lines()).chain(["}"]);
    let plugin: String = plugin.map(|line| format!("                    {line}\n")).collect();
    let mut yaml = FRONT
        .replace("@workers@", &args.concurrency.to_string())
        .replace("@admin@", &args.admin_port.to_string())
        .replace("@port@", &args.port.to_string())
        .replace("@internal@", if args.redis.is_some() { INTERNAL } else { "" })
        .replace("@plugin@", &plugin)
        .replace("@vm@", &vm("tollgate"));
    let by_post = args.redis_transport == RedisTransport::Post;
    if args.redis.is_some() {
        let (name, cluster) =
            if by_post { ("tollgate_post", "redis") } else { ("tollgate_bridge", "tollgate_redis") };
        yaml.push_str(&POSTS.replace("@name@", name).replace("@cluster@", cluster));
        if !by_post {
            yaml.push_str(&BRIDGE_FILTER.replace("@vm@", &vm("tollgate-bridge")));
        }
        yaml.push_str(ROUTER);
        if !by_post {
            yaml.push_str(REDIS_PROXY);
        }
    }
    let address = |cluster: &str, (host, port): &(String, u16)| {
        cluster.replace("@host@", host).replace("@port@", &port.to_string())
    };
    yaml.push_str(&address(UPSTREAM, &args.upstream));
    let Some(redis) = &args.redis else { return yaml };
    if by_post {
        yaml.push_str(&HTTP2_CLUSTER.replace("@name@", "tollgate_post"));
    } else {
        yaml.push_str(&HTTP2_CLUSTER.replace("@name@", "tollgate_bridge"));
        yaml.push_str(PROXY_CLUSTER);
    }
    let kind = if args.redis_cluster { REDIS_CLUSTER } else { "    type: STRICT_DNS\n" };
    yaml.push_str(&address(REDIS, redis).replace("@kind@", kind));
    if let Some(variable) = args.redis_password_env.as_ref().filter(|_| !by_post) {
        yaml.push_str(&PASSWORD.replace("@variable@", variable));
    }
    if let Some(ca) = &args.redis_ca {
        yaml.push_str(&address(TLS, redis).replace("@ca@", &ca.display().to_string()));
    }
    yaml
}

/// The members of the plugin's `redis` that say how to reach it.
fn connection(args: &EnvoyConfigArgs) -> String {
    match (args.redis_transport, &args.redis_password_env) {
        (RedisTransport::Stream, _) => r#""cluster": "tollgate_bridge""#.to_owned(),
        (RedisTransport::Post, None) => r#""cluster": "tollgate_post", "transport": "post""#.to_owned(),
        (RedisTransport::Post, Some(variable)) => {
            format!(r#""cluster": "tollgate_post", "transport": "post", "password_env": "{variable}""#)
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
const VM: &str = "                vm_config:
                  vm_id: @id@
                  runtime: envoy.wasm.runtime.v8
                  code: { local: { filename: @module@ } }
@environment@                failure_policy: FAIL_RELOAD
";

/// The password is Envoy's variable: nothing of it is in a configuration.
const ENVIRONMENT: &str = "                  environment_variables: { host_env_keys: [ @variable@ ] }
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

/// Makes a TCP connection of a POST's body.
const POSTS: &str = "  - name: @name@
    internal_listener: {}
    drain_type: MODIFY_ONLY # not while Envoy fails health checks: requests still come
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: @name@
          codec_type: HTTP2
          stream_idle_timeout: 0s
          route_config:
            virtual_hosts:
            - name: redis
              domains: [\"*\"]
              routes:
              - match: { prefix: / }
                route:
                  cluster: @cluster@
                  timeout: 0s
                  idle_timeout: 0s
                  upgrade_configs: [ { upgrade_type: CONNECT, connect_config: { allow_post: true } } ]
          upgrade_configs: [ { upgrade_type: CONNECT } ]
          http_filters:
";

/// gRPC messages in, the protocol of Redis out.
const BRIDGE_FILTER: &str = "          - name: envoy.filters.http.wasm
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                name: tollgate_bridge
                root_id: tollgate_bridge
                configuration: { \"@type\": type.googleapis.com/google.protobuf.StringValue, value: '{ \"role\": \"bridge\" }' }
@vm@";

const ROUTER: &str = "          - name: envoy.filters.http.router
            typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
";

const REDIS_PROXY: &str = "  - name: tollgate_redis
    internal_listener: {}
    drain_type: MODIFY_ONLY # not while Envoy fails health checks: requests still come
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: tollgate_redis
          settings: { op_timeout: 0.25s } # policies give up sooner, by their own timeout
          prefix_routes: { catch_all_route: { cluster: redis } }
";

const HTTP2_CLUSTER: &str = "  - name: @name@
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment:
      cluster_name: @name@
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { envoy_internal_address: { server_listener_name: @name@ } } } } ] } ]
";

const PROXY_CLUSTER: &str = "  - name: tollgate_redis
    load_assignment:
      cluster_name: tollgate_redis
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { envoy_internal_address: { server_listener_name: tollgate_redis } } } } ] } ]
";

const REDIS_CLUSTER: &str = "    cluster_type:
      name: envoy.clusters.redis
      typed_config:
        \"@type\": type.googleapis.com/google.protobuf.Struct
        value: { cluster_refresh_rate: 5s, cluster_refresh_timeout: 1s, redirect_refresh_interval: 1s, redirect_refresh_threshold: 1 }
    lb_policy: CLUSTER_PROVIDED
";
