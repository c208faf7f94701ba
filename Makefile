# Shale: `make run` brings up a mounted file system, `make test` proves it.
SHELL := /bin/bash
CARGO ?= cargo
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get
BUILD_PACKAGES := gcc pkg-config libisal-dev fuse3
# Networks for `shale lab`.
LAB_PACKAGES := iproute2
TEST_PACKAGES := git make gcc sqlite3 rsync tar diffutils util-linux mount procps systemd acl attr e2fsprogs \
	stress-ng fio libfaketime etcd-client $(LAB_PACKAGES)
BENCH_PACKAGES := sqlite3
# The coordination store that quorum nodes run: tests and labs start servers of their own. On a machine with systemd the
# package starts one as well, on fixed ports; nobody needs that, so only `install_etcd` may install it.
ETCD_PACKAGES := etcd-server
PACKAGE_PACKAGES := dpkg-dev binutils
PACKAGE_TEST_PACKAGES := mmdebstrap systemd-container iproute2 procps util-linux
# Other people's suites, from crates.io.
TOOLS := pjdfstest@0.2.2 fsx@0.3.2
# Tests of the mount (modules of crates/shale/tests, or tests in them) that run a second time, through /dev/fuse, where
# the first time took FUSE over io_uring. The daemon is the same; on the transport depend waits and what ends them, how
# data lies in a request, and how many requests there are at once.
MOUNT_TESTS := locks:: mapping:: suites::pjdfstest_finds_no_fault suites::fsx_sees_every_byte_it_wrote \
	suites::fio_reads_what_it_wrote_through_each_way_of_the_kernel \
	random::several_processes_at_once_each_see_what_their_model_sees
