# SPDX-License-Identifier: GPL-2.0-or-later
# `make install`.  Distributions put a few directories elsewhere: see the variables.

UNITDIR ?= $(PREFIX)/lib/systemd/system
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions

PROGRAMS_SBIN := ebbd ebb-swapd ebb-donord ebbctl
PROGRAMS_BIN := ebb-sim
UNITS := $(wildcard packaging/systemd/*.service packaging/systemd/*.slice packaging/systemd/*.socket)
MANS := $(wildcard docs/man/*.[0-9])
# Units that share a page: `man ebb.slice` finds it, too.
UNIT_MANS := ebbd.service ebb-donord.service ebb-device@.service ebb.slice

install: all
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/bin \
		$(DESTDIR)$(PREFIX)/lib/ebb/policies
	$(Q)install $(PROGRAMS_SBIN:%=$(B)/bin/%) $(DESTDIR)$(PREFIX)/sbin
	$(Q)install $(PROGRAMS_BIN:%=$(B)/bin/%) $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 644 $(POLICY_OBJECTS) $(POLICY_NATIVES) $(DESTDIR)$(PREFIX)/lib/ebb/policies
	$(Q)install -d $(DESTDIR)$(PREFIX)/include/ebb/bpf $(DESTDIR)$(PREFIX)/share/ebb
	$(Q)install -m 644 policies/ebb_policy.h $(DESTDIR)$(PREFIX)/include/ebb
	$(Q)install -m 644 bpf/ebb_abi.h bpf/maps.bpf.h $(DESTDIR)$(PREFIX)/include/ebb/bpf
	$(Q)install -m 644 policies/policy.mk $(DESTDIR)$(PREFIX)/share/ebb

.PHONY: install-config install-man
install: install-config install-man
# What systemd, udev, the shells and the administrator read.
install-config: all
	$(Q)install -d $(DESTDIR)$(SYSCONFDIR)/ebb/ebb.conf.d $(DESTDIR)$(SYSCONFDIR)/ebb/devices
	$(Q)install -m 644 packaging/ebb.conf $(DESTDIR)$(SYSCONFDIR)/ebb/ebb.conf
	$(Q)install -D -m 644 packaging/ebb-donord.default $(DESTDIR)$(SYSCONFDIR)/default/ebb-donord
	$(Q)install -d $(DESTDIR)$(UNITDIR)
	$(Q)for u in $(UNITS); do sed 's|@PREFIX@|$(PREFIX)|' $$u \
		> $(DESTDIR)$(UNITDIR)/$${u##*/} || exit 1; done
	$(Q)for d in sysusers tmpfiles modules-load; do \
		install -D -m 644 packaging/$$d/ebb.conf $(DESTDIR)$(PREFIX)/lib/$$d.d/ebb.conf || exit 1; done
	$(Q)install -D -m 644 packaging/udev/70-ebb.rules $(DESTDIR)$(PREFIX)/lib/udev/rules.d/70-ebb.rules
	$(Q)install -D -m 644 packaging/systemd/ebb.catalog $(DESTDIR)$(PREFIX)/lib/systemd/catalog/ebb.catalog
	$(Q)install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/ebb/prometheus packaging/prometheus/*.yml
	$(Q)install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/ebb/grafana packaging/grafana/*.json
	$(Q)install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(ZSHDIR)
	$(Q)$(B)/bin/ebbctl completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ebbctl
	$(Q)$(B)/bin/ebbctl completion zsh > $(DESTDIR)$(ZSHDIR)/_ebbctl

install-man:
	$(Q)for m in $(MANS); do \
		install -D -m 644 $$m $(DESTDIR)$(PREFIX)/share/man/man$${m##*.}/$${m##*/} || exit 1; done
	$(Q)for u in $(UNIT_MANS); do \
		ln -sf ebb-units.7 $(DESTDIR)$(PREFIX)/share/man/man7/$$u.7 || exit 1; done
