/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The table of donors: its entries, and the part that outlives a server. */
#ifndef EBB_DONOR_TABLE_H
#define EBB_DONOR_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "alert.h"
#include "lib/base/error.h"
#include "lib/base/log_ring.h"
#include "lib/link/link.h"
#include "lib/rules/alterations.h"
#include "lib/wire/address.h"
#include "resolver.h"

#define MAX_DONORS 64

enum donor_state {
	DONOR_ABSENT,      /* the entry is free: the control thread may use it */
	DONOR_DOWN, DONOR_CONNECTING,
	DONOR_SECURING,    /* TLS handshake */
	DONOR_GREETING,    /* HELLO, and data connections if there are any */
	DONOR_UP,
	/* returned wrong pages, or altered data ended its connections; until it is trusted again */
	DONOR_QUARANTINED,
};

/* Reasons why a donor gets no slabs and its slabs migrate. */
enum donor_leaving {
	DONOR_DRAINING = 1, /* reported by the donor */
	DONOR_DRAINED = 2,  /* requested by the operator */
	DONOR_REMOVED = 4,  /* omitted by the operator; the entry is freed when it is empty */
	DONOR_SUSPECT = 8,  /* to be quarantined when it has no only replica */
};

/*
 * The session whose connection has ended, or that a predecessor had.  A donor with RESUME_WANTED is
 * away: its replicas are AWAY until it has confirmed them, or is lost.
 */
enum donor_resume {
	RESUME_NOTHING,
	RESUME_WANTED,   /* until all is confirmed */
	RESUME_REFUSED,  /* the donor has not retained it */
};

/* RELEASE ends a resumption: the donor frees what was not named. */
enum donor_release { RELEASE_UNSENT, RELEASE_SENT, RELEASE_ANSWERED };

#define DONOR_WHY 192

/*
 * Limits a donor's requests: each scans the slab table, and no I/O is served meanwhile.  Beyond 256
 * EVICTs and REVOKEDs a second EVICT and ACTIVITY get an answer without a scan, and REVOKED is
 * ignored unless slabs are mapped here.
 */
struct asks {
	uint32_t left;    /* EVICTs that it may send at once; an ACTIVITY counts as several */
	uint64_t at;      /* ns: time of .left */
	bool told;        /* its excess has been logged since it was last below the limit */
};

struct donors;

