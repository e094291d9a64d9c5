# SPDX-License-Identifier: GPL-2.0-or-later
# A donor reads the limits it is under, and makes no cgroups: hence no libcgroup.
$(eval $(call program,ebb-donord,$(wildcard daemon/donord/*.c daemon/wire/*.c) \
	$(filter-out daemon/discovery/discovery.c,$(wildcard daemon/discovery/*.c)) \
	$(filter-out daemon/common/cgroup.c,$(COMMON)),-ljson-c -lsystemd -lssl -lcrypto -lcurl -lrdmacm -libverbs -lpthread -lm))
