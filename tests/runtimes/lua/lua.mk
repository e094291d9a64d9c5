# SPDX-License-Identifier: GPL-2.0-or-later
# Lua 5.4.4 on libebbgc.  The source comes from Debian's archive; only our changes are in the tree.

LUA := $(B)/runtimes/lua
LUA_OURS := tests/runtimes/lua
LUA_TAR := $(LUA)/lua5.4_5.4.4.orig.tar.gz
LUA_NAMES := lapi lcode lctype ldebug ldo ldump lfunc lgc llex lmem lobject lopcodes lparser lstate \
	lstring ltable ltm lundump lvm lzio lauxlib lbaselib lcorolib ldblib liolib lmathlib loadlib \
	loslib lstrlib ltablib lutf8lib linit lua
LUA_CFLAGS := -O2 -g -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -Iuserlib/gc

$(LUA_TAR): | deps
	$(call say,FETCH,$@)
	$(Q)$(PYTHON) -B $(LUA_OURS)/fetch.py $@

$(LUA)/src/patched: $(LUA_TAR) $(wildcard $(LUA_OURS)/lua.patch $(LUA_OURS)/*.[ch])
	$(call say,PATCH,$(@D))
	$(Q)rm -rf $(@D) && mkdir -p $(@D) && tar -xf $(LUA_TAR) -C $(@D) --strip-components=2 \
		--wildcards '*/src/*'
	$(Q)rm $(@D)/lgc.c $(@D)/lgc.h && patch -s -d $(@D) -p1 <$(LUA_OURS)/lua.patch
	$(Q)cp $(LUA_OURS)/*.[ch] $(@D) && touch $@

# In the second, every 20th allocation begins a cycle and, at first, every 100th waits for a full
# one: a test of roots and barriers.
$(LUA)/lua $(LUA)/lua-stress: $(LUA)/src/patched userlib/gc/ebbgc.h $(GC_STATIC)
	$(call say,CC,$@)
	$(Q)$(CC) $(LUA_CFLAGS) $(if $(findstring stress,$@),-DLUAI_GCSTRESS=20) -o $@ \
		$(LUA_NAMES:%=$(LUA)/src/%.c) $(GC_STATIC) -Wl,-E -ldl $(GC_LIBS)

.PHONY: lua lua-if-fetched check-lua time-lua
lua: $(LUA)/lua $(LUA)/lua-stress

# Without Debian's archive, tests/system/test_lua.py is skipped.
lua-if-fetched: | deps
	$(Q)test -e $(LUA_TAR) || $(PYTHON) -B $(LUA_OURS)/fetch.py $(LUA_TAR) || true
	$(Q)test ! -e $(LUA_TAR) || $(MAKE) -s lua

check check-all: lua-if-fetched

# LUA_TESTS=DIR: also run the official test suite, which is in DIR.
check-lua: lua
	$(Q)$(PYTHON) -B $(LUA_OURS)/check.py $(LUA) $(LUA_TESTS)

time-lua: lua
	$(Q)$(PYTHON) -B $(LUA_OURS)/bench.py $(LUA)
