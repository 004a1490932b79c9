# Tollgate. `make help` lists the targets; `make run` and `make test` need no preparation.

PREFIX ?= /usr/local
DESTDIR ?=
NGINX_MODULES_DIR ?= $(PREFIX)/lib/nginx/modules
PORT ?= 8080
LAB_PORT = $(if $(filter file,$(origin PORT)),8081,$(PORT))
FUZZ_SECONDS ?= 60

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SONAME := libtollgate.so.$(firstword $(subst ., ,$(VERSION)))
SHARED := libtollgate.so.$(VERSION)

LIB := target/ffi
MODULE := ngx_http_tollgate_module.so
LIBDIR := $(DESTDIR)$(PREFIX)/lib
INCLUDEDIR := $(DESTDIR)$(PREFIX)/include
BINDIR := $(DESTDIR)$(PREFIX)/bin
MANDIR := $(DESTDIR)$(PREFIX)/share/man/man1
SHAREDIR := $(DESTDIR)$(PREFIX)/share

TOLLGATE := target/release/tollgate
# Each command that has a manual page of its own, with - for a space.
MAN_PAGES := rules rules-check rules-explain replay envoy-config completions man

# What the Rust standard library in the archive asks of the system; the compiler adds libgcc itself.
LIBS_PRIVATE := -lutil -lrt -lpthread -lm -ldl -lc

# The NGINX module is not here: it is in nginx's own style, which clang-format cannot express.
C_FILES = $(shell find ffi/examples tests -name '*.[ch]')

export CARGO_TARGET_DIR := $(CURDIR)/target
export PATH := $(PATH):/usr/sbin:$(HOME)/.cargo/bin

# The NGINX that the tests start, and the module it loads: `make test` runs them with three.
debian = TOLLGATE_NGINX=/usr/sbin/nginx TOLLGATE_NGINX_MODULE=$(CURDIR)/target/nginx/debian/$(MODULE)
built = TOLLGATE_NGINX=$(CURDIR)/target/nginx/$(1)/nginx \
	TOLLGATE_NGINX_MODULE=$(CURDIR)/target/nginx/$(1)/$(MODULE)

.NOTPARALLEL:
.PHONY: all help setup lib cli nginx nginx-current nginx-asan port-run port-run-envoy port-lab run test test-rust test-loom \
	test-nginx-current test-nginx-asan filter run-envoy test-envoy soak-envoy lab lab-package lab-site test-lab vectors bench simulate fuzz fuzz-corpus lint fmt deny header check-header check-symbols check-wasm \
	install install-lib install-cli install-nginx uninstall clean

all: lib nginx cli ## build both libraries, the module for Debian's NGINX and the command (the default)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing on this machine (Debian packages, the Rust toolchain)
	@.ci/setup

# Without the rlib that Rust programs link: only then are core and ffi optimised as one.
lib: ## build libtollgate.a and libtollgate.so
	cargo rustc --profile ffi -p tollgate-ffi --lib --crate-type staticlib,cdylib

cli: ## build the tollgate command
	cargo build --release -p tollgate-cli

nginx: lib ## build the module for Debian's NGINX
	ffi/nginx/build.sh debian

nginx-current: lib ## build the current NGINX and the module for it
	ffi/nginx/build.sh current

nginx-asan: lib ## build the same with AddressSanitizer
	ffi/nginx/build.sh asan

filter: setup ## build the proxy-wasm filter, target/tollgate_filter.wasm
	@proxy-wasm-filter/build.sh

# Who has no port to listen at is told before anything is built.
port-run port-run-envoy: port-%:
	@wasm/demo/port.sh $* $(PORT)

port-lab:
	@wasm/demo/port.sh lab $(LAB_PORT)

# A server goes with make, whoever ends make and however.
with_make = setpriv --pdeathsig TERM

run: port-run setup lib nginx ## start a limited NGINX on 127.0.0.1:8080 (PORT=) and stay until Ctrl-C
	@$(with_make) ffi/nginx/demo/run.sh target/nginx/debian/$(MODULE) $(PORT)

lab-package: ## build the package for JavaScript: target/lab/pkg
	@wasm/build.sh

