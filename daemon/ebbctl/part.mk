# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbctl,$(wildcard daemon/ebbctl/*.c) daemon/swapd/ublk_control.c $(addprefix daemon/wire/,address.c key.c local.c tcp.c) \
	$(addprefix daemon/discovery/,donor_list.c etcd_json.c base64.c) $(wildcard daemon/trace/*.c) $(COMMON) \
	$(addprefix policies/sim/,advice.c history.c map.c replay.c surplus.c),\
	-lbpf -lsystemd -ljson-c -lcrypto -lcgroup -luring -lncursesw -ltinfo -lz -lm))
# It has the page in it.
$(B)/obj/daemon/ebbctl/report_page.o: daemon/ebbctl/report.html
# What it advises is tried with the policies themselves.
$(B)/bin/ebbctl: $(NATIVE_POLICIES)
