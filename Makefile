# SPDX-License-Identifier: GPL-2.0-or-later
# ebb: memory of other machines as swap, prefetched before it is accessed.
# `make help` lists the targets.  Every artefact goes under build/.

VERSION := 0.2.0
B := build$(if $(SANITIZE),/sanitize)
V ?= 0
PREFIX ?= /usr
SYSCONFDIR ?= /etc
LIBDIR ?= $(PREFIX)/lib
CC ?= cc
CLANG ?= clang
BPFTOOL ?= $(firstword $(wildcard /usr/sbin/bpftool) bpftool)
# Debian's python3: any other in PATH lacks the modules that apt installs.
PYTHON ?= /usr/bin/python3

ifeq ($(V),1)
Q :=
say = @:
else
Q := @
# `make -s` prints no line for each file.
say = @$(if $(findstring s,$(firstword -$(MAKEFLAGS))),:,printf '  %-8s %s\n' $(1) $(2))
endif

# Under sudo the invoking user compiles, so that build/ holds no files of root;
# only recipes that install, need root or clean up run as root.
ROOT_TARGETS := deps check check-all check-outside soak demo bench-scan bench-hooks bench-apps bench-prefetch bench-latency \
	bench-neighbour bench-gc bench-drift bench-advise bench-cost bench-cost-guest bench-idle bench-device \
	bench-guest bench-seal bench-policy bench-far bench-heap bench-dsm bench guest-install \
	install install-gc install-far install-dsm install-crate install-config install-man install-dkms clean
ifeq ($(shell id -u),0)
ifneq ($(filter-out 0,$(SUDO_UID)),)
SHELL := /usr/bin/setpriv
.SHELLFLAGS := --reuid=$(SUDO_UID) --regid=$(SUDO_GID) --init-groups /bin/sh -c
$(ROOT_TARGETS): private SHELL := /bin/sh
$(ROOT_TARGETS): private .SHELLFLAGS := -c
endif
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all help deps check check-all check-outside check-kmod lint soak unit demo bench-scan bench-hooks bench-apps bench-neighbour bench-prefetch \
	bench-latency bench-device install clean

# The commands that build all and then work for minutes; a -j of the caller takes precedence.
ifneq ($(filter check check-all demo,$(MAKECMDGOALS)),)
MAKEFLAGS += -j$(shell nproc)
endif

CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Werror -Wno-unused-parameter
override CFLAGS += -std=gnu11 $(WARN) -D_GNU_SOURCE -DEBB_VERSION='"$(VERSION)"' \
	-DEBB_LIBDIR='"$(PREFIX)/lib/ebb"' -I. -Iinclude -Idaemon -I$(B) '-ffile-prefix-map=$(CURDIR)=.' -MMD -MP \
	$(if $(SANITIZE),-fsanitize=address -fsanitize=undefined -fno-omit-frame-pointer)

# The code that the programs share.
LIBEBB := $(B)/lib/libebb.a

