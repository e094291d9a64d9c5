/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Asking loans back (Infiniswap, NSDI'17, section 4.4, second stage): of E + E'
 * mapped slabs drawn at random the owners say how active they are, and the E least
 * active are asked back.  Asking takes nothing: a slab comes back by UNMAP, when
 * its borrower has its pages elsewhere.
 *
 *	draw --> ACTIVITY to each owner --> all have answered, or ACTIVITY_NS --> EVICT
 */
#ifndef EBB_EVICTION_H
#define EBB_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#include "donor_log.h"
#include "lending_options.h"
#include "lib/rules/headroom.h"
#include "pool.h"

#define EVICTION_ACTIVITY_NS (300 * 1000000ull) /* one that does not answer counts as idle */

struct eviction_counts {
	uint64_t rounds;   /* draws */
	uint64_t silent;   /* owners that did not answer ACTIVITY in time */
	uint64_t asked, promised, refused; /* EVICTs and the answers to them */
	uint64_t returned; /* loans that came back after they were recalled */
	uint64_t revoked;
};

struct eviction {
	struct pool *pool;
	struct donor_log *log;
	struct eviction_options options;
	struct eviction_loan { uint32_t slab, generation; struct borrower *owner; } drawn[WIRE_LOANS];
	struct headroom_candidate candidates[WIRE_LOANS]; /* .slab indexes drawn[] */
	uint32_t count;    /* drawn */
	uint32_t want;     /* E of the round in progress; 0 = none is */
	uint32_t waiting;  /* owners that have not answered */
	uint64_t round;    /* its number, the tag of its ACTIVITYs */
	uint64_t deadline; /* ns */
	uint64_t seed;
	uint64_t now;      /* ns: of the last eviction_turn() or eviction_second() */
	bool to_ask;       /* some slab may be LEND_TO_ASK */
	uint32_t *eligible; /* of the pool's slabs, owned */
	struct eviction_counts counts;
};

/* The caller has filled in the pool, which has its places, the log and the options. */
int eviction_init(struct eviction *e);
void eviction_free(struct eviction *e);

/*
 * Starts a round for @want loans by @rule, unless one is in progress.  Loans of borrowers that
 * do not report activity are recalled last, at random.
 */
void eviction_start(struct eviction *e, const struct headroom_rule *rule, uint32_t want,
		    uint64_t now);

/*
 * In each turn of the loop: ends a round that is due and sends what is to be sent.
 * Returns ns until it has to be called again, or UINT64_MAX.
 */
uint64_t eviction_turn(struct eviction *e, uint64_t now);

/*
 * Once a second: overdue loans, the drain, and, while the machine is short of memory
 * @short_since (0 = it is not), revoking up to @most loans.
 */
void eviction_second(struct eviction *e, uint64_t now, uint64_t short_since, uint32_t most);

/* Answers of a borrower.  0, or -EPROTO when it was not asked that. */
int eviction_rates(struct eviction *e, struct borrower *b, const struct wire_frame *f,
		   const uint8_t *payload);
int eviction_answer(struct eviction *e, struct borrower *b, const struct wire_frame *f);

/* pool_return() by the borrower's will, counted. */
enum wire_status eviction_return(struct eviction *e, struct borrower *b, struct wire_loan loan);
/* @b has disconnected: its answers will not come. */
void eviction_forget(struct eviction *e, struct borrower *b);

/* Loans that were recalled and may be expected: neither refused nor waited for too long. */
uint32_t eviction_expected(const struct eviction *e);

#endif
