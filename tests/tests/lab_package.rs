//! The package for JavaScript, in a real Node: every vector and every refusal (`tests/lab/package`), its
//! types under a strict compiler (`tests/lab/types`), the example of its README, and what lies in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_tests::vectors;

/// Gzipped, what a page loads first, in bytes.
const FIRST_LOAD: usize = 60 << 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn package() -> PathBuf {
    let package = root().join("target/lab/pkg");
    assert!(package.join("package.json").is_file(), "{} is not built: make lab-package", package.display());
    package
}

/// Runs a command to its end; its output, or a panic with it.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let told =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{told}", output.status);
    told
}

#[test]
fn every_vector_is_exact_in_node_and_wrong_input_is_refused_in_words() {
    let folder = fs::canonicalize(vectors::folder()).expect("the folder of vectors");
    let told = run(Command::new("node")
        .arg("--test")
        .arg("--test-reporter=tap")
        .args(["package.test.mjs", "full.test.mjs"].map(|name| root().join("tests/lab/package").join(name)))
        .env("TOLLGATE_PACKAGE", package())
        .env("TOLLGATE_VECTORS", folder));
    let steps: Vec<_> = told.lines().filter(|line| line.contains(" vectors, ")).collect();
    assert_eq!(steps.len(), 3, "each module told of its vectors:\n{told}");
    println!("{}", steps.join("\n"));
}

/// A folder for one test, with the package where Node and the compiler look for it.
fn program(name: &str) -> PathBuf {
    let folder = root().join("target/lab").join(name);
    let modules = folder.join("node_modules/tollgate-lab");
    fs::create_dir_all(&modules).expect("a folder");
    for entry in fs::read_dir(package()).expect("the package") {
        let entry = entry.expect("a file of the package");
        fs::copy(entry.path(), modules.join(entry.file_name())).expect("a copy");
    }
    folder
}

#[test]
fn the_types_compile_under_strict_rules() {
    let (folder, sources) = (program("test-types"), root().join("tests/lab/types"));
    for name in ["package.json", "package-lock.json", "tsconfig.json", "sample.ts"] {
        fs::copy(sources.join(name), folder.join(name)).expect("a copy");
    }
    let compiler = folder.join("node_modules/typescript/bin/tsc");
    let (lock, installed) = (folder.join("package-lock.json"), folder.join("installed.json"));
    if !compiler.is_file() || fs::read(&lock).ok() != fs::read(&installed).ok() {
        run(Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder));
        fs::copy(&lock, &installed).expect("a copy");
        program("test-types"); // npm took away what it did not put there
    }
    run(Command::new("node").arg(compiler).arg("--project").arg(&folder));
}

/// All that a module exports is declared, and all that is declared is exported.
#[test]
fn the_types_are_what_the_modules_export() {
    let script = root().join("tests/lab/types/exports.mjs");
    run(Command::new("node").arg(script).arg(package()));
}

#[test]
fn the_example_of_the_readme_runs() {
    let readme = fs::read_to_string(package().join("README.md")).expect("the README");
    let examples: Vec<_> =
        readme.split("```js\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty(), "no example");
    let folder = program("test-readme");
    for (number, example) in examples.iter().enumerate().filter(|(_, text)| text.contains("'tollgate-lab")) {
        let file = folder.join(format!("example-{number}.mjs"));
        fs::write(&file, example).expect("a file");
        let told = run(Command::new("node").arg(&file));
        // What a line prints stands beside it.
        let expected: Vec<_> = example.lines().filter_map(|line| line.split_once("// → ")).collect();
        let printed: Vec<_> = told.lines().collect();
        assert_eq!(printed, expected.iter().map(|(_, text)| *text).collect::<Vec<_>>(), "example {number}");
    }
}

#[test]
fn what_is_loaded_first_is_small_and_no_module_tells_where_it_was_built() {
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME")).expect("a home");
    for name in ["tollgate", "compare", "full"] {
        let path = package().join(format!("{name}_bg.wasm"));
        let bytes = fs::read(&path).expect("a module");
        for place in [root().display().to_string(), home.clone(), "/.cargo/".into()] {
            let is_there = bytes.windows(place.len()).any(|window| window == place.as_bytes());
            assert!(!is_there, "{name}: {place}");
        }
        let output = Command::new("gzip").arg("-9c").arg(&path).output().expect("gzip");
        println!("{name}: {} bytes, gzipped {}", bytes.len(), output.stdout.len());
        assert!(name != "tollgate" || output.stdout.len() <= FIRST_LOAD, "the first module is too large");
    }
}
