//! Arguments and help texts. Completions and man pages are made from them too.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};

#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    about = "Check and explain rate limits, and try them on the traffic of yesterday",
    long_about = "Check and explain rate limits, and try them on the traffic of yesterday.\n\n\
        Tollgate is a rate limiter that runs inside NGINX and other hosts; all of them obey one rules \
        file. This command reads that file as they do, and asks the same code for decisions: what it \
        says is what they would do.",
    after_help = "Start here:\n  \
        tollgate rules check rules.json                 is the file right?\n  \
        tollgate rules explain rules.json --path /      what would this request meet?\n  \
        tollgate replay access.log --rules rules.json   whom would they have stopped?\n\n\
        Exit codes: 0 all is well, 1 the rules or the log are wrong, 2 the command could\n\
        not be carried out.\n\
        Colours are shown on terminals only, and not if NO_COLOR is set.",
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check or explain a rules file
    #[command(subcommand)]
    Rules(RulesCommand),
    /// Ask the rules about every request of an access log
    Replay(ReplayArgs),
    /// Print a complete configuration of Envoy with the filter
    EnvoyConfig(EnvoyConfigArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print a manual page (roff), of tollgate or of one of its commands
    Man(ManArgs),
    /// Print a made-up access log, always the same for the same arguments
    #[command(hide = true)]
    BenchLog(BenchLogArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// Tell everything that is wrong with rules files, with its place
    Check(CheckArgs),
    /// Tell what every policy makes of one request, and why
    Explain(ExplainArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextOrJson {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RedisTransport {
    /// One gRPC stream a worker, through the bridge
    Stream,
    /// HTTP calls, each a TCP connection: no bridge, for low rates
    Post,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people
    Table,
    /// One object, for programs
    Json,
    /// One table, for spreadsheets
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// By the first line
    Auto,
    /// NGINX's `combined`, and its `main` (with X-Forwarded-For at the end)
    Combined,
    /// One JSON object a line
    Json,
    /// Comma-separated, with a line of names first
    Csv,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tollgate rules check rules.json\n  \
    tollgate rules check *.json --format json | jq '.[].errors'\n  \
    generate-rules | tollgate rules check -\n\n\
    Each error is one line, FILE:LINE:COLUMN: FIELD: MESSAGE, as editors read it.\n\
    Exit codes: 0 all files are right, 1 one is wrong, 2 one could not be read.")]
pub(crate) struct CheckArgs {
    /// Rules files; - is standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// How to tell it
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TextOrJson,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tollgate rules explain rules.json --method POST --path /login --peer 203.0.113.7\n  \
    tollgate rules explain rules.json --route create-order --header 'X-Api-Key: shop-a'\n\n\
    Credentials are shown as the first eight hexadecimal digits of their SHA-256.")]
pub(crate) struct ExplainArgs {
    /// The rules file; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The method
    #[arg(long, default_value = "GET", value_name = "METHOD")]
    pub(crate) method: String,
    /// The path as a client may send it: `//login?x` is /login
    #[arg(long, default_value = "/", value_name = "PATH")]
    pub(crate) path: String,
    /// The host
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(crate) host: String,
    /// The name that the host's configuration gives the place
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(crate) route: String,
    /// The address that opened the connection
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<IpAddr>,
    /// A header field; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    pub(crate) headers: Vec<(String, String)>,
    /// How to tell it
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TextOrJson,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tollgate replay /var/log/nginx/access.log --rules rules.json\n  \
    tollgate replay access.log.2.gz --rules rules.json --chart --top 20\n  \
    zcat access.log.*.gz | tollgate replay - --rules rules.json --svg report.svg\n  \
    tollgate replay traffic.csv --rules rules.json --format json | jq .policies\n\n\
    Formats of logs (gzip is recognised):\n  \
    combined  NGINX's combined or main format\n  \
    json      one object a line, with the names of NGINX's variables: time_iso8601\n            \
    or msec, request_method, uri or request_uri or request, host, remote_addr,\n            \
    status; http_x_api_key is the header field x-api-key; and route\n  \
    csv       a first line of names: time,method,path,host,route,peer,x-api-key\n            \
    (what is none of the first six is a header field)\n\n\
    Times are the log's. Lines that cannot be read are counted, told and left out.\n\
    Limits of concurrency are not judged: logs do not tell what was in flight.")]
pub(crate) struct ReplayArgs {
    /// The access log; - is standard input
    #[arg(value_name = "LOG", value_hint = ValueHint::FilePath)]
    pub(crate) log: PathBuf,
    /// The rules file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) rules: PathBuf,
    /// The log's format
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) log_format: LogFormat,
    /// How to tell what came out
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: ReportFormat,
    /// How many keys to list
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) top: u32,
    /// At most so many spans of time are told apart
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) buckets: u32,
    /// Draw admitted and denied over time in the terminal
    #[arg(long)]
    pub(crate) chart: bool,
    /// Draw the same into a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
    /// Keys that can be followed at once; 16 bytes each
    #[arg(long, default_value_t = 1_000_000, value_name = "KEYS", value_parser = clap::value_parser!(u64).range(4..=1 << 28))]
    pub(crate) capacity: u64,
    /// The route of lines that do not name one
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(crate) route: String,
    /// The host of lines that do not name one
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(crate) host: String,
    /// Tell on standard error how fast it went
    #[arg(long)]
    pub(crate) timing: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tollgate envoy-config rules.json --upstream 127.0.0.1:8000 > envoy.yaml\n  \
    tollgate envoy-config rules.json --upstream app:80 --redis redis:6379 --instances 3 --concurrency 4\n  \
    tollgate envoy-config rules.json --lds /etc/envoy/listeners.yaml > envoy.yaml\n\n\
    The workers of one Envoy share their counts. Policies with \"store\": \"redis\" need --redis:\n\
    Envoy holds the connections then; those to a Redis Cluster are its redis_proxy's.\n\
    Exit codes: 0 it is printed, 1 the rules are wrong, 2 they could not be read.")]
pub(crate) struct EnvoyConfigArgs {
    /// The rules file
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) rules: PathBuf,
    /// Where requests go
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "HOST:PORT", value_parser = parse_address)]
    pub(crate) upstream: (String, u16),
    /// Where clients connect: an address of this machine, or 0.0.0.0 or [::] for all, and a port
    #[arg(long, default_value = "0.0.0.0:10000", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    pub(crate) listen: SocketAddr,
    /// Put the listener, and with it the rules, into this file, which Envoy watches: the same command
    /// with changed rules puts them in force. Its name ends in .yaml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = parse_yaml)]
    pub(crate) lds: Option<PathBuf>,
    /// The port of the admin interface, on loopback
    #[arg(long, default_value_t = 9901, value_name = "PORT")]
    pub(crate) admin_port: u16,
    /// The filter's module, as Envoy finds it
    #[arg(long, default_value = "/etc/envoy/tollgate_filter.wasm", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) module: PathBuf,
    /// Worker threads that Envoy will be started with
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) concurrency: u32,
    /// Count in this Redis
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    pub(crate) redis: Option<(String, u16)>,
    /// How it is reached
    #[arg(long, requires = "redis", value_enum, default_value = "stream")]
    pub(crate) redis_transport: RedisTransport,
    /// It is a node of a Redis Cluster; only by a stream
    #[arg(long, requires = "redis")]
    pub(crate) redis_cluster: bool,
    /// The environment variable that holds its password
    #[arg(long, requires = "redis", value_name = "VARIABLE", value_parser = parse_variable)]
    pub(crate) redis_password_env: Option<String>,
    /// The user of its ACL that the password is of
    #[arg(long, requires = "redis_password_env", value_name = "NAME", value_parser = parse_user)]
    pub(crate) redis_username: Option<String>,
    /// It is reached by TLS, and this file holds who vouches for it (PEM)
    #[arg(long, requires = "redis", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) redis_ca: Option<PathBuf>,
    /// How long it may take, for policies that do not say
    #[arg(long, default_value_t = 5, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) timeout_ms: u32,
    /// Gateways that share the limits: each has its part of them while Redis is away
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) instances: u32,
    /// Which of them this one is, from 0: the parts then add up to the limit
    #[arg(long, requires = "redis", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=999))]
    pub(crate) instance: Option<u32>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate\n  \
    tollgate completions zsh > \"${fpath[1]}/_tollgate\"\n  \
    tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tollgate man | man -l -\n  \
    tollgate man replay > tollgate-replay.1\n  \
    tollgate man rules check | man -l -")]
