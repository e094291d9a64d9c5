// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donord/far/far_members.h"
#include "donord/job/job_evacuate.h"
#include "donord/job/job_trace.h"
#include "jobs.h"
#include "lib/base/bytes.h"
#include "lib/base/draw.h"
#include "lib/rules/far_memory.h"
#include "lib/wire/stream.h"

enum { SECTIONS = 2, CLASS = 7, GENERATION = 3, FOREIGN = 3 };
#define ARENA (SECTIONS * EBB_FAR_SECTION)
#define EXTENT ((uint64_t)EBB_PAGE << CLASS)
#define BASE 0x100000000000ull
#define HEAP_REGIONS 5000u
#define TABLES (1u << 20)

static struct pool pool;
static struct donor_log lines;
static struct far *far;
static struct far_member *member;
static uint8_t *extents; /* the four of section 1; the last one is another member's */

struct receiver {
	struct fuzz_protocol_result *r;
	struct jobs *jobs;
	struct job_heap *heap;
	uint8_t payload[WIRE_FAR_MOST], reply[WIRE_JOB_MOST];
};

static struct receiver receiver;

static void end(void *connection, const char *why)
{
}

static bool notify(void *connection, const struct wire_far_word *w)
{
	return true;
}

static const struct far_ops ops = { end, notify };

static void wrong(struct receiver *c, const char *what, const struct wire_frame *f)
{
	if (!*c->r->wrong)
		snprintf(c->r->wrong, sizeof(c->r->wrong), "%s: op %u length %u", what, f->op,
			 f->length);
}

static void check_sets(struct receiver *c, const struct wire_frame *f, uint32_t size)
{
	size_t at = WIRE_JOB_TRACED_SIZE;
	struct wire_job_traced t;
	struct wire_job_set s;
	int r;

	if (wire_parse_job_traced(c->reply, size, &t))
		wrong(c, "a reply that is none", f);
	while ((r = wire_next_job_set(c->reply, size, &at, &s)) > 0)
		if (s.region >= c->heap->regions)
			wrong(c, "a region that the heap lacks", f);
	if (r)
		wrong(c, "sets that are none", f);
}

static void serve_heap(struct receiver *c, const struct wire_frame *f)
{
	const struct job_counts before = c->jobs->counts;
	uint32_t placed = far_cycle_runs(&c->heap->cycle) ? c->heap->placed : 0;
	struct wire_job_evacuated done = { 0 };
	uint16_t st = WIRE_OK;
	uint32_t size = 0;
	int r = 0;

	switch (f->op) {
	case WIRE_JOB_PLACE:
		r = job_heap_place(c->heap, c->payload, f->length, &st);
		c->r->loans += !r && st == WIRE_OK;
		if (c->heap->placed < placed)
			wrong(c, "a region that goes in a cycle", f);
		break;
	case WIRE_JOB_BEGIN:
		r = job_begin(c->heap, c->payload, f->length, &st);
		break;
	case WIRE_JOB_TRACE:
		r = job_trace(c->heap, c->payload, f->length, f->tag % 8 ? JOB_WORK : JOB_MARK_ONLY,
			      5, c->reply, &size, &st);
		if (!r && st == WIRE_OK)
			check_sets(c, f, size);
		break;
	case WIRE_JOB_END:
		r = job_end(c->heap, c->payload, f->length, c->reply, &size, &st);
		break;
	default:
		r = job_evacuate(c->heap, c->payload, f->length, &done, &st);
		if (done.bytes > JOB_BYTES)
			wrong(c, "more than a turn copies", f);
	}
	if (size > WIRE_JOB_MOST)
		wrong(c, "a reply that does not fit", f);
	if (c->jobs->counts.references - before.references > JOB_UNITS ||
	    c->jobs->counts.marked - before.marked > JOB_UNITS + 8 * WIRE_JOB_SETS_MOST)
		wrong(c, "more than a turn traces", f);
	c->r->accesses += c->jobs->counts.marked - before.marked + done.bytes;
	c->r->sum = c->r->sum * 31 + st + (uint64_t)r;
}

