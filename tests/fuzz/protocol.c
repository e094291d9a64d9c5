// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/draw.h"
#include "lib/wire/stream.h"
#include "lib/wire/wire_proof.h"
#include "lib/wire/wire_rdma.h"
#include "protocol.h"
#include "tests/unit/lending.h"

#define SLAB WIRE_MIN_SLAB

/* Locked memory, so made once. */
static struct pool pool;

struct receiver {
	struct fuzz_protocol_result *r;
	uint8_t how;
	uint32_t arrivals;
	bool asked_again; /* the frame was refused once */
	uint8_t *payload; /* of the frame in flight */
	uint8_t *owned;   /* the same, if it is to be freed */
};

static void wrong(struct fuzz_protocol_result *r, const char *what, const struct wire_frame *f)
{
	if (!*r->wrong)
		snprintf(r->wrong, sizeof(r->wrong), "%s: op %u direction %u status %u offset %u length %u",
			 what, f->op, f->direction, f->status, f->offset, f->length);
}

static void add(struct fuzz_protocol_result *r, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;

	/* FNV-1a. */
	for (size_t i = 0; i < n; i++)
		r->sum = (r->sum ^ p[i]) * 0x100000001b3ull;
}

static bool moves_pages(const struct wire_frame *f)
{
	return f->op == WIRE_READ || f->op == WIRE_WRITE;
}

static bool asked_by_donor(const struct wire_frame *f)
{
	return f->op == WIRE_ACTIVITY || f->op == WIRE_EVICT || f->op == WIRE_REVOKED;
}

static bool tells_figures(const struct wire_frame *f)
{
	return f->op == WIRE_HELLO || f->op == WIRE_PING || f->op == WIRE_RESERVE;
}

static void check_frame(struct fuzz_protocol_result *r, const struct wire_frame *f,
			enum wire_side side)
{
	uint8_t bytes[WIRE_HEADER];
	struct wire_frame again;

	if (!f->op || f->op >= WIRE_OPS || f->status >= WIRE_STATUSES)
		wrong(r, "accepted", f);
	if ((f->direction == WIRE_REQUEST) != (asked_by_donor(f) == (side == WIRE_AT_BORROWER)))
		wrong(r, "the other side's", f);
	if (f->direction == WIRE_REQUEST && f->status)
		wrong(r, "a request with a status", f);
	if (moves_pages(f) && (!f->length || f->length > WIRE_MAX_PAYLOAD ||
			       f->length % WIRE_PAGE || f->offset % WIRE_PAGE))
		wrong(r, "not whole pages", f);
	if (wire_payload(f) > (moves_pages(f) ? WIRE_MAX_PAYLOAD : WIRE_SMALL))
		wrong(r, "payload unbounded", f);
	if (f->op == WIRE_ACTIVITY && f->length % WIRE_LOAN_SIZE)
		wrong(r, "not whole elements", f);
	wire_build(bytes, f);
	if (wire_parse(bytes, sizeof(bytes), side, &again) != 1)
		wrong(r, "built but not parsed", f);
	else if (again.op != f->op || again.status != f->status || again.tag != f->tag ||
		 again.slab != f->slab || again.generation != f->generation ||
		 again.offset != f->offset || again.length != f->length)
		wrong(r, "another after building", f);
	if (!wire_status_text(f->status))
		wrong(r, "no text", f);
	for (size_t n = 0; n < WIRE_HEADER; n++)
		if (wire_parse(bytes, n, side, &again) != 0)
			wrong(r, "a part of it is refused, or taken", f);
}

/* Which of two borrowers' connections the request came by. */
static struct borrower *owner_of(const struct wire_frame *f)
{
	return f->tag % 2 ? OTHER : OWNER;
}

