/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The protocol of wire.h over RDMA: pages are read and written by the borrower
 * alone, in memory whose address and key it gets with a MAP's reply.  There are two
 * kinds.
 *
 * A process (ebb-swapd) has its control connection as over TCP, TLS included; HELLO
 * says WIRE_RDMA, and pages go by one queue pair, whose request has a JOIN in its
 * private data.
 *
 * A kernel-module borrower (kmod-swap) uses RDMA alone.  Its session is 1 to WIRE_RDMA_QUEUES
 * connections (queue pairs).  The private data of each request names the session and the
 * connection and proves a key (wire_proof.h); a MAC follows each frame.  A request without a key,
 * as below, is recognised and refused.  Connection 0 carries frames, one in each SEND: HELLO, MAP,
 * UNMAP, PING, REMAP, RELEASE, BYE, and the donor's EVICT.  A reply to MAP or REMAP is followed in
 * its message by a grant.  A session ends with its first connection that ends.  With WIRE_KEEP its
 * borrower can resume it by another session, else the donor invalidates the keys, and zeroes the
 * memory before it lends it again.
 */
#ifndef EBB_WIRE_RDMA_H
#define EBB_WIRE_RDMA_H

#include <errno.h>

#include "lib/base/bytes.h"
#include "wire.h"

#define WIRE_RDMA_MAGIC 0x52424245u /* "EBBR" as bytes */
#define WIRE_RDMA_VERSION 1u
#define WIRE_RDMA_QUEUES 16u
/* Bytes of the largest message: header, payload of HELLO's reply or a grant. */
#define WIRE_RDMA_MESSAGE 128u
/*
 * The largest number of unanswered requests of a module.  The donor posts twice as many receives:
 * requests whose replies have just left may still occupy theirs.
 */
#define WIRE_RDMA_REQUESTS 12u

/* Private data of a connection request. */
struct wire_rdma_open {
	uint32_t queue;   /* which connection of the session */
	uint32_t queues;  /* number of connections of the session */
	uint64_t session;
};
#define WIRE_RDMA_OPEN_SIZE 24u

struct wire_rdma_grant {
	uint64_t address;
	uint64_t length; /* bytes */
	uint32_t key;
};

/* 0 magic, 4 version, 8 queue, 12 queues, 16 session. */
static inline void wire_build_rdma_open(uint8_t *buf, const struct wire_rdma_open *o)
{
	put32(buf, WIRE_RDMA_MAGIC);
	put32(buf + 4, WIRE_RDMA_VERSION);
	put32(buf + 8, o->queue);
	put32(buf + 12, o->queues);
	put64(buf + 16, o->session);
}

/* Returns 0 or -EPROTO.  Private data arrives padded with zeros. */
static inline int wire_parse_rdma_open(const uint8_t *buf, size_t len, struct wire_rdma_open *o)
{
	if (len < WIRE_RDMA_OPEN_SIZE || get32(buf) != WIRE_RDMA_MAGIC ||
	    get32(buf + 4) != WIRE_RDMA_VERSION)
		return -EPROTO;
	o->queue = get32(buf + 8);
	o->queues = get32(buf + 12);
	o->session = get64(buf + 16);
	if (!o->queues || o->queues > WIRE_RDMA_QUEUES || o->queue >= o->queues)
		return -EPROTO;
	return 0;
}

/*
 * Private data of a process's connection request: 0 magic, 4 version, 8 the payload of
 * JOIN.  It is all that there is room for.
 */
#define WIRE_RDMA_JOIN_MAGIC 0x4a424245u /* "EBBJ" as bytes */
#define WIRE_RDMA_JOIN_SIZE (8u + WIRE_JOIN_SIZE)
_Static_assert(WIRE_RDMA_JOIN_SIZE <= 56, "what the connection manager carries");

static inline void wire_build_rdma_join(uint8_t buf[static WIRE_RDMA_JOIN_SIZE],
					const struct wire_join *j)
{
	put32(buf, WIRE_RDMA_JOIN_MAGIC);
	put32(buf + 4, WIRE_RDMA_VERSION);
	wire_build_join(buf + 8, j);
}

/* Returns 0 or -EPROTO. */
static inline int wire_parse_rdma_join(const uint8_t *buf, size_t len, struct wire_join *j)
{
	if (len < WIRE_RDMA_JOIN_SIZE || get32(buf) != WIRE_RDMA_JOIN_MAGIC ||
	    get32(buf + 4) != WIRE_RDMA_VERSION)
		return -EPROTO;
	return wire_parse_join(buf + 8, WIRE_JOIN_SIZE, j);
}

/* 0 address, 8 length, 16 key, 20 reserved. */
static inline void wire_build_rdma_grant(uint8_t *buf, const struct wire_rdma_grant *g)
{
	put64(buf, g->address);
	put64(buf + 8, g->length);
	put32(buf + 16, g->key);
	put32(buf + 20, 0);
}

static inline int wire_parse_rdma_grant(const uint8_t *buf, size_t len, struct wire_rdma_grant *g)
{
	if (len != WIRE_RDMA_GRANT_SIZE || get32(buf + 20))
		return -EPROTO;
	g->address = get64(buf);
	g->length = get64(buf + 8);
	g->key = get32(buf + 16);
	return 0;
}

#endif
