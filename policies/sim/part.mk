# SPDX-License-Identifier: GPL-2.0-or-later
# ebb-sim, with every policy compiled natively.  A simulator has no business with cgroups, hence
# no libcgroup.

# What tests link: the rest needs the table of policies.
SIM_SOURCES := $(filter-out policies/sim/main.c policies/sim/choose.c policies/sim/command_%,\
	$(wildcard policies/sim/*.c))

# What decides in a cluster.
SIM_DAEMON := daemon/swapd/place.c daemon/swapd/activity.c daemon/donord/headroom.c

$(eval $(call program,ebb-sim,$(wildcard policies/sim/*.c daemon/trace/*.c) $(SIM_DAEMON) \
	$(filter-out daemon/common/cgroup.c,$(wildcard daemon/common/*.c)),-ljson-c -lz -lm -ldl))
$(B)/bin/ebb-sim: $(NATIVE_POLICIES)
