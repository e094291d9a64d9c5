/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * benefit=on: a thread that pauses each source of a cgroup's requests now and then for a tenth of a
 * second, and stops those without which its programs are clearly faster (lib/rules/governor.h).
 *
 * It sleeps until benefit=on is set.  An idle cgroup costs a look at its attachment.
 */
#ifndef EBB_BENEFIT_H
#define EBB_BENEFIT_H

#include "lib/base/error.h"
#include "table.h"

struct benefit;

/* The arguments outlive it. */
int benefit_start(struct benefit **b, struct attachments *a, struct error *e);
/* Resumes all sources. */
void benefit_stop(struct benefit **b);

/* Return "idle", ..., "streams", ..., and "unknown", "gains" or "backs off", as in reports. */
const char *benefit_name(enum benefit_state state);
const char *benefit_source_name(enum ebb_source source);
const char *benefit_state_name(enum governor_state state);

#endif
