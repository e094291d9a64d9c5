# SPDX-License-Identifier: GPL-2.0-or-later
# The demo and the benchmarks.  Knobs: RUNS=, MIB=, ONLY=, PERCENTS=, CPUS=, DONOR=, DELAYS=,
# MODES=, POLICIES=, COMPUTE=, THREADS=, MARKERS=, ROUNDS=, LIMIT=, MINUTES=, FLOOR=, BESIDE=,
# KEEP=, AWAKE=, OLD=, QUICK=
# (tests/bench/README.md); of `bench`: ONLY=, SKIP=, FRESH=; of `bench-results`: MACHINE=.

BENCH_PYTHON := $(PYTHON) -B
export RUNS MIB ONLY PERCENTS CPUS DONOR DELAYS MODES POLICIES COMPUTE THREADS MARKERS ROUNDS LIMIT \
	MINUTES FLOOR SKIP FRESH MACHINE BESIDE KEEP AWAKE OLD QUICK

ifeq ($(GUEST),1)
# Builds programs and inputs outside of the guest, where that takes only seconds.
demo: all
	$(Q)$(BENCH_PYTHON) tests/demo/demo.py --inputs-only
	$(Q)$(BENCH_PYTHON) tests/guest/run.py --memory 4096 --timeout 5400 --name demo -- \
		$(BENCH_PYTHON) tests/demo/demo.py
else
demo: all
	$(Q)$(BENCH_PYTHON) tests/demo/demo.py
endif

bench-scan: all $(B)/tests/scan
	$(Q)$(BENCH_PYTHON) tests/bench/scan.py

.PHONY: bench-idle
bench-idle: all $(B)/tests/count $(B)/tests/crowd
	$(Q)$(BENCH_PYTHON) tests/bench/idle.py

bench-neighbour: all $(B)/tests/scan
	$(Q)$(BENCH_PYTHON) tests/bench/neighbour.py

# A page's counters: BPF programs of their own, not ebb's.
$(B)/bench/count.bpf.o: tests/bench/count.bpf.c tests/bench/count.h $(B)/bpf/vmlinux.h
	$(call say,BPF,$@)
	$(Q)mkdir -p $(@D) && $(CLANG) $(BPF_CFLAGS) -I$(B)/bpf -c -o $@ $< && llvm-strip -g $@

$(B)/bench/count.skel.h: $(B)/bench/count.bpf.o
	$(call say,SKEL,$@)
	$(Q)$(BPFTOOL) gen skeleton $< name count_bpf > $@.tmp && mv $@.tmp $@

$(B)/tests/count: tests/bench/count.c tests/bench/count.h $(B)/bench/count.skel.h | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -o $@ $< -lbpf

.PHONY: bench-cost
bench-cost: all $(B)/tests/scan $(B)/tests/count
	$(Q)$(BENCH_PYTHON) tests/bench/cost.py

.PHONY: bench-cost-guest
bench-cost-guest: all $(B)/tests/scan $(B)/tests/count
	$(Q)$(BENCH_PYTHON) tests/bench/cost_guest.py

bench-hooks: all $(B)/tests/minorfault
	$(Q)$(BENCH_PYTHON) tests/bench/hooks.py

bench-apps: all
	$(Q)$(BENCH_PYTHON) tests/bench/apps.py

.PHONY: bench-advise
bench-advise: all
	$(Q)$(BENCH_PYTHON) tests/bench/advise.py

