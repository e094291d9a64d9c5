# SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
# libebbgc, its tests under sanitizers, and programs that use it; libebbfar; libebbdsm.

GC_SONAME := libebbgc.so.1
GC_SOURCES := $(wildcard userlib/gc/*.c)
GC_OBJECTS := $(GC_SOURCES:%.c=$(B)/obj/%.o)
GC_STATIC := $(B)/lib/libebbgc.a
GC_SHARED := $(B)/lib/$(GC_SONAME).$(VERSION)
GC_LIBS := -lpthread -lm

$(GC_OBJECTS): override CFLAGS += -fPIC -fvisibility=hidden

# One object whose hidden symbols are local: they cannot clash with a program's.
GC_WHOLE := $(B)/obj/userlib/libebbgc.o
OBJCOPY ?= objcopy

$(GC_STATIC): $(GC_OBJECTS)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && $(CC) -nostdlib -r -o $(GC_WHOLE) $^ && $(OBJCOPY) --localize-hidden $(GC_WHOLE)
	$(Q)rm -f $@ && $(AR) rcs $@ $(GC_WHOLE)

$(GC_WHOLE): $(GC_STATIC) ;

GC_MAP := userlib/gc/libebbgc.map

$(GC_SHARED): $(GC_OBJECTS) $(GC_MAP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(GC_SONAME) -Wl,-z,defs \
		-Wl,--version-script=$(GC_MAP) -o $@ $(GC_OBJECTS) $(GC_LIBS)
	$(Q)ln -sf $(@F) $(@D)/$(GC_SONAME) && ln -sf $(GC_SONAME) $(@D)/libebbgc.so

-include $(GC_OBJECTS:.o=.d)

.PHONY: gc gc-programs gc-sanitize
gc: $(GC_STATIC) $(GC_SHARED)
all: gc

# Unit tests of the library link only its objects.
$(B)/tests/unit/test_gc_%: tests/unit/test_gc_%.c $(GC_OBJECTS) | deps
	$(call say,TEST,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Iuserlib/gc -o $@ $< $(GC_OBJECTS) -lcmocka $(GC_LIBS)

# Programs: one source each, also built for Debian's collector and malloc, to compare.
GC_NAMES := $(patsubst tests/gc/%.c,%,$(wildcard tests/gc/*.c))
GC_PROGRAMS := $(GC_NAMES:%=$(B)/tests/gc/%)
GC_COMPARED := closure gcbench kmeans kv orders pagerank quads regression triangles
GC_RIVALS := $(B)/tests/gc/gcbench-malloc $(if $(shell pkg-config --exists bdw-gc 2>/dev/null && \
	echo yes),$(GC_COMPARED:%=$(B)/tests/gc/%-bdwgc))
# Without the read barrier: for measuring collectors that do not need it.
GC_PLAIN := $(patsubst %,$(B)/tests/gc/%-plain,$(GC_COMPARED) intern properties)

$(B)/tests/gc/%: tests/gc/%.c tests/gc/system.h userlib/gc/ebbgc.h $(GC_STATIC)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -Iuserlib/gc -o $@ $< $(GC_STATIC) $(GC_LIBS)

$(B)/tests/gc/%-plain: tests/gc/%.c tests/gc/system.h userlib/gc/ebbgc.h $(GC_STATIC)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -DEBBGC_NO_NOTES -Iuserlib/gc -o $@ $< $(GC_STATIC) $(GC_LIBS)

# Collecting at every 31st safepoint: for tests of objects that move.
GC_FORCED := $(patsubst %,$(B)/tests/gc/%-forced,$(filter-out gcbench,$(GC_COMPARED)) intern properties)

$(B)/tests/gc/%-forced: tests/gc/%.c tests/gc/system.h userlib/gc/ebbgc.h $(GC_STATIC)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -DFORCED=31 -Iuserlib/gc -o $@ $< $(GC_STATIC) $(GC_LIBS)

$(B)/tests/gc/gcbench-malloc: tests/gc/gcbench.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -DON_MALLOC -o $@ $< $(GC_LIBS)

$(B)/tests/gc/%-bdwgc: tests/gc/%.c tests/gc/system.h
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -DON_BDWGC -o $@ $< -lgc $(GC_LIBS)

gc-programs: $(GC_PROGRAMS) $(GC_RIVALS) $(GC_PLAIN)
test-programs: $(GC_PROGRAMS) $(GC_FORCED)

# The library and its tests under sanitizers for races and invalid accesses.
GC_UNIT := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_gc_*.c))

define gc_sanitized
GC_SANITIZED += $$(GC_UNIT:%=build/gc-$(1)/%)
build/gc-$(1)/%: tests/unit/%.c $$(GC_SOURCES) $$(wildcard userlib/gc/*.h tests/unit/gc_*.h) | deps
	$$(call say,TEST,$$@)
	$$(Q)mkdir -p $$(@D) && $$(CC) -std=gnu11 -O1 -g $$(WARN) -D_GNU_SOURCE -Iinclude -Idaemon -fsanitize=$(1) \
		-fno-omit-frame-pointer -Iuserlib/gc -Iuserlib/far -o $$@ $$< $$(GC_SOURCES) -lcmocka $$(GC_LIBS)
endef
$(foreach s,thread address undefined,$(eval $(call gc_sanitized,$(s))))

gc-sanitize: $(GC_SANITIZED)
	$(Q)EBBGC_TEST_SHORT=1 $(PYTHON) -B tests/unit.py $^

# libebbfar: with what it uses of daemon/lib, compiled for a shared library.
FAR_SONAME := libebbfar.so.1
FAR_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard userlib/far/*.c))
FAR_SOURCES := $(wildcard userlib/far/*.c) $(patsubst %,daemon/lib/%.c,rules/far_step rules/far_view rules/far_memory \
	rules/far_cycle rules/layout wire/wire_job \
	wire/wire wire/wire_far wire/stream wire/tls wire/key wire/address wire/tcp wire/local base/error base/files base/log)
FAR_PIC := $(FAR_SOURCES:%.c=$(B)/obj/far/%.o)
FAR_SHARED := $(B)/lib/$(FAR_SONAME).$(VERSION)
FAR_LIBS := -lssl -lcrypto -lpthread
FAR_MAP := userlib/far/libebbfar.map

$(FAR_OBJECTS) $(FAR_PIC): override CFLAGS += -Iuserlib/far
$(FAR_PIC): $(B)/obj/far/%.o: %.c Makefile | deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) -fPIC -fvisibility=hidden -c -o $@ $<

$(FAR_SHARED): $(FAR_PIC) $(FAR_MAP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(FAR_SONAME) -Wl,-z,defs \
		-Wl,--version-script=$(FAR_MAP) -o $@ $(FAR_PIC) $(FAR_LIBS)
	$(Q)ln -sf $(@F) $(@D)/$(FAR_SONAME) && ln -sf $(FAR_SONAME) $(@D)/libebbfar.so

-include $(FAR_OBJECTS:.o=.d) $(FAR_PIC:.o=.d)

# Examples, which are built as a program that uses the library is.
FAR_EXAMPLES := $(patsubst userlib/far/examples/%.c,$(B)/examples/far/%,$(wildcard userlib/far/examples/*.c))
FAR_EXAMPLE_OBJECTS := $(FAR_EXAMPLES:$(B)/examples/far/%=$(B)/obj/userlib/far/examples/%.o)
$(FAR_EXAMPLE_OBJECTS): override CFLAGS += -Iuserlib/far
$(B)/examples/far/%: $(B)/obj/userlib/far/examples/%.o $(FAR_SHARED)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< -L$(B)/lib -lebbfar -Wl,-rpath,'$$ORIGIN/../../lib'

-include $(FAR_EXAMPLE_OBJECTS:.o=.d)

.PHONY: far
far: $(FAR_OBJECTS) $(FAR_SHARED) $(FAR_EXAMPLES)
all: far

# libebbdsm, which uses libebbfar as a program does.
DSM_SONAME := libebbdsm.so.1
DSM_OBJECTS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard userlib/dsm/*.c))
DSM_SHARED := $(B)/lib/$(DSM_SONAME).$(VERSION)
DSM_MAP := userlib/dsm/libebbdsm.map

$(DSM_OBJECTS): override CFLAGS += -fPIC -fvisibility=hidden -Iuserlib/far

$(DSM_SHARED): $(DSM_OBJECTS) $(DSM_MAP) $(FAR_SHARED)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(DSM_SONAME) -Wl,-z,defs \
		-Wl,--version-script=$(DSM_MAP) -o $@ $(DSM_OBJECTS) -L$(B)/lib -lebbfar -lpthread
	$(Q)ln -sf $(@F) $(@D)/$(DSM_SONAME) && ln -sf $(DSM_SONAME) $(@D)/libebbdsm.so

-include $(DSM_OBJECTS:.o=.d)

DSM_EXAMPLES := $(patsubst userlib/dsm/examples/%.c,$(B)/examples/dsm/%,$(wildcard userlib/dsm/examples/*.c))
DSM_EXAMPLE_OBJECTS := $(DSM_EXAMPLES:$(B)/examples/dsm/%=$(B)/obj/userlib/dsm/examples/%.o)
$(DSM_EXAMPLE_OBJECTS): override CFLAGS += -Iuserlib/dsm
# The old tag is also that of the library, which needs libebbfar.
$(B)/examples/dsm/%: $(B)/obj/userlib/dsm/examples/%.o $(DSM_SHARED)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< -L$(B)/lib -lebbdsm -Wl,-rpath-link,$(B)/lib \
		-Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../../lib'

-include $(DSM_EXAMPLE_OBJECTS:.o=.d)

.PHONY: dsm
dsm: $(DSM_SHARED) $(DSM_EXAMPLES)
all: dsm

.PHONY: install-gc
install: install-gc
install-gc: gc
	$(Q)install -d "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(PREFIX)/include"
	$(Q)install -m 644 userlib/gc/ebbgc.h userlib/gc/ebbgc_far.h "$(DESTDIR)$(PREFIX)/include"
	$(Q)install -m 644 $(GC_STATIC) $(GC_SHARED) "$(DESTDIR)$(LIBDIR)"
	$(Q)ln -sf $(notdir $(GC_SHARED)) "$(DESTDIR)$(LIBDIR)/$(GC_SONAME)"
	$(Q)ln -sf $(GC_SONAME) "$(DESTDIR)$(LIBDIR)/libebbgc.so"
	$(Q)sed 's|@PREFIX@|$(PREFIX)|;s|@LIBDIR@|$(LIBDIR)|;s|@VERSION@|$(VERSION)|' userlib/gc/ebbgc.pc.in \
		>"$(DESTDIR)$(LIBDIR)/pkgconfig/ebbgc.pc"

.PHONY: install-far
install: install-far
install-far: far
	$(Q)install -d "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(PREFIX)/include"
	$(Q)install -m 644 userlib/far/ebbfar.h "$(DESTDIR)$(PREFIX)/include"
	$(Q)install -m 644 $(FAR_SHARED) "$(DESTDIR)$(LIBDIR)"
	$(Q)ln -sf $(notdir $(FAR_SHARED)) "$(DESTDIR)$(LIBDIR)/$(FAR_SONAME)"
	$(Q)ln -sf $(FAR_SONAME) "$(DESTDIR)$(LIBDIR)/libebbfar.so"
	$(Q)sed 's|@PREFIX@|$(PREFIX)|;s|@LIBDIR@|$(LIBDIR)|;s|@VERSION@|$(VERSION)|' userlib/far/ebbfar.pc.in \
		>"$(DESTDIR)$(LIBDIR)/pkgconfig/ebbfar.pc"

# The crate that uses it, as Debian has crates.  A program names it by its path, or by its name where
# the directory is a source of cargo, which wants the file of sums to be there.
CRATE_FILES := Cargo.toml README.md $(patsubst userlib/rust/%,%,$(wildcard $(addprefix userlib/rust/, \
	src/*.rs examples/*.rs tests/*.rs tests/misuse/*.rs)))
.PHONY: install-crate
install-dsm: install-crate
install-crate: CRATE_DIR = $(DESTDIR)$(PREFIX)/share/cargo/registry/ebbdsm-$(VERSION)
install-crate:
	$(Q)for f in $(CRATE_FILES); do install -D -m 644 userlib/rust/$$f "$(CRATE_DIR)/$$f" || exit 1; done
	$(Q)echo '{"files":{}}' >"$(CRATE_DIR)/.cargo-checksum.json"

.PHONY: install-dsm
install: install-dsm
install-dsm: dsm
	$(Q)install -d "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(PREFIX)/include"
	$(Q)install -m 644 userlib/dsm/ebbdsm.h userlib/dsm/ebbdsm_sync.h userlib/dsm/ebbdsm_task.h "$(DESTDIR)$(PREFIX)/include"
	$(Q)install -m 644 $(DSM_SHARED) "$(DESTDIR)$(LIBDIR)"
	$(Q)ln -sf $(notdir $(DSM_SHARED)) "$(DESTDIR)$(LIBDIR)/$(DSM_SONAME)"
	$(Q)ln -sf $(DSM_SONAME) "$(DESTDIR)$(LIBDIR)/libebbdsm.so"
	$(Q)sed 's|@PREFIX@|$(PREFIX)|;s|@LIBDIR@|$(LIBDIR)|;s|@VERSION@|$(VERSION)|' userlib/dsm/ebbdsm.pc.in \
		>"$(DESTDIR)$(LIBDIR)/pkgconfig/ebbdsm.pc"
