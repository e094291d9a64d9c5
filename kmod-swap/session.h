/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A session: connections to one donor, one queue pair per hardware queue of the device.  The first
 * also carries frames (wire.h).  state.h has its states.
 *
 * AWAY: the donor retains the slabs for the grace period that it stated (donors of protocol 3 state
 * none: FAILED instead).  The places stay, but nothing is read or written there.  Its pages stay
 * valid, except those of writes that failed or went elsewhere: such a write clears their bits when
 * it settles, and holds off readers and the copier until then (span.h).  The work item `close`
 *
 *	1. flushes and destroys the connections, so that no work request names a page;
 *	2. connects again, as a session of its own for the donor, with fresh proofs;
 *	3. names the old session in HELLO with RESUME.  Before the answer the donor destroys the
 *	   old queue pairs: a WRITE of these lands before it or never;
 *	4. confirms each slab's loan by REMAP, which returns its new address and key; several
 *	   are on their way at once.  The slab loses the place if the donor does not have the
 *	   loan;
 *	5. releases all other loans by RELEASE, and makes the session LIVE.  UNMAP ends a loan that
 *	   the slab has lost since its REMAP.
 *
 * If a step fails, it begins again at 2.
 */
#ifndef EBB_SESSION_H
#define EBB_SESSION_H

#include <linux/completion.h>
#include <linux/percpu-refcount.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "device.h"
#include "proof.h"
#include "state.h"
#include "wire_rdma.h"

#define EBB_FRAME 128 /* bytes; longer than any frame */
#define EBB_RECALLS WIRE_EVICTS
#define EBB_RECALLS_A_SECOND 256 /* EVICTs beyond these are refused without looking for the slab */
#define EBB_REQUESTS WIRE_RDMA_REQUESTS /* most of a call */
#define EBB_RECEIVES (EBB_RECALLS + EBB_REQUESTS + 1)

struct ebb_queue {
	struct ebb_session *session;
	struct rdma_cm_id *id;
	struct ib_cq *cq;
	atomic_t transfers;       /* in flight */
	struct completion cm;
	int cm_status;
	const char *refused;      /* the donor's reason for a rejection; else NULL */
	bool established;         /* by the connection manager, */
	bool connected;           /* and known to ebb_session_open() */
	struct ebb_join join;
};

/* A slab that the donor lends, from its MAP to its UNMAP. */
struct ebb_loan {
	struct list_head node;    /* in session->loans or releasing, or it is session->loan */
	u32 remote, generation;   /* the donor's identifiers of the slab */
	bool confirmed;           /* when the session was resumed last; session->lock */
	bool gone;                /* released when the session was resumed; session->lock */
};

/* An EVICT. */
struct ebb_recall {
	u64 tag;
	u32 remote, generation;
};

struct ebb_message {
	struct ib_cqe cqe;
	u64 dma;
	u8 *data;                 /* EBB_FRAME bytes */
};

/* Takes a frame of @length bytes at @data; false = it has ended the session. */
typedef bool ebb_take_fn(struct ebb_session *s, const struct wire_frame *f, const u8 *data,
			 u32 length);

/* A call of several requests. */
struct ebb_requests {
	u8 op;
	u32 count;                /* up to EBB_REQUESTS */
	/* Fills in the rest of request @i, which has no payload. */
	void (*request)(const struct ebb_requests *b, u32 i, struct wire_frame *f);
	/* Takes the reply to it, with what is behind its header; session->lock is held. */
	void (*replied)(struct ebb_requests *b, u32 i, const struct wire_frame *f,
			const u8 *data, u32 length);
};

/* Callbacks of a session, from process context. */
struct ebb_session_ops {
	/* Failed, about to be closed: nothing may be read from its donor any more. */
	void (*failed)(struct ebb_session *s);
	/* Away: no transfer is in flight, and none begins before back(). */
	void (*away)(struct ebb_session *s);
	/* Confirms the slabs by ebb_session_confirm(); returns 0 or -errno: try again. */
	int (*resume)(struct ebb_session *s);
	/* Live again. */
	void (*back)(struct ebb_session *s);
	/* No transfer of the session is in flight any more. */
	void (*drained)(struct ebb_session *s);
	/* Closed, for s->reason. */
	void (*closed)(struct ebb_session *s);
	/* Returns the wire_status that answers the recall. */
	u16 (*recalled)(struct ebb_session *s, const struct ebb_recall *recall);
};

