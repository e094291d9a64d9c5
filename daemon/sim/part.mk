# SPDX-License-Identifier: GPL-2.0-or-later
# ebb-sim, with every policy compiled natively.  A simulator has no business with cgroups, hence
# no libcgroup.

# What tests link: the rest needs the table of policies.
SIM_SOURCES := $(filter-out daemon/sim/main.c daemon/sim/choose.c daemon/sim/command_%,\
	$(wildcard daemon/sim/*.c))

$(eval $(call program,ebb-sim,$(wildcard daemon/sim/*.c),-ljson-c -lz -lm -ldl))
$(B)/bin/ebb-sim: $(NATIVE_POLICIES)
# The page is part of the program.
$(B)/obj/daemon/sim/report_page.o: daemon/sim/report.html