# Labs mount as the machine does, whatever is asked for.
NOT_OF_MOUNTS := lab::
# Tests that judge, or print, for how long programs wait. In the long suite, where no limit is wider for a busy machine, they
# have it for themselves: they run one after the other when all others have ended.
ALONE :=
# Programs of tests that only compute: rules and simulations, in which time is their own.
COMPUTING := client_tests manager_tests metanode_tests sim_tests tokens_tests
# The others wait for daemons, leases, disks and networks more than they compute. A crate's tests are one program, called
# after the crate.
WAITING := $(filter-out $(COMPUTING),$(patsubst crates/%/tests/main.rs,%_tests,$(wildcard crates/*/tests/main.rs)))
# What those that compute have said, and the others.
COMPUTED := $(CURDIR)/target/computed
WAITED := $(CURDIR)/target/waited
URING_SWITCH := /sys/module/fuse/parameters/enable_uring
SHALE := target/release/shale
# `make run` builds with fewer optimisations: less than half of the time.
RUN_SHALE := target/quick/shale
RUN_DIR ?= $(CURDIR)/target/run
LAB_DIR ?= $(CURDIR)/target/lab
PREFIX ?= /usr/local
# Where mount(8) looks for its helpers, and systemd for units; both are fixed.
SBINDIR ?= /sbin
UNITDIR ?= /usr/lib/systemd
MANDIR ?= $(PREFIX)/share/man/man1
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

.PHONY: help build deps test-deps none-skipped run demo-cluster stop install uninstall deb test test-all test-computing test-waiting test-alone test-deb sim fuzz lint bench bench-cluster bench-parts clean

help:
	@echo "make run       build, mount a file system in target/run, use it, say how to stop"
	@echo "make stop      stop what make run started"
	@echo "make demo-cluster  five nodes on this machine; one is killed while files are copied (root)"
	@echo "make build     the program with every optimisation, for make install, make deb and make bench"
	@echo "make install   program, names for mount(8), systemd units, manual, completions (PREFIX, DESTDIR);"
	@echo "               after make build"
	@echo "make deb       a Debian package in target/package"
	@echo "make test-deb  installs, uses, upgrades and purges it: in a clean root, and on three machines in containers (root)"
	@echo "make test      everything that must hold (under 40 minutes on 2 cores)"
	@echo "make test-all  the longer suites as well"
	@echo "make sim       simulations of other seeds (SEEDS=100 START=0 KINDS=storm,cut,erasure,nodes,calm,"; \
	echo "               within,beyond,changing,shards)"
	@echo "make fuzz      decoders with other hostile bytes (ROUNDS=20000 START=0 CRATES=\"nsd rpc\")"
	@echo "make bench     measured value, floor, ratio"
	@echo "make bench-cluster  the same for clusters of real daemons on this machine"
	@echo "make bench-parts  single parts: operations in memory, NSDs, segments, durable writes, calls, managers, etcd"
	@echo "make lint      format and lints"

# dpkg -s costs milliseconds; apt-get update is only paid when something is missing.
define install_missing
	@missing=""; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing >/dev/null; fi
endef

deps:
	$(call install_missing,$(BUILD_PACKAGES))

define install_etcd
	@if ! dpkg -s $(ETCD_PACKAGES) >/dev/null 2>&1; then \
		echo "installing $(ETCD_PACKAGES)"; \
		$(APT) update -qq && $(APT) install -y -qq --no-install-recommends $(ETCD_PACKAGES) >/dev/null; \
		if [ -d /run/systemd/system ]; then $(SUDO) systemctl disable --quiet --now etcd.service; fi; \
	fi
endef

# Where the kernel has FUSE over io_uring but keeps it off, root may switch it on for the tests.
test-deps: deps
	$(call install_missing,$(TEST_PACKAGES))
	$(call install_etcd)
	@for tool in $(TOOLS); do test -x target/tools/bin/$${tool%@*} || $(CARGO) install --quiet --locked --debug --root target/tools $$tool; done
	@if [ -w $(URING_SWITCH) ]; then echo Y > $(URING_SWITCH); else echo "FUSE over io_uring can't be switched on here; only /dev/fuse is tested"; fi

build: deps
	$(CARGO) build --release -p shale

run: deps
	@echo "Building the program: about 300 crates, some minutes the first time. Output is cargo's."
	@begun=$$(date +%s); $(CARGO) build --profile quick -p shale && echo "built in $$(( $$(date +%s) - begun )) s"
	@scripts/demo.sh $(RUN_SHALE) $(RUN_DIR)

demo-cluster: deps
	$(call install_missing,$(LAB_PACKAGES))
	$(call install_etcd)
	$(CARGO) build --profile quick -p shale
	@$(SUDO) scripts/demo-cluster.sh $(RUN_SHALE) $(LAB_DIR)

stop:
	$(RUN_SHALE) down --dir $(RUN_DIR)

HELPERS := mount.shale mount.fuse.shale umount.shale umount.fuse.shale

install:
	@test -x $(SHALE) || { echo "$(SHALE) isn't built; run \`make build\` first"; exit 1; }
	install -D -m 755 $(SHALE) $(DESTDIR)$(PREFIX)/bin/shale
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(UNITDIR)/system $(DESTDIR)$(UNITDIR)/user
	for name in $(HELPERS); do ln -sf $(PREFIX)/bin/shale $(DESTDIR)$(SBINDIR)/$$name; done
	sed 's|@PREFIX@|$(PREFIX)|' scripts/systemd/shale@.service > $(DESTDIR)$(UNITDIR)/system/shale@.service
	sed 's|@PREFIX@|$(PREFIX)|' scripts/systemd/shale-user@.service > $(DESTDIR)$(UNITDIR)/user/shale@.service
	install -d $(addprefix $(DESTDIR),$(MANDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	$(SHALE) man --out $(DESTDIR)$(MANDIR)
	$(SHALE) completion bash > $(DESTDIR)$(BASHDIR)/shale
	$(SHALE) completion zsh > $(DESTDIR)$(ZSHDIR)/_shale
	$(SHALE) completion fish > $(DESTDIR)$(FISHDIR)/shale.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/shale $(addprefix $(DESTDIR)$(SBINDIR)/,$(HELPERS))
	rm -f $(DESTDIR)$(MANDIR)/shale.1 $(DESTDIR)$(MANDIR)/shale-*.1
	rm -f $(DESTDIR)$(BASHDIR)/shale $(DESTDIR)$(ZSHDIR)/_shale $(DESTDIR)$(FISHDIR)/shale.fish
	rm -f $(DESTDIR)$(UNITDIR)/system/shale@.service $(DESTDIR)$(UNITDIR)/user/shale@.service

deb: build
	$(call install_missing,$(PACKAGE_PACKAGES))
	scripts/package/build.sh $(SHALE) target/package

# Builds the package; installs, uses and purges it in a clean root, and on three machines in containers.
test-deb: deb
	$(call install_missing,$(PACKAGE_TEST_PACKAGES))
	@for proof in test machines; do \
		$(SUDO) env SHALE_SKIPPED="$$SHALE_SKIPPED" scripts/package/$$proof.sh $$(ls -t target/package/*.deb | head -1) || exit; \
	done

test-all: none-skipped test-deb
test-all: export SHALE_LONG := 1
test-all: MOUNT_TESTS := posix:: rights:: listing:: mapping:: locks:: suites:: random:: programs::
test-all: ALONE := lab::nasty:: lab::programs:: lab::quorum:: lab::survivors::
# Tests of mounts wait more than they compute: more of them at once than there are cores.
test test-all: export RUST_TEST_THREADS := 4
# Tests that this machine can't run are listed here and counted at the end.
test test-all: export SHALE_SKIPPED := $(CURDIR)/target/skipped
# What tests have measured or covered, shown at the end.
test test-all: export SHALE_FIGURES := $(CURDIR)/target/figures
# An empty list of this user's, also for what root adds; before any test.
none-skipped:
	@mkdir -p target && : > target/skipped && : > target/figures
test: none-skipped
# Those that only compute run beside the others, give way to them, and are heard after them.
test test-all: test-deps
	$(CARGO) test --workspace --lib --bins --tests --no-run
	@result=0; \
	$(MAKE) --no-print-directory --jobs=2 --keep-going MOUNT_TESTS="$(MOUNT_TESTS)" ALONE="$(ALONE)" \
		test-computing test-waiting || result=$$?; \
	$(MAKE) --no-print-directory ALONE="$(ALONE)" test-alone || result=$$?; \
	cat $(COMPUTED) $(SHALE_FIGURES); \
	if [ -s $(SHALE_SKIPPED) ]; then \
		echo "SKIPPED: $$(wc -l < $(SHALE_SKIPPED)) tests or parts of tests can't run on this machine:"; \
		sort $(SHALE_SKIPPED) | uniq -c; \
	else echo "no test was skipped"; fi; \
	scripts/failures.sh $(COMPUTED) $(WAITED); \
	exit $$result

# The two halves of `make test`, and what follows them.
test-computing:
	@mkdir -p target
	@RUST_TEST_THREADS=2 nice -n 19 $(CARGO) test --workspace --no-fail-fast $(addprefix --test ,$(COMPUTING)) > $(COMPUTED) 2>&1

# A pipe would last until all daemons that a failed test has left had ended.
test-waiting:
	@mkdir -p target
	@exec > >(tee $(WAITED)) 2>&1; result=0; \
	$(CARGO) test --workspace --no-fail-fast --lib --bins $(addprefix --test ,$(WAITING)) -- \
		$(addprefix --skip ,$(ALONE)) || result=$$?; \
	if [ "$$(cat $(URING_SWITCH) 2>/dev/null)" = Y ]; then \
		SHALE_TEST_TRANSPORT=fuse $(CARGO) test --workspace --no-fail-fast --test shale_tests -- \
			$(MOUNT_TESTS) --skip $(NOT_OF_MOUNTS) || result=$$?; \
	fi; \
	exit $$result

test-alone:
	@if [ -n "$(ALONE)" ]; then \
		exec > >(tee -a $(WAITED)) 2>&1; \
		RUST_TEST_THREADS=1 $(CARGO) test --workspace --no-fail-fast --test shale_tests -- $(ALONE); \
	fi

# Simulations from seeds of one's own; a failure prints the line that repeats it, and with SHRINK=1 a smaller crowd that
# fails as well.
SEEDS ?= 100
START ?= 0
KINDS ?= storm,cut,erasure,nodes,calm,within,beyond,changing,shards
sim: export SIM_SEEDS := $(SEEDS)
sim: export SIM_START := $(START)
sim: export SIM_KINDS := $(KINDS)
sim: export SIM_SHRINK := $(SHRINK)
sim: deps
	@$(CARGO) test --quiet --workspace --test sim_tests -- --exact seeds::seeds_of_every_kind --nocapture

# Hostile bytes for every decoder (docs/fuzzing.md); a failure prints what repeats it. Targets are told by how their
# names begin.
ROUNDS ?= 20000
CRATES ?= model placement namespace coordination nsd pool shard rpc fuse shale
fuzz: export SHALE_FUZZ_ROUNDS := $(ROUNDS)
fuzz: export SHALE_FUZZ_START := $(START)
fuzz: deps
	@$(CARGO) test --quiet $(addprefix -p ,$(CRATES)) --tests --no-fail-fast -- ::any_ ::whatever_

lint: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

bench: deps
	$(call install_missing,$(BENCH_PACKAGES))
	@if [ -w $(URING_SWITCH) ]; then echo Y > $(URING_SWITCH); fi
	$(CARGO) build --release -p shale -p bench
	target/release/bench

bench-cluster: deps
	$(call install_etcd)
	@if [ -w $(URING_SWITCH) ]; then echo Y > $(URING_SWITCH); fi
	$(CARGO) build --release -p shale -p bench
	target/release/bench --cluster

# Parts that users feel only together; `make lint` sees that they compile.
PARTS := operations durable_writes blobs segments calls managers etcd
bench-parts: export SHALE_BENCH_DIR ?= $(CURDIR)/target/bench
bench-parts: deps
	$(call install_etcd)
	@mkdir -p $(SHALE_BENCH_DIR)
	$(CARGO) bench --workspace --profile quick $(addprefix --bench ,$(PARTS))

clean:
	$(CARGO) clean
