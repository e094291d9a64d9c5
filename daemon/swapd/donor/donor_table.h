/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The table of donors: its entries, what a successor knows of them, what waits for them. */
#ifndef EBB_DONOR_TABLE_H
#define EBB_DONOR_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "lib/base/error.h"
#include "lib/link/tcp_link.h"
#include "lib/link/transport.h"
#include "lib/wire/address.h"
#include "lib/wire/stream.h"
#include "lib/wire/tls.h"
#include "resolver.h"
#include "swapd/io/request.h"

struct swapd;

enum donor_state {
	DONOR_ABSENT,      /* the entry is free: the control thread's, which may zero it */
	DONOR_DOWN, DONOR_CONNECTING,
	DONOR_SECURING,    /* the TLS handshake */
	DONOR_GREETING,    /* HELLO, and the data connection where there is one */
	DONOR_UP,
	DONOR_QUARANTINED, /* it gave back what was not written; until the operator trusts it again */
};

/* Why nothing is placed at a donor, and why what is there moves away. */
enum donor_leaving {
	DONOR_DRAINING = 1, /* it says so */
	DONOR_DRAINED = 2,  /* the operator says so */
	DONOR_REMOVED = 4,  /* it is no more on the list; its entry goes when it is empty */
	DONOR_SUSPECT = 8,  /* it is quarantined as soon as nothing is there that is nowhere else */
};

/* What a predecessor had there. */
enum donor_resume {
	RESUME_NOTHING,
	RESUME_WANTED,   /* from HELLO until RELEASE: its copies are AWAY */
	RESUME_REFUSED,  /* the donor has not kept it */
};

#define DONOR_WHY 192

/*
 * What a donor may ask: each question is a scan of the slab table, in which no request is
 * served.  A donor that follows HeadRoom or drains asks for 64 slabs and one ACTIVITY a
 * second at most; beyond four times that it is answered without a look.
 */
struct asks {
	uint32_t left;    /* EVICTs that it may ask at once; an ACTIVITY counts as several */
	uint64_t at;      /* ns: as of then */
	bool told;        /* that it asks too much, since it last was quiet */
};

struct donor {
	struct address address;  /* as it was named, and what that meant then */
	struct address at;       /* where its present or last connection goes */
	/* What a name means, in the order they are tried: the loop's. */
	struct address places[RESOLVER_PLACES];
	uint8_t place_count;     /* 0 = not a name */
	uint8_t place;           /* the next one */
	uint64_t asked_name;     /* ns: the resolver was asked; 0 = it was not */
	const struct transport *transport; /* as the address is */
	uint16_t index;
	uint8_t state;           /* enum donor_state */
	bool watched_for_write;  /* epoll interest in EPOLLOUT */
	int fd;
	struct stream_rx rx;
	struct stream_tx tx;
	uint32_t legs_queued;    /* frames of legs among those in tx */
	struct tls tls;          /* the control connection's, where it has one */
	struct data_link link[DATA_LINKS]; /* with TLS: where its pages go; link[i] is channel i + 1 */
	bool greeted;            /* it has answered HELLO, on this connection */
	bool explained;          /* why it cannot be talked to was told */
	struct asks asks;        /* of its that cost time */
	uint8_t small[WIRE_SMALL];    /* payloads that are not pages */
	uint8_t rates[WIRE_SMALL];    /* reply to the one ACTIVITY under way */
	/* by channel: 1 + number of the leg whose reply is arriving there; 0 = none */
	uint16_t arriving[1 + DATA_LINKS];
	struct leg_list waiting; /* legs that wait for a reply, oldest first */
	uint8_t leaving;         /* enum donor_leaving bits */
	uint64_t stayed;         /* ns: when it was last seen not leaving */
	uint32_t copies;         /* of slabs, MAPPED or MAPPING */
	uint32_t mapping;        /* of these, MAPPING */
	uint64_t since;          /* ns: start of the present state */
	uint64_t retry_at, backoff; /* ns */
	bool moves;              /* it has answered for pages since the last tick */
	uint64_t moved;          /* ns: the last tick at which it had */
	uint64_t pinged;         /* ns: PING under way since; 0 = none */
	uint64_t ping_at;        /* ns: next PING */
	uint64_t total, free;    /* bytes, as last told */
	uint64_t room;           /* bytes it could lend us: free, and what it would make first */
	uint64_t memory, used;   /* bytes of its machine, as last told; 0 = not told */
	uint64_t latency;        /* ns: of recent reads; fades, so that it is looked at again */
	uint64_t slab_size;      /* bytes, of this connection; ours are not larger */
	uint64_t identity;       /* the donor's, as told at the greeting; 0 = not told */
	uint32_t connects, losses;
	uint64_t bad_pages;      /* it gave back other than they were written */
	bool blamed;             /* for one of them, since the last flush */
	uint8_t resume;          /* enum donor_resume */
	uint32_t resume_at;      /* slabs before this one are asked for */
	uint64_t unmapped_since; /* ns: a slab of a predecessor's could not be mapped; 0 = all could */
	int unreachable;         /* -errno of what is there, nowhere else, and not in our reach */
	char why[DONOR_WHY];     /* it was lost */
};

