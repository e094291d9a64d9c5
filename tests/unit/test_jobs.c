// SPDX-License-Identifier: GPL-2.0-or-later
/* Jobs of donors without a server: each request is a call. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "donord/job/job_evacuate.h"
#include "donord/job/job_trace.h"
#include "donord/far/far_members.h"
#include "heap_image.h"
#include "lib/rules/far_memory.h"
#include "lib/rules/pack.h"

#include <cmocka.h>

enum { SECTIONS = 4, SLABS = 6, NODES = 2, CYCLE = 5, GENERATION = 3 };
#define ARENA (SECTIONS * EBB_FAR_SECTION)
#define HEAP_REGIONS (1u << 22)

/* A donor, or one that might be: a pool with its member, and what it runs. */
struct node {
	struct far_pool *pool;
	struct far_member *member;
	struct jobs *jobs;
	struct job_heap *heap;
	uint32_t section, used; /* of the next region: section of arena 0, bytes */
};

static struct pool pool;
static struct donor_log lines;
static struct far *far;
static struct node nodes[NODES];
static struct image image;
static uint8_t request[WIRE_JOB_MOST], reply[WIRE_JOB_MOST], again[WIRE_JOB_MOST];
static uint32_t size;

static void end(void *connection, const char *why)
{
}

static bool notify(void *connection, const struct wire_far_word *w)
{
	return true;
}

static const struct far_ops ops = { end, notify };

/* --- what a member does ----------------------------------------------------------- */

static void own_section(struct node *n, uint32_t section, uint32_t owner)
{
	uint64_t *word = (uint64_t *)(far_base(n->pool, 0) + ebb_far_section_at(section));

	*word = htole64(ebb_far_section(EBB_FAR_WHOLE, 0, owner, GENERATION));
}

static void use_memory(uint64_t bytes)
{
	static const char *const names[NODES] = { "a", "b" };

	for (int i = 0; i < NODES; i++) {
		struct wire_far_pool p = { .verb = WIRE_FAR_CREATE };
		struct node *n = &nodes[i];

		*n = (struct node){ .section = 1 };
		strcpy(p.name, names[i]);
		assert_int_equal(far_create(far, "", &p), WIRE_OK);
		n->pool = far_find(far, "", names[i]);
		pool.turn++;
		assert_int_equal(far_arena(n->pool, 0), WIRE_OK);
		assert_int_equal(far_join(n->pool, n, -1, &n->member), WIRE_OK);
		assert_int_equal(jobs_new(&n->jobs, bytes, 50), 0);
		for (uint32_t s = 1; s < SECTIONS; s++)
			own_section(n, s, n->member->number);
	}
}

static int set_up(void **state)
{
	struct error e = { 0 };

	donor_log_init(&lines);
	assert_int_equal(pool_init(&pool, SLABS * ARENA, ARENA, LEND_PRIVATE, &e), 0);
	assert_int_equal(mprotect(pool.memory, SLABS * ARENA, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < SLABS; i++)
		pool.slabs[i].state = LEND_CLEAN;
	pool.in[LEND_ABSENT] = 0;
	pool.in[LEND_CLEAN] = SLABS;
	assert_int_equal(far_pools_new(&far, &pool, &lines, &ops, SLABS * ARENA, 0), 0);
	use_memory(16 << 20);
	return 0;
}

static void end_heap(struct node *n)
{
	int turns = 0;

	job_heap_end(&n->heap);
	while (jobs_turn(n->jobs))
		assert_true(turns++ < 1000);
	assert_int_equal(n->jobs->memory.used, 0);
	assert_int_equal(n->jobs->heaps, 0);
	assert_int_equal(n->jobs->regions, 0);
}

static int tear_down(void **state)
{
	for (int i = 0; i < NODES; i++) {
		end_heap(&nodes[i]);
		jobs_free(&nodes[i].jobs);
		far_left(nodes[i].member);
	}
	far_pools_free(&far);
	pool_free(&pool);
	image_free(&image);
	return 0;
}

static uint32_t put_type(uint8_t *to, uint32_t type, const struct layout *l)
{
	const struct wire_job_layout w = { type, l->size, l->element_size, l->length_offset,
					   (uint8_t)l->length_width, (uint8_t)l->runs, l->bitmap };
	struct wire_job_run runs[WIRE_JOB_RUNS];

	for (uint32_t i = 0; i < l->runs; i++)
		runs[i] = (struct wire_job_run){ l->run[i].offset, l->run[i].stride,
						 l->run[i].count };
	return wire_put_job_layout(to, &w, runs);
}

static uint16_t describe(struct node *n, uint32_t type, const struct layout *l)
{
	uint32_t length = WIRE_JOB_HEAP_SIZE;
	uint16_t st;

	wire_build_job_heap(request, &(struct wire_job_heap){ IMAGE_BASE, IMAGE_MASK, HEAP_REGIONS,
							      l ? 1 : 0 });
	if (l)
		length += put_type(request + length, type, l);
	assert_int_equal(job_heap_describe(n->jobs, &n->heap, n->member, request, length, &st), 0);
	return st;
}

static void describe_image(struct node *n)
{
	assert_int_equal(describe(n, IMAGE_PAIR, &image_pair), WIRE_OK);
	assert_int_equal(describe(n, IMAGE_ARRAY, &image_array), WIRE_OK);
	assert_int_equal(describe(n, IMAGE_LEAF, &image_leaf), WIRE_OK);
}

static struct wire_job_place record(const struct node *n, uint32_t region, uint32_t version)
{
	const struct image_region *r = &image.regions[region];

	return (struct wire_job_place){
		.region = region, .version = version, .slot_bytes = r->slot_bytes,
		.flags = r->type == IMAGE_LEAF ? WIRE_JOB_LEAF : 0,
		.class = EBB_FAR_WHOLE_CLASS, .at = n->section * EBB_FAR_SECTION,
		.generation = GENERATION, .base = n->used, .words = r->words,
	};
}

static uint16_t place(struct node *n, const struct wire_job_place *p, const uint64_t *live)
{
	uint32_t length = wire_put_job_place(request, p);
	uint16_t st;

	for (uint32_t i = 0; i < p->words; i++, length += 8)
		put64(request + length, live[i]);
	assert_int_equal(job_heap_place(n->heap, request, length, &st), 0);
	return st;
}

/* Writes the region's objects to the node's memory, and places it. */
static void send_region(struct node *n, uint32_t region, uint32_t version)
{
	const struct image_region *r = &image.regions[region];
	uint32_t bytes = r->objects * r->slot_bytes;
	struct wire_job_place p;

	if (n->used + bytes > EBB_FAR_SECTION) {
		n->section++;
		n->used = 0;
	}
	assert_true(n->section < SECTIONS);
	memcpy(far_base(n->pool, 0) + n->section * EBB_FAR_SECTION + n->used, r->bytes, bytes);
	p = record(n, region, version);
	assert_int_equal(place(n, &p, r->live), WIRE_OK);
	/* Repeated, it changes nothing. */
	assert_int_equal(place(n, &p, r->live), WIRE_OK);
	n->used += bytes;
}

static struct node *node_of(uint32_t region)
{
	return &nodes[region % NODES];
}

static void send_image(uint32_t count, uint64_t seed, uint32_t sparse)
{
	image_make(&image, count, seed, sparse);
	for (int i = 0; i < NODES; i++)
		describe_image(&nodes[i]);
	for (uint32_t i = 0; i < count; i++)
		send_region(node_of(i), i, 1);
}

/* --- a far cycle ------------------------------------------------------------------ */

static uint16_t begin(struct node *n, uint32_t cycle)
{
	uint16_t st;

	wire_build_job_begin(request, &(struct wire_job_begin){ cycle });
	assert_int_equal(job_begin(n->heap, request, WIRE_JOB_BEGIN_SIZE, &st), 0);
	return st;
}

/* Sends the sets behind the head, which are @length bytes. */
static uint16_t trace(struct node *n, uint32_t cycle, uint32_t batch, uint32_t units,
		      uint32_t length, struct wire_job_traced *t)
{
	uint16_t st;

	wire_build_job_trace(request, &(struct wire_job_trace){ cycle, batch, units });
	assert_int_equal(job_trace(n->heap, request, WIRE_JOB_TRACE_SIZE + length, JOB_WORK, 0,
				   reply, &size, &st), 0);
	if (st == WIRE_OK)
		assert_int_equal(wire_parse_job_traced(reply, size, t), 0);
	return st;
}

static uint32_t put_object(uint32_t at, uint32_t region, uint32_t granule)
{
	uint8_t *to = request + WIRE_JOB_TRACE_SIZE + at;

	to += wire_put_job_set(to, &(struct wire_job_set){
		.region = region, .first = (uint16_t)(granule / 64), .words = 1 });
	put64(to, 1ull << granule % 64);
	return at + WIRE_JOB_SET_SIZE + 8;
}

/* Objects that wait, and that were sent, by region and granule. */
struct marks {
	uint64_t waits[TABLET_WORDS], sent[TABLET_WORDS], named[TABLET_WORDS];
};

static struct marks *marks;

static void reach(uint32_t region, uint32_t granule, bool by_object)
{
	struct marks *m = &marks[region];
	uint64_t bit = 1ull << granule % 64;

	if (by_object)
		m->named[granule / 64] |= bit;
	if (!(m->sent[granule / 64] & bit))
		m->waits[granule / 64] |= bit;
	m->sent[granule / 64] |= bit;
}

static uint32_t put_waiting(const struct node *n)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < image.count; i++)
		for (uint32_t w = 0; node_of(i) == n && w < TABLET_WORDS; w++) {
			uint8_t *to = request + WIRE_JOB_TRACE_SIZE + at;

			if (!marks[i].waits[w] || at > WIRE_JOB_SETS_MOST - 64)
				continue;
			to += wire_put_job_set(to, &(struct wire_job_set){
				.region = i, .first = (uint16_t)w, .words = 1 });
			put64(to, marks[i].waits[w]);
			marks[i].waits[w] = 0;
			at += WIRE_JOB_SET_SIZE + 8;
		}
	return at;
}

