// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * `ebb-sim heap` on random programs: no collector frees a live object, all garbage is freed where a
 * collector says so, local memory keeps its limit.  And utilisation, and files that are no
 * recording.
 *
 * A program has roots, objects with slots and a large table, its first object; it allocates, loads,
 * stores and forgets at random.  What is dead is known exactly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/sim/heap_file.h"
#include "daemon/sim/heap_world.h"
#include "daemon/sim/utilisation.h"
#include "lib/base/draw.h"

#include <cmocka.h>

enum { OBJECTS = 20000, SLOTS = 6, ROOTS = 24, EVENTS = 1 << 20, TABLE = 3000 };

struct object {
	uint64_t place;
	uint32_t size, slots, slot[SLOTS]; /* number + 1 */
	bool alive, reached;
};

static struct {
	struct object object[OBJECTS];
	uint64_t event[EVENTS], end;
	uint32_t events, objects, root[ROOTS], table[TABLE];
	uint64_t seed, live, peak;
} p;

static char path[] = "/tmp/ebb-heap-XXXXXX";

static void put(uint64_t event)
{
	assert_true(p.events < EVENTS);
	p.event[p.events++] = event;
}

static void put_pair(uint32_t owner, uint64_t place, uint32_t target, enum heap_access access)
{
	put(heap_event(HEAP_MARK, owner, place) | HEAP_REFERENCE);
	put(heap_event(HEAP_MARK, target, (uint64_t)access * 8) | HEAP_REFERENCE);
}

static void reach(uint32_t o)
{
	if (p.object[o].reached)
		return;
	p.object[o].reached = true;
	for (uint32_t k = 0; k < p.object[o].slots; k++)
		if (p.object[o].slot[k])
			reach(p.object[o].slot[k] - 1);
}

static void collect(void)
{
	for (uint32_t o = 0; o < p.objects; o++)
		p.object[o].reached = false;
	for (uint32_t i = 0; i < ROOTS; i++)
		if (p.root[i])
			reach(p.root[i] - 1);
	for (uint32_t i = 0; i < TABLE; i++)
		if (p.table[i])
			reach(p.table[i] - 1);
	p.object[0].reached = true;
	for (uint32_t o = 0; o < p.objects; o++)
		if (p.object[o].alive && !p.object[o].reached) {
			p.object[o].alive = false;
			p.live -= p.object[o].size;
			put(heap_event(HEAP_DIED, o, p.object[o].place));
		}
	put(heap_event(HEAP_MARK, HEAP_COLLECTED, 0));
	put_pair(0, 0, 0, HEAP_ROOT);
	for (uint32_t i = 0; i < ROOTS; i++)
		if (p.root[i])
			put_pair(0, 0, p.root[i] - 1, HEAP_ROOT);
}

static uint32_t below(uint32_t n)
{
	return draw_below(&p.seed, n);
}

static void allocate(uint32_t root)
{
	struct object *o = &p.object[p.objects];

	*o = (struct object){ .place = p.end, .slots = SLOTS, .alive = true };
	o->size = 8 + 8 * SLOTS + 128 * below(3);
	if (!below(400))
		o->size = 8192 + 8 * below(20000);
	p.end += o->size;
	p.live += o->size;
	p.peak = p.live > p.peak ? p.live : p.peak;
	put(heap_born(o->size, o->place));
	p.root[root] = ++p.objects;
}

static uint64_t place_of(uint32_t o, uint32_t slot)
{
	return p.object[o].place + 8 * (slot + 1);
}

static void touch(uint32_t o, bool write)
{
	bool large = heap_is_large(p.object[o].size);

	put(heap_event(large ? (write ? HEAP_WRITE_LARGE : HEAP_READ_LARGE) :
			       (write ? HEAP_WRITE : HEAP_READ),
		       o, p.object[o].place));
}

static void clear(uint32_t o, uint32_t k, uint32_t *slot)
{
	put_pair(o, place_of(o, k), 0, HEAP_CLEARED);
	*slot = 0;
}

/* Stores a root into the table, or loads one from it, which may be the only reference then. */
static void use_table(uint32_t root, bool store, bool take)
{
	uint32_t k = below(TABLE), *slot = &p.table[k];

	touch(0, store || take);
	if (store) {
		put_pair(0, place_of(0, k), p.root[root] - 1, HEAP_STORED);
		*slot = p.root[root];
	} else if (*slot) {
		put_pair(0, place_of(0, k), *slot - 1, HEAP_LOADED);
		p.root[root] = *slot;
		touch(*slot - 1, false);
		if (take)
			clear(0, k, slot);
	}
}

