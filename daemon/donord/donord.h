/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the parts of ebb-donord share.  One thread, the loop's, owns all of it: it
 * answers borrowers, and neither waits nor allocates while it does.  Three
 * things go to other threads: making memory (pool_thread.h), and log lines and the
 * control socket (control.h).
 */
#ifndef EBB_DONORD_H
#define EBB_DONORD_H

#include <time.h>

#include "control.h"
#include "donord/pool/eviction.h"
#include "donord/pool/machine.h"
#include "donord/pool/pool.h"
#include "donord/pool/pool_thread.h"
#include "donord/session/kernel_accept.h"
#include "donord/session/session.h"
#include "lib/base/clock.h"
#include "lib/base/log_ring.h"
#include "lib/rules/headroom.h"
#include "lib/wire/address.h"
#include "loop.h"

#define MS 1000000ull
#define SECOND (1000 * MS)

/* Lines a second, and at once: a stranger must not fill the disk. */
#define LOG_RATE 10
#define LOG_BURST 40

struct lender {
	struct lend_pool *pool;
	struct lender_options options;
	uint64_t identity;              /* tells borrowers that two addresses are one donor (wire.h) */
	int epoll_fd, signal_fd;
	int timer_fd; /* once a second */
	int wake_fd;  /* eventfd: worker or control thread want the loop */
	struct address places[LENDER_PLACES];
	int listen_fds[LENDER_PLACES];
	struct rdma_place *rdma;        /* NULL = not by RDMA */
	struct rdma_lender *kernels;    /* has a thread of its own; NULL = kernels get nothing */
	int place_count;
	bool deaf;                      /* nobody is accepted until the next tick */
	struct connection *connections; /* CONNECTIONS of them */
	uint32_t held;                  /* connections with .held */
	uint32_t maps;                  /* in this turn */
	uint32_t mapped;                /* connection of the last one */
	bool zeroed;                    /* in this turn, for somebody who waited for it */
	uint64_t now;                   /* ns: when this turn began */
	bool tick_due;
	struct keyring keys;
	lender_keys_call *keys_call;    /* told of each change of them; NULL = nobody is */
	void *keys_data;
	struct tls_context *tls;        /* with keys; NULL = without */

	struct machine machine;
	struct headroom_rule rule;
	struct headroom room;
	struct headroom_sample sample; /* the last one; memory 0 = none */
	bool sample_failed;            /* has been said */
	bool growth_failed;            /* has been said */
	bool gives_back;               /* the machine is to have memory back: no slab is made */
	uint64_t short_since;          /* ns: less than half of HeadRoom is available; 0 = not */
	struct eviction eviction;

	bool filled;        /* the memory there is to be at start is there */
	bool draining;      /* read by the control thread, too */
	bool ending;        /* the loop ends once all is back, or at drain_end */
	uint64_t drain_end; /* ns */
	uint32_t still_lent; /* slabs, for the control thread to tell */

	struct worker worker;
	uint32_t worker_knows; /* pool->to_do.put when it was last woken */
	struct donor_control control;
	struct notes notes;
	uint64_t log_at;       /* ns: the bucket was filled up to here */
	uint32_t log_left, log_dropped;
};

/* Logs a line, some time; lines beyond LOG_RATE are counted. */
void lender_tell(struct lender *l, enum log_event event, enum log_level level, const char *fmt,
		 ...) __attribute__((format(printf, 4, 5)));
#define lender_say(l, level, ...) lender_tell(l, EVENT_NONE, level, __VA_ARGS__)

/* Accepts nobody until the next tick: there is nothing left to accept them with. */
void lender_deafen(struct lender *l);

/* Slabs with memory, or with some of it. */
uint32_t lender_allocated(const struct lender *l);

/* What kernels have: all 0 where nothing is lent to them. */
struct rdma_lent lender_kernels(const struct lender *l);

/* What PING tells. */
void lender_told(const struct lender *l, struct wire_donor *d);

/*
 * Lends nothing more and asks everything back.  With LENDER_END the loop ends when
 * it is back, or after the drain timeout.
 */
enum lender_drain { LENDER_STAY, LENDER_END };
void lender_drain(struct lender *l, enum lender_drain then);
/* Lends again, unless the loop is to end. */
void lender_undrain(struct lender *l);

/* For control.c, by the loop. */
void lender_status(const struct lender *l, struct donor_status *status);

/* One turn of the loop, waiting at most @wait_ns; 0, 1 = it is to end, or -errno. */
int lender_turn(struct lender *l, uint64_t wait_ns);

/* Once a second: samples the machine, grows, shrinks, evicts, looks at deadlines. */
void lender_tick(struct lender *l, uint64_t now);

#endif