pub(crate) struct ManArgs {
    /// The command, such as: rules check
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchLogArgs {
    /// How many lines
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) lines: u64,
    /// How many clients
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) clients: u64,
    /// Requests a second
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) rate: u64,
    /// Another log for each number
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The format
    #[arg(long, value_enum, default_value = "combined")]
    pub(crate) log_format: LogFormat,
}

fn parse_variable(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.is_empty() || text.len() > 128 || !text.chars().all(is_name) {
        return Err("a name of letters, digits and underscores, up to 128".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_user(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 128 || text.contains(char::is_control) {
        return Err("1 to 128 bytes without control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Envoy tells by its name what a file holds.
fn parse_yaml(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    if is_yaml {
        Ok(path)
    } else {
        Err("Envoy reads YAML from a file whose name ends in .yaml or .yml".to_owned())
    }
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let listen: SocketAddr = text.parse().map_err(|_| "write it as 127.0.0.1:8080 or [::1]:8080")?;
    if listen.port() == 0 { Err("a port is 1 to 65535".to_owned()) } else { Ok(listen) }
}

fn parse_address(text: &str) -> Result<(String, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("write it as host:port")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if host.is_empty() || !host.chars().all(is_plain) {
        return Err(format!("{host:?} is no host name or IPv4 address"));
    }
    Ok((host.to_owned(), port.parse().map_err(|_| format!("{port:?} is no port"))?))
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        }
        _ => Err("write it as 'name: value', in quotes".to_owned()),
    }
}
