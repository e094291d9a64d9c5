/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DOCTOR_SYSTEM_H
#define EBB_DOCTOR_SYSTEM_H

#include "doctor_check.h"

/* Memory: controllers, swap, zram, zswap, THP, MGLRU, readahead. */
void doctor_memory(struct doctor *d);
/* The device: FUSE, loop, process_madvise, IO_FLUSHER, locked memory. */
void doctor_device(struct doctor *d);
/* ebbd, devices, and other programs that swap to ebb's devices. */
void doctor_running(struct doctor *d);

#endif
