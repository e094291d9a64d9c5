/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The protocol between borrower and donor; docs/protocol.md describes it.
 *
 * A connection carries frames both ways.  A frame is a header of WIRE_HEADER bytes, little-endian,
 * and, for some opcodes, a payload of at most WIRE_MAX_PAYLOAD bytes.  Each side sends its own
 * requests, which may be pipelined.  A reply carries the tag of its request; replies may overtake
 * one another.
 *
 * Everything here is a pure function over a buffer: no allocation, no I/O.
 */
#ifndef EBB_WIRE_H
#define EBB_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC 0x31424245u /* "EBB1" as bytes */
/*
 * A borrower sends its HELLO with the newest version that it speaks and, while the donor answers
 * WIRE_BAD_VERSION, with the next older one.  The donor replies in the version of that HELLO.
 */
#define WIRE_VERSION 4u
#define WIRE_VERSION_OLDEST 3u
#define WIRE_HEADER 32u
#define WIRE_PAGE 4096u
#define WIRE_MAX_PAYLOAD (1u << 20)
#define WIRE_MAX_SLAB (1ull << 30) /* offsets are 32 bits wide */
#define WIRE_MIN_SLAB (1ull << 20)
#define WIRE_NAME 24
#define WIRE_SMALL 1024u /* limit of payloads that are not pages, bytes */
/*
 * Limit of a donor's unanswered EVICTs on a connection; it may also have one ACTIVITY unanswered.
 * A borrower keeps room for the replies, so that neither side waits for the other to read.
 */
#define WIRE_EVICTS 16u
#define WIRE_ASKED (WIRE_EVICTS + 1)

enum wire_op {
	WIRE_HELLO = 1, /* first frame each way */
	WIRE_MAP,       /* requests a slab; the reply names it and its generation */
	WIRE_UNMAP,     /* releases a slab; it is zeroed before it is lent again */
	WIRE_READ,
	WIRE_WRITE,
	WIRE_PING,      /* memory total and free, for placement and liveness */
	WIRE_ACTIVITY,  /* the donor requests the activity of slabs */
	WIRE_EVICT,     /* the donor recalls a slab; UNMAP follows when it is empty */
	WIRE_JOIN,      /* first frame of a data connection */
	WIRE_REMAP,     /* claims a slab of the session that HELLO has resumed */
	WIRE_RELEASE,   /* ... and releases all slabs not claimed */
	WIRE_BYE,       /* no reconnection follows: all loans end with this connection */
	WIRE_REVOKED,   /* version 4: the donor has ended a loan; without reply */
	WIRE_RESERVE,   /* how many slabs the donor is to promise; version 4 */
	WIRE_UNBACKED,  /* the slab is BACKED no more; version 4 */
	WIRE_OPS
};

enum wire_status {
	WIRE_OK = 0,
	WIRE_BAD_VERSION,   /* HELLO: no version in common */
	WIRE_BAD_SLAB_SIZE, /* HELLO: the borrower's slabs are larger than the donor's */
	WIRE_NOT_GREETED,   /* anything before HELLO, or a second HELLO */
	WIRE_BAD_CLASS,	    /* MAP: class not served */
	WIRE_NO_SPACE,	    /* MAP: no free slab */
	WIRE_NO_SLAB,	    /* the connection does not have the slab */
	WIRE_STALE,	    /* the generation of the slab differs */
	WIRE_BAD_RANGE,	    /* beyond the end of the slab */
	WIRE_NO_ROOM,	    /* EVICT: its pages cannot go elsewhere now */
	WIRE_NO_SESSION, /* JOIN: unknown or used session; HELLO: nothing to resume */
	WIRE_BAD_MAC,	 /* JOIN: not made with the session's key */
	WIRE_NOT_HERE,	 /* served on the session's other kind of connection */
	WIRE_OVER_QUOTA, /* MAP: the borrower's quota is used up */
	WIRE_NO_KEY,	 /* HELLO: this donor requires TLS with a key */
	WIRE_NO_RDMA,	 /* HELLO: this donor does not lend by RDMA on such a connection */
	WIRE_ALTERED,	 /* JOIN: ends a data connection on which a MAC is wrong; version 4 */
	WIRE_STATUSES
};

/* Operations of far memory (wire_far.h), on connections whose HELLO has WIRE_FAR. */
enum wire_far_op {
	WIRE_FAR_POOL = 32, /* creates, opens or destroys a pool */
	WIRE_FAR_LIST,      /* pools of the connection's key */
	WIRE_FAR_ARENA,     /* asks for an arena, or for one more; over a unix socket, maps it */
	WIRE_FAR_READ,      /* 1 to WIRE_FAR_MOST bytes; the request has no payload */
	WIRE_FAR_WRITE,
	WIRE_FAR_CAS,       /* compare-and-swap of words, in their order */
	WIRE_FAR_ADD,       /* adds to a word */
	WIRE_FAR_NOTIFY,    /* sends a word to another member */
	WIRE_FAR_DEAD,      /* ends another member without its grace period */
	WIRE_FAR_NOTIFIED,  /* the donor passes a word on; without reply */
	WIRE_FAR_OPS
};

