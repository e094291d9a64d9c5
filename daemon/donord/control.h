/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's control socket, ebb_donor_socket() (/run/ebb/donord.sock), and the
 * thread behind it, which also writes the log and tells systemd.  control.h has the
 * form.  Verbs:
 *
 *	{"verb":"status"}
 *	{"verb":"drain"}              lend nothing more, ask everything back, stay
 *	{"verb":"drain","end":true}   the same, and end, as SIGTERM does
 *	{"verb":"undrain"}            lend again, unless it is to end; what has been asked
 *	                              back still comes
 *
 * All answer with the status:
 *
 *	"pid", "slab_size"
 *	"machine":   {"memory","available"} bytes, "pressure" percent; where the donor's own
 *		     cgroups have limits the lowest, "limit", and what is "left" of all, bytes;
 *	             all 0 when /proc could not be read
 *	"headroom":  bytes kept free; 0 = a fixed amount is lent
 *	"total","free","lent"  bytes: lent or to lend, to lend now, lent
 *	"kernels":   {"total","free","lent"} bytes of --rdma-memory, likewise, which is not in
 *	             those above; absent without --rdma-kernel
 *	"slabs":     {"lent","clean","dirty","coming","going","asked_back","refused","overdue"}
 *	             asked_back: asked back and not back, those refused included
 *	"draining":  bool; "ending": bool, "ends_in": seconds, when ending
 *	"etcd":      "registered", "trying" or "withdrawn"; absent without --etcd
 *	"etcd_error": what stands in the way, if anything does
 *	"evictions": {"rounds","silent","asked","promised","refused","returned","revoked"}
 *	"listen":    ["127.0.0.1:7070", ...]
 *	"borrowers": [{"name","key","peer","transport","slabs","bytes","quota",
 *	               "asked_back","refused","overdue","reads","writes","connected"}, ...]
 *	             transport: "tcp" or "shm"; quota:
 *	             bytes, 0 = none; reads, writes: pages through the donor; connected: s
 */
#ifndef EBB_DONOR_CONTROL_H
#define EBB_DONOR_CONTROL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "donord/pool/eviction.h"
#include "donord/pool/pool.h"
#include "donord/session/kernel_accept.h"
#include "donord/session/session.h"
#include "lib/control/control.h"

struct borrower_status {
	char name[WIRE_NAME], key[KEY_NAME], peer[64]; /* key "" = none */
	uint64_t quota, reads, writes, connected; /* bytes, pages, s */
	uint32_t slabs, asked_back, refused, overdue;
	bool local;
};

struct donor_status {
	uint64_t slab_size, headroom, total, free;
	struct headroom_sample sample;
	struct rdma_lent kernels;
	uint32_t in[LEND_STATES];
	uint32_t asked_back, refused, overdue;
	struct eviction_counts evictions;
	bool draining, ending;
	uint64_t ends_in; /* s */
	uint32_t borrower_count;
	struct borrower_status borrowers[CONNECTIONS];
};

enum donor_request { DONOR_STATUS, DONOR_DRAIN, DONOR_END, DONOR_UNDRAIN };

struct donor_control {
	pthread_t thread;
	struct control_rules rules;
	int listen_fd; /* -1 = the thread only logs */
	int wake_fd;   /* eventfd: log lines, drain, stop */
	bool running, stop;
	/* A request that the loop answers: by the control thread, under the lock. */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	bool pending;
	enum donor_request request;
	struct donor_status status;
};

/*
 * Listens, unless a donor that runs has the socket already (then there is a warning,
 * and none), and starts the thread.
 */
int donor_control_start(struct lender *l, struct error *e);
/* Writes what is left to log, and ends the thread. */
void donor_control_stop(struct lender *l);

/* The loop's: there is something for the thread to do. */
void donor_control_wake(struct donor_control *c);
/* The loop's: answers a request if there is one. */
void donor_control_answer(struct lender *l);

#endif
