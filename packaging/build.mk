# SPDX-License-Identifier: GPL-2.0-or-later
# `make install`.  The variables move directories that differ between distributions.

SBINDIR ?= $(PREFIX)/sbin
UNITDIR ?= $(PREFIX)/lib/systemd/system
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
NMDIR := $(PREFIX)/lib/NetworkManager/dispatcher.d

PROGRAMS_SBIN := ebbd ebb-swapd ebb-donord ebbctl
PROGRAMS_BIN := ebb-sim
UNITS := $(wildcard packaging/systemd/*.service packaging/systemd/*.slice packaging/systemd/*.socket)
MANS := $(wildcard docs/man/*.[0-9])
# Units that share a page: `man ebb.slice` must find it, too.
UNIT_MANS := ebbd.service ebb-donord.service ebb-device@.service ebb-sleep.service ebb-metrics.socket \
	ebb-metrics@.service ebb.slice

install: all
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)install -d "$(DESTDIR)$(SBINDIR)" "$(DESTDIR)$(PREFIX)/bin" \
		"$(DESTDIR)$(PREFIX)/lib/ebb/policies"
	$(Q)install $(PROGRAMS_SBIN:%=$(B)/bin/%) "$(DESTDIR)$(SBINDIR)"
	$(Q)install $(PROGRAMS_BIN:%=$(B)/bin/%) "$(DESTDIR)$(PREFIX)/bin"
	$(Q)install -m 644 $(POLICY_OBJECTS) "$(DESTDIR)$(PREFIX)/lib/ebb/policies"
	$(Q)install -d "$(DESTDIR)$(PREFIX)/include/ebb" "$(DESTDIR)$(PREFIX)/share/ebb"
	$(Q)install -m 644 $(addprefix include/ebb/,abi.h maps.bpf.h page.h policy.h share.h) policies/ebb_policy.h \
		"$(DESTDIR)$(PREFIX)/include/ebb"
	$(Q)install -m 644 policies/policy.mk "$(DESTDIR)$(PREFIX)/share/ebb"

.PHONY: install-config install-man
install: install-config install-man
# Configuration of systemd, udev, the shells and ebb.
install-config: all
	$(Q)install -d "$(DESTDIR)$(SYSCONFDIR)/ebb/ebb.conf.d" "$(DESTDIR)$(SYSCONFDIR)/ebb/devices"
	$(Q)for f in ebb.conf:ebb/ebb.conf ebb-donord.default:default/ebb-donord; do \
		new=packaging/$${f%:*} to="$(DESTDIR)$(SYSCONFDIR)/$${f#*:}"; \
		if [ -e "$$to" ] && ! cmp -s $$new "$$to"; then \
			echo "  kept $$to; this version's is $$to.new"; to="$$to.new"; fi; \
		install -D -m 644 $$new "$$to" || exit 1; done
	$(Q)install -d "$(DESTDIR)$(UNITDIR)"
	$(Q)for u in $(UNITS); do sed 's|@SBINDIR@|$(SBINDIR)|' $$u \
		> "$(DESTDIR)$(UNITDIR)/$${u##*/}" || exit 1; done
	$(Q)for d in sysusers tmpfiles modules-load; do \
		install -D -m 644 packaging/$$d/ebb.conf "$(DESTDIR)$(PREFIX)/lib/$$d.d/ebb.conf" || exit 1; done
	$(Q)install -D -m 644 packaging/udev/70-ebb.rules "$(DESTDIR)$(PREFIX)/lib/udev/rules.d/70-ebb.rules"
	$(Q)install -d "$(DESTDIR)$(NMDIR)/pre-down.d"
	$(Q)sed 's|@SBINDIR@|$(SBINDIR)|' packaging/networkmanager/50-ebb-sleep > "$(DESTDIR)$(NMDIR)/50-ebb-sleep"
	$(Q)chmod 755 "$(DESTDIR)$(NMDIR)/50-ebb-sleep"
	$(Q)ln -sf ../50-ebb-sleep "$(DESTDIR)$(NMDIR)/pre-down.d/50-ebb-sleep"
	$(Q)install -D -m 644 packaging/systemd/ebb.catalog "$(DESTDIR)$(PREFIX)/lib/systemd/catalog/ebb.catalog"
	$(Q)install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/ebb/prometheus" packaging/prometheus/*.yml
	$(Q)install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/ebb/grafana" packaging/grafana/*.json
	$(Q)install -d "$(DESTDIR)$(PREFIX)/share/bash-completion/completions" "$(DESTDIR)$(ZSHDIR)"
	$(Q)$(B)/bin/ebbctl completion bash > "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/ebbctl"
	$(Q)$(B)/bin/ebbctl completion zsh > "$(DESTDIR)$(ZSHDIR)/_ebbctl"