lab-site: lab-package ## build the lab, a page of files: target/lab/site
	@wasm/www/build.sh

lab: port-lab setup lab-site ## build and serve the lab on 127.0.0.1:8081 (PORT=) and stay until Ctrl-C
	@$(with_make) wasm/www/serve.sh $(LAB_PORT)

run-envoy: port-run-envoy setup filter cli ## start a limited Envoy on 127.0.0.1:8080 (PORT=) and stay until Ctrl-C
	@.ci/envoy >/dev/null
	@exec $(with_make) proxy-wasm-filter/run.sh "$$(.ci/envoy)" $(PORT)

test: setup lib check-header check-symbols check-wasm test-rust test-loom test-nginx-current test-nginx-asan test-envoy test-lab ## run every test of every part, cheap ones first

test-rust: lib nginx lab-package ## run the workspace's tests, the C programs and Debian's NGINX among them
	$(debian) cargo test --workspace

test-loom: ## run every interleaving of the table's atomics
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(CURDIR)/target/loom \
		cargo test -p tollgate-core --test loom --release

test-nginx-current: nginx-current ## run the NGINX tests against the current NGINX
	$(call built,current) cargo test -p tollgate-tests --test nginx

test-nginx-asan: nginx-asan ## run the NGINX tests under AddressSanitizer
	$(call built,asan) cargo test -p tollgate-tests --test nginx

