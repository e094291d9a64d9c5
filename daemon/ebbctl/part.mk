# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbctl,$(call own,ebbctl) \
	$(addprefix daemon/sim/,advice.c history.c map.c replay.c surplus.c),\
	-lbpf -lsystemd -ljson-c -lcrypto -lcgroup -luring -lmnl -lncursesw -ltinfo -lz -lm))
# The page is part of the program.
$(B)/obj/daemon/ebbctl/verbs/report_page.o: daemon/ebbctl/verbs/report.html
# ebbctl advise runs the policies themselves.
$(B)/bin/ebbctl: $(NATIVE_POLICIES)
