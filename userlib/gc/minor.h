/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* A minor cycle: see nursery.h. */
#ifndef EBBGC_MINOR_H
#define EBBGC_MINOR_H

#include <stdint.h>

struct ebbgc_heap;

/*
 * World stopped, all regions swept: makes young objects old or frees them.  Returns how many
 * finalizers became ready.  Nothing without a nursery.
 */
uint64_t minor_collect(struct ebbgc_heap *h);

#endif
