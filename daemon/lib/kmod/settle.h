/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Carries out the plans of plan.h for a device. */
#ifndef EBB_KMOD_SETTLE_H
#define EBB_KMOD_SETTLE_H

#include "netlink.h"
#include "plan.h"

/*
 * State of one class of a device's pages.  The record has the donors of class 0 only; other
 * classes' donors are those of the sessions that the module reports.
 */
struct kmod_view {
	uint32_t device;            /* N of /dev/ebbN */
	uint32_t class;
	uint64_t size;              /* bytes; differs if the device was re-created */
	/* Path of the device's key, of which a key for each donor is derived. */
	const char *key_file;
	struct kmod_donor donor[DEVICE_DONORS];
	int donors;
	int given;                  /* number of leading donors that stay without a session */
	struct kmod_patience patience[DEVICE_DONORS];
	/*
	 * The state after the last round.  @slabs and the first now.sessions of now.session[]
	 * belong to the class; sessions of other classes follow, @all in total.  kmod_view_free()
	 * frees @slabs.
	 */
	struct kmod_device now;
	uint32_t all;
	struct ebb_swap_slab *slabs;
	uint32_t slab_count;
	uint64_t looked;            /* ns: time of @slabs */
	uint32_t live[EBB_SWAP_SESSIONS]; /* sessions, live or away, at the last look */
	uint32_t lives;
};

/* Returns "replicas=2", "none", "disk", or "local" for the backup alone. */
static inline const char *kmod_durability(uint32_t copies)
{
	return copies & EBB_SWAP_SECOND ? "replicas=2" :
	       !(copies & EBB_SWAP_BACKUP) ? "none" : copies & EBB_SWAP_DONOR ? "disk" : "local";
}

/* The results of a round. */
struct kmod_round {
	int connected[DEVICE_DONORS]; /* of each donor: 1 connected, -errno failed, 0 not tried */
	char refused[DEVICE_DONORS][192]; /* cause of the failure */
	char no_key[192];           /* why no keys could be derived; or "" */
	char lost[DEVICE_DONORS][KMOD_REASON]; /* reason of the end of a session; or "" */
	char away[DEVICE_DONORS][KMOD_REASON]; /* reason why it is away since this round; or "" */
	bool back[DEVICE_DONORS];   /* since this round */
	bool quarantined[DEVICE_DONORS]; /* since this round */
	uint32_t mapped, migrated, fell_back, unplaced, single, stuck;
	uint32_t left;              /* steps that exceed the budget */
	struct error trouble;       /* of the first map or migration that failed */
};

void kmod_view_free(struct kmod_view *v);

/* Updates v->now and v->slabs without changing the device.  -ENODEV if it was destroyed. */
int kmod_look(struct kmod_link *l, struct kmod_view *v, struct error *e);

/* Returns a plan for the last look, with a new seed. */
struct kmod_plan kmod_view_plan(struct kmod_view *v);

/* Places slabs by a plan for v->now, for about @budget ns. */
void kmod_place(struct kmod_link *l, struct kmod_view *v, uint64_t budget,
		struct kmod_round *round);

/*
 * Carries out one round: connects, disconnects ended sessions, maps, migrates, for about @budget
 * ns, at least one step.  A class with neither cgroups nor pages gets no sessions and no slabs.
 * Reading a key ends core dumps of the process (PR_SET_DUMPABLE).
 * @round has the donors' refusals; an error is the module's own.
 */
int kmod_settle(struct kmod_link *l, struct kmod_view *v, uint64_t budget, struct kmod_round *round,
		struct error *e);

#endif
