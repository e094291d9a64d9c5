/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A device of the kernel module in the words of an ebb-swapd (ebb-stats(7)): members
 * that the module has no figure for are left out.
 */
#ifndef EBB_KMOD_REPORT_H
#define EBB_KMOD_REPORT_H

#include <json-c/json.h>

#include "lib/kmod/settle.h"

/* Where the rest of a slab list begins is told in "next". */
#define KMOD_SLABS_AT_ONCE 1024

void kmod_report_status(const struct kmod_care *c, const char *name, struct json_object *a);
void kmod_report_stats(const struct kmod_care *c, struct json_object *a);
/* @seconds since @before, an older table of as many slabs, was told; NULL: none. */
void kmod_report_slabs(const struct kmod_care *c, const char *name,
		       const struct ebb_swap_slab *before, double seconds, uint32_t from,
		       struct json_object *a);
/* What is to become of the slabs at @donor, which is left: "outlook". */
void kmod_report_outlook(const struct kmod_care *c, int donor, struct json_object *a);

#endif