static void serve(struct receiver *c, const struct wire_frame *f)
{
	uint16_t st = WIRE_OK;

	if (f->op == WIRE_JOB_HEAP)
		c->r->loans += !job_heap_describe(c->jobs, &c->heap, member, c->payload, f->length,
						  &st) && st == WIRE_OK;
	else if (c->heap)
		serve_heap(c, f);
	if (c->jobs->memory.used > c->jobs->memory.bytes)
		wrong(c, "more memory than there is", f);
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct receiver *c = data;

	if (wire_is_job(f) && (f->slab || f->offset || f->generation ||
			       wire_payload(f) > WIRE_JOB_MOST))
		wrong(c, "accepted", f);
	*payload = c->payload;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct receiver *c = data;

	c->r->frames++;
	if (wire_is_job(f))
		serve(c, f);
	/* The member has mapped its extents. */
	if (f->op == WIRE_FAR_WRITE && f->offset < FOREIGN * EXTENT &&
	    f->length <= FOREIGN * EXTENT - f->offset)
		memcpy(extents + f->offset, c->payload, f->length);
	return 0;
}

static const struct stream_rx_ops rx_ops = { .arrived = arrived, .finished = finished };

static void run_stream(struct receiver *c, const uint8_t *data, size_t size)
{
	struct stream_rx rx;
	int fd[2], r = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) < 0 ||
	    stream_rx_init(&rx, WIRE_AT_FAR_DONOR))
		abort();
	for (size_t sent = 0; sent < size && r >= 0;) {
		ssize_t n = send(fd[0], data + sent, size - sent, MSG_NOSIGNAL);

		sent += n > 0 ? (size_t)n : 0;
		r = stream_receive(&rx, fd[1], 1 << 20, &rx_ops, c);
	}
	close(fd[0]);
	while (r >= 0)
		r = stream_receive(&rx, fd[1], 1 << 20, &rx_ops, c);
	c->r->end = r;
	stream_rx_free(&rx);
	close(fd[1]);
}

/* What a parser accepts is what the builder makes. */
static void run_decoders(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	size_t most = size < 200 ? size : 200;
	uint8_t *exact = calloc(1, most ?: 1); /* so that a byte beyond is seen */
	struct wire_job_run runs[WIRE_JOB_RUNS];
	struct wire_job_layout layout;
	struct wire_job_place place;
	struct wire_job_bits bits;
	struct wire_job_set set;
	const uint8_t *words;
	uint8_t built[256];
	bool good = true;
	size_t at;

	if (!exact)
		return;
	memcpy(exact, data, most);
#define SAME(next, put) do { at = 0; \
		if (most && (next) > 0) { \
			uint32_t n = (put); \
			good = good && n <= at && at <= most && !memcmp(built, exact, n); \
		} } while (0)
	SAME(wire_next_job_layout(exact, most, &at, &layout, runs),
	     wire_put_job_layout(built, &layout, runs));
	SAME(wire_next_job_place(exact, most, &at, &place, &words),
	     wire_put_job_place(built, &place));
	SAME(wire_next_job_set(exact, most, &at, &set), wire_put_job_set(built, &set));
	SAME(wire_next_job_bits(exact, most, &at, 2, &bits), wire_put_job_bits(built, &bits));
#undef SAME
#define HEAD(name, SIZE) do { struct wire_job_##name x; \
		if (!wire_parse_job_##name(exact, most < SIZE ? most : SIZE, &x)) { \
			wire_build_job_##name(built, &x); \
			good = good && most >= SIZE && !memcmp(built, exact, SIZE); \
		} } while (0)
	HEAD(heap, WIRE_JOB_HEAP_SIZE);
	HEAD(limits, WIRE_JOB_LIMITS_SIZE);
	HEAD(begin, WIRE_JOB_BEGIN_SIZE);
	HEAD(trace, WIRE_JOB_TRACE_SIZE);
	HEAD(traced, WIRE_JOB_TRACED_SIZE);
	HEAD(end, WIRE_JOB_END_SIZE);
	HEAD(ended, WIRE_JOB_ENDED_SIZE);
	HEAD(evacuate, WIRE_JOB_EVACUATE_SIZE);
	HEAD(evacuated, WIRE_JOB_EVACUATED_SIZE);
