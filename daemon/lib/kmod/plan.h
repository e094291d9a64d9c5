/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What is to be done for a device of the kernel module: which donors to connect to,
 * which slabs to give to whom.  Decided anew each time from what the module tells, so that
 * who decides may die at any moment: what is in struct kmod_patience only keeps from trying
 * too often.  Nothing here calls anything.
 */
#ifndef EBB_KMOD_PLAN_H
#define EBB_KMOD_PLAN_H

#include "donor_address.h"

#define KMOD_SECOND 1000000000ull
#define KMOD_RETRY_MOST (60 * KMOD_SECOND)   /* between two connects to a donor that is away */
#define KMOD_FULL (10 * KMOD_SECOND)         /* until a donor without room is asked again */
#define KMOD_ASKED_BACK (60 * KMOD_SECOND)   /* until one that wanted memory back is */

/* Of a donor; times are those of now_ns(), 0: at once. */
struct kmod_patience {
	uint64_t connect_at, map_at;
	uint32_t failures;          /* connects that failed since one did not */
	int told;                   /* -errno of the last one that was told; nothing here reads it, */
	uint32_t losses;            /* nor how often a session to it has ended unasked */
};

/* A connect to it has been tried at @now: 0 or -errno. */
void kmod_patience_connected(struct kmod_patience *p, int result, uint64_t now);

/* The donor at or after *@next to connect to, which *@next is behind then; -1: none. */
int kmod_plan_connect(const struct kmod_device *d, const struct kmod_donor *donors, int n,
		      const struct kmod_patience *patience, uint64_t now, int *next);

/*
 * The session at or after *@next that is over and is to be forgotten; KMOD_NO_SESSION: none.
 * The last one of a donor stays as long as there is no other: it tells why.
 */
uint32_t kmod_plan_forget(const struct kmod_device *d, const struct kmod_donor *donors, int n,
			  uint32_t *next);

enum kmod_act { KMOD_MAP, KMOD_MIGRATE };

struct kmod_step {
	enum kmod_act act;
	uint32_t slab, session;     /* KMOD_NO_SESSION: to the backup */
	uint32_t from;              /* MIGRATE: the session that is left */
};

struct kmod_plan {
	/* As the module told, and as steps have changed it since. */
	struct kmod_device *device;
	struct ebb_swap_slab *slabs;
	uint32_t count;
	const struct kmod_donor *donors;
	struct kmod_patience *patience; /* of each donor */
	int donor_count;
	/*
	 * Slabs that nothing is written to need no donor yet: what is written there first
	 * goes to the backup, and from there to the donor that they get then.
	 */
	bool lazy;
	uint64_t now, seed;
	/* From here on kmod_plan_start() fills in. */
	uint32_t held[EBB_SWAP_SESSIONS]; /* slabs of the device that each session has */
	uint32_t turn;              /* 0: first donors, and those that are left; 1: second donors */
	uint32_t at;                /* slabs before it need nothing in this turn, or cannot have it */
	uint32_t unplaced;          /* slabs without the donor that they should have */
	uint32_t single;            /* with one, and not the second that they should have */
	uint32_t stuck;             /* that should leave a donor, and there is nowhere to go */
};

void kmod_plan_start(struct kmod_plan *p);

/*
 * A session for @slab, which leaves @from for it (KMOD_NO_SESSION: none), by the rule that
 * ebb-swapd places by (lib/rules/placement.h): none that has it, and not on the machine of one that
 * it stays at, as long as another takes it.  KMOD_NO_SESSION: none does.
 */
uint32_t kmod_plan_choose(struct kmod_plan *p, const struct ebb_swap_slab *slab, uint32_t from);

/* At most so many slabs have not been looked at. */
uint32_t kmod_plan_left(const struct kmod_plan *p);

/* The next step; false when there is none. */
bool kmod_plan_next(struct kmod_plan *p, struct kmod_step *s);

/*
 * It has been taken: 0 or -errno.  A donor that has no room or does not answer is left
 * out of what follows, a slab that cannot move now is passed over.
 */
void kmod_plan_done(struct kmod_plan *p, const struct kmod_step *s, int result);

#endif