install-man:
	$(Q)for m in $(MANS); do \
		install -D -m 644 $$m "$(DESTDIR)$(PREFIX)/share/man/man$${m##*.}/$${m##*/}" || exit 1; done
	$(Q)for u in $(UNIT_MANS); do \
		ln -sf ebb-units.7 "$(DESTDIR)$(PREFIX)/share/man/man7/$$u.7" || exit 1; done

# The kernel module as source, for dkms(8) to build for each kernel.
DKMS_DIR = $(DESTDIR)$(PREFIX)/src/ebb-swap-$(VERSION)
.PHONY: install-dkms
install-dkms:
	$(call say,INSTALL,$(DKMS_DIR))
	$(Q)install -d "$(DKMS_DIR)/shim" "$(DKMS_DIR)/lib/base" "$(DKMS_DIR)/ebb"
	$(Q)install -m 644 $(KMOD_SOURCES) "$(DKMS_DIR)"
	$(Q)install -m 644 $(wildcard kmod-swap/shim/*.h) "$(DKMS_DIR)/shim"
	$(Q)install -m 644 daemon/lib/base/bytes.h "$(DKMS_DIR)/lib/base"
	$(Q)install -m 644 include/ebb/swap.h "$(DKMS_DIR)/ebb"
	$(Q)sed 's|@VERSION@|$(VERSION)|' packaging/dkms/dkms.conf > "$(DKMS_DIR)/dkms.conf"

# `make deb`: builds the Debian packages from a copy of the tree, and runs lintian.
DEB := $(B)/deb
DEB_TREE := $(DEB)/ebb-$(VERSION)

.PHONY: deb rpm-lint
deb: | deps
	$(call say,DEB,$(DEB))
	$(Q)rm -rf $(DEB) && mkdir -p $(DEB_TREE)
	$(Q)tar -c --exclude=./build --exclude=./.git . | tar -x -C $(DEB_TREE)
	$(Q)cp -r packaging/debian $(DEB_TREE)/debian
	$(Q)cd $(DEB_TREE) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u MAKEOVERRIDES \
		dpkg-buildpackage -b -us -uc >../build.log 2>&1 || { tail -40 ../build.log; exit 1; }
	$(Q)rm -rf $(DEB_TREE)
	$(call say,LINTIAN,$(DEB))
	$(Q)lintian --fail-on error,warning --display-info --tag-display-limit 0 $(DEB)/*.changes
	$(Q)ls -sh $(DEB)/*.deb

# Checks the spec as far as Debian's tools can.
rpm-lint: | deps
	$(call say,RPMLINT,packaging/rpm/ebb.spec)
	$(Q)rpmspec -P --define "_sourcedir $(CURDIR)" packaging/rpm/ebb.spec >/dev/null
	$(Q)rpmlint --config packaging/rpm/rpmlint.toml packaging/rpm/ebb.spec

# The root file system of a container: from Debian, without a registry.  debootstrap fails below a
# path that contains a space.
CONTAINER := $(B)/guest/container
$(CONTAINER): | deps
	$(call say,BOOTSTRAP,$@)
	$(Q)mkdir -p $(@D)
	$(Q)part=$$(mktemp -d /var/tmp/ebb-container-XXXXXX) || exit 1; trap 'rm -rf $$part' EXIT; \
	debootstrap --variant=minbase bookworm $$part/root >$@.log 2>&1 || { tail -5 $@.log; exit 1; }; \
	mv $$part/root $@

# Tests the packages on machines with systemd: installs, upgrades while pages are out, purges; runs
# services, logins and containers; shuts down with swap in use.
# KERNEL=6.1: only on this Debian kernel.  AT_ONCE=1: one guest after the other.
.PHONY: guest-install guest-install-here
guest-install-here: deb all test-programs kmod-guest $(CONTAINER)
	$(Q)FRESH=$(FRESH) $(PYTHON) -B tests/guest/boots.py --resume --report $(B)/tests/guest-install.xml \
		$(if $(KERNEL),--kernel $(KERNEL)) $(if $(AT_ONCE),--at-once $(AT_ONCE)) guest-install

# Also on Debian 13, which builds all of it itself.  DEBIAN=13: only there.
guest-install: $(if $(DEBIAN),,guest-install-here)
	$(if $(KERNEL),,$(Q)FRESH=$(FRESH) $(PYTHON) -B tests/guest/debian.py $(or $(DEBIAN),13) \
		$(if $(AT_ONCE),AT_ONCE=$(AT_ONCE)))
