// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The library's side of a heap that donors trace (ebbfar_heap_new()), with donors that are
 * functions: what they are told of regions, and which marks they may not have.
 */
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "userlib/far/cycle.h"
#include "userlib/far/member.h"
#include "userlib/gc/ebbgc_far.h"

#include <cmocka.h>

enum { REGIONS = 8, DONORS = 2, SLOT = 1024, SLOTS = 64, NEVER = 1000000 };

enum fault {
	HONEST,
	LEFT_OUT,        /* a region's marks are missing */
	TWICE,           /* ... come twice */
	OTHER_VERSION,
	OTHER_REGION,    /* one that the donor was not told of */
	MORE_WORDS,
	NO_SUCH_SLOT,    /* a mark of a slot that is not in use */
	NAMED_UNMARKED,
	FAULTS,
};

struct donor {
	struct ebbfar far;
	uint32_t version[REGIONS];  /* of PLACE; 0 = not here */
	uint64_t live[REGIONS], marks[REGIONS], ghosts[REGIONS];
	uint32_t sets, heaps, places, begins, traces, commits, aborts, withdrawals;
	enum fault fault;
	int refuses;                /* -errno of PLACE */
	uint32_t pause;             /* us, of TRACE */
	uint32_t out;               /* region + 1 whose granule 0 a TRACE's reply has */
	uint32_t drips;             /* us that an END takes, of one region's marks */
	uint32_t delay;             /* us that a TRACE takes */
	struct wire_job_evacuated evacuated; /* what an EVACUATE is replied, if .lies */
	bool lies;
	int refuses_copies;         /* -errno of EVACUATE */
	uint32_t evacuations;
	/* ms after which it replies to messages from this one on; NEVER. */
	uint32_t reply_ms;
	enum wire_job_op slow_from;
	struct client_reply held;   /* the reply that is still to come, at .held_until */
	int held_result;
	uint64_t held_until;
	bool lost;
	uint8_t types;              /* that it was told of */
	struct wire_job_layout layout[16];
	struct wire_job_run run[16];    /* the first one of each */
};

static struct donor *donors[DONORS];
static ebbfar_t *pools[DONORS];
static ebbfar_heap_t *heap;
static uint64_t got[REGIONS];
static uint32_t asked, reported;
static uint32_t held_most;          /* replies that were still to come at a time */
static int refusal;                 /* what found() returns, if not 0 */
static uint32_t allocated, freed;   /* extents */
static bool full;
static const uint64_t live[TABLET_WORDS] = { 0xffff };
static uint64_t gone[TABLET_WORDS];

/* --- donors ----------------------------------------------------------------------- */

static void take_places(struct donor *d, const uint8_t *payload, uint32_t length)
{
	struct wire_job_place p;
	const uint8_t *bits;
	size_t at = 0;

	while (wire_next_job_place(payload, length, &at, &p, &bits) > 0) {
		assert_true(p.version > d->version[p.region] || !d->version[p.region]);
		d->withdrawals += !p.slot_bytes;
		d->places += p.slot_bytes != 0;
		d->version[p.region] = p.slot_bytes ? p.version : 0;
		d->live[p.region] = p.slot_bytes ? get64(bits) : 0;
	}
}

static void take_types(struct donor *d, const uint8_t *payload, uint32_t length)
{
	struct wire_job_run runs[WIRE_JOB_RUNS];
	struct wire_job_layout l;
	size_t at = WIRE_JOB_HEAP_SIZE;

	while (wire_next_job_layout(payload, length, &at, &l, runs) > 0) {
		assert_in_range(l.type, 0, 15);
		d->layout[l.type] = l;
		if (l.runs)
			d->run[l.type] = runs[0];
		d->types++;
	}
}

/* A granule of 16 bytes in 1024 is a slot's: word i is slot i. */
static void take_sets(struct donor *d, const uint8_t *payload, uint32_t length, size_t at,
		      uint64_t *to)
{
	struct wire_job_set s;

	for (; wire_next_job_set(payload, length, &at, &s) > 0; d->sets++)
		for (uint32_t i = 0; i < s.words; i++) {
			assert_true(d->version[s.region]);
			assert_int_equal(get64(s.bits + 8 * i), 1);
			to[s.region] |= UINT64_C(1) << (s.first + i);
		}
}

static uint32_t put_marks(const struct donor *d, uint32_t region, uint8_t *to)
{
	uint64_t marks = d->marks[region], holds = marks & 2;
	uint32_t words = d->fault == MORE_WORDS ? 2 : 1, n;

	if (d->fault == NO_SUCH_SLOT)
		marks |= UINT64_C(1) << 63;
	if (d->fault == NAMED_UNMARKED)
		holds |= 1 << 15;
	n = wire_put_job_bits(to, &(struct wire_job_bits){
		region, d->version[region] + (d->fault == OTHER_VERSION), words, NULL });
	memset(to + n, 0, 16 * words);
	put64(to + n, marks);
	put64(to + n + 8 * words, holds);
	return n + 16 * words;
}

