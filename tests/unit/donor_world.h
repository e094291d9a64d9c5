/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A donor in the test's own process, with borrowers at the other ends of socket pairs.  Its loop
 * makes a turn when the test says so, and samples the machine when the test says so; the machine is
 * a directory of files.
 */
#ifndef EBB_DONOR_WORLD_H
#define EBB_DONOR_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "donord/donord.h"
#include "donord/loop.h"

enum { SLAB = 1 << 20, SLABS = 40 };

struct donor {
	struct pool pool;
	struct loop *l;
	struct donor_control *control;
	char run_dir[64], meminfo[80];
};

/* A borrower. */
struct peer {
	struct connection *c; /* the donor's */
	int fd;
	struct wire_loan loans[SLABS];
	uint32_t count;
	uint8_t payload[WIRE_SMALL]; /* of the last frame */
};

/* The one donor. */
extern struct donor the_donor;

/* Setups of cmocka: *@state is the donor; without_donor() ends it. */
int with_donor(void **state);
int with_rate(void **state);  /* RATE_LEAST for each borrower */
int with_quota(void **state); /* two and a half slabs for each borrower */
int without_donor(void **state);
/* What a setup of another machine does: make_machine(), its files, start_donor(). */
void make_machine(struct donor *d);
int start_donor(void **state, struct lending_options o);

void turn(struct loop *l);
/* Runs turns until the machine has been sampled, if that is due, and nothing is left to do. */
void settle(struct donor *d);

/* Protocol version of the next peers: WIRE_VERSION, unless a test sets it. */
extern uint32_t version;
/* Flags of the next loans (enum wire_loan_flags): 0, unless a test sets them. */
extern uint32_t loan_flags;

/* Connects the borrower @number with @flags of HELLO; returns the status of the reply. */
enum wire_status greet_as(struct donor *d, struct peer *p, uint64_t number, uint32_t flags);
/* Connects the borrower @number and lends it @slabs. */
void connect_peer(struct donor *d, struct peer *p, uint64_t number, int slabs);
/* Asks for a slab, which becomes the last of p->loans. */
enum wire_status map(struct donor *d, struct peer *p);

void send_frame(struct donor *d, struct peer *p, struct wire_frame f, const void *payload);
/* Sends @f back as a reply with @status. */
void answer(struct donor *d, struct peer *p, struct wire_frame f, enum wire_status status);
/* Returns the status of the reply to @op of @loan. */
enum wire_status say(struct donor *d, struct peer *p, enum wire_op op, struct wire_loan loan);
/* Takes the next frame that has arrived; returns whether there was one. */
bool take_frame(struct peer *p, struct wire_frame *f);
/* Takes the next frame, which must be an @op. */
struct wire_frame take(struct peer *p, enum wire_op op);
bool hung_up(struct peer *p);

/* Returns how many slabs are promised to @p after it asked for @slabs. */
uint32_t reserve(struct donor *d, struct peer *p, uint32_t slabs);

/* Ends the loan of @slab, and makes a turn. */
void revoke_slab(struct donor *d, uint32_t slab);

#endif