static void step(void)
{
	uint32_t a = below(ROOTS), b = below(ROOTS), k = below(SLOTS), o = p.root[a] - 1;
	uint32_t what = below(100);

	if (!p.root[a]) {
		if (p.root[b])
			p.root[a] = p.root[b];
		else
			allocate(a);
	} else if (what < 30) {
		uint32_t target = p.root[a];

		allocate(b);
		/* Mostly, the new object refers to another and is referred to. */
		p.object[p.objects - 1].slot[0] = target;
		put_pair(p.objects - 1, place_of(p.objects - 1, 0), target - 1, HEAP_STORED);
	} else if (what < 60) {
		use_table(a, what < 45, what < 55);
	} else if (what < 70) {
		touch(o, true);
		if (p.root[b] && below(8)) {
			put_pair(o, place_of(o, k), p.root[b] - 1, HEAP_STORED);
			p.object[o].slot[k] = p.root[b];
		} else {
			clear(o, k, &p.object[o].slot[k]);
		}
	} else if (what < 97) {
		touch(o, false);
		if (!p.object[o].slot[k])
			return;
		put_pair(o, place_of(o, k), p.object[o].slot[k] - 1, HEAP_LOADED);
		p.root[b] = p.object[o].slot[k];
		touch(p.root[b] - 1, false);
		if (what < 75)
			clear(o, k, &p.object[o].slot[k]);
	} else {
		p.root[a] = 0;
	}
}

static void make(uint64_t seed)
{
	memset(&p, 0, sizeof(p));
	p.seed = draw_stream(seed, 1);
	p.end = 1 << 16;
	p.object[0] = (struct object){ .place = p.end, .size = 8 + 8 * TABLE, .alive = true };
	p.objects = 1;
	p.live = p.object[0].size;
	p.end += p.live;
	put(heap_born(p.live, 1 << 16));
	for (uint32_t next = 500; p.objects < OBJECTS - 1 && p.events < EVENTS - 4 * OBJECTS;) {
		step();
		if (p.objects == next) {
			collect();
			next += 500;
		}
	}
}

static void write_file(void)
{
	struct heap_trace_head head = {
		.magic = HEAP_TRACE_MAGIC, .events = p.events, .objects = p.objects, .low = 1 << 16,
		.bytes = p.end, .peak_bytes = p.peak,
	};
	static const char padding[HEAP_TRACE_HEAD];
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	fwrite(padding, sizeof(padding), 1, f);
	fwrite(p.event, sizeof(*p.event), p.events, f);
	rewind(f);
	fwrite(&head, sizeof(head), 1, f);
	assert_int_equal(fclose(f), 0);
}

static const struct heap_config base = {
	.servers = 2, .local = 1 << 18, .region = 1 << 16, .sparse = 80, .ghosts = 8,
	.write_through = 16, .full = 150, .touch = 20000, .translate = 3000, .test = 150,
	.page = 1000000, .fetch = 1000000, .trip = 1000000, .poll = 1000000, .stop = 1000000,
	.bandwidth = 5000000000,
	.tracing = 900000000, .copying = 20000000,
};

static const struct heap_scheme *const schemes[] = { &heap_mako, &heap_semeru, &heap_ebb };

static void check(const struct heap_scheme *s, const struct heap_config *c,
		  const struct heap_file *f, struct heap_result *sum)
{
	struct heap_result r;
	uint64_t stopped = 0, at = 0;

	heap_run(f, c, s, &r);
	if (r.lost)
		fail_msg("%s has freed %lu live objects", s->name, r.lost);
	assert_true(r.cycles > 0 && r.loads > 1000 && r.touches > 1000);
	for (uint32_t i = 0; i < r.pauses; i++) {
		assert_true(r.pause[i].start >= at && r.pause[i].length);
		at = r.pause[i].start + r.pause[i].length;
		stopped += r.pause[i].length;
	}
	assert_true(at <= r.time);
	assert_int_equal(stopped, r.stop_time + r.wait_time);
	assert_int_equal(r.stops + r.waits, r.pauses);
	sum->rescues += r.rescues;
	sum->waits += r.waits;
	sum->moved += r.moved;
	sum->moved_here += r.moved_here;
	sum->fetches += r.fetches;
	sum->homes += r.homes;
	sum->full += r.full;
	sum->discarded += r.discarded;
	sum->misses += r.misses;
	sum->translations += r.translations;
	sum->rounds += r.rounds;
	heap_result_free(&r);
}

static void nothing_alive_is_freed(void **state)
{
	struct heap_result sum[3] = { 0 };
	struct heap_file f;
	struct error e = { 0 };

	for (uint64_t seed = 1; seed <= 24; seed++) {
		struct heap_config c = base;

		make(seed);
		write_file();
		print_message("seed %lu, peak %lu, %u objects\n", seed, p.peak, p.objects);
		assert_int_equal(heap_file_open(&f, path, &e), 0);
		c.servers = 1 + seed % 4;
		/* Slow donors: tracing and evacuation meet more of the mutator. */
		c.tracing >>= seed % 3 * 3;
		c.copying >>= seed % 2 * 4;
		c.local = p.peak / (2 + seed % 5);
		for (int i = 0; i < 3; i++)
			check(schemes[i], &c, &f, &sum[i]);
		heap_file_close(&f);
	}
	/* All that could go wrong has happened. */
	for (int i = 0; i < 3; i++)
		printf("%s: %lu rescues, %lu waits, moved %lu and %lu, %lu fetches, %lu homes, %lu full, %lu discarded, %lu misses, %lu rounds\n",
		       schemes[i]->name, sum[i].rescues, sum[i].waits, sum[i].moved,
		       sum[i].moved_here, sum[i].fetches, sum[i].homes, sum[i].full,
		       sum[i].discarded, sum[i].misses, sum[i].rounds);
	assert_true(sum[0].rescues && sum[0].waits && sum[0].moved && sum[0].rounds);
	assert_true(sum[1].discarded && sum[1].moved && sum[1].moved_here && sum[1].full);
	assert_true(sum[2].rescues && sum[2].fetches && sum[2].homes && sum[2].full);
	assert_true(sum[2].rounds && sum[2].moved && !sum[2].waits);
}

