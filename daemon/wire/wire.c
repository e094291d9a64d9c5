// SPDX-License-Identifier: GPL-2.0-or-later
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "common/bytes.h"
#include "wire.h"

/* The header as it travels. */
struct wire_header {
	uint32_t magic;
	uint8_t op;
	uint8_t direction;
	uint16_t status;
	uint64_t tag;
	uint32_t slab;
	uint32_t generation;
	uint32_t offset;
	uint32_t length;
};
_Static_assert(sizeof(struct wire_header) == WIRE_HEADER, "the header has no padding");

/* What the length field of an opcode must be, when it is fixed. */
static uint32_t fixed_length(const struct wire_frame *f)
{
	switch (f->op) {
	case WIRE_HELLO:
		return f->direction == WIRE_REQUEST ? WIRE_HELLO_SIZE :
		       f->status ? 0 : WIRE_DONOR_SIZE;
	case WIRE_PING:
		return f->direction == WIRE_REPLY && !f->status ? WIRE_DONOR_SIZE : 0;
	case WIRE_MAP:
		return f->direction == WIRE_REQUEST ? WIRE_MAP_SIZE : 0;
	default:
		return 0;
	}
}

static int moves_pages(const struct wire_frame *f)
{
	return f->op == WIRE_READ || f->op == WIRE_WRITE;
}

int wire_parse(const void *buf, size_t len, enum wire_direction direction,
	       struct wire_frame *frame)
{
	struct wire_header h;
	struct wire_frame f;

	if (len < sizeof(h)) {
		uint32_t magic = htole32(WIRE_MAGIC);

		/* A stranger is turned away at its first word. */
		return memcmp(buf, &magic, len < 4 ? len : 4) ? -EPROTO : 0;
	}
	memcpy(&h, buf, sizeof(h));
	f = (struct wire_frame){
		.op = h.op,
		.direction = h.direction,
		.status = le16toh(h.status),
		.tag = le64toh(h.tag),
		.slab = le32toh(h.slab),
		.generation = le32toh(h.generation),
		.offset = le32toh(h.offset),
		.length = le32toh(h.length),
	};
	if (le32toh(h.magic) != WIRE_MAGIC || f.direction != direction || f.op < WIRE_HELLO ||
	    f.op >= WIRE_OPS || f.status >= WIRE_STATUSES)
		return -EPROTO;
	if (f.direction == WIRE_REQUEST && f.status)
		return -EPROTO;
	if (moves_pages(&f)) {
		if (!f.length || f.length > WIRE_MAX_PAYLOAD || f.length % WIRE_PAGE ||
		    f.offset % WIRE_PAGE)
			return -EPROTO;
	} else if (f.length != fixed_length(&f) || f.offset) {
		return -EPROTO;
	}
	*frame = f;
	return 1;
}

void wire_build(void *buf, const struct wire_frame *f)
{
	struct wire_header h = {
		.magic = htole32(WIRE_MAGIC),
		.op = f->op,
		.direction = f->direction,
		.status = htole16(f->status),
		.tag = htole64(f->tag),
		.slab = htole32(f->slab),
		.generation = htole32(f->generation),
		.offset = htole32(f->offset),
		.length = htole32(f->length),
	};

	memcpy(buf, &h, sizeof(h));
}

uint32_t wire_payload(const struct wire_frame *f)
{
	if (!moves_pages(f))
		return fixed_length(f);
	if (f->op == WIRE_WRITE)
		return f->direction == WIRE_REQUEST ? f->length : 0;
	return f->direction == WIRE_REPLY && !f->status ? f->length : 0;
}

/*
 * HELLO: 0 version, 4 reserved, 8 borrower, 16 slab size, 24 name.
 */
void wire_build_hello(uint8_t buf[static WIRE_HELLO_SIZE], const struct wire_hello *h)
{
	memset(buf, 0, WIRE_HELLO_SIZE);
	put32(buf, h->version);
	put64(buf + 8, h->borrower);
	put64(buf + 16, h->slab_size);
	memcpy(buf + 24, h->name, strnlen(h->name, WIRE_NAME - 1));
}

int wire_parse_hello(const void *buf, size_t len, struct wire_hello *h)
{
	const uint8_t *p = buf;

	if (len != WIRE_HELLO_SIZE || get32(p + 4))
		return -EPROTO;
	*h = (struct wire_hello){
		.version = get32(p),
		.borrower = get64(p + 8),
		.slab_size = get64(p + 16),
	};
	/* The name goes to a log: printable ASCII, terminated. */
	for (size_t i = 0; i < WIRE_NAME; i++) {
		char c = (char)p[24 + i];

		if (!c)
			return 0;
		if (c < ' ' || c > '~' || i == WIRE_NAME - 1)
			return -EPROTO;
		h->name[i] = c;
	}
	return 0;
}

/* HELLO and PING replies: 0 version, 4 reserved, 8 slab size, 16 total, 24 free. */
void wire_build_donor(uint8_t buf[static WIRE_DONOR_SIZE], const struct wire_donor *d)
{
	put32(buf, d->version);
	put32(buf + 4, 0);
	put64(buf + 8, d->slab_size);
	put64(buf + 16, d->total);
	put64(buf + 24, d->free);
}

int wire_parse_donor(const void *buf, size_t len, struct wire_donor *d)
{
	const uint8_t *p = buf;

	if (len != WIRE_DONOR_SIZE || get32(p + 4))
		return -EPROTO;
	*d = (struct wire_donor){
		.version = get32(p),
		.slab_size = get64(p + 8),
		.total = get64(p + 16),
		.free = get64(p + 24),
	};
	return d->free <= d->total ? 0 : -EPROTO;
}

/* MAP: 0 class, 4 reserved. */
void wire_build_map(uint8_t buf[static WIRE_MAP_SIZE], enum wire_class class)
{
	put32(buf, class);
	put32(buf + 4, 0);
}

int wire_parse_map(const void *buf, size_t len, uint32_t *class)
{
	const uint8_t *p = buf;

	if (len != WIRE_MAP_SIZE || get32(p + 4))
		return -EPROTO;
	*class = get32(p);
	return 0;
}

const char *wire_status_text(uint16_t status)
{
	static const char *const texts[WIRE_STATUSES] = {
		[WIRE_OK] = "ok",
		[WIRE_BAD_VERSION] = "no protocol version in common",
		[WIRE_BAD_SLAB_SIZE] = "the donor's slabs are smaller than the borrower's",
		[WIRE_NOT_GREETED] = "greeting out of order",
		[WIRE_BAD_CLASS] = "memory class not served",
		[WIRE_NO_SPACE] = "no free slab",
		[WIRE_NO_SLAB] = "not a slab of this connection",
		[WIRE_STALE] = "stale generation",
		[WIRE_BAD_RANGE] = "beyond the end of the slab",
	};

	return status < WIRE_STATUSES ? texts[status] : "unknown status";
}
