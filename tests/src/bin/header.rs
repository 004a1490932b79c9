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

/// The header's sections, in the order in which a newcomer needs them. Each is one file of
/// `ffi/src`, under the first line of that file.
const SECTIONS: [&str; 12] = [
    "status", "limit", "bucket", "table", "rules", "http", "counters", "observe", "store", "redis", "link",
    "client",
];

fn generate(ffi: &Path) -> Result<String, String> {
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml"))?;
    let essay = config.header.clone().unwrap_or_default();
    let guard = config.include_guard.clone().unwrap_or_default();
    let mut header = format!("{}\n\n#ifndef {guard}\n#define {guard}\n\n", essay.trim());
    for include in &config.sys_includes {
        header.push_str(&format!("#include <{include}>\n"));
    }
    header.push_str("\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    for name in SECTIONS {
        header.push_str(&section(&ffi.join("src").join(name).with_extension("rs"), &config)?);
    }
    header.push_str(&format!("\n#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {guard} */\n"));
    Ok(header)
}

fn section(file: &Path, config: &cbindgen::Config) -> Result<String, String> {
    let source = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let title = source.lines().next().unwrap_or_default().trim_start_matches("//! ").trim_end_matches('.');
    let mut config =
        cbindgen::Config { header: None, include_guard: None, sys_includes: Vec::new(), ..config.clone() };
    // Types that only the functions of other sections use would be left out.
    let types = source.lines().filter_map(|line| line.strip_prefix("pub struct "));
    config.export.include =
        types.filter_map(|rest| rest.split([' ', '(', ';']).next()).map(str::to_owned).collect();
    let bindings = cbindgen::Builder::new().with_config(config).with_src(file).generate();
    let mut text = Vec::new();
    bindings.map_err(|error| format!("{}: {error}", file.display()))?.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    Ok(format!("\n/* {:-<74} */\n\n{}\n", format!("{title} "), polish(&text).trim()))
}

/// What the generator cannot be told: a comment of one line takes one line; a negative number stands
/// in parentheses, an unsigned one says so; what Rust calls a type's tag is left out where C has a
/// name; and the safety section, a heading to Rust, is a plain paragraph to C, or nothing where the
/// header's opening says it already.
fn polish(text: &str) -> String {
    let lines: Vec<String> = plain_safety(text).lines().map(polish_line).collect();
    let mut polished = String::with_capacity(text.len());
    let mut rest = lines.as_slice();
    while let Some((line, after)) = rest.split_first() {
        rest = after;
        polished.push_str(line);
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

fn polish_line(line: &str) -> String {
    if let Some((name, value)) = line.strip_prefix("#define ").and_then(|define| define.split_once(' ')) {
        return match value.parse::<i64>() {
            Ok(number) if number < 0 => format!("#define {name} ({number})"),
            Ok(number) if name != "TOLLGATE_OK" => format!("#define {name} {number}u"),
            _ => line.to_owned(),
        };
    }
    if line.starts_with("typedef struct") {
        line.to_owned()
    } else {
        line.replace("struct tollgate_", "tollgate_")
    }
}

fn plain_safety(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let general = |text: &str| text.starts_with("The pointers lead") || text.starts_with("As tollgate_");
        match lines.peek().map(|next| next.trim_start_matches([' ', '*'])) {
            _ if line != " * # Safety" => kept.push(line),
            Some(paragraph) if general(paragraph) => {
                kept.pop(); // the empty line before it
                while lines.next_if(|next| *next != " */").is_some() {}
            }
            _ => {}
        }
    }
    kept.join("\n")
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
