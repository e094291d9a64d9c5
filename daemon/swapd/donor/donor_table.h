/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The table of donors: its entries, and what of them outlives a server. */
#ifndef EBB_DONOR_TABLE_H
#define EBB_DONOR_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "lib/base/error.h"
#include "lib/base/log_ring.h"
#include "lib/link/link.h"
#include "lib/wire/address.h"
#include "resolver.h"

#define MAX_DONORS 64

enum donor_state {
	DONOR_ABSENT,      /* the entry is free: the control thread may use it */
	DONOR_DOWN, DONOR_CONNECTING,
	DONOR_SECURING,    /* TLS handshake */
	DONOR_GREETING,    /* HELLO, and data connections if there are any */
	DONOR_UP,
	DONOR_QUARANTINED, /* it returned a wrong page; until the operator releases it */
};

/* Why a donor gets no slabs, and why its slabs migrate. */
enum donor_leaving {
	DONOR_DRAINING = 1, /* the donor says so */
	DONOR_DRAINED = 2,  /* the operator says so */
	DONOR_REMOVED = 4,  /* not on the list any more; the entry is freed when it is empty */
	DONOR_SUSPECT = 8,  /* to be quarantined when it has no only replica */
};

/* What a predecessor had at a donor. */
enum donor_resume {
	RESUME_NOTHING,
	RESUME_WANTED,   /* from HELLO to RELEASE: its replicas are AWAY */
	RESUME_REFUSED,  /* the donor has not retained it */
};

#define DONOR_WHY 192

/*
 * Limit of what a donor may ask: each question scans the slab table, and no request is served
 * meanwhile.  A donor that follows HeadRoom or drains asks for 64 slabs and one ACTIVITY a second
 * at most; beyond four times that it gets an answer without a scan.
 */
struct asks {
	uint32_t left;    /* EVICTs that it may ask at once; an ACTIVITY counts as several */
	uint64_t at;      /* ns: as of then */
	bool told;        /* the log says that it asks too often, since it last was quiet */
};

struct donors;

struct donor {
	struct donors *table;
	struct address address;  /* as configured, and what that meant then */
	struct link link;        /* link.at: the address of the present or last connection */
	/* Addresses of a name, in the order in which they are tried: the loop's. */
	struct address places[RESOLVER_PLACES];
	uint8_t place_count;     /* 0 = not a name */
	uint8_t place;           /* the next one */
	uint64_t asked_name;     /* ns: lookup in flight since; 0 = none */
	uint16_t index;
	uint8_t state;           /* enum donor_state */
	bool greeted;            /* it has answered HELLO on this connection */
	bool explained;          /* the log says why it cannot be used */
	struct asks asks;
	uint8_t rates[WIRE_SMALL]; /* reply to the ACTIVITY in flight */
	uint8_t leaving;         /* enum donor_leaving bits */
	uint64_t stayed;         /* ns: last tick at which it was not leaving */
	uint32_t copies;         /* of slabs, MAPPED or MAPPING */
	uint32_t mapping;        /* of these, MAPPING */
	uint64_t since;          /* ns: start of the present state */
	uint64_t retry_at, backoff; /* ns */
	bool moves;              /* transfers ended since the last tick */
	uint64_t moved;          /* ns: last tick at which they had */
	uint64_t pinged;         /* ns: PING in flight since; 0 = none */
	uint64_t ping_at;        /* ns: next PING */
	uint64_t total, free;    /* bytes, as last reported */
	uint64_t room;           /* bytes it could lend us: free, and what it would allocate */
	uint64_t memory, used;   /* bytes of its machine, as last reported; 0 = not reported */
	uint64_t latency;        /* ns: of recent reads; decays, so that it is measured again */
	uint64_t identity;       /* reported in HELLO; 0 = not reported */
	uint32_t connects, losses;
	uint64_t bad_pages;      /* pages returned other than they were written */
	bool blamed;             /* for one of them, since the last flush */
	uint8_t resume;          /* enum donor_resume */
	uint32_t resume_at;      /* slabs before this one have been requested */
	uint64_t unmapped_since; /* ns: a predecessor's slab could not be mapped; 0 = all could */
	int unreachable;         /* -errno: an only replica that this process cannot reach */
	char why[DONOR_WHY];     /* of the last loss */
};

