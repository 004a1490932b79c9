//! `tollgate bench-log`: a made-up log to measure and to try with. The same
//! arguments give the same bytes, on every machine.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use tollgate_core::replay::time;

use crate::args::{BenchLogArgs, LogFormat};
use crate::failure::Failure;

const METHODS: [&str; 8] = ["GET", "GET", "GET", "GET", "GET", "POST", "POST", "DELETE"];
const PATHS: [&str; 8] = [
    "/",
    "/api/orders?page=2",
    "/api/orders/81723",
    "/login",
    "/static/app.3f2a9c.js",
    "/api/items?q=shoes&sort=price",
    "/api/cart",
    "/img/%e2%82%ac.png",
];
const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
    "curl/8.5.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 Version/18.1 Mobile Safari/604.1",
    "-",
];
const STATUS: [u16; 8] = [200, 200, 200, 200, 200, 304, 404, 429];
/// 2026-11-01T00:00:00Z.
const START: u64 = 1_793_491_200;

pub(crate) fn bench_log(args: &BenchLogArgs) -> Result<ExitCode, Failure> {
    let mut out = BufWriter::with_capacity(256 << 10, io::stdout().lock());
    let mut random = Random(args.seed);
    let mut stamp = (u64::MAX, String::new());
    if args.log_format == LogFormat::Csv {
        writeln!(out, "time,method,path,host,route,peer,x-api-key")?;
    }
    for line in 0..args.lines {
        let millis = START * 1_000 + line * 1_000 / args.rate;
        let at = millis * 1_000_000;
        if stamp.0 != millis / 1_000 {
            stamp = (millis / 1_000, time::nginx(at));
        }
        // A few clients send most: the square of a fraction leans to zero.
        let fraction = random.below(1 << 16);
        let client = (fraction * fraction * args.clients) >> 32;
        let [a, b] = [(client >> 8) & 0xFF, client & 0xFF];
        let peer = format_args!("198.{}.{a}.{b}", 18 + (client >> 16) % 2 + (client >> 17) % 200);
        let method = random.of(&METHODS);
        let path = random.of(&PATHS);
        let status = random.of(&STATUS);
        let agent = random.of(&AGENTS);
        let bytes = random.below(20_000);
        match args.log_format {
            LogFormat::Csv => writeln!(
                out,
                "{}.{:03},{method},{path},shop.example,api,{peer},key-{client}",
                millis / 1_000,
                millis % 1_000
            )?,
            LogFormat::Json => writeln!(
                out,
                r#"{{"msec":"{}.{:03}","remote_addr":"{peer}","request_method":"{method}","request_uri":"{path}","host":"shop.example","status":{status},"http_x_api_key":"key-{client}","http_user_agent":"{agent}"}}"#,
                millis / 1_000,
                millis % 1_000
            )?,
            LogFormat::Combined | LogFormat::Auto => writeln!(
                out,
                r#"{peer} - - [{}] "{method} {path} HTTP/1.1" {status} {bytes} "https://shop.example/" "{agent}""#,
                stamp.1
            )?,
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// SplitMix64 (Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn of<T: Copy + Default>(&mut self, all: &[T]) -> T {
        let at = self.below(all.len().max(1) as u64) as usize; // below the length
        all.get(at).copied().unwrap_or_default()
    }
}
