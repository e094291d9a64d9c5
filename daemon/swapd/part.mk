# SPDX-License-Identifier: GPL-2.0-or-later
# The data plane knows no cgroups, hence no libcgroup.
$(eval $(call program,ebb-swapd,$(call own,swapd),\
	-lsystemd -ljson-c -lssl -lcrypto -laio -luring -lrdmacm -libverbs -lm -lpthread))
