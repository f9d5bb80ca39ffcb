# Two commands do everything on a fresh Debian 12 with Rust, git and make: `make run` and `make test`.
CARGO ?= cargo

.PHONY: newcomer soak test-cgroup2 test-service run test build dist doc generate check packages bench-scheduler bench-rollout bench-services bench-ingress bench fuzz

packages:
	@scripts/packages

# The program as it is used while working on it: optimised, but linked in a moment.
build: packages
	$(CARGO) build --profile fast -p knarr

run: build
	target/fast/knarr server

# The program as it is released: link-time optimisation takes most of the time.
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

# The tables of Kubernetes' API from what KUBERNETES publishes: docs/new-kubernetes-version.md.
generate:
	$(CARGO) xtask generate --kubernetes $(KUBERNETES)

# Pods created, scheduled and bound a second through an API server, from 100 to 5,000 nodes.
bench-scheduler:
	$(CARGO) bench -p knarr --bench scheduler

# A Deployment of 10,000 replicas: made, rolled over, deleted.
bench-rollout:
	$(CARGO) bench -p knarr --bench rollout

# What services cost the proxy, ten of them and ten thousand with fifty thousand endpoints. Needs root.
bench-services:
	$(CARGO) bench -p knarr-network --bench services

# The ingress beside Debian's nginx, with wrk.
bench-ingress:
	$(CARGO) build --release -p knarr-ingress --example ingress_load
	scripts/bench-ingress

# The API server's figures, with server and client on this machine.
bench:
	$(CARGO) build --release -p knarr -p knarr-bench
	target/release/knarr-bench

# Everything that reads bytes from outside, each for so many seconds: `make fuzz SECONDS=600`. Needs a nightly compiler.
SECONDS ?= 120
fuzz:
	scripts/fuzz $(SECONDS)

# Many pods under random kills; afterwards nothing may be left behind.
soak: build
	scripts/soak

# The node's tests on a kernel with unified cgroups, in a virtual machine.
test-cgroup2: packages
	scripts/test-cgroup2

# Knarr as a service of systemd, through kills and a restart of the machine, in a virtual machine.
test-service: build
	scripts/test-service

# The quick start, command by command, on a machine that never saw Knarr: docs/newcomer.txt. Needs root.
newcomer: dist
	scripts/newcomer > docs/newcomer.txt
