/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The rate of page traffic: limited per payer, which is a key name or, without keys, an address.
 * READs and WRITEs beyond the rate wait unread, after a burst of RATE_BURST_NS; nothing is refused.
 * With keys they have connections of their own, so that no other request waits.  Pure functions
 * over plain structs; the loop's thread.
 */
#ifndef EBB_RATE_H
#define EBB_RATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "lib/wire/key.h"

#define RATE_BURST_NS 100000000ull
/*
 * Least rate, bytes a second.  A borrower loses a donor when a request takes 8 deadlines, 4 s by
 * default; the 32 MiB that a device can have in flight then take 2 s.
 */
#define RATE_LEAST (16u << 20)

struct payer {
	char key[KEY_NAME];           /* "" = without a key: .peer counts */
	struct sockaddr_storage peer; /* its port does not count */
	uint32_t users;               /* connections */
	uint64_t busy_until;          /* ns: end of its traffic so far, at the rate */
	uint64_t waits_since;         /* ns: some request waits; 0 = none */
	uint64_t waited;              /* ns: so far, without the present wait */
	uint64_t turn, moved;         /* bytes moved in that turn of the loop */
	uint64_t resumed;             /* last turn that began with its held requests */
};

/*
 * Returns the payer with @key or, if that is "", of @peer among the @n at @payers: a new one if
 * there is none.  There must be fewer users than payers.
 */
struct payer *payer_find(struct payer *payers, uint32_t n, const char *key,
			 const struct sockaddr_storage *peer, uint64_t now);

/* Returns ns until the payer may go on, 0 = now; with @rate 0 always 0. */
uint64_t payer_wait(const struct payer *p, uint64_t rate, uint64_t now);
/* A request waits.  payer_charge() or payer_leave() ends that. */
void payer_hold(struct payer *p, uint64_t now);
/* A request of @bytes goes on. */
void payer_charge(struct payer *p, uint64_t rate, uint64_t bytes, uint64_t now);
/* A connection ends. */
void payer_leave(struct payer *p, uint64_t now);
/* Returns for how many ns requests have waited. */
uint64_t payer_waited(const struct payer *p, uint64_t now);

/* Returns @buf with its key, or the address without a port. */
const char *payer_text(const struct payer *p, char *buf, size_t size);

/* Returns whether both have the same host address. */
bool rate_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

#endif
