//! Writes `include/tollgate.h` from `ffi/src`; with `--check`, says whether it is still the same.
//!
//! The header is committed, so a C programmer needs no Rust to read it and no build pays for making
//! it. `make header` runs this; `make test` and `make lint` run it with `--check`.

use std::path::Path;
use std::process::ExitCode;

const HEADER: &str = "include/tollgate.h";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => {
            eprintln!("header: unknown argument {other}; the only one is --check");
            return ExitCode::from(2);
        }
    };
    let fresh = match generate(&root.join("ffi")) {
        Ok(fresh) => fresh,
        Err(reason) => {
            eprintln!("header: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let path = root.join(HEADER);
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if fresh == committed {
        println!("header: {HEADER} is what ffi/src says");
        return ExitCode::SUCCESS;
    }
    if check {
        eprintln!("header: {HEADER} is not what ffi/src says; run `make header`");
        report_first_difference(&committed, &fresh);
        return ExitCode::FAILURE;
    }
    if let Err(reason) = std::fs::write(&path, fresh) {
        eprintln!("header: {HEADER} cannot be written: {reason}");
        return ExitCode::FAILURE;
    }
    println!("header: {HEADER} written");
    ExitCode::SUCCESS
}

fn generate(ffi: &Path) -> Result<String, String> {
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml"))?;
    let bindings =
        cbindgen::generate_with_config(ffi, config).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(|error| error.to_string())
}

fn report_first_difference(committed: &str, fresh: &str) {
    let mut old = committed.lines();
    let mut new = fresh.lines();
    for line in 1.. {
        let (old, new) = (old.next(), new.next());
        if old != new {
            let shown = |line: Option<&str>| line.unwrap_or("(end of file)").to_owned();
            eprintln!("  line {line}, committed: {}", shown(old));
            eprintln!("  line {line}, from ffi:  {}", shown(new));
            return;
        }
        if old.is_none() {
            eprintln!("  only the ends of lines differ");
            return;
        }
    }
}
