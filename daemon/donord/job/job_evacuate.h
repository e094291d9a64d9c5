/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * EVACUATE: copies the objects of regions that live into another extent of the member, so that the
 * old extents can be freed.  Nothing refers to the copy before the borrower places it there.
 */
#ifndef EBB_JOB_EVACUATE_H
#define EBB_JOB_EVACUATE_H

#include "job_heap.h"

/*
 * Copies of whole regions, in their order: as many as have JOB_BYTES, at least one.  What it copies
 * depends on the request and the regions alone, so donors with equal extents make equal ones.  All
 * regions and the target are checked first.  Returns -EPROTO if it is no payload, else sets the
 * reply and its status.
 */
int job_evacuate(struct job_heap *h, const uint8_t *payload, uint32_t length,
		 struct wire_job_evacuated *done, uint16_t *status);

#endif