/* Whether the donor was right to give @memory to @f. */
static void check_access(struct receiver *c, const struct wire_frame *f, const uint8_t *memory)
{
	const struct lend_slab *s = &pool.slabs[f->slab];

	if (f->slab >= pool.count)
		wrong(c->r, "no such slab", f);
	else if (s->state != LEND_LENT || s->owner != owner_of(f) ||
		 s->generation != f->generation)
		wrong(c->r, "not its loan", f);
	else if (memory != pool.memory + f->slab * SLAB + f->offset ||
		 (uint64_t)f->offset + f->length > SLAB)
		wrong(c->r, "beyond the slab", f);
	c->r->accesses++;
}

/* The decoder of the requesting side must accept each reply. */
static void answer(struct receiver *c, const struct wire_frame *f, enum wire_status status)
{
	enum wire_side asker = asked_by_donor(f) ? WIRE_AT_DONOR : WIRE_AT_BORROWER;
	struct wire_frame reply = *f, parsed;
	uint8_t bytes[WIRE_HEADER];

	reply.direction = WIRE_REPLY;
	reply.status = status;
	if (!moves_pages(f) && f->op != WIRE_ACTIVITY) {
		reply.offset = 0;
		reply.length = !status && tells_figures(f) ? WIRE_DONOR_SIZE : 0;
	}
	wire_build(bytes, &reply);
	if (wire_parse(bytes, sizeof(bytes), asker, &parsed) != 1)
		wrong(c->r, "a reply that no decoder accepts", &reply);
	add(c->r, bytes, sizeof(bytes));
}

static void map(struct receiver *c, const struct wire_frame *f)
{
	struct wire_frame reply = *f;
	enum wire_status status = WIRE_BAD_CLASS;
	struct wire_loan_request r;

	if (!wire_parse_loan_request(c->payload, WIRE_MAP_SIZE, &r) &&
	    r.class == WIRE_CLASS_SWAP)
		status = lend(&pool, owner_of(f), &reply.slab, &reply.generation);
	if (status == WIRE_OK) {
		const uint8_t *memory = pool.memory + reply.slab * SLAB;

		c->r->loans++;
		for (size_t i = 0; i < SLAB; i += WIRE_PAGE)
			if (memory[i])
				wrong(c->r, "not zeroed", &reply);
	}
	answer(c, &reply, status);
}

/* No more is promised than there is. */
static void reserve(struct receiver *c, const struct wire_frame *f, uint32_t slabs)
{
	struct borrower *b = owner_of(f);
	uint32_t before = b->reserved;

	pool_reserve(&pool, b, slabs);
	if (b->reserved > slabs || b->reserved > pool.count)
		wrong(c->r, "more than was asked, or is there", f);
	if (b->reserved < slabs && b->reserved < before)
		wrong(c->r, "less than was promised before", f);
	if (pool.in[LEND_LENT] + pool_promised(&pool) > pool.count)
		wrong(c->r, "one slab promised twice", f);
	add(c->r, &b->reserved, sizeof(b->reserved));
}

static void donor_finished(struct receiver *c, const struct wire_frame *f)
{
	struct wire_hello hello;
	struct wire_join join;
	uint32_t slabs;
	void *memory;
	enum wire_status status = WIRE_OK;

	switch (f->op) {
	case WIRE_ACTIVITY:
	case WIRE_EVICT:
		/* Answers: a rate for each. */
		for (uint32_t i = 0; i < wire_payload(f) / WIRE_LOAN_SIZE; i++) {
			uint64_t rate = wire_get_rate(c->payload, i);

			add(c->r, &rate, sizeof(rate));
		}
		return;
	case WIRE_JOIN:
		if (!wire_parse_join(c->payload, WIRE_JOIN_SIZE, &join))
			add(c->r, &join.session, sizeof(join.session));
		status = WIRE_NO_SESSION;
		break;
	case WIRE_HELLO:
		if (wire_parse_hello(c->payload, WIRE_HELLO_SIZE, &hello))
			status = WIRE_BAD_VERSION;
		else if (!memchr(hello.name, 0, sizeof(hello.name)))
			wrong(c->r, "a name without end", f);
		break;
	case WIRE_MAP:
		map(c, f);
		return;
	case WIRE_RESERVE:
		if (!wire_parse_reserve(c->payload, WIRE_RESERVE_SIZE, &slabs))
			reserve(c, f, slabs);
		break;
	case WIRE_UNMAP:
		status = pool_return(&pool, owner_of(f),
				     (struct wire_loan){ f->slab, f->generation });
		break;
	case WIRE_UNBACKED:
		status = pool_check(&pool, owner_of(f),
				    (struct wire_loan){ f->slab, f->generation });
		if (status == WIRE_OK)
			pool_back(&pool, f->slab, false);
		break;
	case WIRE_READ:
		status = pool_access(&pool, owner_of(f), f, &memory);
		if (status == WIRE_OK) {
			check_access(c, f, memory);
			pool_pin(&pool, f->slab);
			add(c->r, memory, WIRE_PAGE);
			pool_unpin(&pool, f->slab);
		}
		break;
	default:
		break;
	}
	answer(c, f, status);
}

