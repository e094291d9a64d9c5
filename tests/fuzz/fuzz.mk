# SPDX-License-Identifier: GPL-2.0-or-later
# make fuzz-policy: every policy, with the sanitizers; by coverage (libFuzzer)
# where clang has what that takes, and by counting in any case.

SECONDS ?= 60
FUZZ := build/fuzz
FUZZ_SOURCES := tests/fuzz/policy.c tests/fuzz/fuzz_policy.c policies/native.h \
	$(wildcard policies/*.bpf.c policies/*.h)
FUZZ_FLAGS := -std=gnu11 -O1 -g -D_GNU_SOURCE -I. -Iinclude -Ipolicies -Wno-unknown-pragmas \
	-fno-omit-frame-pointer -fno-sanitize-recover=all
FUZZ_C = $(filter %.c,$^)
FUZZ_ENV := UBSAN_OPTIONS=print_stacktrace=1

$(B)/tests/unit/test_policy_fuzz: $(B)/obj/tests/fuzz/policy.o
-include $(B)/obj/tests/fuzz/policy.d

$(FUZZ)/counted: $(FUZZ_SOURCES) $(B)/policies/native.c | deps
	$(call say,FUZZ,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(FUZZ_FLAGS) -fsanitize=address,undefined -o $@ $(FUZZ_C)

# Empty if it cannot be built here.
$(FUZZ)/covered: $(FUZZ_SOURCES) $(B)/policies/native.c | deps
	$(call say,FUZZ,$@)
	$(Q)mkdir -p $(@D) && if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
		$(CLANG) -x c -fsanitize=fuzzer,address -o $@ - 2>/dev/null; then \
		$(CLANG) $(FUZZ_FLAGS) -DFUZZ_BY_COVERAGE -fsanitize=fuzzer,address,undefined \
			-o $@ $(FUZZ_C); \
	else : > $@; fi

.PHONY: fuzz-policy
fuzz-policy: $(FUZZ)/counted $(FUZZ)/covered
	$(Q)half=$$((($(SECONDS) + 1) / 2)); $(FUZZ_ENV) $(FUZZ)/counted $$half
	$(Q)half=$$((($(SECONDS) + 1) / 2)); mkdir -p $(FUZZ)/corpus; \
	if [ ! -s $(FUZZ)/covered ]; then \
		echo "not by coverage: $(CLANG) has no libFuzzer; install clang's runtime"; \
	elif $(FUZZ_ENV) $(FUZZ)/covered -seed=1 -max_len=1024 -max_total_time=$$half \
		-artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus > $(FUZZ)/covered.log 2>&1; then \
		echo "by coverage: $$(grep '^Done' $(FUZZ)/covered.log): nothing wrong"; \
	else tail -50 $(FUZZ)/covered.log; false; fi

# make fuzz-protocol: what borrower and donor read from the network, the same two ways; first
# without keys, then what is there with them.
PROTOCOL_SOURCES := tests/fuzz/protocol.c tests/fuzz/fuzz_protocol.c \
	$(addprefix daemon/lib/wire/,wire.c wire_proof.c hmac.c stream.c) $(addprefix daemon/donord/pool/,pool.c exports.c slab_memory.c) $(addprefix daemon/lib/base/,error.c log.c size.c)
SECURE_SOURCES := tests/fuzz/secure.c tests/fuzz/fuzz_protocol.c daemon/donord/session/access.c \
	$(addprefix daemon/lib/wire/,wire.c stream.c tls.c session.c key.c address.c local.c tcp.c) \
	$(addprefix daemon/lib/base/,error.c log.c files.c)
FAR_SOURCES := tests/fuzz/far.c tests/fuzz/fuzz_protocol.c $(wildcard daemon/donord/far/*.c) \
	$(addprefix daemon/lib/rules/,far_step.c far_view.c far_memory.c far_count.c) \
	$(addprefix daemon/lib/wire/,wire.c wire_far.c stream.c) $(addprefix daemon/donord/pool/,pool.c exports.c slab_memory.c donor_log.c) \
	$(addprefix daemon/lib/base/,error.c log.c log_ring.c size.c)
JOBS_SOURCES := tests/fuzz/jobs.c tests/fuzz/fuzz_protocol.c $(wildcard daemon/donord/far/*.c daemon/donord/job/*.c) \
	$(addprefix daemon/lib/rules/,far_step.c far_view.c far_memory.c far_count.c far_cycle.c layout.c pack.c) \
	$(addprefix daemon/lib/wire/,wire.c wire_far.c wire_job.c stream.c) $(addprefix daemon/donord/pool/,pool.c exports.c slab_memory.c donor_log.c) \
	$(addprefix daemon/lib/base/,error.c log.c log_ring.c size.c)
PROTOCOL_HEADERS := $(wildcard tests/fuzz/*.h daemon/lib/wire/*.h daemon/lib/rules/far_*.h $(addprefix daemon/lib/rules/,tablet.h layout.h pack.h) daemon/donord/*.h daemon/donord/*/*.h daemon/lib/base/*.h) include/ebb/far.h
PROTOCOL_FLAGS := $(FUZZ_FLAGS) -Idaemon

$(B)/tests/unit/test_protocol_fuzz: $(patsubst %,$(B)/obj/tests/fuzz/%.o,protocol secure far jobs)
-include $(patsubst %,$(B)/obj/tests/fuzz/%.d,protocol secure far jobs)

$(FUZZ)/protocol_counted $(FUZZ)/protocol_covered: $(PROTOCOL_SOURCES)
$(FUZZ)/secure_counted $(FUZZ)/secure_covered: $(SECURE_SOURCES)
$(FUZZ)/far_counted $(FUZZ)/far_covered: $(FAR_SOURCES)
$(FUZZ)/jobs_counted $(FUZZ)/jobs_covered: $(JOBS_SOURCES)
$(FUZZ)/jobs_%: override PROTOCOL_FLAGS += -DFUZZ_JOBS
$(FUZZ)/secure_%: override PROTOCOL_FLAGS += -DFUZZ_SECURE
$(FUZZ)/far_%: override PROTOCOL_FLAGS += -DFUZZ_FAR
$(FUZZ)/protocol_%: PROTOCOL_LIBS := -lcrypto
$(FUZZ)/secure_%: PROTOCOL_LIBS := -lssl -lcrypto

$(addprefix $(FUZZ)/,protocol_counted secure_counted far_counted jobs_counted kmod_counted): $(PROTOCOL_HEADERS) | deps
	$(call say,FUZZ,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(PROTOCOL_FLAGS) -fsanitize=address,undefined -o $@ $(FUZZ_C) \
		$(PROTOCOL_LIBS)

# make fuzz-kmod: what the kernel module reads from a donor.  Its source is compiled for user space,
# where headers of the kernel are empty and tests/fuzz/kmod_kernel.h stands for them.
KMOD_FUZZ_SOURCES := tests/fuzz/kmod.c tests/fuzz/fuzz_protocol.c $(addprefix daemon/lib/wire/,wire.c wire_proof.c)
KMOD_FUZZ_INPUT := $(wildcard kmod-swap/*.[ch]) tests/fuzz/kmod.h tests/fuzz/kmod_kernel.h
KMOD_FUZZ_FLAGS := -DEBB_SWAP_COMPAT_H -I$(FUZZ)/kernel -Idaemon/lib/wire
$(FUZZ)/kernel/done: $(KMOD_FUZZ_INPUT)
	$(Q)sed -n 's/^#include <\(.*\)>.*/\1/p' kmod-swap/*.[ch] | while read -r h; do \
		test -e /usr/include/$$h || test -e include/$$h || { mkdir -p $(@D)/$${h%/*} && : > $(@D)/$$h; } || exit; done; : > $@
$(B)/obj/tests/fuzz/kmod.o $(FUZZ)/kmod_counted $(FUZZ)/kmod_covered: $(FUZZ)/kernel/done
$(B)/obj/tests/fuzz/kmod.o: override CFLAGS += $(KMOD_FUZZ_FLAGS) -Wno-sign-compare
$(B)/tests/unit/test_kmod_fuzz: $(B)/obj/tests/fuzz/kmod.o
-include $(B)/obj/tests/fuzz/kmod.d

# The module's sessions as threads whose stacks are saved and restored: no sanitizer can follow that.
KMOD_MODEL := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/unit/model_session/*.c))
$(KMOD_MODEL): $(FUZZ)/kernel/done
$(KMOD_MODEL): override CFLAGS += $(KMOD_FUZZ_FLAGS) -Wno-sign-compare -fno-sanitize=all
$(B)/tests/unit/test_model_session: $(KMOD_MODEL)
-include $(KMOD_MODEL:.o=.d)

# The module's requests and copier, in one object with their test.
$(B)/tests/unit/test_kmod_requests: $(FUZZ)/kernel/done
$(B)/tests/unit/test_kmod_requests: private override CFLAGS += $(KMOD_FUZZ_FLAGS) -Wno-sign-compare

$(FUZZ)/kmod_counted $(FUZZ)/kmod_covered: $(KMOD_FUZZ_SOURCES)
$(FUZZ)/kmod_%: override PROTOCOL_FLAGS += -DFUZZ_KMOD $(KMOD_FUZZ_FLAGS)
$(FUZZ)/kmod_%: PROTOCOL_LIBS := -lcrypto

# Empty if it cannot be built here.
$(addprefix $(FUZZ)/,protocol_covered secure_covered far_covered jobs_covered kmod_covered): $(PROTOCOL_HEADERS) | deps
	$(call say,FUZZ,$@)
	$(Q)mkdir -p $(@D) && if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
		$(CLANG) -x c -fsanitize=fuzzer,address -o $@ - 2>/dev/null; then \
		$(CLANG) $(PROTOCOL_FLAGS) -DFUZZ_BY_COVERAGE -fsanitize=fuzzer,address,undefined \
			-o $@ $(FUZZ_C) $(PROTOCOL_LIBS); \
	else : > $@; fi

# $(call fuzz_one,NAME): a sixth of half the time by counting, the rest by coverage.  What is new
# goes to the first directory, the one under build/.
fuzz_one = short=$$((($(SECONDS) + 11) / 12)); $(FUZZ_ENV) $(FUZZ)/$1_counted $$short || exit 1; \
	long=$$((($(SECONDS) + 1) / 2 - ($(SECONDS) + 11) / 12)); mkdir -p $(FUZZ)/$1; \
	if [ ! -s $(FUZZ)/$1_covered ]; then \
		echo "not by coverage: $(CLANG) has no libFuzzer; install clang's runtime"; \
	elif [ $$long -gt 0 ] && $(FUZZ_ENV) $(FUZZ)/$1_covered -seed=1 -max_len=16384 \
		-max_total_time=$$long -rss_limit_mb=512 -malloc_limit_mb=2 \
		-artifact_prefix=$(FUZZ)/ $(FUZZ)/$1 tests/fuzz/corpus/$1 > $(FUZZ)/$1.log 2>&1; then \
		echo "by coverage: $$(grep '^Done' $(FUZZ)/$1.log): nothing wrong"; \
	else tail -50 $(FUZZ)/$1.log; exit 1; fi

# So that a source that they lack is noticed at once.
test-build: $(addprefix $(FUZZ)/,protocol_counted secure_counted far_counted jobs_counted)

.PHONY: fuzz-protocol
fuzz-protocol: $(addprefix $(FUZZ)/,protocol_counted protocol_covered secure_counted secure_covered far_counted far_covered jobs_counted jobs_covered)
	$(Q)$(call fuzz_one,protocol)
	$(Q)$(call fuzz_one,secure)
	$(Q)$(call fuzz_one,far)
	$(Q)$(call fuzz_one,jobs)

.PHONY: fuzz-kmod
fuzz-kmod: $(addprefix $(FUZZ)/,kmod_counted kmod_covered)
	$(Q)$(call fuzz_one,kmod)

$(B)/tests/policy_speed: tests/bench/policy_speed.c $(NATIVE_POLICIES) | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -o $@ $< $(NATIVE_POLICIES)

.PHONY: bench-policy
bench-policy: $(B)/tests/policy_speed
	$(Q)$(BENCH_PYTHON) tests/bench/speed.py policy $<

# make fuzz-gc: libebbgc under schedules of a seed's choice, which changes no line of it; a third of
# the time each plainly, by ThreadSanitizer and by AddressSanitizer.
SCHEDULED := $(GC_SOURCES) tests/fuzz/gc.c
SCHEDULED_HEADERS := $(wildcard userlib/gc/*.h tests/fuzz/*.h tests/unit/gc_*.h)
SCHEDULED_FLAGS := -std=gnu11 -O1 -g $(WARN) -D_GNU_SOURCE -I. -Iinclude -Idaemon -Iuserlib/gc -DEBBGC_SANITIZE_THREAD= \
	-include tests/fuzz/schedule.h -fno-omit-frame-pointer
GC_FUZZERS := $(addprefix $(FUZZ)/gc_,plain thread address)
$(FUZZ)/gc_thread: SCHEDULED_FLAGS += -fsanitize=thread
$(FUZZ)/gc_address: SCHEDULED_FLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all

# Without the sanitizers: what the scheduler does would be all they see.
$(FUZZ)/schedule.o: tests/fuzz/schedule.c tests/fuzz/schedule.h | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) -std=gnu11 -O2 -g $(WARN) -D_GNU_SOURCE -I. -Iinclude -c -o $@ $<

$(GC_FUZZERS): $(SCHEDULED) tests/fuzz/fuzz_gc.c $(FUZZ)/schedule.o $(SCHEDULED_HEADERS)
	$(call say,FUZZ,$@)
	$(Q)$(CC) $(SCHEDULED_FLAGS) -o $@ $(FUZZ_C) $(FUZZ)/schedule.o -lcmocka $(GC_LIBS)

$(B)/tests/unit/test_schedule_fuzz: tests/unit/test_schedule_fuzz.c $(SCHEDULED) $(FUZZ)/schedule.o \
		$(SCHEDULED_HEADERS)
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(SCHEDULED_FLAGS) -Itests/unit -o $@ $(FUZZ_C) $(FUZZ)/schedule.o \
		-lcmocka $(GC_LIBS)

.PHONY: fuzz-gc
fuzz-gc: $(GC_FUZZERS)
	$(Q)third=$$((($(SECONDS) + 2) / 3)); for f in $^; do $(FUZZ_ENV) $$f $$third || exit 1; done
