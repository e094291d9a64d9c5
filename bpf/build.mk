# SPDX-License-Identifier: GPL-2.0-or-later
# BPF objects and their skeletons.  Types come from the running kernel; CO-RE
# adapts the object to others.

BPF_CFLAGS := -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 -I. -Iinclude -I$(B)/bpf \
	-Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -Wno-missing-declarations \
	-Wno-compare-distinct-pointer-types '-ffile-prefix-map=$(CURDIR)=.'
BPF_OBJECTS := fault evict exact probe place zswap
BPF_HEADERS := $(wildcard bpf/*.h include/ebb/*.h)

$(B)/bpf/vmlinux.h: | deps
	$(call say,BTF,$@)
	$(Q)mkdir -p $(@D) && $(BPFTOOL) btf dump file /sys/kernel/btf/vmlinux format c > $@

$(B)/bpf/%.bpf.o: bpf/%.bpf.c $(BPF_HEADERS) $(B)/bpf/vmlinux.h
	$(call say,BPF,$@)
	$(Q)$(CLANG) $(BPF_CFLAGS) -c -o $@ $< && llvm-strip -g $@

$(B)/bpf/%.skel.h: $(B)/bpf/%.bpf.o
	$(call say,SKEL,$@)
	$(Q)$(BPFTOOL) gen skeleton $< name $*_bpf > $@.tmp && mv $@.tmp $@
