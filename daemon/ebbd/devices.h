/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The block devices of ebb. */
#ifndef EBB_DEVICES_H
#define EBB_DEVICES_H

#include "ebbd.h"

/* Tells the BPF programs, the donors' list and the kernel module's view of new device records. */
void devices_refresh(struct ebbd *d);

#endif