/* Operations of jobs (wire_job.h), on connections whose HELLO has WIRE_FAR and WIRE_JOBS. */
enum wire_job_op {
	WIRE_JOB_HEAP = 48, /* describes a heap and its types */
	WIRE_JOB_PLACE,     /* where regions of the heap are */
	WIRE_JOB_BEGIN,     /* of a cycle */
	WIRE_JOB_TRACE,     /* marks objects, and traces for one turn */
	WIRE_JOB_END,       /* of a cycle */
	WIRE_JOB_EVACUATE,  /* copies the objects of regions that live */
	WIRE_JOB_OPS
};

/* Statuses on such connections, besides those of enum wire_status. */
enum wire_far_status {
	WIRE_NO_FAR = 32,   /* HELLO: this donor has no far memory */
	WIRE_NO_POOL,       /* no pool of that name belongs to the key, or none is open */
	WIRE_POOL_EXISTS,
	WIRE_POOL_IN_USE,   /* destroy: it has members */
	WIRE_OTHER_DOMAIN,  /* open: words of the pool are not atomic for this transport */
	WIRE_NO_MEMBER,     /* open: all numbers are in use; else no such member */
	WIRE_MISALIGNED,    /* a word is not at a multiple of 8 */
	WIRE_NOT_OWNER,     /* not the member's extent, or not a change that it may make */
	WIRE_FAR_STATUSES
};

/* Statuses on connections with WIRE_JOBS, besides those. */
enum wire_job_status {
	WIRE_NO_JOBS = 48,   /* HELLO: this donor runs no jobs */
	WIRE_NO_HEAP,        /* HEAP comes first, and describes one heap */
	WIRE_BAD_LAYOUT,     /* HEAP: not a layout, or another one than before */
	WIRE_BAD_REGION,     /* no such region, slot or granule here, or a place that is none */
	WIRE_OLD_VERSION,    /* the region has another version */
	WIRE_OLD_CYCLE,      /* not the cycle, or not the batch, that is next */
	WIRE_CYCLE_RUNS,     /* END: not all is traced; EVACUATE: a cycle has not ended */
	WIRE_JOB_STATUSES
};

enum wire_class {
	WIRE_CLASS_SWAP = 0,
	WIRE_CLASS_HEAP = 1, /* reserved: refused with WIRE_BAD_CLASS */
};

enum wire_loan_flags {
	/*
	 * The borrower also has the pages elsewhere: the donor may revoke the slab at need, until
	 * WIRE_UNBACKED.
	 */
	WIRE_BACKED = 1,
};

enum wire_direction { WIRE_REQUEST = 0, WIRE_REPLY = 1 };

/*
 * The receiving side.  The donor requests ACTIVITY, EVICT and REVOKED, the borrower all else;
 * requests and replies arrive at both.  The FAR sides are those of a connection whose HELLO has
 * WIRE_FAR: other frames arrive there.
 */
enum wire_side { WIRE_AT_DONOR, WIRE_AT_BORROWER, WIRE_AT_FAR_DONOR, WIRE_AT_FAR_MEMBER };

/* A header in host order. */
struct wire_frame {
	uint8_t op;          /* enum wire_op */
	uint8_t direction;   /* enum wire_direction */
	uint16_t status;     /* enum wire_status; 0 in requests */
	uint64_t tag;        /* chosen by the requester, echoed */
	uint32_t slab;       /* donor's number of the slab; replies to HELLO, PING: slabs of total
			      * that the borrower cannot have, being lent, or beyond its quota */
	uint32_t generation; /* of that slab, given by MAP */
	uint32_t offset;     /* bytes into the slab; READ, WRITE */
	uint32_t length;     /* READ, WRITE: bytes moved; else bytes of payload */
};

enum wire_hello_flags {
	/* If this connection ends without BYE, keep the loans for the session grace period. */
	WIRE_KEEP = 1,
	/* Resume the session of the previous process with this borrower number. */
	WIRE_RESUME = 2,
	/* Pages move by RDMA (wire_rdma.h): answer MAP and REMAP with a grant. */
	WIRE_RDMA = 4,
	/* The connection is for far memory alone; version 4. */
	WIRE_FAR = 8,
	/* ... and asks for jobs. */
	WIRE_JOBS = 16,
};