static void borrower_finished(struct receiver *c, const struct wire_frame *f)
{
	struct wire_donor donor;

	/* It has no reply. */
	if (f->op == WIRE_REVOKED)
		return;
	if (asked_by_donor(f)) {
		for (uint32_t i = 0; i < wire_payload(f) / WIRE_LOAN_SIZE; i++) {
			struct wire_loan loan = wire_get_loan(c->payload, i);

			add(c->r, &loan, sizeof(loan));
			wire_put_rate(c->payload, i, 0);
		}
		answer(c, f, WIRE_OK);
		return;
	}
	if (!tells_figures(f) || f->status)
		return;
	if (wire_parse_donor(c->payload, wire_payload(f), &donor))
		return;
	if (donor.free > donor.total || donor.used > donor.memory)
		wrong(c->r, "more than there is", f);
	add(c->r, &donor.free, sizeof(donor.free));
}

static enum wire_side side_of(uint8_t how)
{
	return (how & FUZZ_SIDE) == FUZZ_DONOR ? WIRE_AT_DONOR : WIRE_AT_BORROWER;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct receiver *c = data;
	uint32_t n = wire_payload(f);
	void *memory;

	if (c->how & FUZZ_NOT_NOW && !c->asked_again && c->arrivals % 3 == 2) {
		c->asked_again = true;
		return 1;
	}
	c->asked_again = false;
	c->arrivals++;
	check_frame(c->r, f, side_of(c->how));
	c->payload = c->owned = NULL;
	if (f->op == WIRE_WRITE && f->direction == WIRE_REQUEST) {
		/* To where it belongs, or away. */
		if (pool_access(&pool, owner_of(f), f, &memory) == WIRE_OK) {
			check_access(c, f, memory);
			c->payload = memory;
		}
	} else if (n && !(moves_pages(f) && c->how & FUZZ_THROW_AWAY)) {
		/* As large as was said, for the sanitizer to watch. */
		c->payload = c->owned = malloc(n);
		if (!c->owned)
			return -ENOMEM;
	}
	*payload = c->payload;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct receiver *c = data;
	uint8_t header[WIRE_HEADER];

	c->r->frames++;
	wire_build(header, f);
	add(c->r, header, sizeof(header));
	if (c->payload)
		add(c->r, c->payload, wire_payload(f));
	if (side_of(c->how) == WIRE_AT_DONOR)
		donor_finished(c, f);
	else
		borrower_finished(c, f);
	free(c->owned);
	c->payload = c->owned = NULL;
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = arrived, .finished = finished };

/* Receives what is there. */
static int receive(struct stream_rx *rx, int fd, struct receiver *c)
{
	/* A frame may be put off, and a call may stop at its budget: not more often. */
	for (int calls = 0; calls < 2000; calls++) {
		int r = stream_receive(rx, fd, 5000, &ops, c);

		if (rx->head > rx->tail || rx->tail > STREAM_RX_BUFFER)
			wrong(c->r, "beyond the buffer", &rx->frame);
		if (r != 1)
			return r;
	}
	wrong(c->r, "never done", &rx->frame);
	return 0;
}

