/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The block devices of ebb. */
#ifndef EBB_DEVICES_H
#define EBB_DEVICES_H

#include "ebbd.h"

/* Announces new device records to the BPF programs, the donor list and the kmod manager. */
void devices_refresh(struct ebbd *d);

#endif