struct donor {
	struct donors *table;
	struct address address;  /* as configured, with the address it had then */
	struct link link;        /* link.at: the address of the present or last connection */
	/* Addresses of a name, in the order of attempts; used by the loop. */
	struct address places[RESOLVER_PLACES];
	uint8_t place_count;     /* 0 = not a name */
	uint8_t place;           /* the next one */
	uint64_t asked_name;     /* ns: lookup in flight since; 0 = none */
	uint16_t index;
	/* In HELLO.  Random: a donor that knew those of others could end their sessions. */
	uint64_t number;
	uint8_t state;           /* enum donor_state */
	uint8_t version;         /* of the protocol: proposed, then agreed */
	bool shared_key;         /* this connection offers the key that donors share */
	bool greeted;            /* has answered the last HELLO of this connection */
	bool explained;          /* the reason why it cannot be used has been logged */
	/* Lines in the log about it: left at .lines_at (ns), and omitted since the last one. */
	uint32_t lines_left, lines_omitted;
	uint64_t lines_at;
	struct asks asks;
	uint8_t rates[WIRE_SMALL]; /* reply to the ACTIVITY in flight */
	uint8_t leaving;         /* enum donor_leaving bits */
	bool unlisted;           /* gets no slabs and keeps those it has; freed once it has none */
	uint64_t stayed;         /* ns: last tick at which it was not leaving */
	uint32_t copies;         /* of slabs, MAPPED or MAPPING */
	uint32_t mapping;        /* unanswered MAPs (their copies are counted above) and REMAPs */
	uint32_t later;          /* of these MAPs, refused for now or not sent yet: to be sent */
	uint64_t mapping_since;  /* ns: none of them is older; while there are any */
	uint64_t since;          /* ns: start of the present state */
	uint64_t retry_at, backoff; /* ns */
	bool moves;              /* transfers ended since the last tick */
	uint64_t moved;          /* ns: last tick that found .moves set */
	uint64_t pinged;         /* ns: PING in flight since; 0 = none */
	uint64_t ping_at;        /* ns: next PING */
	uint64_t total, free;    /* bytes, as last reported */
	uint64_t room;           /* bytes that it could lend us: free, or to be allocated */
	uint32_t reserved;       /* slabs that it has promised, or lent; assumed below version 4 */
	uint64_t reserving;      /* ns: RESERVE in flight since; 0 = none */
	uint64_t reserve_at;     /* ns: no RESERVE before; it has promised less than was asked */
	uint64_t unbacked_since; /* ns: it cannot lend all that it has promised; 0 = it can */
	uint64_t short_since;    /* ns: first refusal of a promised slab; 0 = one was granted */
	/* ns: until then its promise is not relied on, after it refused or revoked a slab */
	uint64_t short_until;
	bool promises_nothing;   /* below version 4; has been logged */
	uint64_t memory, used;   /* bytes of its machine, as last reported; 0 = not reported */
	uint64_t latency;        /* ns: of recent reads; decays, so that it is measured again */
	/* ns: of the fastest recent small read; grows, so that it is measured again; 0 = none */
	uint64_t fastest;
	uint32_t large_pages;    /* in flight, of READs of more than DONOR_SMALL (engine.h) */
	uint64_t identity;       /* reported in HELLO; 0 = not reported */
	uint64_t grace;          /* ns: its session grace period; 0 = it does not tell */
	uint64_t away_since, away_until; /* ns: while it is away: from, and at most until */
	uint32_t accused;        /* .copies after it refused a READ or WRITE; 0 = it did not */
	uint32_t connects, losses, absences;
	uint64_t revoked;        /* replicas that it has ended */
	uint64_t told_revoked;   /* ns: the last of these that was logged; 0 = none */
	uint64_t bad_pages;      /* pages returned other than they were written */
	bool blamed;             /* for one of them, since the last flush */
	uint64_t altered;        /* connections that ended because data was altered on its way */
	struct alterations alterations; /* since it is trusted */
	struct alert alert;      /* awaited on the control connection before the present one */
	uint8_t resume;          /* enum donor_resume */
	uint32_t resume_at;      /* slabs before this one have been requested again */
	uint8_t release;         /* enum donor_release, of this connection */
	bool confirmed, put_off; /* REMAPs of this connection: one succeeded; one is repeated */
	uint64_t released_at;    /* ns: RELEASE_SENT since */
	uint64_t unmapped_since; /* ns: a predecessor's slab could not be mapped; 0 = all could */
	int unreachable;         /* -errno when this process cannot reach an only replica, else 0 */
	char why[DONOR_WHY];     /* of the last loss */
};

/* Part of a donor that outlives a server, at an equal index. */
struct donor_record {
	struct address address, at;
	uint64_t number, identity, grace; /* as in struct donor */
	uint32_t reserved;       /* as in struct donor */
	bool used;               /* written last */
	bool quarantined;
	uint8_t leaving;         /* enum donor_leaving bits */
	bool unlisted;           /* as in struct donor */
	/* For messages only; a server that dies while it writes may leave a torn cause. */
	uint32_t losses, absences;
	uint64_t bad_pages, altered;
	struct alterations alterations;
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
	uint64_t unprepared;     /* bit per record: those that this process cannot use */
	bool told_unprepared;    /* the first of these has been logged */
	struct resolver resolver;
	/* the device's */
	const char *device;
	uint64_t deadline;       /* ns */
	bool local_only;         /* pages are not sealed: no donor may be on another machine */
	bool backup;             /* there is a backup */
	int replicas;            /* of each slab */