/* Payload of a HELLO request. */
struct wire_hello {
	uint32_t version;
	uint64_t borrower;  /* random, one per device and donor it knows of; a second
			     * connection with an equal number fences the first */
	uint64_t slab_size; /* bytes of a slab that the borrower will use */
	char name[WIRE_NAME]; /* for the donor's log; NUL-padded */
	uint32_t flags;     /* enum wire_hello_flags */
};

enum wire_donor_flags {
	WIRE_DRAINING = 1, /* place nothing here, and expect EVICT for present slabs */
};

/* Payload of the replies to HELLO and PING. */
struct wire_donor {
	uint32_t version;
	uint16_t flags;     /* enum wire_donor_flags */
	uint16_t rdma;      /* with WIRE_RDMA: port for RDMA; else 0 */
	uint64_t slab_size; /* bytes */
	uint64_t total;     /* bytes lent or to lend */
	uint64_t free;      /* bytes to lend at once, to this borrower */
	uint64_t memory;    /* bytes of the machine; 0 = not reported */
	uint64_t used;      /* of memory: by the machine's programs and mapped slabs */
	uint64_t session;   /* for JOIN; 0 = pages go over this connection */
	/*
	 * Identity of the donor's process, equal at all its addresses; 0 = not reported.  Random,
	 * except the upper half, which donors of one machine share.
	 */
	uint64_t identity;
	uint32_t grace;     /* ms: how long loans are retained without a connection; version 4 */
	uint32_t reserved;  /* slabs promised to this borrower, lent ones included; version 4 */
};

/* Returns a number that donors of one machine share; 0 = not reported. */
static inline uint32_t wire_machine(uint64_t identity)
{
	return (uint32_t)(identity >> 32);
}

/* Payload of a MAP request and, from version 4 on and if there is one, of a REMAP request. */
struct wire_loan_request {
	uint32_t class;
	uint32_t flags; /* enum wire_loan_flags; 0 in version 3 */
};

/* One of up to WIRE_LOANS in the payload of an ACTIVITY request. */
struct wire_loan {
	uint32_t slab, generation;
};

/* Payload of a JOIN request. */
struct wire_join {
	uint64_t session;
	uint32_t number; /* of the connection; unique in its session */
	uint8_t mac[32]; /* docs/protocol.md */
};

#define WIRE_HELLO_SIZE 48u
#define WIRE_DONOR_SIZE 72u /* limit */
#define WIRE_MAP_SIZE 8u
#define WIRE_RDMA_GRANT_SIZE 24u /* behind the reply to MAP and REMAP, with WIRE_RDMA */
#define WIRE_JOIN_SIZE 48u
#define WIRE_RESERVE_SIZE 8u
#define WIRE_LOAN_SIZE 8u
#define WIRE_LOANS (WIRE_SMALL / WIRE_LOAN_SIZE)

#define WIRE_FAR_MOST (256u << 10) /* bytes that a READ or WRITE moves */
#define WIRE_FAR_POOLS 16u         /* of a key, and in the reply to LIST */
#define WIRE_FAR_POOL_SIZE 48u
#define WIRE_FAR_OPENED_SIZE 32u
#define WIRE_FAR_LISTED_SIZE 64u
#define WIRE_FAR_SWAP_SIZE 24u
#define WIRE_FAR_SWAPS (WIRE_SMALL / WIRE_FAR_SWAP_SIZE) /* 42 of a CAS */
#define WIRE_FAR_WORD_SIZE 8u
#define WIRE_FAR_MEMBER_SIZE 16u
#define WIRE_FAR_WINDOW 64u /* requests of a member without a reply, at most */

#define WIRE_JOB_MOST (64u << 10) /* bytes of a payload of a job */
/* Of BEGIN and TRACE, so that a donor can mark all that a request has in a turn. */
#define WIRE_JOB_SETS_MOST (16u << 10)
#define WIRE_JOB_REGIONS (1u << 24) /* of a heap: 1 TiB */
#define WIRE_JOB_TYPES (1u << 16)
#define WIRE_JOB_RUNS 8u
#define WIRE_JOB_HEAP_SIZE 24u
#define WIRE_JOB_LAYOUT_SIZE 32u
#define WIRE_JOB_RUN_SIZE 16u
#define WIRE_JOB_LIMITS_SIZE 16u
#define WIRE_JOB_PLACE_SIZE 48u
#define WIRE_JOB_SET_SIZE 8u
#define WIRE_JOB_BEGIN_SIZE 8u
#define WIRE_JOB_TRACE_SIZE 16u
#define WIRE_JOB_TRACED_SIZE 32u
#define WIRE_JOB_END_SIZE 16u
#define WIRE_JOB_ENDED_SIZE 8u
#define WIRE_JOB_BITS_SIZE 16u
#define WIRE_JOB_EVACUATE_SIZE 40u
#define WIRE_JOB_EVACUATED_SIZE 24u

