//! The installed library, as a C programmer has it: `make install` below `target/tests/prefix`, found
//! by nothing but pkg-config; and programs compiled against it.
//!
//! A compiler, pkg-config or valgrind that is missing fails the test: `make setup` installs them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Every warning that the header and the programs must not cause.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// A language that the header is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// C99, by `cc`.
    C,
    /// C++11, by `c++`.
    Cpp,
}

/// Which of the two libraries a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// `libtollgate.a`.
    Static,
    /// `libtollgate.so`.
    Dynamic,
}

/// What a program runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Nothing.
    Plain,
    /// Valgrind: any invalid access or leak fails the run.
    Valgrind,
    /// AddressSanitizer and UndefinedBehaviorSanitizer: any report ends the run.
    Sanitizers,
}

/// The two languages, two linkages and three watches that each program is put through.
#[must_use]
pub fn all_ways() -> Vec<(Language, Linkage, Watch)> {
    let mut ways = Vec::new();
    for language in [Language::C, Language::Cpp] {
        for linkage in [Linkage::Static, Linkage::Dynamic] {
            ways.extend([Watch::Plain, Watch::Valgrind, Watch::Sanitizers].map(|w| (language, linkage, w)));
        }
    }
    ways
}

/// The root of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Where the library is installed: built anew if its sources changed, once a test process.
pub fn prefix() -> &'static Path {
    static INSTALLED: OnceLock<(PathBuf, File)> = OnceLock::new();
    let install = || {
        let folder = root().join("target/tests");
        fs::create_dir_all(&folder).unwrap();
        // Test processes may run at the same time: none replaces the library that another one uses.
        let lock = File::create(folder.join("install.lock")).unwrap();
        lock.lock().unwrap();
        let prefix = folder.join("prefix");
        let mut make = Command::new("make");
        make.current_dir(root()).args(["--silent", "lib", "install-lib"]);
        make.arg(format!("PREFIX={}", prefix.display()));
        // What an outer `make test` was told is not for this one.
        for name in ["MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "DESTDIR"] {
            make.env_remove(name);
        }
        succeed(&mut make);
        lock.lock_shared().unwrap(); // until this process ends
        (prefix, lock)
    };
    &INSTALLED.get_or_init(install).0
}

/// A compiled program.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    watch: Watch,
}

/// Compiles one source file (a path from the root) with the flags that pkg-config tells, and no others.
pub fn compile(source: &str, language: Language, linkage: Linkage, watch: Watch) -> Program {
    let (compiler, standard) = match language {
        Language::C => ("cc", ["-std=c99", "-xc"]),
        Language::Cpp => ("c++", ["-std=c++11", "-xc++"]),
    };
    let stem = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let path = programs().join(format!("{stem}-{language:?}-{linkage:?}-{watch:?}-{}", std::process::id()));
    let mut compile = Command::new(compiler);
    compile.args(standard).args(WARNINGS);
    if watch == Watch::Sanitizers {
        compile.args(SANITIZERS);
    }
    compile.args(pkg_config(&["--cflags"])).arg(root().join(source));
    compile.args(["-xnone", "-o"]).arg(&path).args(libraries(linkage));
    succeed(&mut compile);
    Program { path, watch }
}

impl Program {
    /// Runs the program under its watch; what it printed.
    ///
    /// # Panics
    /// It fails, or its watch has something to report.
    pub fn run(&self) -> String {
        self.run_with(&[])
    }

    /// As [`run`](Self::run), with these arguments.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn run_with(&self, arguments: &[&str]) -> String {
        let mut run = if self.watch == Watch::Valgrind {
            let mut valgrind = Command::new("valgrind");
            valgrind.args([
                "--quiet",
                "--error-exitcode=9",
                "--leak-check=full",
                "--errors-for-leak-kinds=all",
            ]);
            valgrind.arg(&self.path);
            valgrind
        } else {
            Command::new(&self.path)
        };
        run.args(arguments).env("LD_LIBRARY_PATH", prefix().join("lib"));
        succeed(&mut run)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Runs a command; what it printed.
///
/// # Panics
/// It cannot be started, or fails.
pub fn succeed(command: &mut Command) -> String {
    let name = format!("{command:?}");
    let output =
        command.output().unwrap_or_else(|error| panic!("{name}: {error} (`make setup` installs it)"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{out}{err}", output.status);
    out.into_owned()
}

fn programs() -> PathBuf {
    let folder = root().join("target/tests/programs");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// `pkg-config --static` names the library as `-ltollgate`, for which a linker takes the shared one
/// where both are; `-l:libtollgate.a` says which is meant.
fn libraries(linkage: Linkage) -> Vec<String> {
    match linkage {
        Linkage::Dynamic => pkg_config(&["--libs"]),
        Linkage::Static => pkg_config(&["--static", "--libs"])
            .into_iter()
            .map(|flag| if flag == "-ltollgate" { "-l:libtollgate.a".to_owned() } else { flag })
            .collect(),
    }
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut pkg_config = Command::new("pkg-config");
    // Only there: a library installed elsewhere on this machine is not the one under test.
    pkg_config.env("PKG_CONFIG_LIBDIR", prefix().join("lib/pkgconfig")).env_remove("PKG_CONFIG_PATH");
    let flags = succeed(pkg_config.args(arguments).arg("tollgate"));
    flags.split_whitespace().map(str::to_owned).collect()
}
