/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keeps HeadRoom (lib/rules/headroom.h): has the machine sampled once a second, grows and shrinks
 * the pool, starts recalls, and tells borrowers the capacity.  The loop's thread.
 *
 * In an emergency, also where a fixed amount is lent, it drops free slabs, recalls others and,
 * before the kernel kills programs, revokes backed loans.
 */
#ifndef EBB_HEADROOM_FOLLOW_H
#define EBB_HEADROOM_FOLLOW_H

#include "eviction.h"
#include "machine_watch.h"

struct headroom_follow {
	struct pool *pool;
	struct eviction *eviction;
	struct donor_log *log;
	uint64_t headroom;             /* bytes; 0 = all places have memory from the start */
	uint64_t identity;             /* of the donor at all its addresses (wire.h) */
	struct machine machine;
	struct machine_watch watch;
	bool due;                      /* this second's work waits for a sample */
	uint32_t late;                 /* seconds since the last sample, while it is overdue */
	struct headroom_rule rule;
	struct headroom room;
	struct headroom_sample sample; /* the last one; memory 0 = none */
	uint64_t sample_began;         /* ns: when its reading began */
	bool sample_failed;            /* has been logged */
	bool gives_back;               /* memory returns to the machine: make no slab */
	/* ns: less than half of HeadRoom, or without it the reserve, is left since; 0 = no */
	uint64_t short_since;
	bool no_emergency;              /* takes no emergency measures */
	uint64_t emergency_since;      /* ns; 0 = none */
	bool near;                     /* ... or there may soon be: sampled ten times a second */
	uint64_t sample_at;            /* ns: next sample, while near */
};

/*
 * Samples the machine and sets *@slabs to the number of slabs to make at start.  Fails only with
 * HeadRoom.
 */
int headroom_follow_start(struct headroom_follow *f, uint32_t *slabs, struct error *e);
/*
 * Once a second: requests a sample.  The second's work follows when headroom_follow_woken() finds
 * it, at the latest in the next second with the sample before, for which nothing is revoked.
 */
void headroom_follow_second(struct headroom_follow *f, uint64_t now);
/*
 * In each turn of the loop: requests samples while an emergency is near.  Returns ns until the next
 * one is due, or UINT64_MAX.
 */
uint64_t headroom_follow_turn(struct headroom_follow *f, uint64_t now);
/* After each write to the wake_fd of f->watch. */
void headroom_follow_woken(struct headroom_follow *f, uint64_t now);

/* Bytes: total capacity; free now. */
uint64_t headroom_follow_total(const struct headroom_follow *f);
uint64_t headroom_follow_free(const struct headroom_follow *f);

/*
 * Fills in what HELLO, PING and RESERVE tell @b; returns how many slabs of the total it cannot get:
 * lent, promised to others, or beyond its quota.
 */
uint32_t headroom_follow_tell(const struct headroom_follow *f, const struct borrower *b,
			      struct wire_donor *d);

#endif