static void take_sets(void)
{
	size_t at = WIRE_JOB_TRACED_SIZE;
	struct wire_job_set s;
	int r;

	while ((r = wire_next_job_set(reply, size, &at, &s)) > 0)
		for (uint32_t w = 0; w < s.words; w++)
			for (uint64_t bits = get64(s.bits + 8 * w); bits; bits &= bits - 1)
				reach(s.region, 64 * (s.first + w) +
				      (uint32_t)__builtin_ctzll(bits), true);
	assert_int_equal(r, 0);
}

/* Returns how many TRACEs it takes until nothing is left; each is bounded. */
static int exchange(uint32_t cycle, uint32_t units)
{
	uint32_t batch[NODES] = { 0 };
	int traces = 0;
	bool more = true;

	for (int i = 0; i < NODES; i++)
		assert_int_equal(begin(&nodes[i], cycle), WIRE_OK);
	while (more) {
		more = false;
		for (int i = 0; i < NODES; i++) {
			const struct job_counts *c = &nodes[i].jobs->counts;
			uint64_t references = c->references, marked = c->marked;
			uint32_t length = put_waiting(&nodes[i]);
			struct wire_job_traced t;

			assert_int_equal(trace(&nodes[i], cycle, ++batch[i], units, length, &t),
					 WIRE_OK);
			assert_true(c->references - references <= units);
			/* What a set names is bounded by the frame. */
			assert_true(length || c->marked - marked <= units);
			assert_int_equal(t.odd, 0);
			take_sets();
			more = more || length || t.queued || size > WIRE_JOB_TRACED_SIZE;
			traces++;
		}
	}
	return traces;
}

/* Compares the node's marks with those of the image, whose trace knows no donors. */
static uint32_t compare(struct node *n, uint32_t cycle)
{
	uint32_t first = 0, regions = 0;
	uint16_t st;

	while (first != WIRE_JOB_NO_REGION) {
		size_t at = WIRE_JOB_ENDED_SIZE;
		struct wire_job_ended e;
		struct wire_job_bits b;

		wire_build_job_end(request, &(struct wire_job_end){ cycle, WIRE_JOB_COMMIT,
								    first });
		assert_int_equal(job_end(n->heap, request, WIRE_JOB_END_SIZE, reply, &size, &st),
				 0);
		assert_int_equal(st, WIRE_OK);
		assert_int_equal(wire_parse_job_ended(reply, size, &e), 0);
		assert_true(e.next > first);
		while (wire_next_job_bits(reply, size, &at, 2, &b) > 0) {
			const struct image_region *r = &image.regions[b.region];

			assert_ptr_equal(node_of(b.region), n);
			assert_int_equal(b.words, r->words);
			for (uint32_t s = 0; s < r->slots; s++) {
				uint32_t g = image_granule(r, s);
				bool named = get64(b.bits + 8 * (r->words + s / 64)) >> s % 64 & 1;

				assert_int_equal(get64(b.bits + 8 * (s / 64)) >> s % 64 & 1,
						 tablet_has(r->marks, s));
				/* The borrower knows what other donors have named. */
				named = named || (marks[b.region].named[g / 64] >> g % 64 & 1);
				assert_int_equal(named, tablet_has(r->named, s));
			}
			regions++;
		}
		first = e.next;
	}
	return regions;
}

static void push_roots(uint64_t seed, uint32_t count)
{
	uint64_t roots[16], visited;

	marks = calloc(image.count, sizeof(*marks));
	for (uint32_t i = 0; i < count; i++)
		do
			roots[i] = image_reference(&image, &seed);
		while (!roots[i]);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t offset = (roots[i] & IMAGE_MASK) - IMAGE_BASE;

		reach((uint32_t)(offset / TABLET_REGION),
		      (uint32_t)(offset % TABLET_REGION / TABLET_GRANULE), false);
	}
	visited = image_trace(&image, roots, count);
	assert_true(visited > 0);
}

static void marks_are_those_of_a_local_trace(void **state)
{
	for (uint64_t seed = 1; seed <= 6; seed++) {
		int traces;

		send_image(8 + (uint32_t)seed, seed, 1 + (uint32_t)(seed % 4) * 3);
		push_roots(seed, 1 + (uint32_t)seed % 3);
		traces = exchange(CYCLE, seed % 2 ? JOB_UNITS : 200);
		assert_true(traces > 3);
		assert_int_equal(compare(&nodes[0], CYCLE) + compare(&nodes[1], CYCLE),
				 image.count);
		free(marks);
		image_free(&image);
		for (int i = 0; i < NODES; i++) {
			end_heap(&nodes[i]);
			nodes[i].section = 1;
			nodes[i].used = 0;
		}
	}
}

static void a_second_cycle_begins_with_no_marks(void **state)
{
	send_image(9, 4, 2);
	for (uint32_t i = 0; i < 3; i++) {
		push_roots(100 + i, 2);
		exchange(CYCLE + i, 1000);
		compare(&nodes[0], CYCLE + i);
		compare(&nodes[1], CYCLE + i);
		free(marks);
		for (uint32_t k = 0; k < image.count; k++) {
			memset(image.regions[k].marks, 0, sizeof(image.regions[k].marks));
			memset(image.regions[k].named, 0, sizeof(image.regions[k].named));
		}
	}
}

