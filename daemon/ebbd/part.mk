# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbd,$(call own,daemon/ebbd daemon/kmod),\
	-lbpf -lelf -ldl -lsystemd -ljson-c -lcrypto -linih -lcgroup -lcurl -lmnl -lz -lm -lpthread))
$(B)/obj/daemon/ebbd/plane.o: $(BPF_OBJECTS:%=$(B)/bpf/%.skel.h)
