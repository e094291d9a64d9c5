/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Does for a device what plan.h decides, until there is nothing left to do. */
#ifndef EBB_KMOD_SETTLE_H
#define EBB_KMOD_SETTLE_H

#include "netlink.h"
#include "plan.h"

/*
 * A device that is looked after, as far as it is about one class of its pages.  Who lends
 * to a class but 0 is recorded nowhere: those that the module has sessions of it with.
 */
struct kmod_care {
	uint32_t device;            /* N of /dev/ebbN */
	uint32_t class;
	uint64_t size;              /* bytes: a device of another size is another one */
	struct kmod_donor donor[DEVICE_DONORS];
	int donors;
	int given;                  /* of a class, the first: lenders before there is a session, too */
	struct kmod_patience patience[DEVICE_DONORS];
	/*
	 * As it was after the last round, @slabs and the first now.sessions of its sessions
	 * being the class's; behind these are those of others, @all of both.  @slabs is its
	 * own, kmod_care_free().
	 */
	struct kmod_device now;
	uint32_t all;
	struct ebb_swap_slab *slabs;
	uint32_t slab_count;
	uint64_t looked;            /* ns: when */
	uint32_t live[EBB_SWAP_SESSIONS]; /* sessions that were, when looked at last */
	uint32_t lives;
};

/* "replicas=2", "none", "disk", or "local": on the backup alone. */
static inline const char *kmod_durability(uint32_t copies)
{
	return copies & EBB_SWAP_SECOND ? "replicas=2" :
	       !(copies & EBB_SWAP_BACKUP) ? "none" : copies & EBB_SWAP_DONOR ? "disk" : "local";
}

/* What a round did. */
struct kmod_round {
	int connected[DEVICE_DONORS]; /* of each donor: 1 it was, -errno it was tried, 0 neither */
	char refused[DEVICE_DONORS][192]; /* why, of one that was tried in vain */
	char lost[DEVICE_DONORS][KMOD_REASON]; /* why, of one that was live before; or "" */
	uint32_t mapped, migrated, retreated, unplaced, single, stuck;
	uint32_t left;              /* steps there was no time for */
	struct error trouble;       /* the first map or migration that failed */
};

void kmod_care_free(struct kmod_care *c);

/* Only looks: c->now and c->slabs.  -ENODEV when the device is gone. */
int kmod_look(struct kmod_link *l, struct kmod_care *c, struct error *e);

/* The plan for what was seen last; its seed is new. */
struct kmod_plan kmod_care_plan(struct kmod_care *c);

/* Carries out what the plan for c->now says of slabs, for about @budget ns. */
void kmod_place(struct kmod_link *l, struct kmod_care *c, uint64_t budget,
		struct kmod_round *round);

/*
 * A round: connects, forgets, maps, migrates, for about @budget ns, a step at least.
 * What single donors refuse is in @round; an error is one of the module itself.
 */
int kmod_settle(struct kmod_link *l, struct kmod_care *c, uint64_t budget, struct kmod_round *round,
		struct error *e);

#endif