static void a_batch_that_is_repeated_gets_its_reply(void **state)
{
	struct wire_job_traced t;
	uint32_t length;

	send_image(8, 2, 1);
	push_roots(2, 4);
	assert_int_equal(begin(&nodes[0], CYCLE), WIRE_OK);
	assert_int_equal(begin(&nodes[0], CYCLE), WIRE_OK);
	length = put_waiting(&nodes[0]);
	assert_true(length);
	assert_int_equal(trace(&nodes[0], CYCLE, 1, 300, length, &t), WIRE_OK);
	memcpy(again, reply, size);
	length = size;
	assert_int_equal(trace(&nodes[0], CYCLE, 1, 300, 0, &t), WIRE_OK);
	assert_int_equal(size, length);
	assert_memory_equal(reply, again, size);
	/* Others are refused, and nothing is done. */
	assert_int_equal(trace(&nodes[0], CYCLE, 3, 300, 0, &t), WIRE_OLD_CYCLE);
	assert_int_equal(trace(&nodes[0], CYCLE, 0, 300, 0, &t), WIRE_OLD_CYCLE);
	assert_int_equal(trace(&nodes[0], CYCLE - 1, 2, 300, 0, &t), WIRE_OLD_CYCLE);
	assert_int_equal(trace(&nodes[0], CYCLE + 1, 1, 300, 0, &t), WIRE_OLD_CYCLE);
	assert_int_equal(begin(&nodes[0], CYCLE), WIRE_OLD_CYCLE);
	assert_int_equal(begin(&nodes[0], CYCLE - 1), WIRE_OLD_CYCLE);
	assert_int_equal(trace(&nodes[0], CYCLE, 2, 300, 0, &t), WIRE_OK);
	free(marks);
}

/* Queues @count regions, all at one place, in @cycle. */
static void queue_regions(struct node *n, uint32_t count, uint32_t cycle)
{
	const uint64_t live[TABLET_WORDS] = { 1 };
	struct wire_job_place p = record(n, 0, 1);
	uint32_t length = 0;
	uint16_t st;

	for (p.region = 0; p.region < count; p.region++)
		assert_int_equal(place(n, &p, live), WIRE_OK);
	assert_int_equal(begin(n, cycle), WIRE_OK);
	for (uint32_t i = 0; i < count; i++)
		length = put_object(length, i, 0);
	wire_build_job_trace(request, &(struct wire_job_trace){ cycle, 1, 0 });
	assert_int_equal(job_trace(n->heap, request, WIRE_JOB_TRACE_SIZE + length, JOB_MARK_ONLY, 1,
				   reply, &size, &st), 0);
	assert_int_equal(st, WIRE_OK);
	assert_int_equal(n->heap->queued, count);
}

/* One object of a region of its own, which the test fills in. */
static uint8_t *one_object(uint32_t type, uint32_t slot_bytes)
{
	struct image_region *r;

	image.count = 2;
	image.regions = calloc(2, sizeof(*image.regions));
	r = &image.regions[0];
	r->slot_bytes = slot_bytes;
	r->type = type;
	r->slots = tablet_slots(slot_bytes);
	r->words = tablet_words(r->slots);
	r->bytes = calloc(1, TABLET_REGION);
	r->live[0] = 1;
	r->objects = tablet_index(r->live, r->slots, r->before);
	put64(r->bytes, type);
	return r->bytes + LAYOUT_HEADER;
}

static void more_than_a_reply_has(void **state)
{
	enum { EACH = 1022, OBJECTS = 4, REFERENCES = OBJECTS * EACH };
	uint8_t *bytes = one_object(IMAGE_ARRAY, 8192) - LAYOUT_HEADER, *seen = calloc(1, 1 << 16);
	struct image_region *r = &image.regions[0];
	uint32_t batch = 0, length;
	struct wire_job_traced t = { .queued = 1 };

	r->live[0] = (1 << OBJECTS) - 1;
	r->objects = tablet_index(r->live, r->slots, r->before);
	for (uint32_t i = 0; i < REFERENCES; i++) {
		uint8_t *object = bytes + i / EACH * 8192;

		put64(object, IMAGE_ARRAY);
		put64(object + 8, EACH);
		put64(object + 16 + 8 * (i % EACH), IMAGE_BASE + (100 + 7ull * i) * TABLET_REGION +
		      16 * (i % 4096) + LAYOUT_HEADER);
	}
	describe_image(&nodes[0]);
	send_region(&nodes[0], 0, 1);
	assert_int_equal(begin(&nodes[0], CYCLE), WIRE_OK);
	length = 0;
	for (uint32_t i = 0; i < OBJECTS; i++)
		length = put_object(length, 0, i * 8192 / TABLET_GRANULE);
	while (t.queued) {
		size_t at = WIRE_JOB_TRACED_SIZE;
		struct wire_job_set s;

		assert_int_equal(trace(&nodes[0], CYCLE, ++batch, 0, length, &t), WIRE_OK);
		while (wire_next_job_set(reply, size, &at, &s) > 0) {
			uint32_t i = (s.region - 100) / 7;

			assert_int_equal(s.first, i % 4096 / 64);
			assert_int_equal(get64(s.bits), 1ull << i % 64);
			seen[i]++;
		}
		length = 0;
	}
	assert_int_equal(batch, (REFERENCES + JOB_OUTS - 1) / JOB_OUTS);
	for (uint32_t i = 0; i < REFERENCES; i++)
		assert_int_equal(seen[i], 1);
	assert_int_equal(t.visited, OBJECTS);
	free(seen);
}

/* Returns @count regions above @first whose keys in the table of outs have one place. */
static void colliding(uint32_t *regions, uint32_t count, uint32_t first)
{
	for (uint32_t n = 0; n < count; first++)
		if (((first * TABLET_WORDS + 1) * 0x9E3779B1u) >> 20 == 0)
			regions[n++] = first;
}

/* References whose keys collide take more of a turn, so that none is longer. */
static void outs_that_collide(void **state)
{
	enum { EACH = 1022, OBJECTS = 8, REFERENCES = OBJECTS * EACH, KEYS = 900 };
	uint8_t *bytes = one_object(IMAGE_ARRAY, 8192) - LAYOUT_HEADER;
	static uint32_t regions[KEYS], seen[KEYS];
	struct image_region *r = &image.regions[0];
	struct wire_job_traced t = { .queued = 1 };
	uint32_t batch = 0, length = 0;
	uint64_t references = 0;

	colliding(regions, KEYS, 1);
	r->live[0] = (1 << OBJECTS) - 1;
	r->objects = tablet_index(r->live, r->slots, r->before);
	for (uint32_t i = 0; i < REFERENCES; i++) {
		uint8_t *object = bytes + i / EACH * 8192;

		put64(object, IMAGE_ARRAY);
		put64(object + 8, EACH);
		put64(object + 16 + 8 * (i % EACH),
		      IMAGE_BASE + (uint64_t)regions[i % KEYS] * TABLET_REGION + LAYOUT_HEADER);
	}
	describe_image(&nodes[0]);
	send_region(&nodes[0], 0, 1);
	assert_int_equal(begin(&nodes[0], CYCLE), WIRE_OK);
	for (uint32_t i = 0; i < OBJECTS; i++)
		length = put_object(length, 0, i * 8192 / TABLET_GRANULE);
	for (; t.queued; length = 0) {
		size_t at = WIRE_JOB_TRACED_SIZE;
		uint64_t before = references, probes = 0;
		struct wire_job_set s;

		assert_int_equal(trace(&nodes[0], CYCLE, ++batch, 0, length, &t), WIRE_OK);
		references = nodes[0].jobs->counts.references;
		assert_true(references > before);
		/* Each is behind all that came before it in the turn. */
		for (uint64_t i = 0; i < references - before; i++)
			probes += i % KEYS;
		/* The last one may be more than what was left. */
		assert_true(probes <= JOB_PARTS * JOB_UNITS + KEYS);
		while (wire_next_job_set(reply, size, &at, &s) > 0)
			for (uint32_t i = 0; i < KEYS; i++)
				seen[i] += regions[i] == s.region;
	}
	for (uint32_t i = 0; i < KEYS; i++)
		assert_true(seen[i]);
	assert_int_equal(references, REFERENCES);
}

