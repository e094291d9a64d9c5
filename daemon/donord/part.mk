# SPDX-License-Identifier: GPL-2.0-or-later
# A donor reads the limits it is under, and makes no cgroups: hence no libcgroup.
$(eval $(call program,ebb-donord,$(call own,donord),\
	-ljson-c -lsystemd -lssl -lcrypto -lcurl -lrdmacm -libverbs -lpthread -lm))
