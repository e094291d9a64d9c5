/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The perf events of one attached cgroup, one of each kind per CPU. */
#ifndef EBB_EVENTS_H
#define EBB_EVENTS_H

#include <stdbool.h>

#include "lib/host/cgroup.h"
#include "plane.h"

struct event_set;

/*
 * Opens the major-fault events, pinned so that misses are counted while no
 * ebbd runs.  The events of hit detection are opened when it is switched on.
 */
int events_open(struct plane *p, const struct cgroup_ref *cgroup, struct event_set **set,
		struct error *e);

enum events_pins { EVENTS_UNPIN, EVENTS_KEEP_PINS };
/* Closes the set; NULL is fine. */
void events_close(struct event_set **set, enum events_pins pins);

/* Switch hit detection; return whether it is on.  Any thread may call them. */
void events_detect_on(struct event_set *set);
void events_detect_off(struct event_set *set);
bool events_detecting(const struct event_set *set);

/* Opens events for new threads of a cgroup without a v2 twin; does nothing with one. */
void events_refresh(struct event_set *set);

/* Removes the pins of a previous ebbd's events. */
void events_sweep_pins(void);

#endif