static uint32_t odd_after(struct node *n)
{
	struct wire_job_traced t;
	uint32_t length;
	uint16_t st;

	assert_int_equal(begin(n, n->heap->cycle.cycle + 1), WIRE_OK);
	length = put_object(0, 0, 0);
	assert_int_equal(trace(n, n->heap->cycle.cycle, 1, 0, length, &t), WIRE_OK);
	/* The donor, too, keeps a borrower that does not look from freeing. */
	wire_build_job_end(request, &(struct wire_job_end){ t.cycle, WIRE_JOB_COMMIT, 0 });
	assert_int_equal(job_end(n->heap, request, WIRE_JOB_END_SIZE, reply, &size, &st), 0);
	assert_int_equal(st, t.odd ? WIRE_BAD_REGION : WIRE_OK);
	return t.odd;
}

/* In one turn, regions whose extent was freed are no more than objects would be. */
static void freed_extents_take_units(void **state)
{
	enum { COUNT = 1000, UNITS = 300 };
	struct node *n = &nodes[0];
	struct wire_job_traced t;

	one_object(IMAGE_PAIR, 32);
	describe_image(n);
	queue_regions(n, COUNT, CYCLE);
	own_section(n, 1, n->member->number + 1);
	assert_int_equal(trace(n, CYCLE, 2, UNITS, 0, &t), WIRE_OK);
	assert_in_range(t.odd, UNITS - 2, UNITS);
	assert_int_equal(t.queued, COUNT - t.odd);
}

/* To clear the tables of a region that is reached first in a cycle is work, too. */
static void regions_take_units(void **state)
{
	enum { UNITS = 512, PLACED = 300, LINKS = 1022 };
	uint8_t *bytes = one_object(IMAGE_ARRAY, 8192) - LAYOUT_HEADER;
	const uint64_t live[TABLET_WORDS] = { 1 };
	struct node *n = &nodes[0];
	struct wire_job_traced t;
	struct wire_job_place p;

	put64(bytes + 8, LINKS);
	for (uint64_t i = 0; i < LINKS; i++)
		put64(bytes + 16 + 8 * i, IMAGE_BASE + (1 + i % PLACED) * TABLET_REGION +
					  LAYOUT_HEADER);
	describe_image(n);
	send_region(n, 0, 1);
	p = record(n, 0, 1);
	p.slot_bytes = 16;
	p.words = TABLET_WORDS;
	for (p.region = 1; p.region <= PLACED; p.region++)
		assert_int_equal(place(n, &p, live), WIRE_OK);
	assert_int_equal(begin(n, CYCLE), WIRE_OK);
	assert_int_equal(trace(n, CYCLE, 1, UNITS, put_object(0, 0, 0), &t), WIRE_OK);
	/* A unit for each region of 64 words, and one for each reference. */
	assert_in_range(n->jobs->counts.references, UNITS / 2 - 3, UNITS / 2);
	assert_int_equal(trace(n, CYCLE, 2, UNITS, 0, &t), WIRE_OK);
	assert_in_range(n->jobs->counts.references, UNITS, 2 * UNITS - PLACED);
}

static void what_cannot_be_is_odd(void **state)
{
	uint8_t *object = one_object(IMAGE_PAIR, 32), *there;
	struct node *n = &nodes[0];

	describe_image(n);
	send_region(n, 0, 1);
	there = far_base(n->pool, 0) + EBB_FAR_SECTION;
	assert_int_equal(odd_after(n), 0);
	/* No object can begin there: in this region, and in any. */
	put64(there + 8, IMAGE_BASE + 16 + LAYOUT_HEADER);
	assert_int_equal(odd_after(n), 1);
	put64(there + 8, IMAGE_BASE + 9 * TABLET_REGION + 12);
	assert_int_equal(odd_after(n), 1);
	/* Outside of the heap all live. */
	put64(there + 8, IMAGE_BASE - 8);
	put64(there + 16, IMAGE_BASE + (uint64_t)HEAP_REGIONS * TABLET_REGION + 3);
	assert_int_equal(odd_after(n), 0);
	/* An unknown type; an object that is larger than its slot. */
	put64(there, 4711);
	assert_int_equal(odd_after(n), 1);
	put64(there, IMAGE_ARRAY);
	put64(there + 8, 2);
	assert_int_equal(odd_after(n), 0);
	put64(there + 8, 3);
	assert_int_equal(odd_after(n), 1);
	put64(there + 8, UINT64_MAX / 8);
	assert_int_equal(odd_after(n), 1);
	/* The extent is not the member's any more. */
	put64(there, IMAGE_LEAF);
	assert_int_equal(odd_after(n), 0);
	own_section(n, 1, n->member->number + 1);
	assert_int_equal(odd_after(n), 1);
	(void)object;
}

static void ghosts_are_passed_on(void **state)
{
	struct wire_job_traced t;
	struct wire_job_set s;
	uint32_t length;
	uint16_t st;
	uint8_t *to;
	size_t at = WIRE_JOB_TRACED_SIZE;
	struct node *n = &nodes[0];

	one_object(IMAGE_PAIR, 32);
	image.regions[0].live[0] = 3;
	image.regions[0].objects = 2;
	put64(image.regions[0].bytes + 8, image_address(&image.regions[0], 0, 1));
	put64(image.regions[0].bytes + 32, IMAGE_PAIR);
	describe_image(n);
	send_region(n, 0, 1);
	wire_build_job_begin(request, &(struct wire_job_begin){ CYCLE });
	to = request + WIRE_JOB_BEGIN_SIZE;
	to += wire_put_job_set(to, &(struct wire_job_set){ 0, 0, 1, NULL });
	put64(to, 1 << 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(job_begin(n->heap, request, WIRE_JOB_BEGIN_SIZE + 16, &st), 0);
		assert_int_equal(st, WIRE_OK);
	}
	length = put_object(0, 0, 0);
	assert_int_equal(trace(n, CYCLE, 1, 0, length, &t), WIRE_OK);
	assert_int_equal(t.visited, 1);
	assert_int_equal(wire_next_job_set(reply, size, &at, &s), 1);
	assert_int_equal(s.region, 0);
	assert_int_equal(get64(s.bits), 1 << 2);
	/* To mark one is a mistake, and ends the cycle. */
	length = put_object(0, 0, 2);
	assert_int_equal(trace(n, CYCLE, 2, 0, length, &t), WIRE_BAD_REGION);
	assert_int_equal(trace(n, CYCLE, 3, 0, 0, &t), WIRE_OLD_CYCLE);
	/* So is one that is not here, or where no slot begins. */
	assert_int_equal(begin(n, CYCLE + 1), WIRE_OK);
	assert_int_equal(trace(n, CYCLE + 1, 1, 0, put_object(0, 1, 0), &t), WIRE_BAD_REGION);
	assert_int_equal(begin(n, CYCLE + 2), WIRE_OK);
	assert_int_equal(trace(n, CYCLE + 2, 1, 0, put_object(0, 0, 1), &t), WIRE_BAD_REGION);
}

static void what_leaves_in_a_cycle_lives_in_it(void **state)
{
	struct node *n = &nodes[0];
	struct wire_job_place p;
	struct wire_job_traced t;

	one_object(IMAGE_PAIR, 32);
	describe_image(n);
	assert_int_equal(begin(n, CYCLE), WIRE_OK);
	send_region(n, 0, 1);
	image.regions[0].marks[0] = 1;
	/* A new place would have the old one's marks. */
	n->used = 0;
	p = record(n, 0, 2);
	assert_int_equal(place(n, &p, image.regions[0].live), WIRE_CYCLE_RUNS);
	assert_int_equal(trace(n, CYCLE, 1, 0, 0, &t), WIRE_OK);
	marks = calloc(2, sizeof(*marks));
	assert_int_equal(compare(n, CYCLE), 1);
	free(marks);
	/* The next cycle has to reach it. */
	assert_int_equal(place(n, &p, image.regions[0].live), WIRE_OK);
	image.regions[0].marks[0] = 0;
	assert_int_equal(begin(n, CYCLE + 1), WIRE_OK);
	marks = calloc(2, sizeof(*marks));
	assert_int_equal(compare(n, CYCLE + 1), 1);
	free(marks);
}