#undef HEAD
	if (!good)
		snprintf(r->wrong, sizeof(r->wrong), "a payload of %zu bytes", most);
	free(exact);
}

void fuzz_jobs(const uint8_t *data, size_t size, struct fuzz_protocol_result *result)
{
	const struct wire_frame last = { 0 };
	struct receiver *c = &receiver;

	*result = (struct fuzz_protocol_result){ 0 };
	memset(extents, 0, FOREIGN * EXTENT);
	memset(extents + FOREIGN * EXTENT, 0xa5, EXTENT);
	c->r = result;
	c->jobs->counts = (struct job_counts){ 0 };
	run_stream(c, data, size);
	job_heap_end(&c->heap);
	for (int turns = 0; jobs_turn(c->jobs); turns++)
		if (turns > 10000)
			wrong(c, "a heap without end", &last);
	if (c->jobs->memory.used || c->jobs->heaps || c->jobs->regions)
		wrong(c, "tables stay", &last);
	/* All of its bytes are equal, and the first one is what it was. */
	if (extents[FOREIGN * EXTENT] != 0xa5 ||
	    memcmp(extents + FOREIGN * EXTENT, extents + FOREIGN * EXTENT + 1, EXTENT - 1))
		wrong(c, "another member's extent has changed", &last);
	run_decoders(data, size, result);
}

static void put_word(uint64_t at, uint64_t word)
{
	*(uint64_t *)(far_base(member->pool, 0) + at) = htole64(word);
}

int fuzz_jobs_set_up(struct error *e)
{
	const struct wire_far_pool p = { .verb = WIRE_FAR_CREATE, .name = "p" };
	int r = pool_init(&pool, ARENA, ARENA, LEND_PRIVATE, e);
	struct far_pool *fp;

	if (r || mprotect(pool.memory, ARENA, PROT_READ | PROT_WRITE) < 0)
		return r ?: fail(e, errno, "mprotect: %m");
	donor_log_init(&lines);
	pool.slabs[0].state = LEND_CLEAN;
	pool.in[LEND_ABSENT] = 0;
	pool.in[LEND_CLEAN] = 1;
	if (far_pools_new(&far, &pool, &lines, &ops, ARENA, 0) || far_create(far, "", &p))
		return fail(e, ENOMEM, "out of memory");
	fp = far_find(far, "", "p");
	if (far_arena(fp, 0) || far_join(fp, far, -1, &member) ||
	    jobs_new(&receiver.jobs, TABLES, 50))
		return fail(e, ENOMEM, "out of memory");
	extents = far_base(fp, 0) + EBB_FAR_SECTION;
	put_word(ebb_far_section_at(1), ebb_far_section(EBB_FAR_OPEN, CLASS, 0, 1));
	for (uint32_t i = 0; i < EBB_FAR_SLOTS >> CLASS; i++)
		put_word(ebb_far_slot_at(SECTIONS, 1, ebb_far_word_of(i << CLASS)),
			 ebb_far_slot(i < FOREIGN ? member->number : member->number + 1, CLASS,
				      GENERATION));
	return 0;
}

void fuzz_jobs_tear_down(void)
{
	jobs_free(&receiver.jobs);
	far_left(member);
	far_pools_free(&far);
	pool_free(&pool);
}

/* --- bytes ------------------------------------------------------------------------ */

/* What the bytes so far say, so that most of what follows fits. */
struct guess {
	uint64_t seed;
	uint32_t cycle, batch, version;
	uint8_t to[2048];
};

static uint32_t draw(struct guess *g, uint32_t below)
{
	return draw_below(&g->seed, below);
}