static void run_stream(const uint8_t *data, size_t size, uint8_t how, size_t piece,
		       struct fuzz_protocol_result *r)
{
	struct receiver c = { .r = r, .how = how };
	struct stream_rx rx;
	int fd[2], end = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) < 0 ||
	    stream_rx_init(&rx, side_of(how))) {
		snprintf(r->wrong, sizeof(r->wrong), "no socket or no memory: %s", strerror(errno));
		return;
	}
	pool_remove(&pool, OWNER);
	pool_remove(&pool, OTHER);
	pool_add(&pool, OWNER);
	pool_add(&pool, OTHER);
	/* The same slabs and generations each time. */
	while (pool_zero_some(&pool, LEND_RENEW))
		;
	pool.generation = 0;
	for (size_t sent = 0; sent < size && !end;) {
		size_t n = size - sent < piece ? size - sent : piece;
		ssize_t done = send(fd[0], data + sent, n, MSG_NOSIGNAL);

		if (done > 0)
			sent += (size_t)done;
		end = receive(&rx, fd[1], &c);
	}
	close(fd[0]);
	while (!end)
		end = receive(&rx, fd[1], &c);
	r->end = end;
	free(c.owned);
	stream_rx_free(&rx);
	close(fd[1]);
}

static void run_decoders(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	uint8_t bytes[WIRE_DONOR_SIZE];
	struct wire_hello hello, hello2;
	struct wire_donor donor;
	struct wire_loan_request loan;
	struct wire_join join;
	uint32_t class;

	for (size_t n = 0; n <= size && n <= WIRE_DONOR_SIZE + 1; n++) {
		uint8_t *exact = malloc(n ? n : 1); /* so that a byte beyond is seen */

		if (!exact)
			return;
		memcpy(exact, data, n);
		if (!wire_parse_hello(exact, n, &hello)) {
			wire_build_hello(bytes, &hello);
			if (n != WIRE_HELLO_SIZE || wire_parse_hello(bytes, n, &hello2) ||
			    strcmp(hello.name, hello2.name))
				snprintf(r->wrong, sizeof(r->wrong), "HELLO of %zu bytes", n);
		}
		if (!wire_parse_donor(exact, n, &donor)) {
			if (n != wire_build_donor(bytes, &donor) || memcmp(bytes, exact, n))
				snprintf(r->wrong, sizeof(r->wrong), "donor of %zu bytes", n);
		}
		if (!wire_parse_join(exact, n, &join)) {
			wire_build_join(bytes, &join);
			if (n != WIRE_JOIN_SIZE || memcmp(bytes, exact, n))
				snprintf(r->wrong, sizeof(r->wrong), "JOIN of %zu bytes", n);
		}
		if (!wire_parse_map(exact, n, &class) && n != WIRE_MAP_SIZE)
			snprintf(r->wrong, sizeof(r->wrong), "MAP of %zu bytes", n);
		if (!wire_parse_reserve(exact, n, &class)) {
			wire_build_reserve(bytes, class);
			if (n != WIRE_RESERVE_SIZE || memcmp(bytes, exact, n))
				snprintf(r->wrong, sizeof(r->wrong), "RESERVE of %zu bytes", n);
		}
		if (!wire_parse_loan_request(exact, n, &loan)) {
			wire_build_loan_request(bytes, &loan);
			if (n != WIRE_MAP_SIZE || memcmp(bytes, exact, n))
				snprintf(r->wrong, sizeof(r->wrong), "loan of %zu bytes", n);
		}
		free(exact);
	}
}

/*
 * Private data of RDMA connections: what is taken is what the builder would have made, and
 * one kind is never another.
 */
