# What a developer types. `make` lists it.

export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
PORT ?= 6379
# How long `make soak` runs each of its tests.
STEPS ?= 100000000
SECONDS ?= 300

# Where the tests find the module, the servers and the locks of other libraries.
export REDIS_LOCK_MODULE := $(CARGO_TARGET_DIR)/release/libredis_lock.so
export REDIS_LOCK_SERVERS := $(CARGO_TARGET_DIR)/servers
export REDIS_LOCK_CLIENTS := $(CARGO_TARGET_DIR)/interop
# Tests mostly wait for servers, so there may be more of them than cores.
export RUST_TEST_THREADS ?= 4

.PHONY: help run test soak track-record fuzz asan valgrind build servers clients lint bench bench-check bench-contention clean
.NOTPARALLEL:

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Install what is missing, build, start a server with the module (PORT=6379)
	@scripts/run.sh "$(PORT)"

test: lint build servers clients ## Lint, build, run every test on every server
	cargo test --locked

soak: build servers ## Simulate, and record histories of real servers, for long (STEPS=100000000, SECONDS=300)
	REDIS_LOCK_SIM_STEPS=$(STEPS) cargo test --locked --test simulation -- --nocapture
	REDIS_LOCK_HISTORY_SECONDS=$(SECONDS) cargo test --locked --test histories -- --nocapture

track-record: servers ## Seed bugs one by one: each has to be found by the test named in docs/track-record.md
	@scripts/install.sh build
	@scripts/track_record.sh $(ARGS)

fuzz: ## Fuzz the payload, command and steps targets, 60 s each (FUZZ_SECONDS=60)
	@scripts/install.sh build
	@scripts/fuzz.sh $(ARGS)

asan: servers ## Run tests on a module built with AddressSanitizer, on Redis 7.0 and Valkey 9.1
	@scripts/install.sh build
	@scripts/sanitize.sh asan $(ARGS)

valgrind: servers ## Run a few tests under valgrind, on Redis 7.0
	@scripts/install.sh build
	@scripts/sanitize.sh valgrind $(ARGS)

build: ## Build the module: target/release/libredis_lock.so
	@scripts/install.sh build
	cargo build --release --locked

servers: ## Fetch the servers that the tests run on (not on Debian: DEBIAN_MIRROR=address)
	@scripts/install.sh pip keys
	@scripts/servers.sh

clients: ## Install the lock libraries that the tests run beside the module
	@scripts/install.sh venv node
	@scripts/clients.sh

lint: ## Check formatting and the linter's findings
	@scripts/install.sh build lint
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings

bench: build servers ## Compare the speed and memory of locks, rewrite docs/benchmarks.md (ARGS=--quick: only print)
	cargo bench --locked --bench pairs -- $(ARGS)

bench-check: build servers ## Fail if a lock costs more than a tenth above what is promised
	cargo bench --locked --bench pairs -- --check

bench-contention: build servers ## Compare locks that many clients want, rewrite docs/benchmarks.md (ARGS=--quick: only print)
	@scripts/install.sh venv node
	cargo bench --locked --bench contention -- $(ARGS)

clean: ## Remove what was built and fetched: target
	cargo clean