/* One in @n is another number. */
static uint32_t mostly(struct guess *g, uint32_t value, uint32_t n)
{
	return draw(g, n) ? value : draw32(&g->seed) >> draw(g, 32);
}

static const uint32_t sizes[] = { 16, 32, 48, 1024, 8192 };

/* Regions have the size of slots that their number says. */
static uint32_t slot_bytes(uint32_t region)
{
	return sizes[region % 5];
}

static uint64_t reference(struct guess *g)
{
	uint32_t region = mostly(g, draw(g, 8), 8), bytes = slot_bytes(region);

	return BASE + (uint64_t)region * TABLET_REGION +
	       mostly(g, draw(g, 8) * bytes + LAYOUT_HEADER, 20);
}

static uint32_t put_heap(struct guess *g)
{
	struct wire_job_run run = { 8, 8, UINT32_MAX };
	uint32_t at = WIRE_JOB_HEAP_SIZE;

	wire_build_job_heap(g->to, &(struct wire_job_heap){ BASE, (1ull << 60) - 1, HEAP_REGIONS,
							    3 });
	at += wire_put_job_layout(g->to + at, &(struct wire_job_layout){
		.type = 1, .size = mostly(g, 16, 9), .bitmap = mostly(g, 3, 9) }, NULL);
	run.count = mostly(g, UINT32_MAX, 9);
	at += wire_put_job_layout(g->to + at, &(struct wire_job_layout){
		.type = 2, .size = 8, .element_size = mostly(g, 8, 9), .length_width = 8,
		.runs = 1 }, &run);
	return at + wire_put_job_layout(g->to + at, &(struct wire_job_layout){
		.type = mostly(g, 3, 9), .size = 8 }, NULL);
}

static uint32_t put_places(struct guess *g)
{
	uint32_t at = 0;

	for (uint32_t i = 0, n = 1 + draw(g, 3); i < n; i++) {
		uint32_t region = mostly(g, draw(g, 8), 9);
		uint32_t bytes = mostly(g, slot_bytes(region), 30);
		struct wire_job_place p = {
			.region = region, .version = mostly(g, ++g->version, 9),
			.slot_bytes = draw(g, 12) ? bytes : 0, .flags = !draw(g, 8),
			.class = mostly(g, CLASS, 20),
			.at = EBB_FAR_SECTION + mostly(g, draw(g, 4) * EXTENT, 20),
			.generation = mostly(g, GENERATION, 20),
			.base = mostly(g, draw(g, 6) * TABLET_REGION, 20),
		};

		p.words = p.slot_bytes ? mostly(g, tablet_words(tablet_slots(bytes)), 20) % 65 : 0;
		at += wire_put_job_place(g->to + at, &p);
		for (uint32_t k = 0; k < p.words; k++, at += 8)
			put64(g->to + at, k ? 0 : mostly(g, 0xff, 9));
	}
	return at;
}

static uint32_t put_sets(struct guess *g, uint32_t at)
{
	for (uint32_t n = draw(g, 3); n; n--) {
		uint32_t region = mostly(g, draw(g, 8), 9), words = mostly(g, 1, 20) % 65;
		uint32_t granule = draw(g, 4) * slot_bytes(region) / TABLET_GRANULE % 4096;

		at += wire_put_job_set(g->to + at, &(struct wire_job_set){
			.region = region, .first = (uint16_t)mostly(g, granule / 64, 30),
			.words = (uint16_t)words });
		for (uint32_t k = 0; k < words; k++, at += 8)
			put64(g->to + at, mostly(g, 1, 9) << granule % 64);
	}
	return at;
}

static uint32_t put_object(struct guess *g, struct wire_frame *f)
{
	uint32_t slot = draw(g, 8), bytes = sizes[draw(g, 5)], n = draw(g, 4);

	f->offset = draw(g, 3) * (uint32_t)EXTENT + draw(g, 6) * TABLET_REGION + slot * bytes;
	put64(g->to, mostly(g, 1 + draw(g, 3), 20));
	put64(g->to + 8, draw(g, 2) ? reference(g) : n);
	for (uint32_t i = 0; i < n; i++)
		put64(g->to + 16 + 8 * i, reference(g));
	return 16 + 8 * n;
}

