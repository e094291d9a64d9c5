// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "heap.h"
#include "mark.h"
#include "options.h"
#include "os.h"
#include "residency.h"
#include "versions.h"

#define FEATURE_BITS 12
#define DEPTH_MAX 64u

static void options_default(struct ebbgc_options *o)
{
	*o = (struct ebbgc_options){
		.mode = EBBGC_CONCURRENT,
		.stacks = EBBGC_PRECISE,
		.sizing = EBBGC_GROWABLE,
		.max_bytes = os_memory() / 2,
		.min_bytes = (size_t)16 << 20,
		.growth = 2.0,
		.pause_budget_ns = 2000000,
		.depth = 3,
		.delays = { 4, 2, 0 },
		.delta = 1,
		.epoch_percent = 10,
		.scan_percent = 5,
	};
}

void ebbgc_options_init_size(struct ebbgc_options *options, size_t struct_size)
{
	struct ebbgc_options o;

	options_default(&o);
	o.struct_size = struct_size;
	memset(options, 0, struct_size);
	memcpy(options, &o, struct_size < sizeof(o) ? struct_size : sizeof(o));
}

/* Does the heap ask the kernel about pages, or return single ones? */
static bool needs_pages(const struct ebbgc_options *o)
{
	return o->mode == EBBGC_MEMLINER || (o->features & (EBBGC_DROP | EBBGC_EXACT)) ||
	       o->resident_budget;
}

int options_take(struct ebbgc_options *to, const struct ebbgc_options *from)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	const char *text;
	int r;

	options_default(to);
	if (from) {
		r = versioned_copy(to, sizeof(*to), from, from->struct_size, OPTIONS_LEAST);
		if (r)
			return r;
	}
	to->struct_size = sizeof(*to);
	text = secure_getenv("EBBGC_OPTIONS");
	if (text && ebbgc_debug(to, text))
		return -EINVAL;
	if (to->mode == EBBGC_SWAPPING) {
		to->mode = EBBGC_MEMLINER;
		to->features |= EBBGC_PARK | EBBGC_DROP;
	}
	if (!to->markers)
		to->markers = cores < 8		      ? 1 :
			      cores < 4 * MARKERS_MAX ? (unsigned int)cores / 4 :
							MARKERS_MAX;
	/* Page bitmaps have whole words. */
	to->max_bytes = (to->max_bytes + 4 * REGION_SIZE - 1) & -(4 * REGION_SIZE);
	/* So that most of a small heap is for old objects. */
	if (to->nursery_bytes > to->max_bytes / 4)
		to->nursery_bytes = to->max_bytes / 4;
	/* Epochs by residency need no stamps. */
	if (to->mode == EBBGC_MEMLINER &&
	    (to->features & (EBBGC_PARK | EBBGC_HINTS | EBBGC_PLAIN)))
		to->features |= EBBGC_EXACT;
	if ((to->features & EBBGC_INCOGNITO) && (to->features & (EBBGC_ARRIVALS | EBBGC_HINTS)))
		return -EINVAL;
	if (to->mode == EBBGC_MEMLINER && (to->features & EBBGC_ADDRESS_ORDER))
		return -EINVAL;
	if (to->features >> FEATURE_BITS)
		return -EINVAL;
	for (size_t i = 0; i < 3; i++)
		if (to->delays[i] >= WORK_FORCED)
			return -EINVAL;
	/* Limits the recursion of exploring. */
	if (to->depth > DEPTH_MAX || to->markers > MARKERS_MAX)
		return -EINVAL;
	if (to->max_bytes < (size_t)1 << 20 || to->max_bytes > (size_t)1 << 44 ||
	    (to->sizing == EBBGC_GROWABLE && !(to->growth > 1)) ||
	    (unsigned int)to->mode > EBBGC_MEMLINER ||
	    (unsigned int)to->residency > EBBGC_RESIDENCY_SIMULATED ||
	    (to->nursery_bytes && to->nursery_bytes < REGION_SIZE) ||
	    to->delta > 7 || !to->epoch_percent || to->epoch_percent > 100 || !to->scan_percent ||
	    to->scan_percent > 100 ||
	    (unsigned int)to->stacks > EBBGC_CONSERVATIVE || (unsigned int)to->sizing > EBBGC_FIXED)
		return -EINVAL;
	return needs_pages(to) && os_page_bytes() != PAGE_BYTES ? -ENOTSUP : 0;
}
