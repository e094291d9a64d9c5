# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests, the programs that tests run, and `make check` (tests/check.py).

UNIT_SOURCES := $(wildcard tests/unit/test_*.c)
UNIT_TESTS := $(UNIT_SOURCES:tests/unit/%.c=$(B)/tests/unit/%)
TEST_PROGRAMS := $(patsubst tests/programs/%.c,$(B)/tests/%,$(wildcard tests/programs/*.c))

# Programs of several files.
WALKS_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/programs/walks/*.c))
CHECKER_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/programs/checker/*.c))
TEST_PROGRAMS += $(B)/tests/walks $(B)/tests/checker

$(B)/tests/walks: $(WALKS_OBJECTS)
$(B)/tests/checker: $(CHECKER_OBJECTS)
$(B)/tests/walks $(B)/tests/checker:
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -o $@ $^ -lm -lpthread

# Programs that run parts of ours.
WATCH_DONORS := $(B)/tests/watch_donors
TEST_PROGRAMS += $(WATCH_DONORS) $(B)/tests/far_jobs $(B)/tests/far_heap

# Counts system calls; measures far memory: tests/bench/bench.mk.
TEST_PROGRAMS += $(B)/tests/count $(B)/tests/far_speed $(B)/tests/heap_replay

# Every function of the programs but main(), so that any of them can be tested.
LIBTEST := $(B)/tests/libebb-test.a
LIBTEST_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(filter-out %/main.c daemon/sim/%,$(wildcard daemon/*/*.c daemon/*/*/*.c)) $(SIM_SOURCES))
LIBTEST_OBJECTS += $(B)/obj/userlib/far/client.o $(B)/obj/userlib/far/connect.o # of ebbctl
LIBTEST_LIBS := -lcmocka -ljson-c -linih -lsystemd -lcgroup -lbpf -lelf -lcurl -laio -luring -lmnl -ldl -lz -lm -lpthread -lssl -lcrypto -lrdmacm -libverbs -lncursesw -ltinfo

# Two programs may each have a stats.c: `q` keeps both where `r` would replace one.
$(LIBTEST): $(LIBTEST_OBJECTS)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) qcs $@ $^

# With -O2 -g and ld, all of them take 166 s of processor time to build; so, with gold, 95 s.  A test
# itself computes little, and a backtrace shows lines.  UNIT_CFLAGS='-O0 -g' is for a debugger.
UNIT_CFLAGS ?= -O1 -g1
FAST_LD = $(shell for l in mold gold lld; do ! command -v ld.$$l >/dev/null || { echo -fuse-ld=$$l; break; }; done)
$(B)/tests/unit/%: private override CFLAGS += $(UNIT_CFLAGS) $(FAST_LD)
$(B)/tests/unit/%: tests/unit/%.c $(LIBTEST) $(NATIVE_POLICIES) | deps
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Ipolicies -o $@ $< $(filter %.o,$^) \
		$(LIBTEST) $(NATIVE_POLICIES) $(LIBTEST_LIBS)

# Tests of a device with fake donors share its setup.
DEVICE_WORLD := $(B)/obj/tests/unit/device_world.o
SLOW_DEVICE := $(B)/obj/tests/unit/slow_device.o
SLOW_TESTS := $(patsubst %,$(B)/tests/unit/test_%,engine forget loans read_order repair request_seal)
$(SLOW_TESTS): $(SLOW_DEVICE)
$(SLOW_TESTS) $(patsubst %,$(B)/tests/unit/test_%,admission replicas resume revoked): $(DEVICE_WORLD)

# Tests of a donor with fake borrowers, too.
DONOR_WORLD := $(B)/obj/tests/unit/donor_world.o
$(patsubst %,$(B)/tests/unit/test_%,emergency fairness loop quotas recall): $(DONOR_WORLD)

# Tests of far memory, too.
FAR_WORLD := $(B)/obj/tests/unit/far_world.o
$(patsubst %,$(B)/tests/unit/test_%,far_session far_hostile far_library far_edges far_resume far_batch far_small far_verbs): \
	$(FAR_WORLD)