test-lab: setup lib nginx filter cli lab-site ## run the tests of the lab in Chromium
	@tests/lab/setup.sh
	@.ci/envoy >/dev/null
	node --test --test-concurrency=1 tests/lab/*.test.mjs

test-envoy: setup filter nginx ## run the filter's tests in a real Envoy (downloads one)
	@.ci/envoy >/dev/null
	$(debian) cargo test -p tollgate-tests --test envoy -- --test-threads=4

soak-envoy: setup filter ## send an Envoy 200,000 requests, one in ten of whose clients hang up (TOLLGATE_SOAK_REQUESTS=)
	@.ci/envoy >/dev/null
	cargo test -p tollgate-tests --test envoy_soak -- --nocapture

vectors: setup ## run the vectors through every implementation (TOLLGATE_VECTORS= names another folder)
	$(if $(TOLLGATE_VECTORS),TOLLGATE_VECTORS=$(abspath $(TOLLGATE_VECTORS))) \
		cargo test -p tollgate-tests --test vectors -- --nocapture

bench: setup all filter lab-site ## measure beside the peers; writes target/bench/report.json
	@tests/lab/setup.sh
	cargo run --release -p tollgate-benches

simulate: setup ## simulate clusters of 20 to 2,000 instances; writes target/bench/simulation.json and docs/cluster-wide.svg
	cargo run --release -p tollgate-benches -- --simulate

# New inputs go to target/fuzz/corpus, failures to target/fuzz/artifacts.
FUZZ_TARGETS = rules forwarded select limit http resp link
fuzz_corpus = target/fuzz/corpus/$(1) tests/fuzz/corpus/$(1)
cargo_fuzz = CARGO_TARGET_DIR=$(CURDIR)/target/fuzz cargo +nightly fuzz $(1) --fuzz-dir tests/fuzz

fuzz: setup $(FUZZ_TARGETS:%=fuzz-%) ## try each fuzz target for FUZZ_SECONDS (60), from the corpus in tests/fuzz

fuzz-%: fuzz-tools
	mkdir -p target/fuzz/corpus/$* target/fuzz/artifacts
	$(call cargo_fuzz,run) $* $(call fuzz_corpus,$*) -- -max_total_time=$(FUZZ_SECONDS) \
		-artifact_prefix=target/fuzz/artifacts/$*- -dict=tests/fuzz/words.dict -print_final_stats=1

fuzz-corpus: fuzz-tools ## keep in tests/fuzz/corpus what is new in target/fuzz/corpus, few and small
	tests/fuzz/keep target/fuzz $(FUZZ_TARGETS)

.PHONY: fuzz-tools
fuzz-tools:
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	@rustup run nightly rustc --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal

lint: check-header ## check formatting, lints and the header
	cargo fmt --all --check
	clang-format --dry-run -Werror $(C_FILES)
	cargo clippy --workspace --all-targets -- -D warnings

fmt: ## format the Rust and the C files
	cargo fmt --all
	clang-format -i $(C_FILES)

deny: ## check the dependencies' licences and sources (installs cargo-deny when missing)
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny check bans licenses sources

header: ## make include/tollgate.h anew from ffi/src
	cargo run --quiet -p tollgate-tests --bin header

check-header: ## check that include/tollgate.h is what ffi/src says
	cargo run --quiet -p tollgate-tests --bin header -- --check

check-symbols: lib ## check that the libraries export exactly the header's functions
	.ci/check-symbols include/tollgate.h $(LIB)/libtollgate.so $(LIB)/libtollgate.a

check-wasm: ## check that core compiles for wasm32
	. "$$(.ci/wasm-target)" && cargo check -p tollgate-core --features policy,redis,sim --target wasm32-unknown-unknown

install: install-lib install-cli install-nginx ## install all below PREFIX (and DESTDIR); builds only what was never built

install-lib: $(if $(wildcard $(LIB)/libtollgate.so),,lib) ## install the libraries, tollgate.h and tollgate.pc
	install -d $(LIBDIR)/pkgconfig $(INCLUDEDIR)
	install -m 644 include/tollgate.h $(INCLUDEDIR)
	install -m 644 $(LIB)/libtollgate.a $(LIBDIR)
	install -m 755 $(LIB)/libtollgate.so $(LIBDIR)/$(SHARED)
	ln -sf $(SHARED) $(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(LIBDIR)/libtollgate.so
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS_PRIVATE@|$(LIBS_PRIVATE)|' \
		ffi/tollgate.pc.in > $(LIBDIR)/pkgconfig/tollgate.pc
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig

install-cli: $(if $(wildcard $(TOLLGATE)),,cli) ## install the tollgate command, its manual pages and completions
	install -d $(BINDIR) $(MANDIR) $(SHAREDIR)/bash-completion/completions \
		$(SHAREDIR)/zsh/site-functions $(SHAREDIR)/fish/vendor_completions.d
	install -m 755 $(TOLLGATE) $(BINDIR)
	$(TOLLGATE) man > $(MANDIR)/tollgate.1
	for page in $(MAN_PAGES); do \
		$(TOLLGATE) man $$(echo $$page | tr - ' ') > $(MANDIR)/tollgate-$$page.1 || exit 1; \
	done
	$(TOLLGATE) completions bash > $(SHAREDIR)/bash-completion/completions/tollgate
	$(TOLLGATE) completions zsh > $(SHAREDIR)/zsh/site-functions/_tollgate
	$(TOLLGATE) completions fish > $(SHAREDIR)/fish/vendor_completions.d/tollgate.fish

install-nginx: $(if $(wildcard target/nginx/debian/$(MODULE)),,nginx) ## install the NGINX module into NGINX_MODULES_DIR
	install -d $(DESTDIR)$(NGINX_MODULES_DIR)
	install -m 644 target/nginx/debian/$(MODULE) $(DESTDIR)$(NGINX_MODULES_DIR)

uninstall: ## remove what install put below PREFIX (and DESTDIR)
	rm -f $(LIBDIR)/libtollgate.a $(LIBDIR)/libtollgate.so $(LIBDIR)/$(SONAME) $(LIBDIR)/$(SHARED) \
		$(LIBDIR)/pkgconfig/tollgate.pc $(INCLUDEDIR)/tollgate.h \
		$(BINDIR)/tollgate $(MANDIR)/tollgate.1 $(MAN_PAGES:%=$(MANDIR)/tollgate-%.1) \
		$(SHAREDIR)/bash-completion/completions/tollgate $(SHAREDIR)/zsh/site-functions/_tollgate \
		$(SHAREDIR)/fish/vendor_completions.d/tollgate.fish \
		$(DESTDIR)$(NGINX_MODULES_DIR)/$(MODULE)

clean: ## remove everything that was built
	rm -rf target
