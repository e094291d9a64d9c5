# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbd,$(wildcard daemon/ebbd/*.c daemon/trace/*.c daemon/discovery/*.c daemon/kmod/*.c) \
	daemon/ebbctl/bus.c daemon/ebbctl/sleep_lock.c daemon/wire/address.c daemon/wire/local.c daemon/wire/tcp.c daemon/swapd/place.c $(COMMON),\
	-lbpf -lelf -ldl -lsystemd -ljson-c -linih -lcgroup -lcurl -lmnl -lz -lm -lpthread))
$(B)/obj/daemon/ebbd/plane.o: $(BPF_OBJECTS:%=$(B)/bpf/%.skel.h)
