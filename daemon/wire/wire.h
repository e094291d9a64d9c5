/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What borrower and donor say to each other; docs/protocol.md is the prose.
 *
 * A connection carries frames both ways.  A frame is a header of WIRE_HEADER
 * bytes, little-endian, and, for the opcodes that have one, a payload of at
 * most WIRE_MAX_PAYLOAD bytes.  Requests may be pipelined; a reply carries the
 * tag of its request and replies may overtake one another.
 *
 * Everything here is a pure function over a buffer: no allocation, no I/O.
 */
#ifndef EBB_WIRE_H
#define EBB_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC 0x31424245u /* "EBB1" as bytes */
#define WIRE_VERSION 1u
#define WIRE_HEADER 32u
#define WIRE_PAGE 4096u
#define WIRE_MAX_PAYLOAD (1u << 20)
#define WIRE_MAX_SLAB (1ull << 30) /* offsets are 32 bits wide */
#define WIRE_MIN_SLAB (1ull << 20)
#define WIRE_NAME 24

enum wire_op {
	WIRE_HELLO = 1, /* first frame each way */
	WIRE_MAP,       /* lend me a slab; the reply names it and its generation */
	WIRE_UNMAP,     /* take it back; it is zeroed before anyone gets it */
	WIRE_READ,
	WIRE_WRITE,
	WIRE_PING,      /* memory total and free, for placement and liveness */
	WIRE_OPS
};

enum wire_status {
	WIRE_OK = 0,
	WIRE_BAD_VERSION, /* HELLO: no version in common */
	WIRE_BAD_SLAB_SIZE, /* HELLO: the borrower's slabs are larger than the donor's */
	WIRE_NOT_GREETED, /* anything before HELLO, or a second HELLO */
	WIRE_BAD_CLASS,   /* MAP: class not served */
	WIRE_NO_SPACE,    /* MAP: no free slab */
	WIRE_NO_SLAB,     /* the slab is not this connection's */
	WIRE_STALE,       /* the slab's generation is another */
	WIRE_BAD_RANGE,   /* beyond the end of the slab */
	WIRE_STATUSES
};

enum wire_class {
	WIRE_CLASS_SWAP = 0,
	WIRE_CLASS_HEAP = 1, /* reserved: refused with WIRE_BAD_CLASS */
};

enum wire_direction { WIRE_REQUEST = 0, WIRE_REPLY = 1 };

/* A header in host order. */
struct wire_frame {
	uint8_t op;          /* enum wire_op */
	uint8_t direction;   /* enum wire_direction */
	uint16_t status;     /* enum wire_status; 0 in requests */
	uint64_t tag;        /* chosen by the requester, echoed */
	uint32_t slab;       /* donor's number of the slab */
	uint32_t generation; /* of that slab, given by MAP */
	uint32_t offset;     /* bytes into the slab; READ, WRITE */
	uint32_t length;     /* READ, WRITE: bytes moved; else bytes of payload */
};

/* Payload of a HELLO request. */
struct wire_hello {
	uint32_t version;
	uint64_t borrower;  /* random, one per borrower process: a second connection
			     * with the same number fences the first */
	uint64_t slab_size; /* bytes the borrower will use of a slab */
	char name[WIRE_NAME]; /* for the donor's log; NUL-padded */
};

/* Payload of the replies to HELLO and PING. */
struct wire_donor {
	uint32_t version;
	uint64_t slab_size; /* bytes */
	uint64_t total;     /* bytes lent or to lend */
	uint64_t free;      /* bytes to lend */
};

#define WIRE_HELLO_SIZE 48u
#define WIRE_DONOR_SIZE 32u
#define WIRE_MAP_SIZE 8u

/*
 * Parses the header at @buf, of which @len bytes have arrived, sent in
 * @direction.  Returns 1 with *@frame filled in, 0 when more bytes are needed,
 * -EPROTO when the bytes cannot be a frame (unknown magic, opcode, status,
 * direction, reserved bits, a length outside what the opcode allows).  What it
 * accepts satisfies: READ and WRITE move 1..WIRE_MAX_PAYLOAD bytes in whole
 * pages at a page's start, and wire_payload() <= WIRE_MAX_PAYLOAD.
 */
int wire_parse(const void *buf, size_t len, enum wire_direction direction,
	       struct wire_frame *frame);

/* Writes the WIRE_HEADER bytes of @frame. */
void wire_build(void *buf, const struct wire_frame *frame);

/* Bytes that follow the header of a valid @frame. */
uint32_t wire_payload(const struct wire_frame *frame);

/* Payloads; the parsers return 0 or -EPROTO. */
void wire_build_hello(uint8_t buf[static WIRE_HELLO_SIZE], const struct wire_hello *h);
int wire_parse_hello(const void *buf, size_t len, struct wire_hello *h);
void wire_build_donor(uint8_t buf[static WIRE_DONOR_SIZE], const struct wire_donor *d);
int wire_parse_donor(const void *buf, size_t len, struct wire_donor *d);
void wire_build_map(uint8_t buf[static WIRE_MAP_SIZE], enum wire_class class);
int wire_parse_map(const void *buf, size_t len, uint32_t *class);

/* "no free slab"; never NULL. */
const char *wire_status_text(uint16_t status);

#endif
