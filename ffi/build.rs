//! Gives `libtollgate.so` its SONAME, so that a program linked against it asks the loader for
//! `libtollgate.so.<major>` and never for a library with another ABI.
//!
//! What the library exports needs no script of its own: for a `cdylib` the compiler hands the linker
//! a version script that names the `#[no_mangle]` functions and makes everything else local.
//! `.ci/check-symbols` holds it to that, against the header.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let of = |name| std::env::var(name).unwrap_or_default();
    // ELF only: other linkers spell it differently, and nothing here is built for them yet.
    if of("CARGO_CFG_TARGET_OS") == "linux" {
        let major = of("CARGO_PKG_VERSION_MAJOR");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtollgate.so.{major}");
    }
}