/* A borrower that was cut off asks for all marks again, and may have placed more before that. */
static void what_leaves_after_a_cycle_lives_in_its_marks(void **state)
{
	struct node *n = &nodes[0];

	one_object(IMAGE_PAIR, 32);
	describe_image(n);
	assert_int_equal(begin(n, CYCLE), WIRE_OK);
	marks = calloc(2, sizeof(*marks));
	assert_int_equal(compare(n, CYCLE), 0);
	send_region(n, 0, 1);
	image.regions[0].marks[0] = 1;
	assert_int_equal(compare(n, CYCLE), 1);
	free(marks);
}

/* With a region that goes, what its marked objects refer to would never be marked. */
static void a_region_stays_until_the_marks_are_sent(void **state)
{
	struct node *n = &nodes[0];
	struct wire_job_place p;
	struct wire_job_traced t;
	uint16_t st;

	one_object(IMAGE_PAIR, 32);
	describe_image(n);
	send_region(n, 0, 1);
	assert_int_equal(begin(n, CYCLE), WIRE_OK);
	wire_build_job_trace(request, &(struct wire_job_trace){ CYCLE, 1, 0 });
	assert_int_equal(job_trace(n->heap, request, WIRE_JOB_TRACE_SIZE + put_object(0, 0, 0),
				   JOB_MARK_ONLY, 1, reply, &size, &st), 0);
	assert_int_equal(st, WIRE_OK);
	p = record(n, 0, 2);
	p.slot_bytes = p.words = 0;
	assert_int_equal(place(n, &p, NULL), WIRE_CYCLE_RUNS);
	assert_int_equal(trace(n, CYCLE, 2, 0, 0, &t), WIRE_OK);
	assert_int_equal(n->jobs->counts.references, 2);
	image.regions[0].marks[0] = 1;
	marks = calloc(2, sizeof(*marks));
	assert_int_equal(compare(n, CYCLE), 1);
	free(marks);
	/* No object is marked in a cycle whose marks were sent. */
	assert_int_equal(begin(n, CYCLE), WIRE_OLD_CYCLE);
	assert_int_equal(trace(n, CYCLE, 3, 0, 0, &t), WIRE_OLD_CYCLE);
	assert_int_equal(place(n, &p, NULL), WIRE_OK);
	assert_int_equal(n->heap->placed, 0);
}

/* What an abandoned cycle has left in the queue costs the next BEGIN nothing. */
static void a_cycle_begins_in_one_step(void **state)
{
	enum { COUNT = 1000 };
	static struct job_region before[COUNT];
	struct node *n = &nodes[0];
	struct wire_job_traced t;
	struct wire_job_place p;

	one_object(IMAGE_PAIR, 32);
	describe_image(n);
	send_region(n, 0, 1);
	n->used = 0;
	queue_regions(n, COUNT, CYCLE);
	for (uint32_t i = 0; i < COUNT; i++)
		before[i] = *job_region_find(n->heap, i);
	assert_int_equal(begin(n, CYCLE + 1), WIRE_OK);
	assert_int_equal(n->heap->queued, 0);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_memory_equal(job_region_find(n->heap, i), &before[i], sizeof(before[i]));
	/* The next cycle queues them again, and one that goes is no part of the old queue. */
	assert_int_equal(trace(n, CYCLE + 1, 1, 0, put_object(0, 2, 0), &t), WIRE_OK);
	assert_int_equal(t.visited, 1);
	assert_int_equal(t.queued, 0);
	assert_int_equal(n->jobs->counts.references, 2);
	far_cycle_aborts(&n->heap->cycle, CYCLE + 1);
	p = record(n, 0, 2);
	p.slot_bytes = p.words = 0;
	for (p.region = 0; p.region < COUNT; p.region++)
		assert_int_equal(place(n, &p, NULL), WIRE_OK);
	assert_int_equal(n->heap->placed, 0);
	assert_int_equal(n->heap->queued, 0);
	assert_null(n->heap->first);
}

/* Describes a heap at the first node's jobs for another member. */
static struct node another(void)
{
	struct node other = { .jobs = nodes[0].jobs, .member = nodes[1].member };

	assert_int_equal(describe(&other, IMAGE_PAIR, &image_pair), WIRE_OK);
	return other;
}

static void a_share_of_the_processor(void **state)
{
	enum { MS = 1000000, PERCENT = 25 };
	struct node *n = &nodes[0], other;
	uint64_t now = 1000ull * JOB_WINDOW;

	n->jobs->percent = PERCENT;
	assert_int_equal(describe(n, IMAGE_PAIR, &image_pair), WIRE_OK);
	assert_int_equal(job_heap_pause(n->heap, now), 0);
	job_heap_charge(n->heap, now - MS, now);
	assert_int_equal(job_heap_pause(n->heap, now), 3000);
	assert_int_equal(job_heap_pause(n->heap, now + 3 * MS - 1), 1);
	/* What it has waited for is done, whatever it has cost meanwhile. */
	job_heap_charge(n->heap, now + MS, now + 2 * MS);
	assert_int_equal(job_heap_pause(n->heap, now + 3 * MS), 0);
	/* Of many requests that are not postponed, a member owes its own. */
	other = another();
	for (int i = 0; i < 1000; i++, now += MS)
		job_heap_charge(n->heap, now, now + MS);
	assert_int_equal(job_heap_pause(n->heap, now), WIRE_JOB_PAUSE_MOST);
	assert_int_equal(job_heap_pause(other.heap, now), 0);
	assert_true(n->heap->next_at > now + JOB_WINDOW);
	/* Two share it, and one that has left does not. */
	now += 100 * JOB_WINDOW;
	job_heap_charge(n->heap, now - 100 * MS, now);
	job_heap_charge(other.heap, now - 100 * MS, now);
	assert_int_equal(job_heap_pause(other.heap, now), 700000);
	job_heap_end(&other.heap);
	while (jobs_turn(n->jobs))
		;
	now += JOB_WINDOW;
	job_heap_charge(n->heap, now - MS, now);
	assert_int_equal(n->heap->next_at, now + 3 * MS);
	/* All of a processor is never too much. */
	n->jobs->percent = 100;
	now += JOB_WINDOW;
	job_heap_charge(n->heap, now - MS, now);
	assert_true(n->heap->next_at <= now);
}

/* Heaps that hardly work take no part of the share: they may be many of one borrower. */
static void idle_heaps_have_no_share(void **state)
{
	enum { MS = 1000000, OTHERS = 10, WINDOWS = 3 };
	struct node *n = &nodes[0], other[OTHERS];
	uint64_t now = 1000ull * JOB_WINDOW;

	n->jobs->percent = 25;
	assert_int_equal(describe(n, IMAGE_PAIR, &image_pair), WIRE_OK);
	for (int i = 0; i < OTHERS; i++)
		other[i] = another();
	for (int w = 0; w < WINDOWS; w++, now += JOB_WINDOW) {
		for (int i = 0; i < OTHERS; i++)
			job_heap_charge(other[i].heap, now - MS, now);
		job_heap_charge(n->heap, now - MS, now);
		assert_int_equal(n->heap->next_at, now + 3 * MS);
	}
	/* Those that work have one. */
	for (int i = 0; i < OTHERS; i++)
		job_heap_charge(other[i].heap, now - 12 * MS, now);
	job_heap_charge(n->heap, now - 12 * MS, now);
	assert_int_equal(n->heap->next_at, now + 12ull * MS * (4 * (OTHERS + 1) - 1));
	for (int i = 0; i < OTHERS; i++)
		job_heap_end(&other[i].heap);
}

