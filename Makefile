# Main targets, on a fresh Debian 12 with Rust, git and make: `make run` and `make test`.
CARGO ?= cargo

.PHONY: newcomer soak test-cgroup2 test-service run test build dist doc generate check packages bench-scheduler bench-rollout bench-services bench-ingress bench fuzz

packages:
	@scripts/packages

# Build for development: optimised, but fast to link.
build: packages
	$(CARGO) build --profile fast -p knarr

run: build
	target/fast/knarr server

# Release build: link-time optimisation takes most of the time.
dist: packages
	$(CARGO) build --release -p knarr

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

test: packages check
	$(CARGO) test --workspace

# rustdoc without warnings.
doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items

# Generate the tables of the Kubernetes API from the directory KUBERNETES: docs/new-kubernetes-version.md.
generate:
	$(CARGO) xtask generate --kubernetes $(KUBERNETES)

# Pods created, scheduled and bound per second through an API server, with 100 to 5,000 nodes.
bench-scheduler:
	$(CARGO) bench -p knarr --bench scheduler

# A Deployment of 10,000 replicas: create, roll out, delete.
bench-rollout:
	$(CARGO) bench -p knarr --bench rollout

# Cost of Services in the proxy: ten, and ten thousand with fifty thousand endpoints. Needs root.
bench-services:
	$(CARGO) bench -p knarr-network --bench services

# The ingress controller compared with Debian's nginx, with wrk.
bench-ingress:
	$(CARGO) build --release -p knarr-ingress --example ingress_load
	scripts/bench-ingress

# Benchmark of the API server, with server and client on this host.
bench:
	$(CARGO) build --release -p knarr -p knarr-bench
	target/release/knarr-bench

# Fuzz all parsers of outside input, each for SECONDS seconds: `make fuzz SECONDS=600`. Needs a nightly compiler.
SECONDS ?= 120
fuzz:
	scripts/fuzz $(SECONDS)

# Soak test: many pods under random kills; checks that nothing is left behind.
soak: build
	scripts/soak

# Node tests on a kernel with cgroup v2, in a virtual machine.
test-cgroup2: packages
	scripts/test-cgroup2

# The systemd service, through kills and a reboot, in a virtual machine.
test-service: build
	scripts/test-service

# Record the quick start on a fresh root file system: docs/newcomer.txt. Needs root.
newcomer: dist
	scripts/newcomer > docs/newcomer.txt