JAVA_CLASSES := $(patsubst tests/programs/java/%.java,$(B)/tests/java/%.class,\
	$(wildcard tests/programs/java/*.java))

$(B)/tests/java/%.class: tests/programs/java/%.java | deps
	$(call say,JAVAC,$@)
	$(Q)mkdir -p $(@D) && javac -Xlint:all -Werror -d $(@D) $<

bench-prefetch: all $(B)/tests/scan $(B)/tests/walks $(JAVA_CLASSES)
	$(Q)$(BENCH_PYTHON) tests/bench/prefetch.py

bench-latency: all $(B)/tests/scan $(B)/tests/walks $(JAVA_CLASSES)
	$(Q)$(BENCH_PYTHON) tests/bench/latency.py

.PHONY: bench-gc
bench-gc: all gc-programs
	$(Q)$(BENCH_PYTHON) tests/bench/gc.py

# Links libebbgc's objects, whose internals it uses.
$(B)/tests/drift: tests/bench/drift.c $(GC_OBJECTS) $(wildcard userlib/gc/*.h) | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Iuserlib/gc -o $@ $< $(GC_OBJECTS) $(GC_LIBS)

.PHONY: bench-drift
bench-drift: all $(B)/tests/drift
	$(Q)$(BENCH_PYTHON) tests/bench/drift.py

bench-device: all $(B)/tests/barefuse
	$(Q)$(BENCH_PYTHON) tests/bench/device.py

# Boots 6.12 by itself; needs root only if root owns the kernels below build/.
.PHONY: bench-guest
bench-guest: all kmod-guest
	$(Q)$(BENCH_PYTHON) tests/bench/guest.py

$(B)/tests/seal_speed: tests/bench/seal_speed.c $(LIBTEST) | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -o $@ $< $(LIBTEST) -lcrypto

.PHONY: bench-seal
bench-seal: $(B)/tests/seal_speed
	$(Q)$(BENCH_PYTHON) tests/bench/speed.py seal $<

# Links libebbfar as programs do.
FAR_SPEED_SOURCES := $(patsubst %,tests/bench/far_%.c,speed workers loops exchange)

$(B)/tests/far_speed: $(FAR_SPEED_SOURCES) tests/bench/far_speed.h $(FAR_SHARED) $(LIBEBB)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out -MMD -MP,$(CFLAGS)) -Iuserlib/far -o $@ $(FAR_SPEED_SOURCES) \
		-L$(B)/lib -lebbfar $(LIBEBB) -lpthread -Wl,-rpath,'$$ORIGIN/../lib'

.PHONY: bench-far
bench-far: all $(B)/tests/far_speed
	$(Q)$(BENCH_PYTHON) tests/bench/far.py

# Programs of tests/gc that record what they do with their heap, and the replay of that.
HEAP_RECORDED := $(patsubst %,$(B)/tests/gc/%-recorded,$(filter-out gcbench,$(GC_COMPARED)))
HEAP_PARTS := $(patsubst %,$(B)/obj/tests/bench/heap_%.o,pages far)
HEAP_REPLAY := $(B)/obj/tests/bench/heap_replay.o

$(HEAP_REPLAY): override CFLAGS += -Iuserlib/far
$(B)/tests/gc/%-recorded: tests/gc/%.c tests/gc/system.h tests/gc/record.h daemon/sim/heap_trace.h \
	userlib/gc/ebbgc.h $(GC_STATIC)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out -MMD -MP,$(CFLAGS)) -DRECORDED -DEBBGC_NO_NOTES -Iuserlib/gc -o $@ $< \
		$(GC_STATIC) $(GC_LIBS)

$(B)/tests/heap_replay: $(HEAP_REPLAY) $(HEAP_PARTS) $(FAR_SHARED)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(HEAP_REPLAY) $(HEAP_PARTS) \
		-L$(B)/lib -lebbfar -Wl,-rpath,'$$ORIGIN/../lib'

$(B)/tests/unit/test_heap_replay: $(HEAP_PARTS)
-include $(HEAP_REPLAY:.o=.d) $(HEAP_PARTS:.o=.d)

.PHONY: bench-heap heap-programs
heap-programs: $(B)/tests/heap_replay $(HEAP_RECORDED)
test-programs: heap-programs
bench-heap: all heap-programs
	$(Q)$(BENCH_PYTHON) tests/bench/heap.py

# All benchmarks; then renders those with results.  Their programs come first: one that is built
# after a benchmark has ended would make its result older than the build.  A benchmark whose
# programs cannot be built fails alone.
.PHONY: bench bench-programs bench-results
bench-programs: gc-programs heap-programs $(JAVA_CLASSES) $(addprefix $(B)/tests/,barefuse count \
	crowd drift dsm_bench far_speed minorfault policy_speed scan seal_speed walks)

bench: all
	-$(Q)$(MAKE) --no-print-directory --keep-going bench-programs
	$(Q)$(BENCH_PYTHON) tests/bench/run_all.py

bench-results:
	$(Q)$(BENCH_PYTHON) tests/bench/render.py
