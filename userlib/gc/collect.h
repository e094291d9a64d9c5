/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The collector's own thread and its cycle:
 *
 *	finish sweeping
 *	pause: snapshot of the roots, barriers on
 *	mark concurrently
 *	pause: logs, remaining marking; beyond the budget, back to marking concurrently
 *	       weak references, finalizers, barriers off
 *	sweep
 *
 * A full cycle does all but the sweeping in one pause.
 */
#ifndef EBBGC_COLLECT_H
#define EBBGC_COLLECT_H

struct ebbgc_heap;

/* Returns 0 or -errno. */
int collector_start(struct ebbgc_heap *h);

/* Abandons the cycle, if there is one, and joins the thread. */
void collector_stop(struct ebbgc_heap *h);

#endif