struct ebb_session {
	struct list_head node;    /* in device->sessions */
	struct ebb_device *device;
	const struct ebb_session_ops *ops;
	u32 index;
	struct ebb_state life;    /* lock; of it */
	atomic_t state;           /* life.now, for readers without the lock */
	u32 cause;                /* enum ebb_swap_cause, */
	const char *reason;       /* and static text, of its end or absence */
	u32 grace;                /* ms that the donor retains it; 0 = it cannot be resumed */
	unsigned long away_at;    /* jiffies: begin of its last absence */
	unsigned long back_at;    /* jiffies: its last resumption */
	bool resuming;            /* away, connecting */
	struct sockaddr_storage to;
	struct percpu_ref ref;    /* held by transfers in flight, and while they are posted */
	struct completion idle, closed;
	struct delayed_work close; /* suspends, resumes, ends */
	struct delayed_work keepalive;
	struct ib_cqe probe;
	bool probing;             /* a probe is in flight, */
	unsigned long probed_at;  /* since this time (jiffies) */
	struct ib_device *ib;
	struct ib_pd *pd;
	u32 write_segments, read_segments; /* most of a work request */
	u64 id;                   /* random; identifies the session to the donor, */
	u64 number;               /* and its present connections */
	struct ebb_proof proof;   /* received: only queue 0's completions use it */
	struct mutex sending;     /* frames are sent in the order of their MACs; nests in calls */
	u32 class;                /* class of pages that its donor may store */
	u64 donor_free, donor_slab; /* bytes */
	struct ebb_message send[EBB_REQUESTS], answer, receive[EBB_RECEIVES];
	ebb_take_fn *take;        /* gets each frame that is received */
	/* Interrupts off; changes of state, recalls, the call's state, lists of loans. */
	spinlock_t lock;
	struct ebb_recall recall[EBB_RECALLS]; /* unanswered, */
	u32 recalls;              /* as many */
	u32 looked;               /* recalls whose slab was looked for */
	unsigned long looked_since; /* since this time (jiffies) */
	struct work_struct answering;
	struct completion answered;
	bool draining;            /* its donor gets no new slabs; device->control */
	atomic_t bad_pages;       /* that its donor returned: if any, it gets no new slabs either */
	struct list_head loans;   /* in use, or of an ended session */
	struct list_head releasing; /* to be unmapped, by */
	struct work_struct release;
	struct mutex calls;       /* one call at a time, of one or more requests: */
	struct completion replied; /* once for each reply */
	/* LATE: failed by the deadline.  The donor gets no other call until it has answered. */
	enum { CALL_NONE, CALL_WAITED, CALL_LATE } call;
	u64 tag;                  /* of the first request; those of the others follow */
	u32 unanswered;           /* requests, BIT(their number); 0 = CALL_NONE */
	u8 op;
	struct ebb_requests *batch; /* gets the replies; NULL = they go to reply[] */
	struct ebb_loan *loan;    /* of a late MAP or UNMAP */
	u8 reply[EBB_FRAME];
	u32 reply_length;
	struct ebb_queue queue[];
};

/* Runs the suspension and close of sessions, recalls, releases and probes. */
extern struct workqueue_struct *ebb_closing;

/* Called when the module is loaded and unloaded. */
int ebb_session_init(void);
void ebb_session_exit(void);

/*
 * Applies @event, starts the work item if that follows, and returns enum ebb_todo bits.  s->lock is
 * held.
 */
u32 ebb_session_step(struct ebb_session *s, enum ebb_event event);
/* As above, without the lock. */
u32 ebb_session_happens(struct ebb_session *s, enum ebb_event event);
/*
 * Ends the session for @reason (static text), or suspends it if @cause is the transport's and the
 * donor retains it; from any context.  Only the first call counts.
 */
void ebb_session_fail(struct ebb_session *s, enum ebb_swap_cause cause, const char *reason);
/* As above, for a work request that failed with @status. */
void ebb_session_fail_wc(struct ebb_session *s, enum ib_wc_status status);

/* Returns whether the donor returned a page other than the one written. */
static inline bool ebb_session_suspect(const struct ebb_session *s)
{
	return atomic_read(&s->bad_pages);
}

static inline bool ebb_session_live(const struct ebb_session *s)
{
	/* Acquire: a reader that sees LIVE also sees the connections of its resumption. */
	return atomic_read_acquire(&s->state) == EBB_SWAP_LIVE;
}

/* Not live, and never again: its pages are lost. */
static inline bool ebb_session_ended(const struct ebb_session *s)
{
	int state = atomic_read(&s->state);

	return state == EBB_SWAP_FAILED || state == EBB_SWAP_CLOSED;
}

/* The slab's lock is held, also for the functions below. */
static inline bool ebb_place_live(const struct ebb_place *place)
{
	return place->session && ebb_session_live(place->session);
}

static inline bool ebb_place_away(const struct ebb_place *place)
{
	return place->session && atomic_read(&place->session->state) == EBB_SWAP_AWAY;
}

/* Returns the places whose session is away, as BIT(enum ebb_at). */
static inline u32 ebb_hold_away(const struct ebb_hold *hold)
{
	u32 away = 0;

	for (int at = 0; at < AT_DONORS; at++)
		away |= ebb_place_away(&hold->at[at]) ? BIT(at) : 0;
	return away;
}

/* Returns the places whose session is live, as BIT(enum ebb_at). */
static inline u32 ebb_hold_live(const struct ebb_hold *hold)
{
	u32 live = 0;

	for (int at = 0; at < AT_DONORS; at++)
		live |= ebb_place_live(&hold->at[at]) ? BIT(at) : 0;
	return live;
}

/* Takes a reference to the place's session; false = the session is not live. */
static inline bool ebb_place_take(const struct ebb_place *place)
{
	return ebb_place_live(place) && percpu_ref_tryget_live(&place->session->ref);
}

#endif