/* A request's tag: what it asks for in the top byte; the rest tells which. */
#define TAG_KIND 56
enum { TAG_LEG = 1, TAG_COPY, TAG_PING, TAG_HELLO, TAG_RELEASE, TAG_BYE };

/* "down", "connecting", ... */
const char *donor_state_text(uint8_t state);

/*
 * Makes the entry for the donor at @text and returns its index; it is ABSENT until
 * donor_enter().  -EEXIST when there is one with the same address.  The error names
 * the address, the cause and what to do.
 */
int donor_new(struct swapd *s, const char *text, struct error *e);
/*
 * The same in steps, so that several come or none: whether there may be one at @text,
 * and what that means; as many free entries as are wanted; one of these, which
 * cannot fail.
 */
int donor_check(const struct swapd *s, const char *text, struct address *a, struct error *e);
int donors_reserve(struct swapd *s, int n, struct error *e);
int donor_make(struct swapd *s, const struct address *a);

/* The entry at @text, or at @a, or NULL. */
struct donor *donor_find(struct swapd *s, const char *text);
struct donor *donor_at(struct swapd *s, const struct address *a);
/* The loop's: it is connected to from now on. */
void donor_enter(struct donor *d, uint64_t now);

/*
 * For a successor: donors_prepare() makes the entries that its predecessor has by now,
 * which it needs memory for; donors_take_over(), by the loop thread, has them be what
 * the predecessor's were, not connected.
 */
void donors_prepare(struct swapd *s);
void donors_take_over(struct swapd *s, uint64_t now);
/* Writes down for a successor what changes seldom: of all; of @d. */
void donors_record(struct swapd *s);
void donor_record_one(struct swapd *s, const struct donor *d);

/* Whether a donor may be at @a: on another machine it proves itself by a key. */
bool donor_may_be_at(const struct swapd *s, const struct address *a);

void donor_set_state(struct donor *d, enum donor_state state, uint64_t now);
/* Frees the data connections' buffers of @d. */
void donor_free_links(struct swapd *s, struct donor *d);

/* The rest is the loop thread's. */

/* Whether @d takes requests. */
static inline bool donor_up(const struct donor *d)
{
	return d->state == DONOR_UP;
}

#define DONOR_BACKOFF_FIRST 200000000ull /* ns */
#define DONOR_BACKOFF_MOST 5000000000ull
/* Legs of every slot and replies to the donor always have room; MAPs and a PING beside them. */
#define DONOR_SEND_BESIDE 64
#define DONOR_SEND_QUEUE (SLOT_COUNT + WIRE_ASKED + DONOR_SEND_BESIDE)

/* ns between two tries to reach what a predecessor had. */
#define RESUME_RETRY 50000000ull

/* Whether slabs may be placed at @d. */
static inline bool donor_takes(const struct donor *d)
{
	return donor_up(d) && !d->leaving;
}

/* Room in its queue for a frame beside legs and replies, for which there always is. */
bool donor_has_room(const struct donor *d);

/*
 * For transports: makes @leg of @slot wait for a reply of @d, under its deadline.
 * What answers it carries donor_leg_tag(); donor_answered() takes it off the list.
 */
void donor_wait(struct swapd *s, struct donor *d, struct slot *slot, int leg);
uint64_t donor_leg_tag(const struct swapd *s, const struct slot *slot, int leg);
void donor_answered(struct swapd *s, struct donor *d, int number);
/* A read of @d's took so many ns. */
void donor_count_latency(struct swapd *s, struct donor *d, uint64_t ns);

/*
 * What epoll knows a donor's descriptor by.  Channel 0 is the control connection; what
 * the others are, the transport says.
 */
static inline uint64_t donor_key(const struct donor *d, uint32_t channel)
{
	return (uint64_t)channel << 32 | d->index;
}

/*
 * @d gave back, for @page of the device, what was not written there.  Takes effect
 * at donors_flush(): whoever finds it may be in the midst of its frames.
 */
void donor_blame(struct donor *d, uint32_t page);

#endif
