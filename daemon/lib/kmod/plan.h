/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Plans for a device of the kernel module: donors to connect to, and places of slabs.  Each plan
 * starts from the module's report, so ebbd may be killed at any time; struct kmod_patience only
 * limits retries.  Pure functions.
 */
#ifndef EBB_KMOD_PLAN_H
#define EBB_KMOD_PLAN_H

#include "donor_address.h"

#define KMOD_SECOND 1000000000ull
#define KMOD_RETRY_MOST (60 * KMOD_SECOND)   /* longest pause before another connect */
#define KMOD_FULL (10 * KMOD_SECOND)         /* pause of placement at a full donor */
#define KMOD_RECALLED (60 * KMOD_SECOND)     /* pause of placement at a donor after its recall */
#define KMOD_REPAIR_MS 10000u                /* slabs leave a donor that is away for longer */

/* Retry limits of a donor; times as of now_ns(), 0: at once. */
struct kmod_patience {
	uint64_t connect_at, map_at;
	uint32_t failures;          /* consecutive failed connects */
	int logged;                 /* -errno of the connect failure that was logged last */
	uint32_t losses;            /* sessions that were lost */
	uint32_t absences;          /* times that it was away */
	bool away;                  /* at the last look */
	uint32_t bad_pages;         /* at the last look */
};

/*
 * Records a connect at @now: 0 or -errno.  Each failure doubles the time to the next one; up to
 * half of it is subtracted at random.
 */
void kmod_patience_connected(struct kmod_patience *p, int result, uint64_t now);

/*
 * Returns the donor from *@next on to connect to, and moves *@next behind it; -1: none.  Never a
 * donor in quarantine.
 */
int kmod_plan_connect(const struct kmod_device *d, const struct kmod_donor *donors, int n,
		      const struct kmod_patience *patience, uint64_t now, int *next);

/*
 * Returns the ended session from *@next on to disconnect; KMOD_NO_SESSION: none.  The last session
 * of a donor stays until there is another, because it has the reason; that of a donor in quarantine
 * stays as well.
 */
uint32_t kmod_plan_forget(const struct kmod_device *d, const struct kmod_donor *donors, int n,
			  uint32_t *next);

enum kmod_act { KMOD_MAP, KMOD_MIGRATE };

struct kmod_step {
	enum kmod_act act;
	uint32_t slab, session;     /* KMOD_NO_SESSION: to the backup */
	uint32_t from;              /* MIGRATE: the session that the slab leaves */
};

struct kmod_plan {
	/* Reported by the module, with the changes of later steps. */
	struct kmod_device *device;
	struct ebb_swap_slab *slabs;
	uint32_t count;
	const struct kmod_donor *donors;
	struct kmod_patience *patience; /* of each donor */
	int donor_count;
	/*
	 * Empty slabs get no donor yet: their first pages go to the backup, and are copied to the
	 * donor assigned then.
	 */
	bool lazy;
	uint64_t now, seed;
	/* Set by kmod_plan_start() from here on. */
	uint32_t held[EBB_SWAP_SESSIONS]; /* slabs of the device that each session has */
	uint32_t turn;              /* 0: first donors and migrations; 1: second donors */
	uint32_t at;                /* slabs before it are done in this turn */
	uint32_t unplaced;          /* slabs without a donor */
	uint32_t single;            /* slabs that lack only their second donor */
	uint32_t stuck;             /* slabs that cannot leave a donor, for lack of another */
};

void kmod_plan_start(struct kmod_plan *p);

/*
 * Returns a session for @slab to replace @from (KMOD_NO_SESSION: none), by the rule of ebb-swapd
 * (lib/rules/placement.h).  Never one that has the slab; one on the machine of its other donor only
 * if no other machine has free capacity.  KMOD_NO_SESSION: none.
 */
uint32_t kmod_plan_choose(struct kmod_plan *p, const struct ebb_swap_slab *slab, uint32_t from);

/* Returns an upper bound of the number of slabs left in the plan. */
uint32_t kmod_plan_left(const struct kmod_plan *p);

/* Sets the next step; false if there is none. */
bool kmod_plan_next(struct kmod_plan *p, struct kmod_step *s);

/*
 * Records the result of the step, 0 or -errno.  Skips a slab that cannot move now and, for the rest
 * of the plan, a donor that has no free capacity or does not respond.
 */
void kmod_plan_done(struct kmod_plan *p, const struct kmod_step *s, int result);

#endif
