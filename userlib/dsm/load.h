/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* The load of this machine, from /proc. */
#ifndef EBBDSM_LOAD_H
#define EBBDSM_LOAD_H

#include <stdint.h>

struct load {
	uint64_t busy, total; /* of the processors since boot, in ticks, at the last sample */
	uint32_t cpu, memory; /* in use, thousandths: of the time since the last sample; now */
};

/* Takes a sample; what cannot be read counts as idle. */
void load_sample(struct load *l);

#endif