static void check_private(const uint8_t *data, size_t n, struct fuzz_protocol_result *r)
{
	uint8_t built[WIRE_PROOF_REPLY_SIZE];
	struct wire_proof_request request;
	struct wire_proof_reply reply;
	struct wire_rdma_open open;
	struct wire_join join;
	enum wire_refusal why = wire_parse_refusal(data, n);
	int taken = 0;

	if (!wire_parse_proof_request(data, n, &request)) {
		wire_build_proof_request(built, &request);
		if (memcmp(built, data, WIRE_PROOF_REQUEST_SIZE) ||
		    request.queue >= request.queues || request.queues > WIRE_RDMA_QUEUES)
			snprintf(r->wrong, sizeof(r->wrong), "request of %zu bytes", n);
		taken++;
	}
	if (!wire_parse_proof_reply(data, n, &reply)) {
		wire_build_proof_reply(built, &reply);
		if (memcmp(built, data, WIRE_PROOF_REPLY_SIZE))
			snprintf(r->wrong, sizeof(r->wrong), "reply of %zu bytes", n);
		taken++;
	}
	if (why) {
		wire_build_refusal(built, why);
		if (memcmp(built, data, WIRE_REFUSAL_SIZE) || !wire_refusal_text(why))
			snprintf(r->wrong, sizeof(r->wrong), "refusal of %zu bytes", n);
		taken++;
	}
	taken += !wire_parse_rdma_open(data, n, &open) + !wire_parse_rdma_join(data, n, &join);
	if (taken > 1)
		snprintf(r->wrong, sizeof(r->wrong), "private data of %zu bytes of two kinds", n);
	add(r, &taken, sizeof(taken));
}

/* The bytes as they are, and behind the beginning of each kind. */
static void run_private(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	static const char *const begins[] = {
		"", "EBBK\1\0\0\1", "EBBK\1\0\2\3", "EBBD\1\0\0\0", "EBBN\1\0\0\0", "EBBR\1\0\0\0",
		"EBBJ\1\0\0\0",
	};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
		size_t skip = *begins[i] ? 8 : 0, n = skip + (size < 80 ? size : 80);
		uint8_t *exact = malloc(n ? n : 1);

		if (!exact)
			return;
		memcpy(exact, begins[i], skip);
		memcpy(exact + skip, data, n - skip);
		check_private(exact, n, r);
		free(exact);
	}
}

void fuzz_protocol(const uint8_t *data, size_t size, struct fuzz_protocol_result *result)
{
	struct fuzz_protocol_result other = { 0 };

	*result = (struct fuzz_protocol_result){ 0 };
	if (!size)
		return;
	run_stream(data + 1, size - 1, data[0], 65536, result);
	if (*result->wrong)
		return;
	run_stream(data + 1, size - 1, data[0], 1 + (data[0] >> 3) * 7, &other);
	if (*other.wrong)
		*result = other;
	else if (other.sum != result->sum || other.frames != result->frames ||
		 other.end != result->end)
		snprintf(result->wrong, sizeof(result->wrong),
			 "in pieces: %llu frames for %llu, end %d for %d",
			 (unsigned long long)other.frames, (unsigned long long)result->frames,
			 other.end, result->end);
	else
		run_decoders(data + 1, size - 1, result);
	run_private(data + 1, size - 1, result);
}

int fuzz_protocol_set_up(struct error *e)
{
	int r = pool_init(&pool, FUZZ_PROTOCOL_SLABS * SLAB, SLAB, LEND_PRIVATE, e);

	return r ? r : pool_fill(&pool, FUZZ_PROTOCOL_SLABS, e);
}

void fuzz_protocol_tear_down(void)
{
	pool_free(&pool);
}

