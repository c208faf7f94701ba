# Shale: `make run` brings up a mounted file system, `make test` proves it.
SHELL := /bin/bash
CARGO ?= cargo
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get
BUILD_PACKAGES := gcc pkg-config libisal-dev fuse3
TEST_PACKAGES := git make gcc sqlite3 rsync tar diffutils e2fsprogs util-linux
SHALE := target/release/shale
RUN_DIR ?= $(CURDIR)/target/run

.PHONY: help build deps test-deps run stop test test-all lint bench clean

help:
	@echo "make run       build, mount a file system in target/run, use it, say how to stop"
	@echo "make stop      stop what make run started"
	@echo "make test      everything that must hold (under 30 minutes on 2 cores)"
	@echo "make test-all  the longer suites as well"
	@echo "make bench     measured value, floor, ratio"
	@echo "make lint      format and lints"

# dpkg -s costs milliseconds; apt-get update is only paid when something is missing.
deps:
	@missing=""; for p in $(BUILD_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing >/dev/null; fi

test-deps: deps
	@missing=""; for p in $(TEST_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing >/dev/null; fi

build: deps
	$(CARGO) build --release -p shale

run: build
	scripts/demo.sh $(SHALE) $(RUN_DIR)

stop:
	$(SHALE) down --dir $(RUN_DIR)

test: test-deps
	$(CARGO) test --workspace --no-fail-fast

test-all: test-deps
	SHALE_LONG=1 $(CARGO) test --workspace --no-fail-fast

lint: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

bench: deps
	$(CARGO) build --release -p shale -p bench
	target/release/bench

clean:
	$(CARGO) clean
