/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How Mako (PLDI'22, section 5.2) detects that its memory servers have traced all: each server has
 * four flags, and the CPU server polls all servers twice per cycle.  Tracing has ended when all
 * flags of all servers are false in both rounds.
 *
 * A server has a tracing stack, references received from others (roots), and ghost buffers: what it
 * has found of each other server.  A ghost buffer is sent as a message.  The receiver acknowledges
 * it when the references are among its roots.
 *
 * Where the paper is silent: Changed is sticky, and the first round clears it; the second round
 * begins when all servers have replied to the first; messages between two machines keep their order
 * and none is lost, as on a reliable connection; so a poll does not overtake the CPU server's
 * roots.
 *
 * And, not obvious from the paper: after concurrent tracing has ended, the pause polls again even
 * if the CPU server has no more overwritten references to send.  Those that it has sent during the
 * last cycle of polls may have come after both polls of their server.
 *
 * tests/unit/test_model_flags.c tries every interleaving.  Only numbers of references are here: the
 * caller has the references.  Pure: no I/O, clock, allocation.
 */
#ifndef EBB_SIM_MAKO_FLAGS_H
#define EBB_SIM_MAKO_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

#define MAKO_SERVERS 16

/* The paper's names: TracingInProgress, RootsNotEmpty, GhostNotEmpty, Changed. */
enum mako_flag { MAKO_TRACING = 1, MAKO_ROOTS = 2, MAKO_GHOSTS = 4, MAKO_CHANGED = 8 };
#define MAKO_FLAGS (MAKO_TRACING | MAKO_ROOTS | MAKO_GHOSTS | MAKO_CHANGED)

/* Deviations from the paper, for the model checker: all 0 is the paper's protocol. */
struct mako_rule {
	uint8_t without;      /* flags that are always reported as false */
	bool one_round;
	bool overlap;         /* the second round does not wait for the first one's replies */
	bool compare;         /* Changed: the flags differ from those of the first round */
	bool clear_on_send;   /* GhostNotEmpty does not wait for the acknowledgement */
	bool acknowledge_early; /* ... which is sent before the references are among the roots */
	bool trust_empty;     /* the caller's: no polls in the pause if there is nothing to send */
};

/* A memory server's agent. */
struct mako_agent {
	uint32_t grey;        /* references that tracing will follow */
	uint32_t roots;       /* received, not yet on the tracing stack */
	uint32_t ghosts;      /* in ghost buffers */
	uint32_t unacknowledged; /* messages with ghosts that were sent */
	uint8_t flags;        /* the first three, as they are */
	uint8_t polled;       /* ... as the first round saw them */
	bool changed;
};

/* The CPU server's polls; one cycle follows another until tracing has ended. */
struct mako_poller {
	uint8_t servers, round; /* of this cycle: 0 or 1 */
	uint32_t waiting;     /* for replies of these servers, a bit each */
	uint32_t again;       /* with .overlap: servers that have replied once */
	uint8_t seen;         /* all flags of this cycle so far */
};

/* MAKO_POLL_ONE: with .overlap, the server that has just replied. */
enum mako_progress { MAKO_WAIT, MAKO_POLL, MAKO_POLL_ONE, MAKO_ENDED };

/* References arrive from another server or from the CPU server. */
void mako_receive(struct mako_agent *a, const struct mako_rule *rule, uint32_t references);
/* Of what was received, @references need no visit: their objects are marked. */
void mako_drop(struct mako_agent *a, const struct mako_rule *rule, uint32_t references);
/* Tracing takes all that has been received. */
void mako_take(struct mako_agent *a, const struct mako_rule *rule);
/* Tracing follows a reference and finds others: on this server and on others. */
void mako_visit(struct mako_agent *a, const struct mako_rule *rule, uint32_t local,
		uint32_t remote);
/* A message with @references of the ghost buffers is sent, and later acknowledged. */
void mako_send(struct mako_agent *a, const struct mako_rule *rule, uint32_t references);
void mako_acknowledged(struct mako_agent *a, const struct mako_rule *rule);
/* Returns the flags that the agent replies to a poll of @round. */
uint8_t mako_reply(struct mako_agent *a, const struct mako_rule *rule, uint8_t round);

/*
 * Begins a cycle of polls.  The caller polls all servers, and again whenever mako_replied() returns
 * MAKO_POLL, with p->round.
 */
void mako_poll(struct mako_poller *p, uint8_t servers);
/* The flags that @server has replied. */
enum mako_progress mako_replied(struct mako_poller *p, const struct mako_rule *rule,
				uint8_t server, uint8_t flags);

#endif