/* Two records of a region in a frame: both are above the version that was there before. */
static void versions_rise_in_a_frame(void **state)
{
	struct node *n = &nodes[0];
	struct wire_job_place p;
	uint32_t length;
	uint16_t st;

	one_object(IMAGE_PAIR, 32);
	describe_image(n);
	p = record(n, 0, 5);
	length = wire_put_job_place(request, &p);
	for (uint32_t i = 0; i < p.words; i++, length += 8)
		put64(request + length, image.regions[0].live[i]);
	memcpy(request + length, request, length);
	put32(request + length + 4, 3);
	assert_int_equal(job_heap_place(n->heap, request, 2 * length, &st), 0);
	assert_int_equal(st, WIRE_OLD_VERSION);
	assert_int_equal(job_region_find(n->heap, 0)->version, 5);
	/* The other way round, both are in effect. */
	put32(request + 4, 6);
	put32(request + length + 4, 7);
	assert_int_equal(job_heap_place(n->heap, request, 2 * length, &st), 0);
	assert_int_equal(st, WIRE_OK);
	assert_int_equal(job_region_find(n->heap, 0)->version, 7);
}

static void hostile_layouts(void **state)
{
	const struct layout bad[] = {
		{ .size = 0 },
		{ .size = TABLET_SLOT_MOST },
		{ .size = 8, .bitmap = 2 },
		{ .size = 8, .length_width = 2, .element_size = 8 },
		{ .size = 8, .length_width = 8 },
		{ .size = 8, .element_size = 8 },
		{ .size = 8, .length_width = 8, .element_size = 8, .length_offset = 8 },
		{ .size = 8, .length_width = 8, .element_size = 8, .length_offset = 4 },
		{ .size = 16, .runs = 1, .run = { { 8, 8, 2 } } },
		{ .size = 16, .runs = 1, .run = { { 0, 0, 2 } } },
		{ .size = 16, .runs = 1, .run = { { 4, 8, 1 } } },
		{ .size = 16, .runs = 1, .run = { { 0, 8, 0 } } },
		{ .size = 16, .runs = 1, .run = { { 0, 8, LAYOUT_LENGTH } } },
		{ .size = 16, .runs = 1, .run = { { 0, 4, 1 } } },
		{ .size = 16, .runs = 1, .run = { { 0, UINT32_MAX - 7, 2 } } },
	};
	struct node *n = &nodes[0];

	for (uint32_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(describe(n, i, &bad[i]), WIRE_BAD_LAYOUT);
	describe_image(n);
	describe_image(n);
	assert_int_equal(describe(n, IMAGE_PAIR, &image_leaf), WIRE_BAD_LAYOUT);
	wire_build_job_heap(request, &(struct wire_job_heap){ IMAGE_BASE, IMAGE_MASK, 8, 0 });
	{
		uint16_t st;

		assert_int_equal(job_heap_describe(n->jobs, &n->heap, n->member, request,
						   WIRE_JOB_HEAP_SIZE, &st), 0);
		assert_int_equal(st, WIRE_NO_HEAP);
	}
}

/* Runs that overlap name each word many times. */
static void overlapping_runs(void **state)
{
	struct layout l = { .size = 8, .element_size = 8, .length_width = 8, .runs = LAYOUT_RUNS };
	static uint64_t references[LAYOUT_REFERENCES];
	uint8_t object[TABLET_SLOT_MOST - LAYOUT_HEADER] = { 0 };

	for (uint32_t i = 0; i < LAYOUT_RUNS; i++)
		l.run[i] = (struct layout_run){ 8, 8, LAYOUT_LENGTH };
	assert_true(layout_is_valid(&l));
	put64(object, 1022);
	assert_int_equal(layout_references(&l, object, sizeof(object), references), -1);
	put64(object, 127);
	assert_int_equal(layout_references(&l, object, sizeof(object), references), 8 * 127);
	/* An element that begins in the object and ends behind it. */
	l = (struct layout){ .size = 8, .element_size = 4, .length_width = 8, .runs = 1,
			     .run = { { 8, 8, LAYOUT_LENGTH } } };
	assert_true(layout_is_valid(&l));
	put64(object, 4);
	assert_int_equal(layout_references(&l, object, sizeof(object), references), -1);
	put64(object, 0);
	assert_int_equal(layout_references(&l, object, 8, references), 0);
	assert_int_equal(layout_references(&l, object, 4, references), -1);
}

/* What is no object costs a donor as much as an object without references: none is read. */
static void runs_beyond_the_object(void **state)
{
	enum { WORDS = LAYOUT_REFERENCES };
	const struct layout bad = { .size = 8 * WORDS, .runs = 2,
				    .run = { { 0, 8, WORDS }, { 0, 8, 1 } } };
	static uint64_t references[LAYOUT_REFERENCES];
	uint8_t object[TABLET_SLOT_MOST - LAYOUT_HEADER] = { 0 };
	struct layout l = bad;

	references[0] = 7;
	assert_true(layout_is_valid(&l));
	assert_int_equal(layout_references(&l, object, sizeof(object), references), -1);
	assert_int_equal(references[0], 7);
	/* With the words of a bitmap, as well. */
	l.runs = 1;
	l.bitmap = 1;
	assert_int_equal(layout_references(&l, object, sizeof(object), references), -1);
	assert_int_equal(references[0], 7);
	l.run[0].count--;
	assert_int_equal(layout_references(&l, object, sizeof(object), references), WORDS);
	assert_int_equal(references[0], 0);
}

static void hostile_places(void **state)
{
	struct node *n = &nodes[0];
	struct wire_job_place good, p;
	uint64_t live[TABLET_WORDS] = { 1 };

	image_make(&image, 2, 1, 1);
	describe_image(n);
	good = record(n, 1, 5);
	good.slot_bytes = 128;
	good.words = tablet_words(tablet_slots(128));
#define REFUSED(status, change) do { p = good; change; \
		assert_int_equal(place(n, &p, live), status); } while (0)
	REFUSED(WIRE_BAD_REGION, p.region = HEAP_REGIONS);
	REFUSED(WIRE_BAD_REGION, p.version = 0);
	REFUSED(WIRE_BAD_REGION, p.slot_bytes = 120);
	REFUSED(WIRE_BAD_REGION, p.slot_bytes = 8208);
	REFUSED(WIRE_BAD_REGION, p.words--);
	REFUSED(WIRE_BAD_REGION, p.base = 8);
	REFUSED(WIRE_BAD_REGION, p.base = EBB_FAR_SECTION - 64);
	REFUSED(WIRE_BAD_REGION, p.base = UINT32_MAX - 15);
	REFUSED(WIRE_BAD_RANGE, p.arena = 1);
	REFUSED(WIRE_BAD_RANGE, p.class = EBB_FAR_WHOLE_CLASS + 1);
	REFUSED(WIRE_BAD_RANGE, p.at += EBB_PAGE);
	REFUSED(WIRE_BAD_RANGE, p.at = 0);
	REFUSED(WIRE_BAD_RANGE, p.at = ARENA);
	REFUSED(WIRE_BAD_RANGE, p.at = -EBB_FAR_SECTION);
	REFUSED(WIRE_NOT_OWNER, p.class = 0);
	REFUSED(WIRE_STALE, p.generation++);
	own_section(n, 1, n->member->number + 1);
	REFUSED(WIRE_NOT_OWNER, (void)0);
	own_section(n, 1, n->member->number);
	REFUSED(WIRE_OK, (void)0);
	REFUSED(WIRE_OLD_VERSION, p.version = 4);
	REFUSED(WIRE_OLD_VERSION, p.base = 16);
	REFUSED(WIRE_OLD_VERSION, p.slot_bytes = p.words = 0);
	REFUSED(WIRE_BAD_REGION, p.version = 6; p.slot_bytes = 0);
	REFUSED(WIRE_OK, p.version = 6; p.base = 16);
	assert_int_equal(n->heap->placed, 1);
	REFUSED(WIRE_OK, p.version = 7; p.slot_bytes = p.words = 0);
	assert_int_equal(n->heap->placed, 0);
	REFUSED(WIRE_OK, p.version = 8; p.slot_bytes = p.words = 0);
	live[8] = 1;
	good.slot_bytes = 8192;
	good.words = 1;
	live[0] = 1 << 8;
	REFUSED(WIRE_BAD_REGION, (void)0);
	live[0] = 1 << 7;
	REFUSED(WIRE_OK, (void)0);
#undef REFUSED
}

