// SPDX-License-Identifier: GPL-2.0-or-later
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "wire.h"

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

static bool moves_pages(const struct wire_frame *f)
{
	return f->op == WIRE_READ || f->op == WIRE_WRITE;
}

static bool asked_by_donor(const struct wire_frame *f)
{
	return f->op == WIRE_ACTIVITY || f->op == WIRE_EVICT || f->op == WIRE_REVOKED ||
	       f->op == WIRE_FAR_NOTIFIED;
}

/* Over RDMA a reply also grants the loan's address and key. */
static bool grants(const struct wire_frame *f)
{
	return !f->length || f->length == WIRE_RDMA_GRANT_SIZE;
}

/* Bytes of the replies to HELLO and PING up to version 3. */
#define DONOR_SIZE_3 64u

static bool tells(const struct wire_frame *f)
{
	return f->length == DONOR_SIZE_3 || f->length == WIRE_DONOR_SIZE;
}

/* Returns whether the opcode allows the length (of the payload, unless it moves pages). */
static bool length_fits(const struct wire_frame *f)
{
	bool request = f->direction == WIRE_REQUEST;

	if (moves_pages(f))
		return f->length && f->length <= WIRE_MAX_PAYLOAD && f->length % WIRE_PAGE == 0;
	if (f->status)
		return !f->length;
	switch (f->op) {
	case WIRE_HELLO:
		return request ? f->length == WIRE_HELLO_SIZE : tells(f);
	case WIRE_PING:
		return request ? !f->length : tells(f);
	case WIRE_MAP:
		return request ? f->length == WIRE_MAP_SIZE : grants(f);
	case WIRE_REMAP:
		return request ? !f->length || f->length == WIRE_MAP_SIZE : grants(f);
	case WIRE_JOIN:
		return f->length == (request ? WIRE_JOIN_SIZE : 0);
	case WIRE_RESERVE:
		return f->length == (request ? WIRE_RESERVE_SIZE : WIRE_DONOR_SIZE);
	case WIRE_ACTIVITY:
		return f->length && f->length <= WIRE_LOANS * WIRE_LOAN_SIZE &&
		       f->length % WIRE_LOAN_SIZE == 0;
	default:
		return !f->length;
	}
}

/* Returns whether op, status, length and offset are those of a frame of a borrower of slabs. */
static bool fits(const struct wire_frame *f)
{
	return f->op >= WIRE_HELLO && f->op < WIRE_OPS && f->status < WIRE_STATUSES &&
	       (f->direction == WIRE_REQUEST || f->op != WIRE_REVOKED) && length_fits(f) &&
	       f->offset % WIRE_PAGE == 0 && (!f->offset || moves_pages(f));
}

static bool is_far_status(uint16_t status)
{
	return status < WIRE_STATUSES || (status >= WIRE_NO_FAR && status < WIRE_FAR_STATUSES);
}

static bool is_elements(const struct wire_frame *f, uint32_t size, uint32_t most)
{
	return f->length && f->length % size == 0 && f->length / size <= most;
}

static bool far_length_fits(const struct wire_frame *f)
{
	bool request = f->direction == WIRE_REQUEST;

	if (f->status)
		return !f->length;
	switch (f->op) {
	case WIRE_FAR_POOL:
		return f->length == (request ? WIRE_FAR_POOL_SIZE : WIRE_FAR_OPENED_SIZE);
	case WIRE_FAR_LIST:
		return request || !f->length ? !f->length :
		       is_elements(f, WIRE_FAR_LISTED_SIZE, WIRE_FAR_POOLS);
	case WIRE_FAR_READ:
		return f->length && f->length <= WIRE_FAR_MOST;
	case WIRE_FAR_WRITE:
		return request ? f->length && f->length <= WIRE_FAR_MOST : !f->length;
	case WIRE_FAR_CAS:
		return is_elements(f, request ? WIRE_FAR_SWAP_SIZE : WIRE_FAR_WORD_SIZE,
				   WIRE_FAR_SWAPS);
	case WIRE_FAR_ADD:
		return f->length == WIRE_FAR_WORD_SIZE;
	case WIRE_FAR_NOTIFY:
	case WIRE_FAR_DEAD:
		return f->length == (request ? WIRE_FAR_MEMBER_SIZE : 0);
	case WIRE_FAR_NOTIFIED:
		return f->length == WIRE_FAR_MEMBER_SIZE;
	default:
		return !f->length;
	}
}