	uint64_t jitter;         /* state of draw32() for back-offs */
	uint64_t awake_since;    /* ns: the last late tick; 0 = none */
	/* ns: how long, and until when, a failover waits for donors that are away */
	uint64_t resume_for, resume_until;
};

/* A request's tag: its kind in the top byte (1 for transfers, link.c), then its index. */
#define TAG_KIND 56
enum { TAG_COPY = 2, TAG_PING, TAG_HELLO, TAG_RELEASE, TAG_BYE, TAG_RESERVE };

/* "down", "away", ...; for any thread. */
const char *donor_state_text(const struct donor *d);

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

/* Returns the entry of @text or @a, or NULL. */
struct donor *donor_find(struct donors *ds, const char *text);
struct donor *donor_at(struct donors *ds, const struct address *a);
/* Connects to @d from now on; runs in the loop. */
void donor_enter(struct donor *d, uint64_t now);

/*
 * For a successor: donors_prepare() allocates its predecessor's entries, and returns 0 or -errno if
 * some of them could not be made: donors.unprepared.  donors_take_over() restores entries from the
 * records, not connected, in the loop's thread.
 */
int donors_prepare(struct donors *ds);
void donors_take_over(struct donors *ds, uint64_t now);
/* Record rarely changing state for a successor: of all donors; of @d. */
void donors_record(struct donors *ds);
void donor_record_one(const struct donor *d);

/* Returns whether a donor may be at @a: on another machine it must prove a key. */
bool donor_may_be_at(const struct donors *ds, const struct address *a);

void donor_set_state(struct donor *d, enum donor_state state, uint64_t now);

/* Loop thread only, from here on. */

/* Returns whether @d takes requests. */
static inline bool donor_up(const struct donor *d)
{
	return d->state == DONOR_UP;
}

#define DONOR_BACKOFF_FIRST 200000000ull /* ns */
#define DONOR_BACKOFF_MOST 5000000000ull
/* A link's queue has room for transfers, replies and this many MAPs and PINGs. */
#define DONOR_SEND_BESIDE 64

/* ns between attempts to resume a session: the first, and at most. */
#define RESUME_RETRY 50000000ull
#define RESUME_RETRY_MOST 500000000ull

/* Returns whether @d has replicas that it has yet to confirm. */
static inline bool donor_is_away(const struct donor *d)
{
	return d->resume == RESUME_WANTED;
}

/* Returns for how many ns @d has been away; 0 if that began after @now was read. */
static inline uint64_t donor_away_for(const struct donor *d, uint64_t now)
{
	return now > d->away_since ? now - d->away_since : 0;
}

/* Returns whether slabs may be placed at @d; RELEASE would end loans that are new. */
static inline bool donor_takes(const struct donor *d)
{
	return donor_up(d) && !d->leaving && !d->unlisted &&
	       (!donor_is_away(d) || d->release == RELEASE_ANSWERED);
}

/* Returns how many slabs @d has promised and not lent yet. */
static inline uint32_t donor_promised(const struct donor *d)
{
	return d->reserved > d->copies ? d->reserved - d->copies : 0;
}

/* Returns whether its queue has room for another MAP or PING. */
bool donor_has_room(const struct donor *d);

/* Bytes of a small read, which takes hardly longer than one of a page: a miss with readahead. */
#define DONOR_SMALL (32u << 10)

/*
 * Returns whether a line about what @d does may be logged.  The log is in memory, on tmpfs, and
 * a donor that comes and goes could fill it.
 */
bool donor_may_log(struct donor *d);

/* Counts the latency of a transfer of @d that has ended. */
void donor_count(struct donor *d, const struct transfer *t);

/*
 * Blames @d for returning other contents of @page of the device than were written.  Takes effect at
 * donors_flush(), as the caller may be handling a frame of @d.
 */
void donor_blame(struct donor *d, uint32_t page);

#endif
