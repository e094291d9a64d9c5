/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Recall of loans (Infiniswap, NSDI'17, section 4.4, second stage): the owners of E + E' mapped
 * slabs, sampled at random, report how active these are, and the donor recalls the E least active.
 * The borrower moves the pages of a recalled slab and releases it by UNMAP.  Revoked slabs are
 * announced by REVOKED as soon as the borrower's connection has room; until then, and where that
 * frame is lost, the borrower gets WIRE_STALE.
 *
 *	sample --> ACTIVITY to each owner --> all have answered, or ACTIVITY_NS --> EVICT
 */
#ifndef EBB_EVICTION_H
#define EBB_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#include "donor_log.h"
#include "lending_options.h"
#include "lib/rules/headroom.h"
#include "pool.h"

#define EVICTION_ACTIVITY_NS (300 * 1000000ull) /* a borrower that does not answer counts as idle */

struct eviction_counts {
	uint64_t rounds;   /* samples taken */
	uint64_t silent;   /* owners that did not answer ACTIVITY in time */
	uint64_t asked, promised, refused; /* EVICTs and the answers to them */
	uint64_t returned; /* loans released after they were recalled */
	uint64_t revoked, revoked_backed; /* in all; of these, backed */
};

struct eviction {
	struct pool *pool;
	struct donor_log *log;
	struct eviction_options options;
	struct eviction_loan {
		uint32_t slab, generation;
		struct borrower *owner;
	} drawn[WIRE_LOANS];
	struct headroom_candidate candidates[WIRE_LOANS]; /* .slab indexes the sample */
	uint32_t count;    /* loans in the sample */
	uint32_t want;     /* E of the round in progress; 0 = no round */
	uint32_t waiting;  /* owners that have not answered */
	uint64_t round;    /* its number and the tag of its ACTIVITYs */
	uint64_t deadline; /* ns */
	uint64_t seed;
	uint64_t now;      /* ns: time of the last eviction_turn() or eviction_second() */
	bool to_ask;       /* some slab may be LEND_TO_ASK, or .untold */
	uint64_t ask_at;   /* ns: not before, as some borrower could not be asked */
	uint32_t *eligible; /* scratch, one entry a slab; owned */
	struct eviction_counts counts;
};

/* Requires pool (initialised), log and options to be set. */
int eviction_init(struct eviction *e);
void eviction_free(struct eviction *e);

/*
 * Starts a round for @want loans by @rule, unless one is in progress.  Loans of borrowers that
 * do not report activity are recalled last, at random.
 */
void eviction_start(struct eviction *e, const struct headroom_rule *rule, uint32_t want,
		    uint64_t now);

/*
 * In each turn of the loop: ends a round that is due, sends EVICTs and REVOKED.  Returns ns until
 * the next call is due, or UINT64_MAX.
 */
uint64_t eviction_turn(struct eviction *e, uint64_t now);

/*
 * Once a second: reports overdue loans, continues the drain, and revokes up to @most loans while
 * the machine is short of memory @short_since (0 = it is not).
 */
void eviction_second(struct eviction *e, uint64_t now, uint64_t short_since, uint32_t most);

/*
 * Revokes up to @most loans with struct lend_slab.backed, recalled ones first; returns how many.
 */
uint32_t eviction_emergency(struct eviction *e, uint32_t most, uint64_t now);
/*
 * Counts recently revoked slabs whose memory is not free yet.  here: requests still use it;
 * mapped: the place has other memory or none, but its last borrower still maps the old.
 */
struct eviction_leaving {
	uint32_t here, mapped;
};
struct eviction_leaving eviction_leaving(const struct eviction *e, uint64_t now);
/*
 * Counts revoked slabs whose memory may not have been free when a sample of the machine began at
 * @began, without slabs that are being dropped.
 */
uint32_t eviction_unseen(const struct eviction *e, uint64_t began);

/* Take a borrower's answers.  Return 0, or -EPROTO for an answer to no question. */
int eviction_rates(struct eviction *e, struct borrower *b, const struct wire_frame *f,
		   const uint8_t *payload);
int eviction_answer(struct eviction *e, struct borrower *b, const struct wire_frame *f);

/* pool_return() for an UNMAP, also of a revoked slab: counts recalled loans. */
enum wire_status eviction_return(struct eviction *e, struct borrower *b, struct wire_loan loan);
/* Forgets questions to @b, which has disconnected. */
void eviction_forget(struct eviction *e, struct borrower *b);

/*
 * Returns how many promised loans were recalled too recently to be revoked, of borrowers without a
 * promised loan recalled longer ago.
 */
uint32_t eviction_moving(const struct eviction *e, uint64_t now);
/* Returns how many recalled loans may still be released: neither refused nor too old. */
uint32_t eviction_expected(const struct eviction *e);

#endif
