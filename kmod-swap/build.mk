# SPDX-License-Identifier: GPL-2.0-or-later
# `make kmod KDIR=...`: builds ebb_swap.ko for the kernel headers in KDIR, in
# build/kmod/RELEASE.  The kernel's build writes beside the sources, so it gets links.

KDIR ?= /lib/modules/$(shell uname -r)/build
KMOD_RELEASE = $(notdir $(patsubst %/build,%,$(abspath $(KDIR))))
KMOD_OUT = $(B)/kmod/$(KMOD_RELEASE:linux-headers-%=%)
# The kernel's build accepts no path with spaces.
KMOD_ELSEWHERE := $(if $(word 2,$(CURDIR)),/var/tmp/ebb-kmod-$(firstword $(shell pwd | cksum)))
KMOD_DIR = $(or $(KMOD_ELSEWHERE),$(CURDIR))/$(KMOD_OUT)
KMOD_SOURCES := $(wildcard kmod-swap/*.[ch]) kmod-swap/Kbuild $(wildcard daemon/lib/wire/wire*.[ch])

.PHONY: kmod
kmod:
	$(Q)test -e $(KDIR)/include/generated/autoconf.h || { \
		echo "KDIR: no kernel headers in $(KDIR); name those of a kernel from 6.1 on" >&2; exit 1; }
	$(call say,KMOD,$(KMOD_OUT)/ebb_swap.ko)
	$(Q)mkdir -p $(KMOD_DIR)/lib/base $(KMOD_DIR)/ebb
	$(Q)ln -sfn '$(CURDIR)/kmod-swap/shim' $(KMOD_DIR)/shim
	$(Q)ln -sf '$(CURDIR)/daemon/lib/base/bytes.h' $(KMOD_DIR)/lib/base/
	$(Q)ln -sf '$(CURDIR)/include/ebb/swap.h' $(KMOD_DIR)/ebb/
	$(Q)for source in $(KMOD_SOURCES); do ln -sf '$(CURDIR)'/$$source $(KMOD_DIR)/ || exit; done
	$(Q)$(MAKE) $(if $(Q),-s) -C $(KDIR) M=$(KMOD_DIR) \
		$(if $(shell command -v pahole),,CONFIG_DEBUG_INFO_BTF_MODULES=) $(KMOD_FLAGS) modules
	$(if $(KMOD_ELSEWHERE),$(Q)mkdir -p $(KMOD_OUT) && cp $(KMOD_DIR)/ebb_swap.ko $(KMOD_OUT)/)

# The module and the fault-injection modules, for the guests of `make check-kmod`.
.PHONY: kmod-fault
kmod-fault:
	$(call say,KMOD,$(KMOD_OUT)/fault)
	$(Q)mkdir -p $(KMOD_DIR)/fault
	$(Q)ln -sf '$(CURDIR)'/tests/guest/fault/* $(KMOD_DIR)/fault/
	$(Q)$(MAKE) $(if $(Q),-s) -C $(KDIR) M=$(KMOD_DIR)/fault \
		$(if $(shell command -v pahole),,CONFIG_DEBUG_INFO_BTF_MODULES=) $(KMOD_FLAGS) modules
	$(if $(KMOD_ELSEWHERE),$(Q)mkdir -p $(KMOD_OUT)/fault && cp $(KMOD_DIR)/fault/*.ko $(KMOD_OUT)/fault/)

# Release 0.1.0, whose module and programs must work with this version's, in the tree of
# tests/harness/release.py.  A shallow clone lacks it; its build accepts no path with spaces.
RELEASE_0_1_0 := 154d53e
.PHONY: kmod-old
kmod-old:
	$(call say,KMOD,$(B)/release/$(RELEASE_0_1_0))
	$(Q)test -z '$(KMOD_ELSEWHERE)' && git cat-file -e $(RELEASE_0_1_0) 2>/dev/null || exit 0; \
		mkdir -p $(B)/release/$(RELEASE_0_1_0) && git archive $(RELEASE_0_1_0) | tar -x -C $(B)/release/$(RELEASE_0_1_0) && \
		$(MAKE) --no-print-directory -C $(B)/release/$(RELEASE_0_1_0) NO_DEPS=1 \
			build/bin/ebbctl build/bin/ebbd build/policies/auto.bpf.o build/policies/none.bpf.o kmod KDIR=$(KDIR) >/dev/null

# KMOD_OLD= leaves the release out, which the guests of `make check` do not need.
KMOD_OLD ?= kmod-old
.PHONY: kmod-guest
kmod-guest: | deps
	$(Q)for series in $(or $(KERNEL),6.12 6.1); do \
		kdir=$$($(PYTHON) -B tests/guest/headers.py $$series) && \
		$(MAKE) --no-print-directory NO_DEPS=$(NO_DEPS) kmod kmod-fault \
			$$(test $$series = 6.1 || echo $(KMOD_OLD)) KDIR=$$kdir || exit 1; done
