/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Reads in flight on ebb's devices, as counted by the block layer. */
#ifndef EBB_INFLIGHT_H
#define EBB_INFLIGHT_H

#include <stdint.h>

#include <ebb/abi.h>

struct inflight {
	int fd[EBB_MAX_DEVICES];   /* /sys/dev/block/M:m/inflight */
	uint32_t devices;
};

/* Opens the devices of the present records; call again when these may have changed. */
void inflight_refresh(struct inflight *f);
void inflight_close(struct inflight *f);
/* Counts block reads in flight on all devices. */
uint64_t inflight_reads(const struct inflight *f);

#endif
