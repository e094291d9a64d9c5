# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbd,$(call own,ebbd),\
	-lbpf -lelf -lsystemd -ljson-c -lcrypto -linih -lcgroup -lcurl -lmnl -lz -lm -lpthread))
$(B)/obj/daemon/ebbd/plane/plane.o $(B)/obj/daemon/ebbd/plane/self_test.o \
$(B)/obj/daemon/ebbd/plane/pins.o $(B)/obj/daemon/ebbd/prefetch/zswap.o: $(BPF_OBJECTS:%=$(B)/bpf/%.skel.h)