static uint32_t end(struct donor *d, const uint8_t *payload, uint32_t length, uint8_t *reply)
{
	uint32_t n = WIRE_JOB_ENDED_SIZE;
	struct wire_job_end e;

	assert_int_equal(wire_parse_job_end(payload, length, &e), 0);
	wire_build_job_ended(reply, &(struct wire_job_ended){ e.cycle, WIRE_JOB_NO_REGION });
	d->aborts += e.verb == WIRE_JOB_ABORT;
	d->commits += e.verb == WIRE_JOB_COMMIT;
	if (d->drips)
		usleep(d->drips);
	for (uint32_t r = 0; e.verb == WIRE_JOB_COMMIT && r < REGIONS; r++) {
		if (d->drips && r < e.first)
			continue;
		if (!d->version[r] && !(d->fault == OTHER_REGION && r == REGIONS - 1))
			continue;
		if (d->fault == LEFT_OUT)
			d->fault = HONEST;
		else
			n += put_marks(d, r, reply + n);
		if (d->fault == TWICE)
			n += put_marks(d, r, reply + n);
		if (d->drips) {
			wire_build_job_ended(reply, &(struct wire_job_ended){ e.cycle, r + 1 });
			break;
		}
	}
	return n;
}

static uint32_t trace(struct donor *d, const uint8_t *payload, uint32_t length, uint8_t *reply)
{
	uint32_t n = WIRE_JOB_TRACED_SIZE;
	struct wire_job_traced told = { .visited = 0 };
	struct wire_job_trace t;

	assert_int_equal(wire_parse_job_trace(payload, length, &t), 0);
	usleep(d->delay);
	take_sets(d, payload, length, WIRE_JOB_TRACE_SIZE, d->marks);
	told.cycle = t.cycle;
	told.batch = t.batch;
	told.pause = d->pause;
	told.queued = d->pause != 0;
	wire_build_job_traced(reply, &told);
	if (d->out) {
		n += wire_put_job_set(reply + n, &(struct wire_job_set){ d->out - 1, 0, 1, NULL });
		put64(reply + n, 1);
		n += 8;
		d->out = 0;
	}
	d->traces++;
	return n;
}

static uint32_t evacuate(struct donor *d, const uint8_t *payload, uint32_t length, uint8_t *reply)
{
	struct wire_job_evacuated told = d->evacuated;
	size_t at = WIRE_JOB_EVACUATE_SIZE;
	struct wire_job_evacuate e;
	struct wire_job_bits b;

	assert_int_equal(wire_parse_job_evacuate(payload, length, &e), 0);
	assert_int_equal(wire_next_job_bits(payload, length, &at, 1, &b), 1);
	assert_true(d->version[b.region] && b.version == d->version[b.region]);
	assert_int_equal(get64(b.bits) & ~d->live[b.region], 0);
	if (!d->lies) {
		told.regions = 1;
		told.bytes = (uint32_t)__builtin_popcountll(get64(b.bits)) * SLOT;
	}
	told.job = e.job;
	wire_build_job_evacuated(reply, &told);
	d->evacuations++;
	return WIRE_JOB_EVACUATED_SIZE;
}

static void reply_to(struct donor *d, enum wire_job_op op, const struct client_reply *reply,
		     int r)
{
	uint32_t held = 0;

	if (!d->reply_ms || op < d->slow_from || !reply->got) {
		reply->done(reply->data, r);
		return;
	}
	assert_null(d->held.done);
	d->held = *reply;
	d->held_result = r;
	d->held_until = now_ns() + d->reply_ms * UINT64_C(1000000);
	for (int i = 0; i < DONORS; i++)
		held += donors[i]->held.done != NULL;
	held_most = held > held_most ? held : held_most;
}

/* The reply arrives. */
static void let_reply(struct donor *d)
{
	struct client_reply reply = d->held;

	d->held.done = NULL;
	reply.done(reply.data, d->held_result);
}

/* Of the library, whose place these take. */
int client_push(struct client *c, struct wire_frame f, const void *payload,
		struct client_reply reply)
{
	struct donor *d = donors[c != &donors[0]->far.client];
	uint8_t unread[WIRE_JOB_MOST];
	uint32_t n = 0;
	int r = 0;

	switch (f.op) {
	case WIRE_JOB_HEAP:
		d->heaps++;
		take_types(d, payload, f.length);
		n = WIRE_JOB_LIMITS_SIZE;
		memset(reply.to, 0, n);
		break;
	case WIRE_JOB_PLACE:
		r = d->refuses;
		if (!r)
			take_places(d, payload, f.length);
		break;
	case WIRE_JOB_BEGIN:
		d->begins++;
		memset(d->marks, 0, sizeof(d->marks));
		memset(d->ghosts, 0, sizeof(d->ghosts));
		take_sets(d, payload, f.length, WIRE_JOB_BEGIN_SIZE, d->ghosts);
		break;
	case WIRE_JOB_EVACUATE:
		n = evacuate(d, payload, f.length, reply.to);
		r = d->refuses_copies;
		break;
	case WIRE_JOB_TRACE:
		n = trace(d, payload, f.length, reply.to);
		break;
	default:
		n = end(d, payload, f.length, reply.to ?: unread);
	}
	if (reply.got)
		*reply.got = n;
	else
		/* An ABORT: what else its reply has is an error. */
		assert_true(reply.length == WIRE_JOB_ENDED_SIZE && !reply.any);
	reply_to(d, f.op, &reply, r);
	return 0;
}

int client_settle(struct client *c)
{
	return 0;
}

bool client_go_on(struct client *c)
{
	struct donor *d = donors[c != &donors[0]->far.client];

	if (d->held.done && now_ns() >= d->held_until && d->reply_ms != NEVER)
		let_reply(d);
	return false;
}

int client_poll(const struct client *c, struct pollfd *p)
{
	*p = (struct pollfd){ .fd = -1 };
	return 1000;
}

