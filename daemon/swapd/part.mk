# SPDX-License-Identifier: GPL-2.0-or-later
# The data plane knows no cgroups, hence no libcgroup.
$(eval $(call program,ebb-swapd,$(wildcard daemon/swapd/*.c daemon/wire/*.c) \
	$(filter-out daemon/common/cgroup.c,$(COMMON)),-lsystemd -ljson-c -lssl -lcrypto -laio -luring -lrdmacm -libverbs -lm -lpthread))