static int bad(const char *says)
{
	struct heap_file f;
	struct error e = { 0 };
	int r = heap_file_open(&f, path, &e);

	heap_file_close(&f);
	assert_true(r < 0 && e.exit_status == EXIT_USAGE);
	if (!strstr(e.text, says))
		fail_msg("%s", e.text);
	return r;
}

/* Damages each event in turn, in the ways that a check must see. */
static void damaged_files_are_refused(void **state)
{
	uint32_t events;

	make(1);
	events = p.events;
	p.events = events - 1;
	write_file();
	p.events = events;
	assert_int_equal(truncate(path, HEAP_TRACE_HEAD + 8), 0);
	bad("cut short");
	assert_int_equal(truncate(path, 100), 0);
	bad("not a recorded heap");
	for (uint32_t i = 0; i < events; i += 1 + events / 200) {
		uint64_t was = p.event[i];

		/* What a null reference refers to has no meaning. */
		if (heap_kind(was) == HEAP_BORN ||
		    (was & HEAP_REFERENCE && heap_place(was) / 8 == HEAP_CLEARED))
			continue;
		p.event[i] = was | ((uint64_t)(HEAP_OBJECTS_MOST - 1) << 4);
		write_file();
		if (heap_kind(was) != HEAP_MARK || was & HEAP_REFERENCE)
			bad("is damaged");
		p.event[i] = was;
	}
	for (uint32_t i = 0; i < events; i++)
		if (heap_kind(p.event[i]) == HEAP_MARK && !(p.event[i] & HEAP_REFERENCE))
			p.event[i] = heap_event(HEAP_DROP, 1, 0);
	write_file();
	bad("no collection");
	p.events = p.objects = 0;
	for (int i = 0; i < 257; i++, p.objects++)
		put(heap_born(HEAP_SIZE_MOST, HEAP_SIZE_MOST * (uint64_t)i));
	write_file();
	bad("more than 16 GiB alive");
}

/* Of one pause of 10 ms in 100 ms: the curve is known. */
static void utilisation_is_as_defined(void **state)
{
	struct heap_pause pauses[] = { { 30000000000, 10000000000, HEAP_STOP_WORLD } };
	struct heap_result r = { .time = 100000000000, .pause = pauses, .pauses = 1 };
	struct utilisation u;

	utilisation_of(&r, &u);
	assert_true(u.window[u.count - 1] > 0.0999 && u.window[u.count - 1] < 0.1001);
	assert_true(u.bmu[u.count - 1] > 0.8999 && u.bmu[u.count - 1] < 0.9001);
	for (uint32_t i = 0; i < u.count; i++) {
		double expected = u.window[i] <= 0.01 ? 0 : 1 - 0.01 / u.window[i];

		assert_true(u.mmu[i] > expected - 1e-6 && u.mmu[i] < expected + 1e-6);
		assert_true(u.bmu[i] <= u.mmu[i]);
	}
	/* Ten pauses of 1 ms, with 1 ms between them: windows of 2 ms and of 19 ms. */
	struct heap_pause many[10];

	for (int i = 0; i < 10; i++)
		many[i] = (struct heap_pause){ (uint64_t)(40 + 2 * i) * 1000000000, 1000000000,
					       HEAP_STOP_WORLD };
	r.pause = many;
	r.pauses = 10;
	utilisation_of(&r, &u);
	for (uint32_t i = 0; i < u.count; i++) {
		if (u.window[i] > 0.0019 && u.window[i] < 0.0021)
			assert_true(u.mmu[i] > 0.45 && u.mmu[i] < 0.55);
		assert_true(i + 1 == u.count || u.bmu[i] <= u.bmu[i + 1] + 1e-9);
	}
	r.pauses = 0;
	utilisation_of(&r, &u);
	for (uint32_t i = 0; i < u.count; i++)
		assert_true(u.bmu[i] == 1);
}

static int make_file(void **state)
{
	int fd = mkstemp(path);

	return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
	return unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_alive_is_freed),
		cmocka_unit_test(damaged_files_are_refused),
		cmocka_unit_test(utilisation_is_as_defined),
	};

	return cmocka_run_group_tests_name("heaps on donors", tests, make_file, remove_file);
}
