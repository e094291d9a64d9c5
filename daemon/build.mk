# SPDX-License-Identifier: GPL-2.0-or-later
# The programs ebbd, ebb-swapd, ebb-donord and ebbctl, and the archive that all of them link.

LIBEBB_SOURCES := $(wildcard daemon/common/*.c daemon/wire/*.c daemon/trace/*.c daemon/discovery/*.c) \
	$(addprefix daemon/kmod/,decode.c donor_address.c netlink.c plan.c settle.c) \
	$(addprefix daemon/swapd/,activity.c place.c ublk_control.c) daemon/donord/headroom.c \
	$(addprefix daemon/ebbctl/,bus.c sleep_lock.c)
LIBEBB_OBJECTS := $(LIBEBB_SOURCES:%.c=$(B)/obj/%.o)

# Two directories may each have a tcp.c: `q` keeps both members where `r` would replace one.
$(LIBEBB): $(LIBEBB_OBJECTS)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) qcs $@ $^

-include $(LIBEBB_OBJECTS:.o=.d)

# $(call own,DIRECTORY...): its sources without those in libebb.a
own = $(filter-out $(LIBEBB_SOURCES),$(wildcard $(1:%=%/*.c)))

include $(wildcard daemon/*/part.mk)
