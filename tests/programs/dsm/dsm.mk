# SPDX-License-Identifier: GPL-2.0-or-later
# Histories of libebbdsm, which are checked for linearizability; programs that share objects.

DSM_HISTORY := $(patsubst %,$(B)/obj/tests/programs/dsm/%.o,history linear box_spec)
$(DSM_HISTORY): override CFLAGS += -Iuserlib/far
# With the library's objects, whose functions mutants replace.
$(B)/tests/dsm_history: $(DSM_HISTORY) $(DSM_OBJECTS) $(FAR_SHARED)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(DSM_HISTORY) $(DSM_OBJECTS) -L$(B)/lib -lebbfar -lpthread \
		-Wl,--wrap=heap_new,--wrap=heap_stamp,--wrap=link_run -Wl,-rpath,'$$ORIGIN/../lib'

TEST_PROGRAMS += $(B)/tests/dsm_history
$(B)/tests/unit/test_linear: $(filter-out %/history.o,$(DSM_HISTORY))
-include $(DSM_HISTORY:.o=.d)

# Programs that share objects, by libebbdsm and otherwise, which link the library as programs do.
DSM_BENCH := $(patsubst %,$(B)/obj/tests/programs/dsm/%.o,bench mesh share share_dsm share_directory share_messages \
	matrix group_by social store)
$(DSM_BENCH): override CFLAGS += -Iuserlib/far -Iuserlib/dsm -O3
$(B)/tests/dsm_bench: $(DSM_BENCH) $(DSM_SHARED) $(FAR_SHARED)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(DSM_BENCH) -L$(B)/lib -lebbdsm -lebbfar -lpthread -lm \
		-Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib'

TEST_PROGRAMS += $(B)/tests/dsm_bench
-include $(DSM_BENCH:.o=.d)

.PHONY: bench-dsm
bench-dsm: all $(B)/tests/dsm_bench
	$(Q)$(BENCH_PYTHON) tests/bench/dsm.py

$(B)/tests/unit/test_dsm_heap: override CFLAGS += -Iuserlib/far
$(B)/tests/unit/test_dsm_heap: $(FAR_WORLD) $(FAR_OBJECTS) $(DSM_OBJECTS)