static bool is_far(const struct wire_frame *f)
{
	if (f->op < WIRE_FAR_POOL || f->op >= WIRE_FAR_OPS || !is_far_status(f->status))
		return false;
	if (f->op == WIRE_FAR_NOTIFIED && f->direction != WIRE_REQUEST)
		return false;
	if (f->generation && (f->generation != WIRE_FAR_REPEATED || !wire_far_once(f) ||
			      f->direction != WIRE_REQUEST))
		return false;
	return far_length_fits(f) &&
	       (!f->offset || wire_far_moves(f) || f->op == WIRE_FAR_ADD);
}

static bool is_between(const struct wire_frame *f, uint32_t least, uint32_t most)
{
	return f->length >= least && f->length <= most;
}

static bool job_length_fits(const struct wire_frame *f)
{
	bool request = f->direction == WIRE_REQUEST;

	if (f->status)
		return !f->length;
	switch (f->op) {
	case WIRE_JOB_HEAP:
		return request ? is_between(f, WIRE_JOB_HEAP_SIZE, WIRE_JOB_MOST) :
				 f->length == WIRE_JOB_LIMITS_SIZE;
	case WIRE_JOB_PLACE:
		return request ? is_between(f, WIRE_JOB_PLACE_SIZE, WIRE_JOB_MOST) : !f->length;
	case WIRE_JOB_BEGIN:
		return request ? is_between(f, WIRE_JOB_BEGIN_SIZE, WIRE_JOB_SETS_MOST) :
				 !f->length;
	case WIRE_JOB_TRACE:
		return request ? is_between(f, WIRE_JOB_TRACE_SIZE, WIRE_JOB_SETS_MOST) :
				 is_between(f, WIRE_JOB_TRACED_SIZE, WIRE_JOB_MOST);
	case WIRE_JOB_END:
		return request ? f->length == WIRE_JOB_END_SIZE :
				 is_between(f, WIRE_JOB_ENDED_SIZE, WIRE_JOB_MOST);
	default:
		return request ? is_between(f, WIRE_JOB_EVACUATE_SIZE, WIRE_JOB_MOST) :
				 f->length == WIRE_JOB_EVACUATED_SIZE;
	}
}

static bool is_job(const struct wire_frame *f)
{
	bool job_status = f->status >= WIRE_NO_JOBS && f->status < WIRE_JOB_STATUSES;

	return (job_status || is_far_status(f->status)) && !f->slab && !f->generation &&
	       !f->offset && job_length_fits(f);
}

/* Returns whether @f may arrive on a connection for far memory. */
static bool fits_far(const struct wire_frame *f)
{
	if (wire_is_job(f))
		return is_job(f);
	if (f->op == WIRE_HELLO && f->status == WIRE_NO_JOBS)
		return !f->offset && !f->length;
	if (f->op >= WIRE_FAR_POOL)
		return is_far(f);
	/* Their refusals have statuses of far memory, too. */
	return (f->op == WIRE_HELLO || f->op == WIRE_PING || f->op == WIRE_BYE) && !f->offset &&
	       is_far_status(f->status) && length_fits(f);
}

