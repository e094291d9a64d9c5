# SPDX-License-Identifier: GPL-2.0-or-later

PROGRAMS_SBIN := ebbd ebb-swapd ebb-donord ebbctl
PROGRAMS_BIN := ebb-sim
UNITS := $(wildcard packaging/systemd/*.service packaging/systemd/*.socket)
MANS := $(wildcard docs/man/*.[0-9])

install: all
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/ebb/policies \
		$(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(SYSCONFDIR)/ebb/ebb.conf.d
	$(Q)install $(PROGRAMS_SBIN:%=$(B)/bin/%) $(DESTDIR)$(PREFIX)/sbin
	$(Q)install $(PROGRAMS_BIN:%=$(B)/bin/%) $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 644 $(POLICY_OBJECTS) $(POLICY_NATIVES) $(DESTDIR)$(PREFIX)/lib/ebb/policies
	$(Q)install -d $(DESTDIR)$(PREFIX)/include/ebb/bpf $(DESTDIR)$(PREFIX)/share/ebb
	$(Q)install -m 644 policies/ebb_policy.h $(DESTDIR)$(PREFIX)/include/ebb
	$(Q)install -m 644 bpf/ebb_abi.h bpf/maps.bpf.h $(DESTDIR)$(PREFIX)/include/ebb/bpf
	$(Q)install -m 644 policies/policy.mk $(DESTDIR)$(PREFIX)/share/ebb
	$(Q)install -m 644 packaging/ebb.conf $(DESTDIR)$(SYSCONFDIR)/ebb/ebb.conf
	$(Q)for u in $(UNITS); do sed 's|@PREFIX@|$(PREFIX)|' $$u \
		> $(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/} || exit 1; done
	$(Q)install -D -m 644 packaging/systemd/ebb.catalog $(DESTDIR)$(PREFIX)/lib/systemd/catalog/ebb.catalog
	$(Q)install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/ebb/prometheus packaging/prometheus/*.yml
	$(Q)install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/ebb/grafana packaging/grafana/*.json
	$(Q)install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions && $(B)/bin/ebbctl completion bash \
		> $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ebbctl
	$(Q)for m in $(MANS); do \
		install -D -m 644 $$m $(DESTDIR)$(PREFIX)/share/man/man$${m##*.}/$${m##*/} || exit 1; done
