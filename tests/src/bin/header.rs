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
    let bindings = cbindgen::generate_with_config(ffi, config).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map(|text| polish(&text)).map_err(|error| error.to_string())
}

/// What the generator cannot be told: a comment of one line takes one line; a negative number stands in
/// parentheses; `# Safety`, a heading to Rust, is a word to C.
fn polish(text: &str) -> String {
    let text = text.replace(" * # Safety\n *", " * Safety:");
    let lines: Vec<&str> = text.lines().collect();
    let mut polished = String::with_capacity(text.len());
    let mut rest = lines.as_slice();
    while let Some((line, after)) = rest.split_first() {
        rest = after;
        match line.split_once(" -") {
            Some((define, number)) if define.starts_with("#define ") => {
                polished.push_str(&format!("{define} (-{number})"));
            }
            _ => polished.push_str(line),
        }
        if let [only, end, after @ ..] = after
            && (line.trim(), end.trim()) == ("/**", "*/")
        {
            polished.push_str(only.trim_start().trim_start_matches('*'));
            polished.push_str(" */");
            rest = after;
        }
        polished.push('\n');
    }
    polished
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
