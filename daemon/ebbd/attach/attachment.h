/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Attachments: which cgroup has which policy; detect.h has the perf events that make its faults
 * visible.
 */
#ifndef EBB_ATTACH_H
#define EBB_ATTACH_H

#include "table.h"

/* @plane and @budgets outlive it. */
void attachments_init(struct attachments *a, struct plane *plane, struct budget_table *budgets);
/* Restores the attachments that the previous ebbd left in the pinned maps. */
void attachments_restore(struct attachments *a);
/* Detaches nothing: the maps keep the attachments for the next ebbd. */
void attachments_close(struct attachments *a);

/*
 * @names and @values (@n of them) set parameters; the others keep their initial values.  Accepts
 * detect, slowdown in tenths of a percent, placement and benefit, besides the policy's own.
 */
struct attach_wish {
	const char *policy;
	enum attach_by by;
	const char *source;       /* of a declaration */
	uint32_t n;
	const char *const *names;
	const uint64_t *values;
};

/* Returns whether @name is such a parameter, of every policy. */
bool attach_has(const char *name);

/* Attaches a policy to @cgroup or changes its policy. */
int attach(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
	   struct error *e);
/* Changes parameters; ignores wish->policy. */
int attach_set(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
	       struct error *e);
/* Returns whether @wish is valid, apart from its cgroup and the kernel's verifier. */
int attach_check(struct attachments *a, const struct attach_wish *wish, struct error *e);
/* Loads the policy of a valid @wish into the kernel. */
int attach_load(struct attachments *a, const struct attach_wish *wish, struct error *e);
/* Returns whether @t already is as the valid @wish requires. */
bool attachment_is(const struct attachments *a, const struct attachment *t,
		   const struct attach_wish *wish);
int attach_detach(struct attachments *a, const char *cgroup, struct error *e);
/* Switches EBB_CGROUP_RECORD of an attached cgroup; stores its id in @owner. */
enum record_switch { RECORD_OFF, RECORD_ON };
int attach_record(struct attachments *a, const char *cgroup, enum record_switch on,
		  uint64_t *owner, struct error *e);

/*
 * Pauses the sources of requests of @t that have a bit in @sources, and resumes the others.
 * Requires the lock.
 */
int attachment_pause(struct attachments *a, struct attachment *t, uint32_t sources);

/*
 * Ten times a second: judges the busy attachments, reads limits of those that become busy, updates
 * statistics of those that swap in, and ends hit detection where no page is outstanding.
 */
void attachments_tick(struct attachments *a);
/*
 * Once a second: removed cgroups, CPU hotplug, and limits of busy cgroups; those of an idle one
 * within a minute.
 */
void attachments_sweep(struct attachments *a);

#endif
