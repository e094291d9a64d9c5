# SPDX-License-Identifier: GPL-2.0-or-later
# ebb-sim: every policy compiled natively, each an object of its own because their statics share
# names, and a table of them.

SIM_SOURCES := $(filter-out policies/sim/main.c policies/sim/command_%,$(wildcard policies/sim/*.c))
POLICY_TABLE := $(B)/gen/sim-policies.c

$(eval $(call program,ebb-sim,$(wildcard policies/sim/*.c daemon/trace/*.c) $(POLICIES:%=policies/%.bpf.c) \
	$(filter-out daemon/common/cgroup.c,$(wildcard daemon/common/*.c)),-ljson-c -lz -lm))
$(B)/bin/ebb-sim: $(B)/obj/sim-policies.o

# Made anew when a policy comes or goes.
$(POLICY_TABLE): $(POLICIES:%=policies/%.bpf.c) policies/sim/part.mk policies
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D) && { echo '#include "policies/sim/commands.h"'; \
		for p in $(POLICIES); do echo "extern const struct ebb_policy $${p}_policy;"; done; \
		echo 'const struct ebb_policy *const sim_policies[] = {'; \
		for p in $(POLICIES); do echo "	&$${p}_policy,"; done; echo '	NULL'; echo '};'; } > $@

$(B)/obj/sim-policies.o: $(POLICY_TABLE) | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -c -o $@ $<