static void memory_within_the_quota(void **state)
{
	struct node *n = &nodes[0];
	const uint64_t live[TABLET_WORDS] = { 1 };
	uint32_t placed = 0;
	struct wire_job_place p;
	uint16_t st = WIRE_OK;

	image_make(&image, 1, 1, 1);
	describe_image(n);
	p = record(n, 0, 1);
	p.slot_bytes = 16;
	p.words = TABLET_WORDS;
	for (; st == WIRE_OK; placed += st == WIRE_OK) {
		p.region = placed;
		st = place(n, &p, live);
		assert_true(n->jobs->memory.used <= n->jobs->memory.bytes);
	}
	assert_int_equal(st, WIRE_OVER_QUOTA);
	assert_true(placed > 1000);
	/* What is dropped can be used again. */
	p.region = 17;
	p.version = 2;
	p.slot_bytes = p.words = 0;
	assert_int_equal(place(n, &p, live), WIRE_OK);
	p.slot_bytes = 16;
	p.words = TABLET_WORDS;
	assert_int_equal(place(n, &p, live), WIRE_OK);
	end_heap(n);
	/* A heap that finds no memory leaves none in use. */
	for (int users = 0; users < 10; users++) {
		struct job_share share;

		job_share_init(&share);
		while (job_take(&n->jobs->memory, &share, JOB_CHUNK))
			;
	}
	assert_int_equal(describe(n, 0, NULL), WIRE_OVER_QUOTA);
	assert_null(n->heap);
	assert_int_equal(n->jobs->heaps, 0);
	jobs_free(&n->jobs);
	assert_int_equal(jobs_new(&n->jobs, 1 << 20, 50), 0);
}

/* A member that takes all it gets leaves some for another one. */
static void a_share_of_the_memory(void **state)
{
	struct node *n = &nodes[0], other;
	const uint64_t live[TABLET_WORDS] = { 1 };
	struct wire_job_place p;

	image_make(&image, 1, 1, 1);
	describe_image(n);
	p = record(n, 0, 1);
	p.slot_bytes = 16;
	p.words = TABLET_WORDS;
	/* Each takes a leaf of its own. */
	while (place(n, &p, live) == WIRE_OK)
		p.region += JOB_LEAF;
	other = another();
	for (p.region = 0; p.region < 100; p.region++)
		assert_int_equal(place(&other, &p, live), WIRE_OK);
	job_heap_end(&other.heap);
}

/* What a user has left free in its chunks is its own: 3/4 is 3/4, in blocks of any size. */
static void a_share_in_chunks(void **state)
{
	enum { CHUNKS = 64, LEAST = 1 << JOB_BLOCK_LEAST_SHIFT, BLOCKS = JOB_CHUNK / LEAST };
	static void *blocks[CHUNKS * BLOCKS];
	struct job_share a, b;
	struct job_memory m;
	uint32_t n = 0;

	assert_int_equal(job_memory_init(&m, CHUNKS * JOB_CHUNK), 0);
	job_share_init(&a);
	job_share_init(&b);
	assert_int_equal(job_share_left(&m, &a), CHUNKS * JOB_CHUNK / 4 * 3);
	while ((blocks[n] = job_take(&m, &a, LEAST)))
		n++;
	assert_int_equal(n, CHUNKS * BLOCKS / 4 * 3);
	assert_int_equal(job_share_left(&m, &a), 0);
	for (uint32_t i = 0; i < n; i++)
		if (i % BLOCKS)
			job_give(&m, &a, blocks[i], LEAST);
	assert_null(job_take(&m, &a, JOB_CHUNK));
	for (n = 0; job_take(&m, &b, JOB_CHUNK); n++)
		;
	assert_int_equal(n, CHUNKS / 4 * 3 / 4);
	/* Chunks without blocks in use are everyone's again. */
	job_give(&m, &a, blocks[0], LEAST);
	job_give(&m, &a, blocks[BLOCKS], LEAST);
	assert_non_null(job_take(&m, &b, 1));
	job_memory_free(&m);
}

static void blocks_of_all_sizes(void **state)
{
	struct job_share share;
	struct job_memory m;
	uint64_t seed = 7;
	struct { uint8_t *at; uint32_t bytes; uint8_t fill; } held[300] = { 0 };

	assert_int_equal(job_memory_init(&m, 4 << 20), 0);
	job_share_init(&share);
	for (int i = 0; i < 20000; i++) {
		uint32_t k = draw_below(&seed, 300);
		uint32_t bytes = 1 + draw_below(&seed, 1u << (1 + k % 16));

		for (uint32_t b = 0; b < held[k].bytes; b++)
			assert_int_equal(held[k].at[b], held[k].fill);
		job_give(&m, &share, held[k].at, held[k].bytes);
		held[k].at = job_take(&m, &share, bytes);
		held[k].bytes = held[k].at ? bytes : 0;
		held[k].fill = (uint8_t)i;
		for (uint32_t b = 0; b < held[k].bytes; b++)
			assert_int_equal(held[k].at[b], 0);
		memset(held[k].at ?: (uint8_t *)&k, held[k].at ? held[k].fill : (int)(uint8_t)k,
		       held[k].at ? held[k].bytes : 1);
	}
	for (int k = 0; k < 300; k++)
		job_give(&m, &share, held[k].at, held[k].bytes);
	assert_int_equal(m.used, 0);
	assert_int_equal(share.chunks, 0);
	assert_null(job_take(&m, &share, JOB_CHUNK + 1));
	/* All of it is free again, for any size. */
	for (uint32_t i = 0; i < m.chunks / 4 * 3; i++)
		assert_non_null(job_take(&m, &share, JOB_CHUNK));
	assert_null(job_take(&m, &share, 1));
	job_memory_free(&m);
}

/* --- evacuation ------------------------------------------------------------------- */

static uint32_t put_keep(uint32_t at, uint32_t region, uint32_t version, const uint64_t *keep)
{
	const struct image_region *r = &image.regions[region];

	at += wire_put_job_bits(request + at, &(struct wire_job_bits){ region, version, r->words,
									NULL });
	for (uint32_t i = 0; i < r->words; i++, at += 8)
		put64(request + at, keep[i]);
	return at;
}

static const struct wire_job_evacuate target = {
	.job = 9, .class = EBB_FAR_WHOLE_CLASS, .at = 3 * EBB_FAR_SECTION,
	.generation = GENERATION, .base = 64,
};

static uint16_t evacuate(struct node *n, const struct wire_job_evacuate *e, uint32_t length,
			 struct wire_job_evacuated *done)
{
	uint16_t st;

	wire_build_job_evacuate(request, e);
	assert_int_equal(job_evacuate(n->heap, request, length, done, &st), 0);
	return st;
}

/* The first @count regions, on both nodes: copies=2. */
static void send_twice(uint32_t count, uint64_t seed)
{
	image_make(&image, count, seed, 2);
	for (int i = 0; i < NODES; i++) {
		describe_image(&nodes[i]);
		for (uint32_t k = 0; k < count; k++)
			send_region(&nodes[i], k, 1);
	}
}