/* The generation of a request that a member repeats after it has resumed; else 0. */
#define WIRE_FAR_REPEATED 1u

/* Returns whether @f is one of enum wire_job_op. */
static inline bool wire_is_job(const struct wire_frame *f)
{
	return f->op >= WIRE_JOB_HEAP && f->op < WIRE_JOB_OPS;
}

/* Returns whether @f moves bytes of arenas: at most WIRE_FAR_MOST. */
static inline bool wire_far_moves(const struct wire_frame *f)
{
	return f->op == WIRE_FAR_READ || f->op == WIRE_FAR_WRITE;
}

/*
 * Returns whether a request of @f's op takes effect once: if it is repeated, it says so, and the
 * donor replies with the result of the first time.
 */
static inline bool wire_far_once(const struct wire_frame *f)
{
	return f->op == WIRE_FAR_WRITE || f->op == WIRE_FAR_CAS || f->op == WIRE_FAR_ADD ||
	       f->op == WIRE_FAR_NOTIFY || f->op == WIRE_FAR_DEAD;
}

/*
 * Parses the header at @buf, of which @len bytes have arrived at @side.  Returns 1 with *@frame
 * filled in, 0 when more bytes are needed, -EPROTO when the bytes cannot be a frame (unknown magic,
 * opcode, status, a direction that the opcode lacks there, reserved bits, an invalid length).  An
 * accepted READ or WRITE moves 1..WIRE_MAX_PAYLOAD bytes in whole pages at a page's start; any
 * other payload is at most WIRE_SMALL bytes, and of ACTIVITY 1..WIRE_LOANS whole elements.  At a
 * FAR side, READ and WRITE of enum wire_far_op move 1..WIRE_FAR_MOST bytes at any place, and
 * payloads of enum wire_job_op have at most WIRE_JOB_MOST.
 */
int wire_parse(const void *buf, size_t len, enum wire_side side, struct wire_frame *frame);

/* Writes the WIRE_HEADER bytes of @frame. */
void wire_build(void *buf, const struct wire_frame *frame);

/* Returns the number of bytes that follow the header of a valid @frame. */
uint32_t wire_payload(const struct wire_frame *frame);

/* Returns whether this side speaks @version. */
static inline bool wire_speaks(uint32_t version)
{
	return version >= WIRE_VERSION_OLDEST && version <= WIRE_VERSION;
}

/*
 * Payloads; the parsers return 0 or -EPROTO.  From a HELLO whose version this side does not speak
 * only the version is read.
 */
void wire_build_hello(uint8_t buf[static WIRE_HELLO_SIZE], const struct wire_hello *h);
int wire_parse_hello(const void *buf, size_t len, struct wire_hello *h);
/* Returns the number of bytes built, which depends on d->version. */
uint32_t wire_build_donor(uint8_t buf[static WIRE_DONOR_SIZE], const struct wire_donor *d);
int wire_parse_donor(const void *buf, size_t len, struct wire_donor *d);
/* A wire_loan_request without flags; the parser refuses others. */
void wire_build_map(uint8_t buf[static WIRE_MAP_SIZE], enum wire_class class);
int wire_parse_map(const void *buf, size_t len, uint32_t *class);
void wire_build_reserve(uint8_t buf[static WIRE_RESERVE_SIZE], uint32_t slabs);
int wire_parse_reserve(const void *buf, size_t len, uint32_t *slabs);
void wire_build_loan_request(uint8_t buf[static WIRE_MAP_SIZE], const struct wire_loan_request *r);
int wire_parse_loan_request(const void *buf, size_t len, struct wire_loan_request *r);
void wire_build_join(uint8_t buf[static WIRE_JOIN_SIZE], const struct wire_join *j);
int wire_parse_join(const void *buf, size_t len, struct wire_join *j);

/*
 * Element @i of an ACTIVITY payload of frame length / WIRE_LOAN_SIZE elements:
 * a loan in the request, its rate in thousandths of a page a second in the reply.
 */
void wire_put_loan(uint8_t *buf, uint32_t i, struct wire_loan loan);
struct wire_loan wire_get_loan(const uint8_t *buf, uint32_t i);
void wire_put_rate(uint8_t *buf, uint32_t i, uint64_t rate);
uint64_t wire_get_rate(const uint8_t *buf, uint32_t i);

/* Returns text such as "no free slab", with a remedy if there is one; never NULL. */
const char *wire_status_text(uint16_t status);

#endif