# A program and its sources, which are linked with libebb.a: $(call program,NAME,SOURCES,LIBRARIES)
define program
$(1)_objects := $$(patsubst %.c,$(B)/obj/%.o,$(2))
all: $(B)/bin/$(1)
$(B)/bin/$(1): $$($(1)_objects) $(LIBEBB)
	$$(call say,LINK,$$@)
	$(Q)mkdir -p $$(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -o $$@ $$^ $(3)
-include $$($(1)_objects:.o=.d)
endef

all:

include bpf/build.mk
include policies/build.mk
include daemon/build.mk
include userlib/build.mk
include tests/runtimes/lua/lua.mk
include tests/build.mk
include kmod-swap/build.mk
include packaging/build.mk

$(B)/obj/%.o: %.c Makefile | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -c -o $@ $<

help:
	@sed -n 's/^## *//p' Makefile

## make                       build everything under build/
## sudo make demo             run six real programs in remote memory, with and without ebb
## sudo make check            run lint, unit and system tests and a guest; 18 minutes on two CPUs
## sudo make check-all        run check, the long tests and every guest; resume by group
##			   (FRESH=1: start over)
## sudo make check-outside    run other projects' test suites with and without ebb, compare their
##			   verdicts; resume by suite (ONLY= FRESH=1 JSON=FILE)
## make lint                  check layers, language and style; run clang-format, clang-tidy,
##			   shellcheck and mandoc
## sudo make soak             inject faults of donors, links, disks, etcd and ebbd at random: natively,
##			   then for as long in a guest that swaps; check that no page is lost
##			   (HOURS=1, SEED=n; GUEST=0 or 1: only natively, only in the guest)
## make unit                  run only the unit tests, without root (SANITIZE=1: with ASan and UBSan)
## make model-far             check far memory's protocol in more states than `make unit` does
##			   (about ten minutes on two CPUs, 600 MB)
## make model-heap            check the far cycle and the protocols of Mako and Semeru in more states
##			   than `make unit` does
## make gc-sanitize           run libebbgc's tests under ThreadSanitizer, AddressSanitizer and UBSan
## make lua                   build Lua 5.4.4 on libebbgc; fetch its source from Debian
## make check-lua             test it against Debian's lua5.4 (LUA_TESTS=DIR: and by Lua's own tests)
## make time-lua              time Lua on libebbgc against Lua's own collectors, with all memory
## make fuzz-policy           fuzz every policy with random faults (SECONDS=60)
## make fuzz-protocol         fuzz the protocol of donor and borrower (SECONDS=60)
## make fuzz-kmod             fuzz the kernel module's sessions with donors (SECONDS=60)
## make fuzz-gc               run libebbgc's threads in random order, with and without sanitizers
##			   (SECONDS=60)
## sudo make bench            run all benchmarks below, show the time left, write docs/results
##			   (ONLY= SKIP= FRESH=1)
## make bench-results         write docs/results from build/bench
## make bench-policy          time a call of each policy, natively
## make bench-seal            time sealing and opening a page
## sudo make bench-far        compare far memory with bare sockets and with malloc
## sudo make bench-scan       compare kernel readahead with ebb on sequential and strided scans
## sudo make bench-hooks      measure the cost of the BPF hooks per fault
## sudo make bench-idle       measure what ebbd costs while up to 1000 attached cgroups are idle
## sudo make bench-apps       run programs at 100, 75, 50 and 25 % of their memory
## sudo make bench-advise     compare predictions of ebbctl advise with measurements
## sudo make bench-gc         run garbage collectors at 100, 50, 25 and 13 % of their memory
## sudo make bench-heap       replay the heaps of programs in swap and in far objects
## sudo make bench-dsm        compare libebbdsm with coherence, delegation and messages
## sudo make bench-drift      compare page residency known to libebbgc with the kernel's
## sudo make bench-prefetch   compare policies on all access patterns, and on collectors of a JVM
## sudo make bench-latency    measure the gain of policies by latency of the device
## sudo make bench-neighbour  measure miss latency beside a prefetching cgroup
## sudo make bench-cost       account for the processor time of a page, by component (OLD=DIR: and
##			   compare with another build)
## sudo make bench-cost-guest count what a page takes on cgroup v2, and with ublk, in a guest
## sudo make bench-device     compare page latency of each transport with the bare FUSE file
## sudo make bench-guest      compare kernel module and ublk with NVMe-oF and nbd, counted in a guest
## make kmod KDIR=...         build the kernel module for the headers in KDIR, 6.1 to 6.12
## make check-kmod            run all kernel-module tests, in guests with Soft-RoCE; resume
##			   (FRESH=1: start over)
## make install               install below DESTDIR=, PREFIX=/usr
## make deb                   build Debian packages in build/deb and run lintian
## make guest-install         test the packages in guests with systemd: install, upgrade, purge,
##			   services, containers, shutdown (KERNEL=6.1 or 6.12: only one of the
##			   kernels of Debian 12; DEBIAN=13: only Debian 13; AT_ONCE=1: one guest
##			   at a time)
## make rpm-lint              check packaging/rpm/ebb.spec
## make install-dkms          install the source of the kernel module, for dkms(8)
## make clean                 remove build/
## Variables: V=1: show commands; NO_DEPS=1: install no packages; GUEST=1 (demo): run in a guest

# --- packages to install ---------------------------------

# Packages of Debian 12 and 13, one reason a line.
DEPS_BUILD := \
	gcc make pkg-config \
	clang llvm bpftool libbpf-dev libelf-dev zlib1g-dev \
	libsystemd-dev libjson-c-dev libinih-dev libcgroup-dev libssl-dev libcurl4-openssl-dev librdmacm-dev libibverbs-dev libaio-dev liburing-dev libmnl-dev libncurses-dev
# Unit tests, and programs that link libebb-test.a.
DEPS_UNIT := libcmocka-dev
# Guests.
DEPS_GUEST := python3-pytest qemu-system-x86 busybox-static cpio kmod xz-utils dwarves ibverbs-providers
DEPS_CHECK := $(DEPS_BUILD) $(DEPS_UNIT) $(DEPS_GUEST) python3-pytest-xdist etcd-server \
	librsvg2-bin fonts-dejavu-core nftables prometheus chromium mandoc zsh \
	clang-format clang-tidy shellcheck pyflakes3 \
	lua5.4 patch
DEPS_DEMO := $(DEPS_BUILD) python3-numpy python3-matplotlib \
	sqlite3 redis-server redis-tools jq graphicsmagick
# Builders of Debian and RPM packages.
DEPS_DEB := build-essential dpkg-dev debhelper dh-dkms lintian
DEPS_RPM := rpm rpmlint
# Other programs that run in the guest with systemd.
DEPS_PLACES := redis-server redis-tools attr podman crun debootstrap
DEPS_JAVA := default-jdk-headless libh2-java libderby-java
# Of the crate's tests, which `make check` skips without them.
DEPS_RUST := rustc cargo

# Packages beyond DEPS_BUILD, by target.
INSTALLS := guest-install guest-install-here
DEPS := $(sort $(DEPS_BUILD) \
	$(if $(filter check check-all check-outside lint check-kmod bench-guest bench-cost-guest soak unit model-far model-heap gc-sanitize fuzz-gc lua check-lua time-lua $(if $(filter 1,$(GUEST)),demo),$(MAKECMDGOALS)),$(DEPS_CHECK)) \
	$(if $(filter $(INSTALLS) kmod-guest,$(MAKECMDGOALS)),$(DEPS_UNIT) $(DEPS_GUEST)) \
	$(if $(filter test-programs test-build $(B)/tests/unit/% $(B)/tests/watch_donors,$(MAKECMDGOALS)),$(DEPS_UNIT)) \
	$(if $(filter check check-all demo bench bench-%,$(MAKECMDGOALS)),$(DEPS_DEMO)) \
	$(if $(filter bench-device bench-guest,$(MAKECMDGOALS)),fio) \
	$(if $(filter bench bench-gc,$(MAKECMDGOALS)),libgc-dev) \
	$(if $(filter bench-guest,$(MAKECMDGOALS)),nbdkit nbd-client) \
	$(if $(filter deb check-all $(INSTALLS),$(MAKECMDGOALS)),$(DEPS_DEB)) \
	$(if $(filter check-all $(INSTALLS),$(MAKECMDGOALS)),$(DEPS_PLACES)) \
	$(if $(filter check-all,$(MAKECMDGOALS)),$(DEPS_RUST)) \
	$(if $(filter rpm-lint,$(MAKECMDGOALS)),$(DEPS_RPM)) \
	$(if $(filter bench-prefetch bench-latency,$(MAKECMDGOALS)),$(DEPS_JAVA)))

deps:
	$(Q)sh packaging/deps.sh "$(NO_DEPS)" $(DEPS)

clean:
	$(call say,CLEAN,$(B))
	$(Q)rm -rf $(B)