int member_check(const ebbfar_t *far)
{
	return 0;
}

const char *ebbfar_why(const ebbfar_t *far)
{
	return donors[far != &donors[0]->far]->lost ? "donor: lost" : "";
}

int ebbfar_maps(const ebbfar_t *far)
{
	return far->maps;
}

/* Donors have no memory here. */
int ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *extent)
{
	*extent = (struct ebbfar_extent){ REGIONS * TABLET_REGION, TABLET_REGION, ++allocated };
	return full ? -ENOSPC : 0;
}

int ebbfar_free(ebbfar_t *far, const struct ebbfar_extent *extent)
{
	freed++;
	return 0;
}

int ebbfar_read(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset, void *to,
		size_t n)
{
	return -EIO;
}

int ebbfar_write(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset,
		 const void *from, size_t n)
{
	return -EIO;
}

/* --- the program ------------------------------------------------------------------ */

static int found(void *data, uint32_t region, uint32_t granule)
{
	asked++;
	return refusal ?: region < 4;
}

static void marks(void *data, uint32_t region, const uint64_t *slots, const uint64_t *names)
{
	assert_int_equal(slots[0] & ~live[0], 0);
	assert_int_equal(names[0] & ~slots[0], 0);
	got[region] = slots[0];
	reported++;
}

/* Region @r, in allocation @generation of an extent. */
static int add(uint32_t r, unsigned pool, uint64_t generation)
{
	return ebbfar_heap_region(heap, &(struct ebbfar_region){
		.region = r, .slot_bytes = SLOT, .pool = pool,
		.extent = { r * TABLET_REGION, TABLET_REGION, generation }, .live = live,
		.gone = gone });
}

static int cycle(void)
{
	int r = ebbfar_heap_trace(heap, 10000);

	reported = 0;
	return ebbfar_heap_end(heap, true, 10000) ?: r;
}

static uint64_t late_at;            /* ns, of now_ns() */

static int is_late(void *data)
{
	return now_ns() >= late_at;
}

static int set_up(void **state)
{
	struct ebbfar_heap_options o = { .size = sizeof(o), .pools = pools, .count = DONORS,
					 .base = 1 << 20, .mask = UINT64_MAX >> 4,
					 .regions = REGIONS, .found = found, .marks = marks,
					 .late = is_late };
	const struct ebbfar_layout l = { .size = 16, .bitmap = 1 };

	memset(gone, 0, sizeof(gone));
	asked = reported = allocated = freed = held_most = 0;
	refusal = 0;
	late_at = UINT64_MAX;
	full = false;
	for (int i = 0; i < DONORS; i++) {
		donors[i] = calloc(1, sizeof(*donors[i]));
		pthread_mutex_init(&donors[i]->far.lock, NULL);
		donors[i]->far.client.jobs = true;
		pools[i] = &donors[i]->far;
	}
	assert_int_equal(ebbfar_heap_new(&o, &heap), 0);
	assert_int_equal(ebbfar_heap_type(heap, 3, &l), 0);
	return 0;
}

static int tear_down(void **state)
{
	ebbfar_heap_free(heap);
	for (int i = 0; i < DONORS; i++)
		free(donors[i]);
	return 0;
}

