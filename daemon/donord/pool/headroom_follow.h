/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keeps HeadRoom (headroom.h): looks at the machine once a second, makes slabs and gives them
 * back, has loans recalled, and tells borrowers how much there is.  The loop's thread.
 */
#ifndef EBB_HEADROOM_FOLLOW_H
#define EBB_HEADROOM_FOLLOW_H

#include "eviction.h"
#include "machine.h"

struct headroom_follow {
	struct pool *pool;
	struct eviction *eviction;
	struct donor_log *log;
	uint64_t headroom;             /* bytes; 0 = all places have memory from the start */
	uint64_t identity;             /* tells borrowers that two addresses are one donor (wire.h) */
	struct machine machine;
	struct headroom_rule rule;
	struct headroom room;
	struct headroom_sample sample; /* the last one; memory 0 = none */
	bool sample_failed;            /* has been logged */
	bool gives_back;               /* the machine is to have memory back: no slab is made */
	uint64_t short_since;          /* ns: less than half of HeadRoom is available; 0 = not */
};

/*
 * Samples the machine, and sets *@slabs to how many are to be made before anything is lent.
 * Fails only with HeadRoom.
 */
int headroom_follow_start(struct headroom_follow *f, uint32_t *slabs, struct error *e);
/* Once a second. */
void headroom_follow_second(struct headroom_follow *f, uint64_t now);

/* Bytes: lent or to lend; to lend now. */
uint64_t headroom_follow_total(const struct headroom_follow *f);
uint64_t headroom_follow_free(const struct headroom_follow *f);

/*
 * What HELLO and PING tell @b; returns how many slabs of the total it cannot have, being lent
 * or beyond its quota.
 */
uint32_t headroom_follow_tell(const struct headroom_follow *f, const struct borrower *b,
			      struct wire_donor *d);

#endif
