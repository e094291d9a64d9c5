# SPDX-License-Identifier: GPL-2.0-or-later
# The programs ebbd, ebb-swapd, ebb-donord and ebbctl, and the archive that all of them link.

LIBEBB_SOURCES := $(wildcard daemon/lib/*/*.c)
LIBEBB_OBJECTS := $(LIBEBB_SOURCES:%.c=$(B)/obj/%.o)

# Two directories may each have a tcp.c: `q` keeps both members where `r` would replace one.
$(LIBEBB): $(LIBEBB_OBJECTS)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) qcs $@ $^

-include $(LIBEBB_OBJECTS:.o=.d)

# $(call own,PROGRAM): the sources of daemon/PROGRAM and of the directories in it
own = $(wildcard daemon/$(1)/*.c daemon/$(1)/*/*.c)

include $(wildcard daemon/*/part.mk)
