# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbctl,$(wildcard daemon/ebbctl/*.c) daemon/wire/address.c daemon/wire/local.c daemon/wire/tcp.c $(wildcard daemon/trace/*.c) $(COMMON),\
	-lbpf -lsystemd -ljson-c -lcgroup -lz -lm))