$(B)/tests/unit/test_far_edges: private override CFLAGS += -Wl,--wrap=poll
$(B)/tests/unit/test_loop: private override CFLAGS += -Wl,--wrap=pthread_mutex_lock,--wrap=pthread_mutex_unlock,--wrap=eventfd_write
$(patsubst %,$(B)/tests/unit/test_%,far_library far_edges far_resume far_batch far_small far_verbs): $(FAR_OBJECTS)

# The borrower of jobs, with donors of the test's.
$(B)/tests/unit/test_far_cycle $(B)/tests/unit/test_far_marks: $(B)/obj/userlib/far/cycle.o $(B)/obj/userlib/far/jobs.o
$(B)/tests/unit/test_far_cycle: private override CFLAGS += -Wl,--wrap=pthread_mutex_clocklock
$(B)/tests/unit/test_far_marks $(B)/tests/unit/test_gc_far_donors: override CFLAGS += -Iuserlib/gc -Iuserlib/far
$(B)/tests/unit/test_far_marks: $(B)/obj/userlib/far/heap.o

# The data plane's model has a world of its own.
MODEL_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/unit/model/*.c))
$(B)/tests/unit/test_model_slab: $(MODEL_OBJECTS)

# That of far memory has its own build of lib/rules/far_*, with small sections.
MODEL_FAR_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/unit/model_far/*.c))
$(B)/tests/unit/test_model_far: $(MODEL_FAR_OBJECTS)

# That of the ownership protocol runs the library's step functions.
MODEL_DSM_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/unit/model_dsm/*.c)) $(B)/obj/userlib/dsm/dsm_step.o
$(B)/tests/unit/test_model_dsm: $(MODEL_DSM_OBJECTS)

# That of mutexes, channels and counts has its own build of sync_step.c, with fewer users.
MODEL_SYNC_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/unit/model_sync/*.c)) $(B)/obj/userlib/dsm/channel_step.o
$(B)/tests/unit/test_model_sync: $(MODEL_SYNC_OBJECTS)

$(B)/tests/unit/test_model_dsm_tasks: $(B)/obj/userlib/dsm/task_step.o

$(B)/tests/unit/test_dsm_tasks: private override CFLAGS += -Iuserlib/far -Wl,--wrap=heap_new,--wrap=dsm_pending_new
$(B)/tests/unit/test_dsm_choose: $(B)/obj/userlib/dsm/choose.o
# With functions that fail when the test says so.
$(B)/tests/unit/test_dsm_sync: private override CFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=link_run,--wrap=pthread_cond_clockwait,--wrap=ebbfar_wait

$(B)/tests/unit/test_dsm_library: private override CFLAGS += -Iuserlib/far
$(B)/tests/unit/test_dsm_replicas: private override CFLAGS += -Iuserlib/far \
	-Wl,--wrap=calloc $(foreach f,submit complete alloc check notify wait published publish room why close,-Wl,--wrap=ebbfar_$(f))
# libebbdsm with a donor in the same process.
$(B)/tests/unit/test_dsm_replicas $(B)/tests/unit/test_dsm_library $(B)/tests/unit/test_dsm_sync $(B)/tests/unit/test_dsm_tasks $(B)/tests/unit/test_dsm_check: $(FAR_WORLD) $(FAR_OBJECTS) $(DSM_OBJECTS)

include tests/programs/dsm/dsm.mk

# A heap of libebbgc whose far generation is at such a donor.
$(B)/tests/unit/test_far_heap: override CFLAGS += -Iuserlib/gc -Iuserlib/far
$(B)/tests/unit/test_far_heap: $(FAR_WORLD) $(FAR_OBJECTS) $(GC_WHOLE)

$(WATCH_DONORS): tests/programs/discovery/watch_donors.c $(LIBTEST)
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Ipolicies -o $@ $^ $(LIBTEST_LIBS)

# A heap at donors, with calls that libebbfar does not export.
$(B)/tests/far_jobs: tests/programs/far/far_jobs.c tests/unit/heap_image.h $(FAR_OBJECTS) $(LIBEBB)
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Iuserlib/far -o $@ $(filter-out %.h,$^) -lssl -lcrypto -lpthread

# A heap of libebbgc at donors, which sees the messages between them.
$(B)/tests/far_heap: tests/programs/far/far_heap.c $(FAR_OBJECTS) $(GC_WHOLE) $(LIBEBB)
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Iuserlib/gc -Iuserlib/far -Wl,--wrap=client_push,--wrap=client_settle,--wrap=client_go_on \
		-o $@ $^ $(GC_LIBS) -lssl -lcrypto

$(B)/tests/pins: tests/programs/pins.c $(LIBTEST)
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -o $@ $^ $(LIBTEST_LIBS)

# A file of a cgroup has its new content alone.
$(B)/tests/unit/test_scope: private override CFLAGS += -Wl,--wrap=file_write

# No cgroups.
$(B)/tests/unit/test_teardown: private override CFLAGS += -Wl,--wrap=scope_undo

# Its processes are in a cgroup.
$(B)/tests/unit/test_epoch_share: private override CFLAGS += -Wl,--wrap=cgroup_of_process

# No program is pinned, and nothing recorded.
$(B)/tests/unit/test_colocation: private override CFLAGS += \
	$(foreach f,attachments_find attachment_wants_placing budget_place budget_prefetched,-Wl,--wrap=$(f)) \
	$(foreach f,init close look confined pin free,-Wl,--wrap=affinity_$(f)) \
	$(foreach f,open close fd born next_born look crowded read walk_ns empty at release release_all,-Wl,--wrap=pins_$(f))

# Processes of the test's own.
$(B)/tests/unit/test_prefetch: private override CFLAGS += $(foreach f,open close pread poll ioctl syscall,-Wl,--wrap=$(f))

# No program, no cgroup and no ebbd.
$(B)/tests/unit/test_run: private override CFLAGS += \
	$(foreach f,program_block_signals program_interrupted program_fork program_go program_wait cgroup_create daemon_call daemon_tell scope_apply_all,-Wl,--wrap=$(f))

# No policy of the kernel.
$(B)/tests/unit/test_policy_unload: private override CFLAGS += -Wl,--wrap=policy_remove

# No ebbd.
$(B)/tests/unit/test_device_donors: private override CFLAGS += -Wl,--wrap=daemon_call

# No ebbd and no terminal.
$(B)/tests/unit/test_top: private override CFLAGS += \
	$(foreach f,snapshot_take top_screen_open top_screen_close top_screen_draw top_screen_key json_object_object_get_ex,-Wl,--wrap=$(f))

# No services.
$(B)/tests/unit/test_run_services: private override CFLAGS += -Wl,--wrap=daemon_call,--wrap=device_destroy,--wrap=process_end

# Reads one.
$(B)/tests/unit/test_policy_object: | $(POLICY_OBJECTS)

$(B)/tests/%: tests/programs/%.c | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -o $@ $< -lm -lpthread $(PROGRAM_LIBS)

$(B)/tests/rdma_stranger: PROGRAM_LIBS := -lrdmacm -libverbs
$(B)/tests/overtaken: PROGRAM_LIBS := -lbpf
$(B)/tests/crowd: PROGRAM_LIBS := -static

-include $(UNIT_TESTS:=.d) $(TEST_PROGRAMS:=.d)
-include $(LIBTEST_OBJECTS:.o=.d) $(WALKS_OBJECTS:.o=.d) $(MODEL_OBJECTS:.o=.d) $(MODEL_FAR_OBJECTS:.o=.d) $(MODEL_DSM_OBJECTS:.o=.d) $(DEVICE_WORLD:.o=.d) $(DONOR_WORLD:.o=.d) $(FAR_WORLD:.o=.d) $(SLOW_DEVICE:.o=.d) $(CHECKER_OBJECTS:.o=.d)

.PHONY: test-programs test-build model-far
test-programs: $(TEST_PROGRAMS)
test-build: all test-programs $(UNIT_TESTS)

unit: $(UNIT_TESTS)
	$(Q)$(PYTHON) -B tests/unit.py $^

# The model of far memory with larger bounds; with lines of one word; with sections of four pages;
# with three sections; with windows of one section.
MODEL_FAR_SOURCES := tests/unit/test_model_far.c $(wildcard tests/unit/model_far/*.c)
MODEL_FAR_VARIANTS := $(addprefix $(B)/tests/model_far/,lines classes sections windows)
$(B)/tests/model_far/lines: private SIZES := -DEBB_FAR_LINE_ORDER=0
$(B)/tests/model_far/classes: private SIZES := -DEBB_FAR_SECTION_ORDER=2
$(B)/tests/model_far/sections: private SIZES := -DFAR_MODEL_SECTIONS=3 -DEBB_FAR_WINDOW=3u
$(B)/tests/model_far/windows: private SIZES := -DEBB_FAR_WINDOW=1u
$(MODEL_FAR_VARIANTS): $(MODEL_FAR_SOURCES) tests/unit/model_search.h $(wildcard tests/unit/model_far/*.h daemon/lib/rules/far_*) include/ebb/far.h
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out -MMD -MP,$(CFLAGS)) $(SIZES) -o $@ $(MODEL_FAR_SOURCES) -lcmocka

model-far: $(B)/tests/unit/test_model_far $(MODEL_FAR_VARIANTS)
	$(Q)for program in $^; do $$program long || exit; done

# The far cycle, and the protocols of Mako and Semeru, with larger bounds.
MODEL_HEAP := $(patsubst %,$(B)/tests/unit/test_model_%,flags trace_end hit)
.PHONY: model-heap
model-heap: $(MODEL_HEAP)
	$(Q)for program in $^; do $$program long || exit; done

ifneq ($(filter check check-all check-outside soak,$(MAKECMDGOALS)),)
ifneq ($(shell id -u),0)
$(error make $(MAKECMDGOALS): needs root for swap, namespaces, BPF and cgroups; run sudo make $(MAKECMDGOALS))
endif
endif

# Tests run make themselves: not with this one's flags.
CHECK := env -u MAKEFLAGS -u MFLAGS $(PYTHON) -B tests/check.py

# EBB_SKIP_GUESTS=1 skips the guests and reports it.
check: lint test-build
	$(Q)$(CHECK) $(UNIT_TESTS)

# Resumes after an interruption or a failure: FRESH=1 runs all again.
check-all: lint test-build deb kmod-guest $(B)/guest/container
	$(Q)FRESH=$(FRESH) EBB_TEST_LONG=1 $(CHECK) --all $(UNIT_TESTS)

# Other projects' suites: tests/outside/README.md.
check-outside: all
	$(Q)env -u MAKEFLAGS -u MFLAGS FRESH=$(FRESH) ONLY=$(ONLY) $(PYTHON) -B tests/outside/check_outside.py \
		$(if $(JSON),--json $(JSON))

lint: all
	$(Q)$(PYTHON) -B tests/lint.py $(CFLAGS) -Ipolicies -Iuserlib/far -Iuserlib/dsm

check-kmod: all kmod-guest
	$(Q)FRESH=$(FRESH) $(PYTHON) -B tests/guest/boots.py --resume kmod check-kmod

# Each for so long.  SEED=0: a new one.  GUEST=0: natively alone; GUEST=1: the guest alone.
HOURS ?= 1
SEED ?= 0
SOAK := $(PYTHON) -B tests/chaos/soak.py --hours $(HOURS) --seed $(SEED)
soak: all test-programs
	$(Q)$(if $(filter 1,$(GUEST)),,$(SOAK))
	$(Q)$(if $(filter 0,$(GUEST)),,$(SOAK) --guest)

include tests/fuzz/fuzz.mk
include tests/bench/bench.mk
