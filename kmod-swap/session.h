/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A session: connections to one donor, one queue pair for each hardware queue of the device.  The
 * first one carries frames (wire.h) as well.  CONNECTING -> LIVE -> FAILED -> CLOSED: user space
 * replaces a session that has ended by a new one.
 */
#ifndef EBB_SESSION_H
#define EBB_SESSION_H

#include <linux/completion.h>
#include <linux/percpu-refcount.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "device.h"
#include "proof.h"

#define EBB_FRAME 128 /* bytes of a message, more than any has */
#define EBB_RECALLS 16 /* EVICTs of a donor that may be unanswered at a time */
#define EBB_RECEIVES (EBB_RECALLS + 2) /* and a reply */

struct ebb_queue {
	struct ebb_session *session;
	struct rdma_cm_id *id;
	struct ib_cq *cq;
	struct completion cm;
	int cm_status;
	const char *refused;      /* the donor's reason for that; else NULL */
	bool connected;
	struct ebb_join join;
};

/* An EVICT of the donor's. */
struct ebb_recall {
	u64 tag;
	u32 remote, generation;
};

struct ebb_message {
	struct ib_cqe cqe;
	u64 dma;
	u8 *data;                 /* EBB_FRAME bytes */
};

/* Calls of a session to those above it, from process context. */
struct ebb_session_ops {
	/* It has failed and is about to be closed: nothing may be read from its donor any more. */
	void (*failed)(struct ebb_session *s);
	/* Nothing of it is in flight any more. */
	void (*drained)(struct ebb_session *s);
	/* It is closed, for s->reason. */
	void (*closed)(struct ebb_session *s);
	/* Returns a wire_status, which answers the recall. */
	u16 (*recalled)(struct ebb_session *s, const struct ebb_recall *recall);
};

struct ebb_session {
	struct list_head node;    /* in device->sessions */
	struct ebb_device *device;
	const struct ebb_session_ops *ops;
	u32 index;
	atomic_t state;           /* enum ebb_swap_session_state */
	const char *reason;       /* static text */
	struct sockaddr_storage to;
	struct percpu_ref ref;    /* of I/O in flight */
	struct completion idle, closed;
	struct work_struct close;
	struct ib_device *ib;
	struct ib_pd *pd;
	u64 number;               /* random; the donor knows the session by it */
	struct ebb_proof proof;   /* received: of queue 0's completions alone */
	struct mutex sending;     /* frames leave in the order of their MACs; within calls */
	u32 class;                /* of the slabs that may go there */
	u64 donor_free, donor_slab; /* bytes */
	struct ebb_message send, answer, receive[EBB_RECEIVES];
	spinlock_t recall_lock;   /* interrupts off */
	struct ebb_recall recall[EBB_RECALLS];
	u32 recalls;
	struct work_struct answering;
	struct completion answered;
	bool draining;            /* ebb_control_lock: nothing more is placed there */
	struct mutex calls;       /* one call at a time: */
	struct completion replied;
	u64 tag;
	u8 reply[EBB_FRAME];
	u32 reply_length;
	struct ebb_queue queue[];
};

/* With the module. */
int ebb_session_init(void);
void ebb_session_exit(void);

/* On failure *@why is a static text. */
int ebb_session_open(struct ebb_device *device, const struct sockaddr_storage *to, u32 class,
		     const struct ebb_session_ops *ops, struct ebb_session **out,
		     const char **why);
/* Ends the session for @reason (static text); from any context.  Only the first call counts. */
void ebb_session_fail(struct ebb_session *s, const char *reason);
/* Ends it, waits until nothing of it is in flight, and frees it. */
void ebb_session_free(struct ebb_session *s, const char *reason);
/* Asks the donor for a slab: @place, whose epoch the caller sets. */
int ebb_session_map(struct ebb_session *s, struct ebb_place *place, const char **why);
int ebb_session_unmap(struct ebb_session *s, u32 remote, u32 generation, const char **why);

static inline bool ebb_session_live(const struct ebb_session *s)
{
	return atomic_read(&s->state) == EBB_SWAP_LIVE;
}

/* The slab's lock is held, as for the next two. */
static inline bool ebb_place_live(const struct ebb_place *place)
{
	return place->session && ebb_session_live(place->session);
}

/* BIT(enum ebb_at) of the places whose session is live. */
static inline u32 ebb_hold_live(const struct ebb_hold *hold)
{
	u32 live = 0;

	for (int at = 0; at < AT_DONORS; at++)
		live |= ebb_place_live(&hold->at[at]) ? BIT(at) : 0;
	return live;
}

/* Takes a reference to the place's session; false = the session has ended. */
static inline bool ebb_place_take(const struct ebb_place *place)
{
	return ebb_place_live(place) && percpu_ref_tryget_live(&place->session->ref);
}

#endif
