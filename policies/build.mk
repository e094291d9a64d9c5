# SPDX-License-Identifier: GPL-2.0-or-later
# One BPF object per policies/NAME.bpf.c; nothing to register.

POLICY_NAMES := $(sort $(patsubst policies/%.bpf.c,%,$(wildcard policies/*.bpf.c)))
POLICY_OBJECTS := $(POLICY_NAMES:%=$(B)/policies/%.bpf.o)

all: $(POLICY_OBJECTS)

$(B)/policies/%.bpf.o: policies/%.bpf.c $(B)/bpf/vmlinux.h | deps
	$(call say,BPF,$@)
	$(Q)mkdir -p $(@D) && $(CLANG) -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 \
		-Wall -Wextra -Wno-unused-parameter -Werror -MMD -MP \
		-I. -Iinclude -Ipolicies -I$(B)/bpf -c -o $@ $< && llvm-strip -g $@

# The policies as native objects, and a table of them (native.h).  An archive: a
# test that compiles a policy into itself does not get it twice.
NATIVE_POLICIES := $(B)/policies/libebb-policies.a
NATIVE_POLICY_OBJECTS := $(POLICY_NAMES:%=$(B)/obj/policies/native/%.o)

$(B)/obj/policies/native/%.o: policies/%.bpf.c | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Ipolicies -Wno-unknown-pragmas \
		-Wno-unused-function -c -o $@ $<

# Phony: removing a policy changes no file's date.
.PHONY: native-table
native-table:
$(B)/policies/native.c: native-table
	$(Q)mkdir -p $(@D) && { \
		printf '#include "policies/native.h"\n'; \
		printf 'extern const struct ebb_policy %s_policy;\n' $(POLICY_NAMES); \
		printf 'const struct ebb_policy *const ebb_policies[] = {\n'; \
		printf '\t&%s_policy,\n' $(POLICY_NAMES); printf '\tNULL\n};\n'; } > $@.new; \
	cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(B)/obj/policies/native-table.o: $(B)/policies/native.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -c -o $@ $<

$(NATIVE_POLICIES): $(NATIVE_POLICY_OBJECTS) $(B)/obj/policies/native-table.o
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) qcs $@ $^

-include $(NATIVE_POLICY_OBJECTS:.o=.d)

-include $(POLICY_OBJECTS:.o=.d)