static void copies_at_two_donors_are_equal(void **state)
{
	enum { COUNT = 12 };
	static uint8_t expected[COUNT * TABLET_REGION];
	static uint64_t keep[COUNT][TABLET_WORDS];
	uint32_t first = 0, total = 0, at, requests = 0;
	uint64_t seed = 3;
	struct wire_job_evacuate e = target;

	send_twice(COUNT, 11);
	for (uint32_t k = 0; k < COUNT; k++) {
		const struct image_region *r = &image.regions[k];

		for (uint32_t s = 0; s < r->slots; s++)
			if (tablet_has(r->live, s) && draw_below(&seed, 3)) {
				keep[k][s / 64] |= 1ull << s % 64;
				memcpy(expected + total, image_object(r, s), r->slot_bytes);
				total += r->slot_bytes;
			}
	}
	for (; first < COUNT; requests++) {
		struct wire_job_evacuated done[NODES];

		for (int i = 0; i < NODES; i++) {
			at = WIRE_JOB_EVACUATE_SIZE;
			for (uint32_t k = first; k < COUNT; k++)
				at = put_keep(at, k, 1, keep[k]);
			assert_int_equal(evacuate(&nodes[i], &e, at, &done[i]), WIRE_OK);
			assert_true(done[i].regions && done[i].bytes <= JOB_BYTES);
		}
		assert_memory_equal(&done[0], &done[1], sizeof(done[0]));
		first += done[0].regions;
		e.base += done[0].bytes;
		e.crc = done[0].crc;
	}
	/* More than a turn is more than one request. */
	assert_true(requests > 0);
	assert_int_equal(e.base, 64 + total);
	assert_int_equal(e.crc, pack_crc(0, expected, total));
	for (int i = 0; i < NODES; i++)
		assert_memory_equal(far_base(nodes[i].pool, 0) + 3 * EBB_FAR_SECTION + 64, expected,
				    total);
}

static void a_turn_copies_a_bounded_part(void **state)
{
	enum { COUNT = 20 };
	struct wire_job_evacuated done;
	uint32_t at = WIRE_JOB_EVACUATE_SIZE;

	image_make(&image, COUNT, 5, 1);
	describe_image(&nodes[0]);
	for (uint32_t k = 0; k < COUNT; k++)
		send_region(&nodes[0], k, 1);
	for (uint32_t k = 0; k < COUNT; k++)
		at = put_keep(at, k, 1, image.regions[k].live);
	assert_int_equal(evacuate(&nodes[0], &target, at, &done), WIRE_OK);
	assert_int_equal(done.regions, JOB_BYTES / TABLET_REGION);
	assert_true(done.bytes <= JOB_BYTES);
	/* Also of regions of which little is kept: reading them is the work. */
	at = WIRE_JOB_EVACUATE_SIZE;
	for (uint32_t k = 0; k < COUNT; k++)
		at = put_keep(at, k, 1, (const uint64_t[TABLET_WORDS]){ 0 });
	assert_int_equal(evacuate(&nodes[0], &target, at, &done), WIRE_OK);
	assert_int_equal(done.regions, JOB_BYTES / TABLET_REGION);
	assert_int_equal(done.bytes, 0);
}

static void hostile_evacuations(void **state)
{
	struct node *n = &nodes[0];
	struct wire_job_evacuate e;
	struct wire_job_evacuated done;
	uint64_t none[TABLET_WORDS] = { 0 };
	uint32_t at;

	send_twice(2, 6);
	at = put_keep(WIRE_JOB_EVACUATE_SIZE, 0, 1, image.regions[0].live);
#define REFUSED(status, change) do { e = target; change; \
		assert_int_equal(evacuate(n, &e, at, &done), status); } while (0)
	REFUSED(WIRE_OK, (void)0);
	REFUSED(WIRE_STALE, e.generation++);
	REFUSED(WIRE_BAD_RANGE, e.at += EBB_PAGE);
	REFUSED(WIRE_BAD_REGION, e.base = 8);
	REFUSED(WIRE_BAD_REGION, e.base = EBB_FAR_SECTION + 16);
	REFUSED(WIRE_BAD_REGION, e.base = UINT32_MAX - 15);
	/* There is no room for it, and it would overwrite what it copies. */
	REFUSED(WIRE_BAD_REGION, e.base = EBB_FAR_SECTION - 16);
	REFUSED(WIRE_BAD_REGION, e.at = EBB_FAR_SECTION);
	own_section(n, 3, n->member->number + 1);
	REFUSED(WIRE_NOT_OWNER, (void)0);
	own_section(n, 3, n->member->number);
	at = put_keep(WIRE_JOB_EVACUATE_SIZE, 0, 2, image.regions[0].live);
	REFUSED(WIRE_OLD_VERSION, (void)0);
	none[0] = ~image.regions[1].live[0] & -~image.regions[1].live[0];
	at = put_keep(WIRE_JOB_EVACUATE_SIZE, 1, 1, none);
	REFUSED(WIRE_BAD_REGION, (void)0);
	at = put_keep(WIRE_JOB_EVACUATE_SIZE, 0, 1, image.regions[0].live);
	put32(request + WIRE_JOB_EVACUATE_SIZE, 77);
	REFUSED(WIRE_BAD_REGION, (void)0);
	assert_int_equal(begin(n, CYCLE), WIRE_OK);
	at = put_keep(WIRE_JOB_EVACUATE_SIZE, 0, 1, image.regions[0].live);
	REFUSED(WIRE_CYCLE_RUNS, (void)0);
	own_section(n, 1, n->member->number + 1);
	far_cycle_committed(&n->heap->cycle);
	at = put_keep(WIRE_JOB_EVACUATE_SIZE, 0, 1, image.regions[0].live);
	REFUSED(WIRE_STALE, (void)0);
#undef REFUSED
}

static void sums(void **state)
{
	uint8_t bytes[4096];
	uint64_t seed = 1;

	/* RFC 3720, appendix B.4. */
	memset(bytes, 0, 32);
	assert_int_equal(pack_crc(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, 32);
	assert_int_equal(pack_crc(0, bytes, 32), 0x62a8ab43);
	for (uint32_t i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(pack_crc(0, bytes, 32), 0x46dd794e);
	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)draw32(&seed);
	for (uint32_t i = 0; i < 100; i++) {
		uint32_t n = draw_below(&seed, sizeof(bytes));

		assert_int_equal(pack_crc(pack_crc(0, bytes, n), bytes + n, sizeof(bytes) - n),
				 pack_crc(0, bytes, sizeof(bytes)));
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(marks_are_those_of_a_local_trace),
		TEST(a_second_cycle_begins_with_no_marks),
		TEST(a_batch_that_is_repeated_gets_its_reply),
		TEST(more_than_a_reply_has),
		TEST(outs_that_collide),
		TEST(freed_extents_take_units),
		TEST(regions_take_units),
		TEST(what_cannot_be_is_odd),
		TEST(ghosts_are_passed_on),
		TEST(what_leaves_in_a_cycle_lives_in_it),
		TEST(what_leaves_after_a_cycle_lives_in_its_marks),
		TEST(a_region_stays_until_the_marks_are_sent),
		TEST(a_cycle_begins_in_one_step),
		TEST(versions_rise_in_a_frame),
		TEST(a_share_of_the_processor),
		TEST(idle_heaps_have_no_share),
		TEST(hostile_layouts),
		cmocka_unit_test(overlapping_runs),
		cmocka_unit_test(runs_beyond_the_object),
		TEST(hostile_places),
		TEST(memory_within_the_quota),
		TEST(a_share_of_the_memory),
		cmocka_unit_test(a_share_in_chunks),
		cmocka_unit_test(blocks_of_all_sizes),
		TEST(copies_at_two_donors_are_equal),
		TEST(a_turn_copies_a_bounded_part),
		TEST(hostile_evacuations),
		cmocka_unit_test(sums),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
