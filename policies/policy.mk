# SPDX-License-Identifier: GPL-2.0-or-later
# Builds policies of your own, outside ebb's tree, against the installed headers:
#
#	make -f /usr/share/ebb/policy.mk next.bpf.o	for the kernel
#	make -f /usr/share/ebb/policy.mk next.so	for ebb-sim
#
# from next.bpf.c in the current directory.  In ebb's own tree the file is
# policies/policy.mk and finds the headers beside itself.

# The last makefile, or the only one: its path may have spaces, at which make splits.
HERE := $(shell dirname '$(or $(wildcard $(lastword $(MAKEFILE_LIST))),$(strip $(MAKEFILE_LIST)))')
ifndef EBB_INCLUDE
EBB_INCLUDE := $(shell cd '$(HERE)' && for d in ../include ../../include /usr/include; do \
	if [ -e "$$d/ebb/policy.h" ]; then cd "$$d" && pwd; break; fi; done)
endif
CC ?= cc
CLANG ?= clang
BPFTOOL ?= $(firstword $(wildcard /usr/sbin/bpftool) bpftool)
EBB_HEADERS := -I'$(EBB_INCLUDE)' -I'$(EBB_INCLUDE)/ebb' -I'$(HERE)'

.DELETE_ON_ERROR:

# The kernel's types, from the running one; the object fits others too (CO-RE).
vmlinux.h:
	$(BPFTOOL) btf dump file /sys/kernel/btf/vmlinux format c > $@

%.bpf.o: %.bpf.c vmlinux.h
	$(CLANG) -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 -Wall $(EBB_HEADERS) -I. -c -o $@ $<
	llvm-strip -g $@

%.so: %.bpf.c
	$(CC) -O2 -g -std=gnu11 -Wall -Wno-unused-function -Wno-unknown-pragmas -fPIC -shared \
		-fvisibility=hidden $(EBB_HEADERS) -x c -o $@ $<
