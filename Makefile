# Main targets, on a fresh Debian 12 with Rust, git and make: `make run` and `make test`.
CARGO ?= cargo

.PHONY: bench-clusters test-image test-upgrade newcomer faults soak test-cgroup2 test-database test-service run test build release dist test-install doc doc-libraries generate check packages bench-scheduler bench-rollout bench-services bench-ingress bench bench-flood bench-scale fuzz corpora

packages:
	@scripts/packages

# Build for development: only what requests go through is optimised.
build: packages
	$(CARGO) build --profile fast -p knarr

run: build
	target/fast/knarr server

# Release build for this host: link-time optimisation takes most of the time.
release: packages
	$(CARGO) build --release -p knarr

# What users install, in target/dist: static binaries, Debian packages, container images, checksums. Needs root and a Debian mirror.
dist: packages
	scripts/dist

# Try what `make dist` built on clean root file systems. Needs root and the mirrors of the distributions.
test-install:
	scripts/test-install

# Run the container image that `make dist` built, with containerd. Needs root.
test-image:
	scripts/test-image

# Upgrade a node under requests: `make test-upgrade OLD=knarr-0.1.0-linux-amd64`. Needs root.
test-upgrade: release
	scripts/test-upgrade

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

test: packages check
	$(CARGO) test --workspace --no-fail-fast

# rustdoc without warnings. Comments of the binary are help texts, and links lead to private items, which are documented here.
RUSTDOC = RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --no-deps --document-private-items
doc:
	$(RUSTDOC) --workspace --exclude knarr

# The same for the libraries that everything else builds on: seconds after `make check`.
doc-libraries:
	$(RUSTDOC) -p knarr-api -p knarr-store -p knarr-client -p knarr-cri -p knarr-relay

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

# What node heartbeats and administrators notice while one user floods the API server with lists.
bench-flood:
	$(CARGO) build --release -p knarr -p knarr-bench
	target/release/knarr-bench flood

# A control plane with hollow nodes, 30 pods each: `make bench-scale NODES=1000`. 5,000 nodes need 8 GB and an hour.
NODES ?= 100
bench-scale:
	$(CARGO) build --release -p knarr -p knarr-bench
	target/release/knarr-bench scale --nodes $(NODES)

# Local clusters: create one and twenty, times, memory, and what is left of them. Needs root.
bench-clusters: release
	scripts/bench-clusters

# Fuzz all parsers of outside input, each for SECONDS seconds: `make fuzz SECONDS=600`.
SECONDS ?= 120
fuzz:
	scripts/fuzz $(SECONDS)

# Write the first inputs of all fuzz targets into fuzz/corpora, with the fuzzer that `make fuzz` has built.
corpora:
	cd fuzz && KNARR_FUZZ_TARGET=seeds KNARR_FUZZ_SEEDS=corpora target/*/release/fuzz -runs=0

# Three servers and two nodes under random kills, hangs, lost packets, wrong clocks and full disks, then every recipe of
# docs/high-availability.md: `make faults SECONDS=3600`. Needs root and etcd.
faults:
	KNARR_FAULT_SECONDS=$(SECONDS) cargo test -p knarr --test faults -- --nocapture --include-ignored

# PostgreSQL on a local volume under kills: no committed row is lost. Needs root and Debian's package postgresql.
test-database:
	cargo test -p knarr --test system -- --ignored --nocapture no_committed_row_is_lost

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
newcomer: release
	scripts/newcomer > docs/newcomer.txt
