# SPDX-License-Identifier: GPL-2.0-or-later
# One BPF object for each policies/NAME.bpf.c; nothing to register.

POLICIES := $(patsubst policies/%.bpf.c,%,$(wildcard policies/*.bpf.c))
POLICY_OBJECTS := $(POLICIES:%=$(B)/policies/%.bpf.o)

all: $(POLICY_OBJECTS)

$(B)/policies/%.bpf.o: policies/%.bpf.c $(B)/bpf/vmlinux.h | deps
	$(call say,BPF,$@)
	$(Q)mkdir -p $(@D) && $(CLANG) -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 \
		-Wall -Wextra -Wno-unused-parameter -Werror -MMD -MP \
		-I. -Ipolicies -I$(B)/bpf -c -o $@ $< && llvm-strip -g $@

-include $(POLICY_OBJECTS:.o=.d)