static uint32_t random_length(uint64_t *seed, const struct wire_frame *f)
{
	bool request = f->direction == WIRE_REQUEST;

	if (moves_pages(f))
		return WIRE_PAGE * (1 + draw_below(seed, 2));
	if (f->status)
		return 0;
	switch (f->op) {
	case WIRE_HELLO:
		return request ? WIRE_HELLO_SIZE : WIRE_DONOR_SIZE;
	case WIRE_PING:
		return request ? 0 : WIRE_DONOR_SIZE;
	case WIRE_MAP:
		return request ? WIRE_MAP_SIZE : 0;
	case WIRE_REMAP:
		return request && draw_below(seed, 2) ? WIRE_MAP_SIZE : 0;
	case WIRE_JOIN:
		return request ? WIRE_JOIN_SIZE : 0;
	case WIRE_RESERVE:
		return request ? WIRE_RESERVE_SIZE : WIRE_DONOR_SIZE;
	case WIRE_ACTIVITY:
		return WIRE_LOAN_SIZE * (1 + draw_below(seed, 9));
	default:
		return 0;
	}
}

static struct wire_frame random_frame(uint64_t *seed, enum wire_side side)
{
	struct wire_frame f = {
		.op = (uint8_t)(WIRE_HELLO + draw_below(seed, WIRE_OPS - WIRE_HELLO)),
		.tag = draw_below(seed, 2),
		.slab = draw_below(seed, FUZZ_PROTOCOL_SLABS + 1),
		.generation = 1 + draw_below(seed, 4),
	};

	/* Loans first, or nothing else happens; and no reply to REVOKED. */
	if (side == WIRE_AT_DONOR && (draw_below(seed, 3) == 0 || f.op == WIRE_REVOKED))
		f.op = WIRE_MAP;
	f.direction = asked_by_donor(&f) == (side == WIRE_AT_BORROWER) ? WIRE_REQUEST : WIRE_REPLY;
	if (f.direction == WIRE_REPLY && draw_below(seed, 3) == 0)
		f.status = (uint16_t)draw_below(seed, WIRE_STATUSES);
	f.length = random_length(seed, &f);
	if (moves_pages(&f))
		f.offset = WIRE_PAGE * draw_below(seed, 260);
	return f;
}

void fuzz_protocol_bytes(uint64_t seed, uint8_t *data, size_t size)
{
	size_t at = 1;

	data[0] = (uint8_t)draw32(&seed);
	while (at < size) {
		struct wire_frame f = random_frame(&seed, side_of(data[0]));
		uint8_t bytes[WIRE_HEADER + 72] = { 0 };
		uint32_t payload = wire_payload(&f), n = WIRE_HEADER;

		wire_build(bytes, &f);
		if (f.op == WIRE_HELLO && payload == WIRE_HELLO_SIZE)
			wire_build_hello(bytes + n, &(struct wire_hello){
				.version = WIRE_VERSION, .borrower = seed, .slab_size = SLAB,
				.name = "fuzz" });
		else if (f.op != WIRE_ACTIVITY && payload == WIRE_DONOR_SIZE)
			wire_build_donor(bytes + n, &(struct wire_donor){
				.version = WIRE_VERSION, .slab_size = SLAB, .total = 3 * SLAB,
				.free = SLAB, .memory = 8 * SLAB, .used = SLAB });
		else if (f.op == WIRE_RESERVE && payload == WIRE_RESERVE_SIZE)
			wire_build_reserve(bytes + n, draw_below(&seed, 2 * FUZZ_PROTOCOL_SLABS));
		else if (f.op == WIRE_JOIN && payload)
			wire_build_join(bytes + n, &(struct wire_join){ .session = seed });
		if (draw_below(&seed, 64) == 0)
			bytes[draw_below(&seed, WIRE_HEADER)] ^= (uint8_t)(1u
									   << draw_below(&seed, 8));
		if (payload <= sizeof(bytes) - WIRE_HEADER)
			n += payload;
		for (uint32_t i = 0; i < n && at < size; i++)
			data[at++] = bytes[i];
		/* Pages: any bytes. */
		for (uint32_t i = n; i < WIRE_HEADER + payload && at < size; i++)
			data[at++] = (uint8_t)i;
	}
}
