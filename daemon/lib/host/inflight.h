/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How many reads ebb's devices have to do still, as the block layer counts them. */
#ifndef EBB_INFLIGHT_H
#define EBB_INFLIGHT_H

#include <stdint.h>

#include <ebb/abi.h>

struct inflight {
	int fd[EBB_MAX_DEVICES];   /* /sys/dev/block/M:m/inflight */
	uint32_t devices;
};

/* Opens what the device records name now; call again when they may have changed. */
void inflight_refresh(struct inflight *f);
void inflight_close(struct inflight *f);
/* Block reads of all of them that were begun and are not done. */
uint64_t inflight_reads(const struct inflight *f);

#endif