static uint32_t put_evacuate(struct guess *g)
{
	uint32_t at = WIRE_JOB_EVACUATE_SIZE;

	wire_build_job_evacuate(g->to, &(struct wire_job_evacuate){
		.class = mostly(g, CLASS, 20), .base = mostly(g, draw(g, 6) * TABLET_REGION, 20),
		.at = EBB_FAR_SECTION + mostly(g, draw(g, 4) * EXTENT, 20),
		.generation = mostly(g, GENERATION, 20) });
	for (uint32_t n = draw(g, 3); n; n--) {
		uint32_t region = draw(g, 8);
		uint32_t words = tablet_words(tablet_slots(slot_bytes(region)));

		at += wire_put_job_bits(g->to + at, &(struct wire_job_bits){
			.region = region, .version = mostly(g, g->version - draw(g, 4), 9),
			.words = words });
		for (uint32_t k = 0; k < words; k++, at += 8)
			put64(g->to + at, k ? 0 : mostly(g, draw(g, 256), 20));
	}
	return at;
}

static uint32_t fill(struct guess *g, struct wire_frame *f)
{
	switch (f->op) {
	case WIRE_JOB_HEAP:
		return put_heap(g);
	case WIRE_JOB_PLACE:
		return put_places(g);
	case WIRE_JOB_BEGIN:
		g->batch = 0;
		wire_build_job_begin(g->to, &(struct wire_job_begin){ mostly(g, ++g->cycle, 20) });
		return put_sets(g, WIRE_JOB_BEGIN_SIZE) * (draw(g, 2) ? 1 : 0) ?:
		       WIRE_JOB_BEGIN_SIZE;
	case WIRE_JOB_TRACE:
		wire_build_job_trace(g->to, &(struct wire_job_trace){
			g->cycle, mostly(g, ++g->batch, 20), draw(g, 200) });
		return put_sets(g, WIRE_JOB_TRACE_SIZE);
	case WIRE_JOB_END:
		wire_build_job_end(g->to, &(struct wire_job_end){ g->cycle, 1 + !draw(g, 5), 0 });
		return WIRE_JOB_END_SIZE;
	case WIRE_JOB_EVACUATE:
		return put_evacuate(g);
	default:
		return put_object(g, f);
	}
}

void fuzz_jobs_bytes(uint64_t seed, uint8_t *data, size_t size)
{
	struct guess g = { .seed = seed };
	bool described = false;

	for (size_t at = 0; at < size;) {
		static const uint8_t kinds[] = {
			WIRE_JOB_PLACE, WIRE_JOB_PLACE, WIRE_JOB_PLACE, WIRE_JOB_BEGIN,
			WIRE_JOB_TRACE, WIRE_JOB_TRACE, WIRE_JOB_TRACE, WIRE_JOB_TRACE,
			WIRE_JOB_END, WIRE_JOB_EVACUATE, WIRE_FAR_WRITE, WIRE_FAR_WRITE,
			WIRE_FAR_WRITE, WIRE_JOB_HEAP };
		struct wire_frame f = { .op = described ? kinds[draw(&g, sizeof(kinds))] :
							  WIRE_JOB_HEAP,
					.tag = draw(&g, 64) };
		uint8_t bytes[WIRE_HEADER];

		described = true;
		f.length = fill(&g, &f);
		wire_build(bytes, &f);
		if (draw(&g, 200) == 0)
			bytes[draw(&g, WIRE_HEADER)] ^= (uint8_t)(1u << draw(&g, 8));
		for (uint32_t i = 0; i < WIRE_HEADER && at < size; i++)
			data[at++] = bytes[i];
		for (uint32_t i = 0; i < f.length && at < size; i++)
			data[at++] = g.to[i];
	}
}
