/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Reports a device of the kernel module with the JSON members of an ebb-swapd (ebb-stats(7)),
 * except those that the module does not count.
 */
#ifndef EBB_KMOD_REPORT_H
#define EBB_KMOD_REPORT_H

#include <json-c/json.h>

#include "lib/kmod/settle.h"

/* Limit of slabs in an answer; "next" is the index of the first one left. */
#define KMOD_SLABS_AT_ONCE 1024

void kmod_report_status(const struct kmod_view *v, const char *name, struct json_object *a);
void kmod_report_stats(const struct kmod_view *v, struct json_object *a);
/* @before: the slab table @seconds ago, of equal length, or NULL. */
void kmod_report_slabs(const struct kmod_view *v, const char *name,
		       const struct ebb_swap_slab *before, double seconds, uint32_t from,
		       struct json_object *a);
/* Adds the drain estimate of @donor: where its slabs can go. */
void kmod_report_drain_estimate(const struct kmod_view *v, int donor, struct json_object *a);

#endif