/* What of a donor outlives a server, at the same index. */
struct donor_record {
	struct address address, at;
	uint64_t identity;       /* struct donor's */
	bool used;               /* written last */
	bool quarantined;
	uint8_t leaving;         /* enum donor_leaving bits */
	/* For people alone; a server that dies while it writes leaves a part of each cause. */
	uint32_t losses;
	uint64_t bad_pages;
	char why[DONOR_WHY];
};

struct donors {
	struct donor donor[MAX_DONORS];
	int count;
	struct transport_env env;
	const struct donor_ops *ops;       /* of all links; the owner is a struct donor */
	const struct donor_events *events; /* session.h */
	void *owner;             /* of the events */
	struct notes *notes;
	struct counters *counters;
	struct donor_record *records; /* MAX_DONORS, in shared memory */
	struct resolver resolver;
	/* the device's */
	const char *device;
	uint64_t deadline;       /* ns */
	uint64_t borrower;       /* random, for HELLO */
	bool local_only;         /* pages are not sealed: no donor may be on another machine */
	bool backup;             /* there is one */
	int replicas;            /* of each slab */

	uint64_t jitter;         /* state of draw32(): of the back-offs */
	uint64_t awake_since;    /* ns: the last tick that was late; 0 = none was */
	/* ns: how long, and until when, donors are retried before a failover gives up on them */
	uint64_t resume_for, resume_until;
};

/* Tag of a request: its kind in the top byte, 1 for transfers (link.c); then which one. */
#define TAG_KIND 56
enum { TAG_COPY = 2, TAG_PING, TAG_HELLO, TAG_RELEASE, TAG_BYE };

/* "down", "connecting", ... */
const char *donor_state_text(uint8_t state);

/*
 * Makes the entry for the donor at @text and returns its index; it is ABSENT until
 * donor_enter().  -EEXIST when another entry has the address.  The error names the address, the
 * cause and the remedy.
 */
int donor_new(struct donors *ds, const char *text, struct error *e);
/*
 * donor_new() in steps, so that several entries are made or none: checks @text and resolves it;
 * reserves @n free entries; makes one of these, which cannot fail.
 */
int donor_check(const struct donors *ds, const char *text, struct address *a, struct error *e);
int donors_reserve(struct donors *ds, int n, struct error *e);
int donor_make(struct donors *ds, const struct address *a);

/* The entry at @text, or at @a, or NULL. */
struct donor *donor_find(struct donors *ds, const char *text);
struct donor *donor_at(struct donors *ds, const struct address *a);
/* The loop's: connects to @d from now on. */
void donor_enter(struct donor *d, uint64_t now);

/*
 * For a successor: donors_prepare() allocates its predecessor's entries; donors_take_over(), by
 * the loop thread, restores them from the records, not connected.
 */
void donors_prepare(struct donors *ds);
void donors_take_over(struct donors *ds, uint64_t now);
/* Records for a successor what changes seldom: of all; of @d. */
void donors_record(struct donors *ds);
void donor_record_one(const struct donor *d);

/* Whether a donor may be at @a: a donor on another machine must prove a key. */
bool donor_may_be_at(const struct donors *ds, const struct address *a);

void donor_set_state(struct donor *d, enum donor_state state, uint64_t now);

/* The rest is the loop thread's. */

/* Whether @d takes requests. */
static inline bool donor_up(const struct donor *d)
{
	return d->state == DONOR_UP;
}

#define DONOR_BACKOFF_FIRST 200000000ull /* ns */
#define DONOR_BACKOFF_MOST 5000000000ull
/* A link's queue always has room for transfers and replies, and for so many MAPs and PINGs. */
#define DONOR_SEND_BESIDE 64

/* ns between two attempts to reach what a predecessor had. */
#define RESUME_RETRY 50000000ull

/* Whether slabs may be placed at @d. */
static inline bool donor_takes(const struct donor *d)
{
	return donor_up(d) && !d->leaving;
}

/* Whether its queue has room for another MAP or PING. */
bool donor_has_room(const struct donor *d);

/* A transfer of @d has ended: counts its latency. */
void donor_count(struct donor *d, const struct transfer *t);

/*
 * @d returned, for @page of the device, what was not written there.  Takes effect at
 * donors_flush(), as the caller may be handling a frame of @d.
 */
void donor_blame(struct donor *d, uint32_t page);

#endif