int wire_parse(const void *buf, size_t len, enum wire_side side, struct wire_frame *frame)
{
	bool far = side == WIRE_AT_FAR_DONOR || side == WIRE_AT_FAR_MEMBER;
	bool at_borrower = side == WIRE_AT_BORROWER || side == WIRE_AT_FAR_MEMBER;
	enum wire_direction direction;
	struct wire_header h;
	struct wire_frame f;

	if (len < sizeof(h)) {
		uint32_t magic = htole32(WIRE_MAGIC);

		/* Reject a stranger by its first bytes. */
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
	direction = asked_by_donor(&f) == at_borrower ? WIRE_REQUEST : WIRE_REPLY;
	if (le32toh(h.magic) != WIRE_MAGIC || f.direction != direction ||
	    (f.direction == WIRE_REQUEST && f.status))
		return -EPROTO;
	if (!(far ? fits_far(&f) : fits(&f)))
		return -EPROTO;
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
	if (f->op == WIRE_FAR_READ && f->direction == WIRE_REQUEST)
		return 0;
	if (!moves_pages(f))
		return f->length;
	if (f->op == WIRE_WRITE)
		return f->direction == WIRE_REQUEST ? f->length : 0;
	return f->direction == WIRE_REPLY && !f->status ? f->length : 0;
}

/*
 * HELLO: 0 version, 4 flags, 8 borrower, 16 slab size, 24 name.
 */
void wire_build_hello(uint8_t buf[static WIRE_HELLO_SIZE], const struct wire_hello *h)
{
	memset(buf, 0, WIRE_HELLO_SIZE);
	put32(buf, h->version);
	put32(buf + 4, h->flags);
	put64(buf + 8, h->borrower);
	put64(buf + 16, h->slab_size);
	memcpy(buf + 24, h->name, strnlen(h->name, WIRE_NAME - 1));
}

int wire_parse_hello(const void *buf, size_t len, struct wire_hello *h)
{
	const uint8_t *p = buf;

	if (len != WIRE_HELLO_SIZE)
		return -EPROTO;
	*h = (struct wire_hello){ .version = get32(p) };
	/* Another version may define the rest differently. */
	if (!wire_speaks(h->version))
		return 0;
	if (get32(p + 4) & ~(WIRE_KEEP | WIRE_RESUME | WIRE_RDMA | WIRE_FAR | WIRE_JOBS))
		return -EPROTO;
	if ((get32(p + 4) & (WIRE_FAR | WIRE_JOBS)) == WIRE_JOBS)
		return -EPROTO;
	if (get32(p + 4) & WIRE_FAR && (h->version < 4 || get32(p + 4) & WIRE_RDMA))
		return -EPROTO;
	*h = (struct wire_hello){
		.version = get32(p),
		.flags = get32(p + 4),
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

/*
 * HELLO and PING replies: 0 version, 4 flags, 6 rdma, 8 slab size, 16 total, 24 free,
 * 32 memory, 40 used, 48 session, 56 identity; from version 4 on 64 grace, 68 reserved slabs.  So
 * is the reply to RESERVE.
 */
uint32_t wire_build_donor(uint8_t buf[static WIRE_DONOR_SIZE], const struct wire_donor *d)
{
	put32(buf, d->version);
	put32(buf + 4, d->flags | (uint32_t)d->rdma << 16);
	put64(buf + 8, d->slab_size);
	put64(buf + 16, d->total);
	put64(buf + 24, d->free);
	put64(buf + 32, d->memory);
	put64(buf + 40, d->used);
	put64(buf + 48, d->session);
	put64(buf + 56, d->identity);
	if (d->version < 4)
		return DONOR_SIZE_3;
	put32(buf + 64, d->grace);
	put32(buf + 68, d->reserved);
	return WIRE_DONOR_SIZE;
}

int wire_parse_donor(const void *buf, size_t len, struct wire_donor *d)
{
	const uint8_t *p = buf;

	if (len < DONOR_SIZE_3 || !wire_speaks(get32(p)) ||
	    len != (get32(p) < 4 ? DONOR_SIZE_3 : WIRE_DONOR_SIZE))
		return -EPROTO;
	*d = (struct wire_donor){
		.version = get32(p),
		.flags = (uint16_t)get32(p + 4),
		.rdma = (uint16_t)(get32(p + 4) >> 16),
		.slab_size = get64(p + 8),
		.total = get64(p + 16),
		.free = get64(p + 24),
		.memory = get64(p + 32),
		.used = get64(p + 40),
		.session = get64(p + 48),
		.identity = get64(p + 56),
		.grace = len > DONOR_SIZE_3 ? get32(p + 64) : 0,
		.reserved = len > DONOR_SIZE_3 ? get32(p + 68) : 0,
	};
	return d->flags & ~WIRE_DRAINING || d->free > d->total || d->used > d->memory ?
	       -EPROTO : 0;
}

/* MAP, REMAP: 0 class, 4 flags. */
void wire_build_loan_request(uint8_t buf[static WIRE_MAP_SIZE], const struct wire_loan_request *r)
{
	put32(buf, r->class);
	put32(buf + 4, r->flags);
}

int wire_parse_loan_request(const void *buf, size_t len, struct wire_loan_request *r)
{
	const uint8_t *p = buf;

	if (len != WIRE_MAP_SIZE || get32(p + 4) & ~WIRE_BACKED)
		return -EPROTO;
	*r = (struct wire_loan_request){ .class = get32(p), .flags = get32(p + 4) };
	return 0;
}

void wire_build_map(uint8_t buf[static WIRE_MAP_SIZE], enum wire_class class)
{
	wire_build_loan_request(buf, &(struct wire_loan_request){ .class = class });
}

int wire_parse_map(const void *buf, size_t len, uint32_t *class)
{
	struct wire_loan_request r;

	if (wire_parse_loan_request(buf, len, &r) || r.flags)
		return -EPROTO;
	*class = r.class;
	return 0;
}

/* RESERVE: 0 slabs, 4 reserved. */
void wire_build_reserve(uint8_t buf[static WIRE_RESERVE_SIZE], uint32_t slabs)
{
	put32(buf, slabs);
	put32(buf + 4, 0);
}

int wire_parse_reserve(const void *buf, size_t len, uint32_t *slabs)
{
	const uint8_t *p = buf;

	if (len != WIRE_RESERVE_SIZE || get32(p + 4))
		return -EPROTO;
	*slabs = get32(p);
	return 0;
}

/* JOIN: 0 session, 8 number, 12 reserved, 16 MAC. */
void wire_build_join(uint8_t buf[static WIRE_JOIN_SIZE], const struct wire_join *j)
{
	put64(buf, j->session);
	put32(buf + 8, j->number);
	put32(buf + 12, 0);
	memcpy(buf + 16, j->mac, sizeof(j->mac));
}

int wire_parse_join(const void *buf, size_t len, struct wire_join *j)
{
	const uint8_t *p = buf;

	if (len != WIRE_JOIN_SIZE || get32(p + 12))
		return -EPROTO;
	*j = (struct wire_join){ .session = get64(p), .number = get32(p + 8) };
	memcpy(j->mac, p + 16, sizeof(j->mac));
	return 0;
}

/* ACTIVITY request, each: 0 slab, 4 generation. */
void wire_put_loan(uint8_t *buf, uint32_t i, struct wire_loan loan)
{
	put32(buf + i * WIRE_LOAN_SIZE, loan.slab);
	put32(buf + i * WIRE_LOAN_SIZE + 4, loan.generation);
}

struct wire_loan wire_get_loan(const uint8_t *buf, uint32_t i)
{
	return (struct wire_loan){ get32(buf + i * WIRE_LOAN_SIZE),
				   get32(buf + i * WIRE_LOAN_SIZE + 4) };
}

void wire_put_rate(uint8_t *buf, uint32_t i, uint64_t rate)
{
	put64(buf + i * WIRE_LOAN_SIZE, rate);
}

uint64_t wire_get_rate(const uint8_t *buf, uint32_t i)
{
	return get64(buf + i * WIRE_LOAN_SIZE);
}

static const char *job_status_text(uint16_t status)
{
	static const char *const texts[WIRE_JOB_STATUSES - WIRE_NO_JOBS] = {
		"it runs no jobs; start ebb-donord with --far-jobs SIZE",
		[WIRE_NO_HEAP - WIRE_NO_JOBS] = "no heap is described, or another one",
		[WIRE_BAD_LAYOUT - WIRE_NO_JOBS] = "not a layout of a type, or another one than before",
		[WIRE_BAD_REGION - WIRE_NO_JOBS] = "no such region or slot, or not a place for it",
		[WIRE_OLD_VERSION - WIRE_NO_JOBS] = "the region has another version",
		[WIRE_OLD_CYCLE - WIRE_NO_JOBS] = "not the cycle or batch that is next",
		[WIRE_CYCLE_RUNS - WIRE_NO_JOBS] = "the cycle has not ended",
	};

	return status >= WIRE_NO_JOBS && status < WIRE_JOB_STATUSES ? texts[status - WIRE_NO_JOBS] :
								      "unknown status";
}

static const char *far_status_text(uint16_t status)
{
	static const char *const texts[WIRE_FAR_STATUSES - WIRE_NO_FAR] = {
		"it has no far memory; start ebb-donord with --far SIZE",
		[WIRE_NO_POOL - WIRE_NO_FAR] = "no such pool",
		[WIRE_POOL_EXISTS - WIRE_NO_FAR] = "a pool of that name exists",
		[WIRE_POOL_IN_USE - WIRE_NO_FAR] = "the pool has members",
		[WIRE_OTHER_DOMAIN - WIRE_NO_FAR] = "words of the pool are not atomic for this transport",
		[WIRE_NO_MEMBER - WIRE_NO_FAR] = "no such member, or no number is left for one more",
		[WIRE_MISALIGNED - WIRE_NO_FAR] = "a word is not at a multiple of 8 bytes",
		[WIRE_NOT_OWNER - WIRE_NO_FAR] = "another member's memory, or free memory",
	};

	return status >= WIRE_NO_FAR && status < WIRE_FAR_STATUSES ? texts[status - WIRE_NO_FAR] :
								     job_status_text(status);
}

const char *wire_status_text(uint16_t status)
{
	static const char *const texts[WIRE_STATUSES] = {
		[WIRE_OK] = "ok",
		[WIRE_BAD_VERSION] = "it speaks no version of the protocol that this machine does; update the older of the two",
		[WIRE_BAD_SLAB_SIZE] = "its slabs are smaller than the device's; create the device with a smaller --slab, or start ebb-donord with a larger one",
		[WIRE_NOT_GREETED] = "handshake out of order",
		[WIRE_BAD_CLASS] = "memory class not served",
		[WIRE_NO_SPACE] = "no free slab",
		[WIRE_NO_SLAB] = "not a slab of this connection",
		[WIRE_STALE] = "stale generation",
		[WIRE_BAD_RANGE] = "beyond the end of the slab",
		[WIRE_NO_ROOM] = "no room for its pages elsewhere",
		[WIRE_NO_SESSION] = "no such session",
		[WIRE_BAD_MAC] = "not made with the session's key",
		[WIRE_NOT_HERE] = "not served on this connection",
		[WIRE_OVER_QUOTA] = "quota used up",
		[WIRE_NO_KEY] = "it wants a key; give --key FILE, which must be among its --keys",
		[WIRE_NO_RDMA] = "it does not lend by RDMA; start it with --rdma HOST:PORT, or leave rdma: out",
		[WIRE_ALTERED] = "it received data that was altered on the way",
	};

	return status < WIRE_STATUSES ? texts[status] : far_status_text(status);
}
