# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbctl,$(wildcard daemon/ebbctl/*.c) daemon/swapd/ublk_control.c daemon/swapd/place.c \
	$(addprefix daemon/kmod/,decode.c donor_address.c netlink.c plan.c settle.c) $(addprefix daemon/wire/,address.c key.c local.c tcp.c) \
	$(addprefix daemon/discovery/,donor_list.c etcd_json.c base64.c) $(wildcard daemon/trace/*.c) $(COMMON) \
	$(addprefix policies/sim/,advice.c history.c map.c replay.c surplus.c),\
	-lbpf -lsystemd -ljson-c -lcrypto -lcgroup -luring -lmnl -lncursesw -ltinfo -lz -lm))
# It has the page in it.
$(B)/obj/daemon/ebbctl/report_page.o: daemon/ebbctl/report.html
# What it advises is tried with the policies themselves.
$(B)/bin/ebbctl: $(NATIVE_POLICIES)