static void what_donors_are_told(void **state)
{
	/* The object of slot 2 has come back, and one that was never written. */
	gone[2] = 1;
	gone[20] = 1;
	assert_int_equal(add(1, 0, 1), 0);
	gone[2] = gone[20] = 0;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(2, 1, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 2, 1, 1), 0);
	/* An object of another donor's, which it passes on; and one of the program's. */
	donors[0]->out = 3;
	donors[1]->out = 6;
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 3);
	assert_int_equal(asked, 2);
	assert_int_equal(got[0], 1 << 5);
	assert_int_equal(got[1], 0);
	assert_int_equal(got[2], 3);
	assert_int_equal(donors[0]->ghosts[1], 1 << 2);
	assert_int_equal(donors[0]->heaps, 1);
	assert_int_equal(donors[0]->places, 2);
	assert_int_equal(donors[1]->places, 1);
	/* The same places are not told again; region 0 moves, region 1 has ended. */
	assert_int_equal(add(0, 1, 2), 0);
	assert_int_equal(add(2, 1, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 2);
	assert_int_equal(donors[0]->heaps, 1);
	/* A donor that has no region of a cycle has no part in it, and is told later. */
	assert_int_equal(donors[0]->begins, 1);
	assert_int_equal(donors[0]->withdrawals, 0);
	assert_int_equal(donors[1]->withdrawals, 0);
	assert_int_equal(donors[1]->places, 2);
	/* Another extent at the same donor. */
	assert_int_equal(add(0, 1, 3), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(donors[1]->places, 3);
	assert_int_equal(donors[1]->withdrawals, 1);
	/* A type that comes later. */
	assert_int_equal(ebbfar_heap_type(heap, 4, &(struct ebbfar_layout){ .size = 8 }), 0);
	assert_int_equal(add(0, 1, 3), 0);
	assert_int_equal(add(3, 0, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(donors[0]->withdrawals, 2);
	assert_int_equal(donors[0]->places, 3);
	assert_int_equal(donors[0]->heaps, 2);
	assert_int_equal(donors[1]->places, 3);
	assert_int_equal(donors[0]->aborts + donors[1]->aborts, 0);
}

/* It is not known what a donor has that has failed: it is told again. */
static void places_that_are_refused(void **state)
{
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(1, 1, 1), 0);
	donors[1]->refuses = -ENOSPC;
	assert_int_equal(ebbfar_heap_trace(heap, 10000), -ENOSPC);
	/* Once it has failed, it stays so. */
	donors[1]->refuses = 0;
	assert_int_equal(ebbfar_heap_trace(heap, 10000), -ENOSPC);
	assert_int_equal(ebbfar_heap_end(heap, true, 100), -ECANCELED);
	assert_int_equal(ebbfar_heap_end(heap, true, 100), -ECANCELED);
	assert_int_equal(donors[0]->begins, 0);
	assert_int_equal(add(1, 1, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 1);
	assert_int_equal(donors[1]->places, 1);
	/* A withdrawal may have taken effect. */
	donors[1]->refuses = -EIO;
	assert_int_equal(add(2, 1, 1), 0);
	assert_int_equal(cycle(), -ECANCELED);
	donors[1]->refuses = 0;
	assert_int_equal(add(1, 1, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(donors[1]->places, 2);
}

static void marks_that_cannot_be(void **state)
{
	for (enum fault f = LEFT_OUT; f < FAULTS; f++) {
		assert_int_equal(add(0, 0, 1), 0);
		assert_int_equal(add(1, 1, 1), 0);
		assert_int_equal(add(2, 1, 1), 0);
		donors[1]->fault = f;
		assert_int_equal(cycle(), -EBADMSG);
		donors[1]->fault = HONEST;
	}
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(cycle(), 0);
}

static void a_donor_that_postpones(void **state)
{
	donors[0]->pause = 1000000;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(1, 1, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(ebbfar_heap_trace(heap, 500), -EAGAIN);
	/* Both know that it is over. */
	assert_int_equal(donors[0]->aborts, 1);
	assert_int_equal(donors[1]->aborts, 1);
	assert_int_equal(donors[0]->traces, 1);
	assert_int_equal(ebbfar_heap_end(heap, true, 100), -ECANCELED);
	assert_int_equal(donors[0]->commits, 0);
	/* Once that was waited for. */
	donors[0]->pause = 10000;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(ebbfar_heap_trace(heap, 500), -EAGAIN);
	assert_in_range(donors[0]->traces, 3, 53);
	assert_int_equal(ebbfar_heap_end(heap, false, 100), -ECANCELED);
	donors[0]->pause = 0;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(got[0], 1 << 5);
}

/* One that sends the marks of a region at a time, and slowly. */
static void an_end_that_drips(void **state)
{
	for (uint32_t r = 0; r < REGIONS; r++)
		assert_int_equal(add(r, 0, 1), 0);
	assert_int_equal(ebbfar_heap_trace(heap, 10000), 0);
	donors[0]->drips = 20000;
	assert_int_equal(ebbfar_heap_end(heap, true, 50), -EAGAIN);
	assert_in_range(donors[0]->commits, 2, REGIONS - 2);
	assert_int_equal(donors[0]->aborts, 1);
	donors[0]->drips = 0;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(cycle(), 0);
}

/* It costs the time that a cycle has, and no more; and it is told that the cycle is over. */
static void a_donor_that_is_silent(void **state)
{
	for (enum wire_job_op op = WIRE_JOB_HEAP; op <= WIRE_JOB_TRACE; op++) {
		struct donor *d = donors[1];
		uint32_t aborts = d->aborts, heaps = d->heaps, begins = d->begins;
		uint32_t traces = d->traces;
		uint64_t since = now_ns();
		const struct ebbfar_layout l = { .size = 8 };

		assert_int_equal(ebbfar_heap_type(heap, 4 + op - WIRE_JOB_HEAP, &l), 0);
		assert_int_equal(add(0, 0, op), 0);
		assert_int_equal(add(1, 1, op), 0);
		assert_int_equal(ebbfar_heap_push(heap, 1, 5, 1), 0);
		d->slow_from = op;
		d->reply_ms = NEVER;
		assert_int_equal(ebbfar_heap_trace(heap, 300), -EAGAIN);
		assert_int_equal(ebbfar_heap_end(heap, true, 10000), -ECANCELED);
		assert_true(now_ns() - since < UINT64_C(10000000000));
		assert_int_equal(ebbfar_heap_faults(heap), 2);
		assert_int_equal(d->heaps - heaps, 1);
		assert_int_equal(d->begins - begins, op >= WIRE_JOB_BEGIN);
		assert_int_equal(d->traces - traces, op >= WIRE_JOB_TRACE);
		assert_int_equal(d->aborts - aborts, op >= WIRE_JOB_BEGIN);
		/* The reply comes when the cycle and the heap's use of its memory are over. */
		let_reply(d);
		d->reply_ms = 0;
		assert_int_equal(add(1, 1, op), 0);
		assert_int_equal(cycle(), 0);
		assert_int_equal(reported, 1);
	}
}

/* ... and less once the program says so: while a reply is missing, or no donor works. */
static void a_program_that_hurries(void **state)
{
	struct donor *d = donors[1];

	for (int pauses = 0; pauses < 2; pauses++) {
		assert_int_equal(add(1, 1, 1), 0);
		assert_int_equal(ebbfar_heap_push(heap, 1, 5, 1), 0);
		d->slow_from = WIRE_JOB_TRACE;
		d->reply_ms = pauses ? 0 : NEVER;
		d->pause = pauses ? WIRE_JOB_PAUSE_MOST : 0;
		d->traces = 0;
		late_at = now_ns() + UINT64_C(50000000);
		assert_int_equal(ebbfar_heap_trace(heap, 20000), -EAGAIN);
		assert_int_equal(d->traces, 1);
		assert_true(now_ns() - late_at < UINT64_C(10000000000));
		assert_int_equal(ebbfar_heap_end(heap, true, 20000), -ECANCELED);
		assert_int_equal(ebbfar_heap_faults(heap), 2);
		if (!pauses)
			let_reply(d);
	}
}

/* Nothing is asked of one that has no region of the cycle. */
static void a_silent_donor_that_has_nothing(void **state)
{
	donors[1]->reply_ms = NEVER;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 1);
	assert_int_equal(held_most, 0);
	assert_int_equal(donors[1]->heaps + donors[1]->begins, 0);
}

/* Words that follow one another share a head. */
static void rows_of_words(void **state)
{
	for (int i = 2; i < 7; i++)
		gone[i] = 1;
	gone[9] = 1;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(donors[0]->ghosts[0], 0x27c);
	assert_int_equal(donors[0]->sets, 2);
}

static void options_of_other_releases(void **state)
{
	struct { struct ebbfar_heap_options o; uint64_t later; } p = { .o = {
		.size = sizeof(p), .pools = pools, .count = DONORS, .regions = REGIONS,
		.found = found, .marks = marks } };
	ebbfar_heap_t *h;

	assert_int_equal(ebbfar_heap_new(&p.o, &h), 0);
	ebbfar_heap_free(h);
	p.later = 1;
	assert_int_equal(ebbfar_heap_new(&p.o, &h), -EINVAL);
	p.o.size = 5000;
	assert_int_equal(ebbfar_heap_new(&p.o, &h), -EINVAL);
	/* Those of before had no .late. */
	p.o.size = offsetof(struct ebbfar_heap_options, late);
	assert_int_equal(ebbfar_heap_new(&p.o, &h), 0);
	ebbfar_heap_free(h);
	p.o.size -= 8;
	assert_int_equal(ebbfar_heap_new(&p.o, &h), -EINVAL);
}

/* Each message waits for both donors at a time, those before BEGIN as well. */
static void donors_side_by_side(void **state)
{
	for (enum wire_job_op op = WIRE_JOB_HEAP; op <= WIRE_JOB_END; op++) {
		const struct ebbfar_layout l = { .size = 8 };

		held_most = 0;
		assert_int_equal(ebbfar_heap_type(heap, 4 + op - WIRE_JOB_HEAP, &l), 0);
		for (int i = 0; i < DONORS; i++) {
			donors[i]->slow_from = op;
			donors[i]->reply_ms = 5;
			assert_int_equal(add((uint32_t)i, (unsigned)i, op), 0);
			assert_int_equal(ebbfar_heap_push(heap, (uint32_t)i, 5, 1), 0);
		}
		assert_int_equal(cycle(), 0);
		assert_int_equal(held_most, 2);
	}
}

/* One whose handle another thread uses for long: it does not know that a cycle has ended. */
static void a_handle_that_is_in_use(void **state)
{
	struct donor *d = donors[1];

	d->far.client.timeout = 10;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(1, 1, 1), 0);
	assert_int_equal(ebbfar_heap_trace(heap, 10000), 0);
	pthread_mutex_lock(&d->far.lock);
	assert_int_equal(ebbfar_heap_end(heap, true, 20), -EAGAIN);
	pthread_mutex_unlock(&d->far.lock);
	assert_int_equal(ebbfar_heap_faults(heap), 2);
	assert_int_equal(d->aborts, 0);
	/* So it is told first. */
	assert_int_equal(add(1, 1, 2), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(d->aborts, 1);
	assert_int_equal(d->places, 2);
}

/* It has no part in cycles, which go on at the other one. */
static void a_donor_that_is_lost(void **state)
{
	donors[1]->lost = true;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(1, 1, 1), -ESHUTDOWN);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 1);
	assert_int_equal(got[0], 1 << 5);
	assert_int_equal(donors[1]->heaps + donors[1]->begins + donors[1]->commits, 0);
	donors[0]->lost = true;
	assert_int_equal(add(0, 0, 1), -ESHUTDOWN);
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 0);
}

static void donors_that_are_left_out(void **state)
{
	assert_int_equal(ebbfar_heap_leave_out(heap, DONORS), -EINVAL);
	assert_int_equal(ebbfar_heap_leave_out(heap, 1), 0);
	assert_int_equal(add(1, 1, 1), -EINVAL);
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(ebbfar_heap_leave_out(heap, 0), -EINVAL);
	assert_int_equal(cycle(), 0);
	assert_int_equal(reported, 1);
	assert_int_equal(donors[1]->heaps + donors[1]->begins + donors[1]->commits, 0);
	/* Of that cycle only.  What ended meanwhile is withdrawn when it takes part again. */
	assert_int_equal(add(1, 1, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(ebbfar_heap_leave_out(heap, 1), 0);
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(donors[1]->withdrawals, 0);
	assert_int_equal(add(2, 1, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(donors[1]->withdrawals, 1);
	assert_int_equal(donors[1]->places, 2);
}

/* Each of these is the second donor's fault. */
static void faults_of_donors(void **state)
{
	for (int i = 0; i < 5; i++) {
		assert_int_equal(add(0, 0, 1), 0);
		assert_int_equal(add(1, 1, 1), 0);
		assert_int_equal(ebbfar_heap_push(heap, 1, 5, 1), 0);
		donors[1]->refuses = i == 0 ? -ENOSPC : 0;
		donors[1]->pause = i == 1 ? 1000000 : 0;
		donors[1]->fault = i == 2 ? LEFT_OUT : HONEST;
		donors[1]->drips = i == 3 ? 20000 : 0;
		/* It is done in the end, but the time is over. */
		donors[1]->delay = i == 4 ? 600000 : 0;
		if (i == 4) {
			assert_int_equal(ebbfar_heap_trace(heap, 500), 0);
			assert_int_equal(ebbfar_heap_end(heap, false, 1), -ECANCELED);
		} else {
			(void)ebbfar_heap_trace(heap, 500);
			assert_true(ebbfar_heap_end(heap, true, 10) < 0);
		}
		assert_int_equal(ebbfar_heap_faults(heap), 2);
	}
	donors[1]->delay = 0;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(ebbfar_heap_faults(heap), 0);
	/* The program gives up. */
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(ebbfar_heap_trace(heap, 1000), 0);
	assert_int_equal(ebbfar_heap_end(heap, false, 1), -ECANCELED);
	assert_int_equal(ebbfar_heap_faults(heap), 0);
}

/* A reference that cannot be ends the cycle: it is not sent on, nor is another one asked about. */
static void a_reference_that_cannot_be(void **state)
{
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(2, 1, 1), 0);
	assert_int_equal(ebbfar_heap_push(heap, 0, 5, 1), 0);
	donors[0]->out = 3;
	refusal = -EBADMSG;
	assert_int_equal(ebbfar_heap_trace(heap, 10000), -EBADMSG);
	assert_int_equal(asked, 1);
	assert_int_equal(donors[1]->marks[2], 0);
	assert_int_equal(donors[1]->aborts, 1);
	assert_int_equal(ebbfar_heap_end(heap, true, 100), -ECANCELED);
}

static int evacuate_region(uint64_t keep, struct ebbfar_extent *to)
{
	const struct ebbfar_region w = {
		.region = 1, .slot_bytes = SLOT, .pool = 1,
		.extent = { TABLET_REGION, TABLET_REGION, 1 }, .live = live, .gone = gone };

	return ebbfar_heap_evacuate(heap, &w, (uint64_t[TABLET_WORDS]){ keep }, 20, to);
}

static void evacuations(void **state)
{
	struct donor *d = donors[1];
	struct ebbfar_extent to;

	/* The donor is told of the region, once. */
	assert_int_equal(evacuate_region(0x9, &to), 0);
	assert_int_equal(to.generation, 1);
	assert_int_equal(d->places, 1);
	assert_int_equal(evacuate_region(0x9, &to), 0);
	assert_int_equal(d->places, 1);
	assert_int_equal(d->evacuations, 2);
	/* The next cycle has it at its new place. */
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(evacuate_region(0x9, &to), -EBUSY);
	assert_int_equal(ebbfar_heap_region(heap, &(struct ebbfar_region){
		.region = 1, .slot_bytes = SLOT, .pool = 1, .extent = to,
		.live = (uint64_t[TABLET_WORDS]){ 0x9 }, .gone = gone }), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(d->places, 2);
	assert_int_equal(d->live[1], 0x9);
	/* Slots that are not there. */
	assert_int_equal(evacuate_region(UINT64_C(1) << 20, &to), -EINVAL);
	full = true;
	assert_int_equal(evacuate_region(0x9, &to), -ENOSPC);
	full = false;
	assert_int_equal(freed, 0);
	assert_int_equal(d->evacuations, 2);
}

/* There is no new extent then, and the donor has the region as before. */
static void evacuations_that_fail(void **state)
{
	static const struct wire_job_evacuated lies[] = {
		{ .regions = 1, .bytes = SLOT },                /* an object too few */
		{ .regions = 1, .bytes = 3 * SLOT },
		{ .regions = 2, .bytes = 2 * SLOT },            /* of more regions */
		{ .regions = 1, .bytes = TABLET_REGION + 16 },
		{ .regions = 0 },                               /* neither a copy nor a pause */
	};
	struct ebbfar_extent to = { .generation = 77 };
	struct donor *d = donors[1];
	uint32_t n = 0;

	d->lies = true;
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		int r;

		d->evacuated = lies[i];
		r = evacuate_region(0x9, &to);
		assert_true(r == -EBADMSG || r == -EPROTO);
		assert_int_equal(freed, ++n);
	}
	/* Its share of the processor is used up for longer than there is time. */
	d->evacuated = (struct wire_job_evacuated){ .pause = 50000 };
	assert_int_equal(evacuate_region(0x9, &to), -EAGAIN);
	assert_int_equal(freed, ++n);
	d->lies = false;
	d->evacuated.pause = 0;
	d->refuses_copies = -ESTALE;
	assert_int_equal(evacuate_region(0x9, &to), -ESTALE);
	assert_int_equal(freed, ++n);
	/* One that is lost may still write there. */
	d->refuses_copies = -ETIMEDOUT;
	d->lost = true;
	assert_int_equal(evacuate_region(0x9, &to), -ETIMEDOUT);
	assert_int_equal(freed, n);
	d->lost = false;
	d->refuses_copies = 0;
	assert_int_equal(to.generation, 77);
	assert_int_equal(evacuate_region(0x9, &to), 0);
	assert_int_equal(d->places, 1);
}

/* A child has a copy that its parent's thread may have been changing. */
static void a_child_frees_nothing(void **state)
{
	struct ebbgc_far_donors d = { .heap = heap };
	int status;
	pid_t child;

	assert_int_equal(add(0, 0, 1), 0);
	child = fork();
	if (!child) {
		size_t before = mallinfo2().uordblks;

		ebbgc_far_donors_end(&d);
		_exit(mallinfo2().uordblks != before || d.heap);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(cycle(), 0);
}

/* --- the store of a heap of libebbgc ---------------------------------------------- */

static int found_none(void *data, uint32_t region, uint32_t granule)
{
	return 0;
}

static void no_marks(void *data, uint32_t region, const uint64_t *slots, const uint64_t *names)
{
}

/* Types of which no object can be in the store, or not as the type says. */
static void types_of_a_heap(void **state)
{
	static const struct ebbgc_run elements = { 16, EBBGC_COUNT_LENGTH, 16384 };
	static const struct ebbgc_run single = { 8, 1, 65536 };
	static const struct ebbgc_run many[9] = {
		{ 0, 1, 8 }, { 8, 1, 8 }, { 16, 1, 8 }, { 24, 1, 8 }, { 32, 1, 8 }, { 40, 1, 8 },
		{ 48, 1, 8 }, { 56, 1, 8 }, { 64, 1, 8 } };
	const struct ebbgc_far_type types[] = {
		{ .type = 4, .size = 16, .element_size = 16384, .length_width = 8, .bitmap = 2,
		  .runs = &elements, .run_count = 1 },
		{ .type = 5, .size = 16, .runs = &single, .run_count = 1 },
		{ .type = 6, .size = 72, .runs = many, .run_count = 9 },
		{ .type = 7, .size = 16, .bitmap = 1 },
	};
	const struct ebbgc_far_region stored = { .slot_bytes = SLOT, .live = live, .gone = gone,
						 .place = { { 0, TABLET_REGION, 1 } } };
	bool reads = false;
	const struct ebbgc_far_cycle c = {
		.base = 1 << 20, .mask = UINT64_MAX >> 4, .regions = REGIONS, .type_count = 4,
		.types = types, .stored_count = 1, .stored = &stored, .found = found_none,
		.marks = no_marks, .reads = &reads };
	struct ebbgc_far_donors d = { .pools = { pools[0] }, .count = 1 };

	assert_int_equal(ebbgc_far_donors_begin(&d, &c), 0);
	assert_int_equal(ebbgc_far_donors_trace(&d, NULL, 0, 100), 0);
	assert_int_equal(ebbgc_far_donors_stop(&d, true, 100), 0);
	assert_int_equal(donors[0]->types, 3);
	/* Without elements; as a run of any stride; not at all. */
	assert_int_equal(donors[0]->layout[4].bitmap, 2);
	assert_int_equal(donors[0]->layout[4].length_width, 0);
	assert_int_equal(donors[0]->layout[4].runs, 0);
	assert_int_equal(donors[0]->run[5].stride, 8);
	assert_int_equal(donors[0]->layout[6].size, 0);
	assert_int_equal(donors[0]->layout[7].bitmap, 1);
	/* A second heap, with new handles, has told no types. */
	ebbgc_far_donors_end(&d);
	memset(donors[0]->version, 0, sizeof(donors[0]->version));
	assert_int_equal(ebbgc_far_donors_begin(&d, &c), 0);
	assert_int_equal(ebbgc_far_donors_trace(&d, NULL, 0, 10000), 0);
	assert_int_equal(ebbgc_far_donors_stop(&d, true, 10000), 0);
	assert_int_equal(donors[0]->types, 6);
	ebbgc_far_donors_end(&d);
}

/* A far cycle of a heap with a region at each donor; returns whether the second one takes part. */
static bool far_cycle(struct ebbgc_far_donors *d)
{
	static uint64_t generation;     /* it is told of each one */
	const struct ebbgc_far_region stored[] = {
		{ .region = 0, .slot_bytes = SLOT, .live = live, .gone = gone,
		  .place = { { 0, TABLET_REGION, 1 } } },
		{ .region = 1, .slot_bytes = SLOT, .live = live, .gone = gone,
		  .place = { { TABLET_REGION, TABLET_REGION | UINT64_C(1) << 32, generation++ } } },
	};
	bool reads[2] = { false, false };
	const struct ebbgc_far_cycle c = {
		.base = 1 << 20, .mask = UINT64_MAX >> 4, .regions = REGIONS, .stored_count = 2,
		.stored = stored, .found = found_none, .marks = no_marks, .reads = reads };
	const struct ebbgc_far_set one = { 0, 5, 1 };
	uint32_t commits = donors[0]->commits;
	int r = ebbgc_far_donors_begin(d, &c);

	if (!r)
		r = ebbgc_far_donors_trace(d, &one, 1, 100);
	if (!r)
		r = ebbgc_far_donors_stop(d, true, 100);
	if (r)
		(void)ebbgc_far_donors_stop(d, false, 1);
	assert_false(reads[0]);
	/* Without it, the other one traces. */
	assert_int_equal(r, donors[1]->refuses && !reads[1] ? donors[1]->refuses : 0);
	assert_int_equal(donors[0]->commits - commits, !r);
	return !reads[1];
}

/* One that always fails is asked ever more rarely, until it succeeds. */
static void a_donor_that_always_fails(void **state)
{
	static const int asked_in[] = { 0, 2, 5, 10, 19, 36, 69, 134, 199, 264 };
	struct ebbgc_far_donors d = { .pools = { pools[0], pools[1] }, .count = 2 };
	size_t n = 0;

	donors[1]->refuses = -ENOSPC;
	for (int i = 0; i < 264; i++)
		if (far_cycle(&d))
			assert_int_equal(i, asked_in[n++]);
	assert_int_equal(n, 9);
	donors[1]->refuses = 0;
	for (int i = 0; i < 5; i++)
		assert_true(far_cycle(&d));
	donors[1]->refuses = -ENOSPC;
	assert_true(far_cycle(&d));
	assert_false(far_cycle(&d));
	assert_true(far_cycle(&d));
	assert_false(far_cycle(&d));
	assert_false(far_cycle(&d));
	/* One whose handle has failed for good is never asked. */
	donors[1]->refuses = 0;
	donors[1]->lost = true;
	for (int i = 0; i < 5; i++)
		assert_false(far_cycle(&d));
	ebbgc_far_donors_end(&d);
}

static void numbers_of_donors(void **state)
{
	struct ebbgc_far_donors d = { .count = 0 };
	struct ebbgc_far_store store;

	assert_int_equal(ebbgc_far_donors(&store, &d), -EINVAL);
	assert_null(store.alloc);
	d.count = EBBFAR_HEAP_POOLS + 1;
	assert_int_equal(ebbgc_far_donors(&store, &d), -EINVAL);
	assert_null(store.alloc);
	for (d.count = 0; d.count < DONORS; d.count++)
		d.pools[d.count] = pools[d.count];
	assert_int_equal(ebbgc_far_donors(&store, &d), 0);
	assert_non_null(store.jobs);
	/* Reads of mapped memory are as fast. */
	pools[0]->maps = true;
	assert_int_equal(ebbgc_far_donors(&store, &d), 0);
	assert_non_null(store.jobs);
	pools[1]->maps = true;
	assert_int_equal(ebbgc_far_donors(&store, &d), 0);
	assert_null(store.jobs);
	d.trace_mapped = true;
	assert_int_equal(ebbgc_far_donors(&store, &d), 0);
	assert_non_null(store.jobs);
}

static void a_handle_without_jobs(void **state)
{
	donors[1]->far.client.jobs = false;
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(cycle(), 0);
	assert_int_equal(add(1, 1, 1), 0);
	assert_int_equal(ebbfar_heap_trace(heap, 10000), -EOPNOTSUPP);
	assert_int_equal(ebbfar_heap_end(heap, true, 100), -ECANCELED);
}

static void wrong_arguments(void **state)
{
	const struct ebbfar_heap_options right = {
		.size = sizeof(right), .pools = pools, .count = DONORS, .base = 1 << 20,
		.mask = UINT64_MAX, .regions = REGIONS, .found = found, .marks = marks };
	struct ebbfar_layout l = { .size = 16, .bitmap = 1, .runs = EBBFAR_RUNS + 1 };
	struct ebbfar_heap_options o = right;
	ebbfar_heap_t *other;

	o.count = EBBFAR_HEAP_POOLS + 1;
	assert_int_equal(ebbfar_heap_new(&o, &other), -EINVAL);
	o = right;
	o.base += 16;
	assert_int_equal(ebbfar_heap_new(&o, &other), -EINVAL);
	o = right;
	o.regions = WIRE_JOB_REGIONS + 1;
	assert_int_equal(ebbfar_heap_new(&o, &other), -EINVAL);
	assert_int_equal(ebbfar_heap_type(heap, 5, &l), -EINVAL);
	l.runs = 0;
	l.bitmap = 4;
	assert_int_equal(ebbfar_heap_type(heap, 5, &l), -EINVAL);
	assert_int_equal(ebbfar_heap_push(heap, 0, 0, 1), -EINVAL);
	assert_int_equal(add(REGIONS, 0, 1), -EINVAL);
	assert_int_equal(add(0, DONORS, 1), -EINVAL);
	assert_int_equal(add(0, 0, 1), 0);
	assert_int_equal(add(0, 0, 1), -EINVAL);
	assert_int_equal(ebbfar_heap_push(heap, 0, TABLET_WORDS, 1), -EINVAL);
	assert_int_equal(ebbfar_heap_push(heap, 1, 0, 1), -EINVAL);
	assert_int_equal(ebbfar_heap_trace(heap, 10000), 0);
	assert_int_equal(add(1, 0, 1), -EINVAL);
	assert_int_equal(ebbfar_heap_end(heap, true, 100), 0);
	ebbfar_heap_free(NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(what_donors_are_told),
		TEST(places_that_are_refused),
		TEST(marks_that_cannot_be),
		TEST(a_donor_that_postpones),
		TEST(an_end_that_drips),
		TEST(evacuations),
		TEST(evacuations_that_fail),
		TEST(a_donor_that_is_silent),
		TEST(a_program_that_hurries),
		TEST(a_silent_donor_that_has_nothing),
		TEST(rows_of_words),
		TEST(options_of_other_releases),
		TEST(donors_side_by_side),
		TEST(a_handle_that_is_in_use),
		TEST(a_donor_that_is_lost),
		TEST(donors_that_are_left_out),
		TEST(faults_of_donors),
		TEST(a_donor_that_always_fails),
		TEST(a_reference_that_cannot_be),
		TEST(a_child_frees_nothing),
		TEST(types_of_a_heap),
		TEST(numbers_of_donors),
		TEST(a_handle_without_jobs),
		TEST(wrong_arguments),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
