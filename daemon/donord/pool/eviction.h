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

#include "lib/base/error.h"
#include "lib/rules/headroom.h"
#include "lib/wire/wire.h"

struct connection;
struct lender;

#define EVICTION_ACTIVITY_NS (300 * 1000000ull) /* one that does not answer counts as idle */

struct eviction_counts {
	uint64_t rounds;   /* draws */
	uint64_t silent;   /* owners that did not answer ACTIVITY in time */
	uint64_t asked, promised, refused; /* EVICTs and the answers to them */
	uint64_t returned; /* loans that came back after they were asked back */
	uint64_t revoked;
};

struct eviction {
	struct eviction_loan { uint32_t slab, generation, owner; } drawn[WIRE_LOANS];
	struct headroom_candidate candidates[WIRE_LOANS]; /* .slab indexes drawn[] */
	uint32_t count;    /* drawn */
	uint32_t want;     /* E of the round under way; 0 = none is */
	uint32_t waiting;  /* owners that have not answered */
	uint64_t round;    /* its number, the tag of its ACTIVITYs */
	uint64_t deadline; /* ns */
	uint64_t seed;
	bool to_ask;       /* some slab may be LEND_TO_ASK */
	uint32_t *eligible; /* of the pool's slabs, owned */
	struct eviction_counts counts;
};

int eviction_init(struct lender *l);
void eviction_free(struct lender *l);

/* Starts a round for @want loans, unless one is under way. */
void eviction_start(struct lender *l, uint32_t want, uint64_t now);

/*
 * In each turn of the loop: ends a round that is due and sends what is to be sent.
 * Returns ns until it has to be called again, or UINT64_MAX.
 */
uint64_t eviction_turn(struct lender *l, uint64_t now);

/* Once a second: what is overdue, what is to be revoked, and the drain. */
void eviction_second(struct lender *l, uint64_t now);

/* Answers of a borrower.  0, or -EPROTO when it was not asked that. */
int eviction_rates(struct lender *l, struct connection *c, const struct wire_frame *f,
		      const uint8_t *payload);
int eviction_answer(struct lender *l, struct connection *c, const struct wire_frame *f);

/* @slab came back by UNMAP. */
void eviction_returned(struct lender *l, uint32_t slab);
/* @c is gone, and its answers will not come. */
void eviction_forget(struct lender *l, struct connection *c);

/* Loans that were asked back and may be expected: neither refused nor waited for too long. */
uint32_t eviction_expected(const struct lender *l);

#endif
