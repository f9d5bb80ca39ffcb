# Two commands do everything on a fresh Debian 12 with Rust, git and make: `make run` and `make test`.
CARGO ?= cargo

.PHONY: run test build check packages

packages:
	@scripts/packages

build: packages
	$(CARGO) build --release -p knarr

run: build
	target/release/knarr server

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

test: packages check
	$(CARGO) test --workspace
