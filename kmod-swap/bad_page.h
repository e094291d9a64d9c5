/* SPDX-License-Identifier: GPL-2.0-only */
/* Pages that come back other than they were sealed. */
#ifndef EBB_BAD_PAGE_H
#define EBB_BAD_PAGE_H

#include "device.h"

/*
 * Records that @page of @class is wrong at @from (AT_BACKUP, or a place mapped as @epoch): the
 * place does not have the page any more, and the donor gets no new slabs.  May sleep.
 */
void ebb_bad_page(struct ebb_device *device, u64 page, u32 class, enum ebb_at from, u32 epoch);

#endif
