# SPDX-License-Identifier: GPL-2.0-or-later
SIM_SOURCES := $(filter-out policies/sim/main.c policies/sim/command_%,$(wildcard policies/sim/*.c))

$(eval $(call program,ebb-sim,$(wildcard policies/sim/*.c daemon/trace/*.c) \
	$(filter-out daemon/common/cgroup.c,$(wildcard daemon/common/*.c)),$(B)/policies/libebb-policies.a -ljson-c -lz -lm))
$(B)/bin/ebb-sim: $(NATIVE_POLICIES)
