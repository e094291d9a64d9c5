/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The perf events that make faults visible: major faults of all cgroups, and for each attached
 * cgroup those that detect hits.
 */
#ifndef EBB_EVENTS_H
#define EBB_EVENTS_H

#include <stdbool.h>

#include "lib/host/cgroup.h"
#include "plane.h"

enum events_pins { EVENTS_UNPIN, EVENTS_KEEP_PINS };

/*
 * Opens the major-fault events unless they are open, one per CPU, pinned so that misses are counted
 * while no ebbd runs.  They are machine-wide: BPF adds 0.6 us to a miss of 40 us that it counts
 * (docs/benchmarks.md), while events of each cgroup would cost descriptors and context switches,
 * and those of nested ones would count a fault twice.
 */
int events_watch(struct plane *p, struct error *e);
void events_unwatch(struct plane *p, enum events_pins pins);

/* The events of hit detection of one attached cgroup: opened when it is switched on. */
struct event_set;

int events_open(struct plane *p, const struct cgroup_ref *cgroup, struct event_set **set,
		struct error *e);
/* Closes the set; NULL is fine. */
void events_close(struct event_set **set);

/* Switch hit detection; return whether it is on.  Any thread may call them. */
void events_detect_on(struct event_set *set);
void events_detect_off(struct event_set *set);
bool events_detecting(const struct event_set *set);

/* Opens events for new threads of a cgroup without a v2 twin; does nothing with one. */
void events_refresh(struct event_set *set);

/* Removes the pins of a previous ebbd's events. */
void events_sweep_pins(void);

#endif
