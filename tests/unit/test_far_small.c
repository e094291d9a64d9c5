// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Small objects of libebbfar: names, blocks that come and go, random programs against a model.
 * With EBB_TEST_TIMES set, writes how long an allocation and a free take.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "userlib/far/small.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

/* Sections of all arenas but those that have the tables. */
enum { FREE_SECTIONS = FAR_ARENAS * (FAR_SECTIONS - 1) };
/* Blocks that fit in them. */
enum { BLOCKS = FREE_SECTIONS * (EBB_FAR_SECTION / SMALL_EXTENT) };

/* Allocates all sections, so that no extent is left elsewhere, and frees them. */
static void everything_is_free(ebbfar_t *far)
{
	struct ebbfar_extent x[FREE_SECTIONS];

	for (int i = 0; i < FREE_SECTIONS; i++)
		assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x[i]), 0);
	for (int i = 0; i < FREE_SECTIONS; i++)
		assert_int_equal(ebbfar_free(far, &x[i]), 0);
}

/* Each size once: places, alignment, sizes of slots. */
static void sizes(void **state)
{
	static struct ebbfar_object o[EBBFAR_SMALL_MOST + 1];
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	uint32_t class = UINT32_MAX, blocks = 0;

	for (size_t n = 1; n <= EBBFAR_SMALL_MOST; n++) {
		assert_int_equal(ebbfar_small_alloc(far, n, &o[n]), 0);
		assert_int_equal(o[n].extent.size, SMALL_EXTENT);
		assert_int_equal(o[n].offset % 16, 0);
		assert_true(o[n].offset + n <= SMALL_EXTENT);
		if ((n & (n - 1)) == 0)
			assert_int_equal(o[n].offset % n, 0);
		assert_true(class == UINT32_MAX || small_class(n) == class ||
			    small_class(n) == class + 1);
		class = small_class(n);
	}
	assert_int_equal(class, SMALL_CLASSES - 1);
	/* As many blocks as their objects take: those of one size are together. */
	for (size_t n = 1; n <= EBBFAR_SMALL_MOST; n++) {
		bool first = true;

		for (size_t i = 1; i < n && first; i++)
			first = o[i].extent.place != o[n].extent.place;
		blocks += first;
	}
	assert_in_range(blocks, SMALL_CLASSES, SMALL_CLASSES + 4095 * 1.25 * 2048 / SMALL_EXTENT);
	for (size_t n = 1; n <= EBBFAR_SMALL_MOST; n++)
		assert_int_equal(ebbfar_small_free(far, &o[n]), 0);
	everything_is_free(far);
	ebbfar_close(far);
}

static void refused_names(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE), *other = open_at(at, 0);
	struct ebbfar_request q = { .op = EBBFAR_FREE }, *done;
	struct ebbfar_object o, p, kept = { .offset = 7 };
	int status;

	assert_int_equal(ebbfar_small_alloc(far, 0, &kept), -EINVAL);
	assert_int_equal(ebbfar_small_alloc(far, EBBFAR_SMALL_MOST + 1, &kept), -EINVAL);
	assert_int_equal(ebbfar_small_alloc(far, SIZE_MAX, &kept), -EINVAL);
	assert_int_equal(kept.offset, 7);
	assert_int_equal(ebbfar_small_free(far, &kept), -ESTALE);
	assert_int_equal(ebbfar_small_alloc(far, 48, &kept), 0);
	assert_int_equal(ebbfar_small_alloc(far, 48, &o), 0);

	/* Another member's, and one that was changed. */
	assert_int_equal(ebbfar_small_free(other, &o), -ESTALE);
	p = o;
	p.offset += 16;
	assert_int_equal(ebbfar_small_free(far, &p), -EINVAL);
	p.offset = SMALL_EXTENT / 48 * 48;
	assert_int_equal(ebbfar_small_free(far, &p), -EINVAL);
	p.offset = o.offset + 48;
	assert_int_equal(ebbfar_small_free(far, &p), -ESTALE);
	p = o;
	p.extent.place = UINT64_MAX;
	assert_int_equal(ebbfar_small_free(far, &p), -ESTALE);

	/* The extent is the allocator's. */
	assert_int_equal(ebbfar_free(far, &o.extent), -EBUSY);
	p = o;
	assert_int_equal(ebbfar_withdraw(far, &p.extent), -EBUSY);
	q.extent = o.extent;
	assert_int_equal(ebbfar_submit(far, &q, 1), 0);
	assert_int_equal(ebbfar_complete(far, 5000, &done), 0);
	assert_int_equal(q.result, -EBUSY);

	/* Freed, and allocated again. */
	assert_int_equal(ebbfar_small_free(far, &o), 0);
	assert_int_equal(ebbfar_small_free(far, &o), -ESTALE);
	p = o;
	p.stamp++;
	assert_int_equal(ebbfar_small_free(far, &p), -ESTALE);
	assert_int_equal(ebbfar_small_alloc(far, 33, &p), 0);
	assert_int_equal(p.offset, o.offset);
	assert_int_not_equal(p.stamp, o.stamp);
	assert_int_equal(ebbfar_small_free(far, &o), -ESTALE);
	assert_int_equal(ebbfar_small_free(far, &p), 0);

	/* The block is the spare one; then one of another size; then freed. */
	assert_int_equal(ebbfar_small_free(far, &kept), 0);
	assert_int_equal(ebbfar_small_free(far, &kept), -ESTALE);
	assert_int_equal(ebbfar_small_alloc(far, 4000, &p), 0);
	assert_int_equal(p.extent.place, o.extent.place);
	assert_int_equal(ebbfar_small_free(far, &kept), -ESTALE);
	assert_int_equal(ebbfar_small_free(far, &p), 0);
	everything_is_free(far);
	assert_int_equal(ebbfar_small_free(far, &p), -ESTALE);

	if (!fork())
		_exit(ebbfar_small_alloc(far, 16, &p) != -ECHILD ||
		      ebbfar_small_free(far, &kept) != -ECHILD);
	wait(&status);
	assert_int_equal(status, 0);
	ebbfar_close(other);
	ebbfar_close(far);
}

/* Allocates until the pool is full, frees all, and so again with another size. */
static void until_it_is_full(void **state)
{
	enum { MOST = BLOCKS * 64 };
	struct ebbfar_object *o = calloc(MOST, sizeof(*o));
	static const uint32_t of[] = { 1024, 4000, 1500 };
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x;

	assert_non_null(o);
	for (int s = 0; s < 3; s++) {
		uint32_t n = 0;

		while (!ebbfar_small_alloc(far, of[s], &o[n]))
			assert_true(++n < MOST + 1);
		assert_int_equal(ebbfar_small_alloc(far, of[s], &o[n - 1]), -ENOSPC);
		assert_int_equal(n, BLOCKS * (of[s] == 1024 ? 64 : of[s] == 4000 ? 16 : 42));
		assert_int_equal(ebbfar_alloc(far, SMALL_EXTENT, &x), -ENOSPC);
		assert_int_equal(ebbfar_small_free(far, &o[n / 2]), 0);
		assert_int_equal(ebbfar_small_alloc(far, of[s], &o[n / 2]), 0);
		while (n)
			assert_int_equal(ebbfar_small_free(far, &o[--n]), 0);
	}
	everything_is_free(far);
	ebbfar_close(far);
	free(o);
}

/* The extent that is kept for objects is not lost for extents. */
static void spare_extent(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_object o;
	struct ebbfar_extent x;

	assert_int_equal(ebbfar_small_alloc(far, 100, &o), 0);
	assert_int_equal(ebbfar_small_free(far, &o), 0);
	for (int i = 0; i < BLOCKS; i++)
		assert_int_equal(ebbfar_alloc(far, SMALL_EXTENT, &x), 0);
	assert_int_equal(ebbfar_alloc(far, SMALL_EXTENT, &x), -ENOSPC);
	assert_int_equal(ebbfar_small_free(far, &o), -ESTALE);
	ebbfar_close(far);
}

/* A member that exits without a word: its extents are freed, others' objects stay. */
static void killed(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x[FREE_SECTIONS];
	struct ebbfar_object o;
	char back[6];
	int n = 0, r;
	pid_t child;

	assert_int_equal(ebbfar_small_alloc(far, 100, &o), 0);
	assert_int_equal(ebbfar_write(far, &o.extent, o.offset, "hello", 6), 0);
	child = fork();
	if (!child) {
		ebbfar_t *its = open_at(at, EBBFAR_NO_RESUME);

		while (!ebbfar_small_alloc(its, 200, &o))
			;
		kill(getpid(), SIGKILL);
	}
	waitpid(child, NULL, 0);
	for (int i = 0; i < 6000 && n < FREE_SECTIONS - 1; i++) {
		while (n < FREE_SECTIONS && !(r = ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x[n])))
			n++;
		assert_int_equal(r, -ENOSPC);
		usleep(10000);
	}
	assert_int_equal(n, FREE_SECTIONS - 1);
	assert_int_equal(ebbfar_read(far, &o.extent, o.offset, back, 6), 0);
	assert_string_equal(back, "hello");
	assert_int_equal(ebbfar_small_free(far, &o), 0);
	ebbfar_close(far);
}

/* A slot's stamps are used up, then the extent is freed: a name is never that of two objects. */
static void last_stamps(void **state)
{
	enum { SLOTS = SMALL_EXTENT / 4096, PAIRS = SLOTS * 32768 };
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_object first, o, last[SLOTS] = { 0 };
	uint32_t extents = 0;

	assert_int_equal(ebbfar_small_alloc(far, 4000, &first), 0);
	assert_int_equal(ebbfar_small_free(far, &first), 0);
	for (int i = 1; i < PAIRS + 100; i++) {
		struct ebbfar_object *was;

		assert_int_equal(ebbfar_small_alloc(far, 4000, &o), 0);
		was = &last[o.offset / 4096];
		if (was->extent.place != o.extent.place ||
		    was->extent.generation != o.extent.generation)
			extents++;
		else
			assert_true(o.stamp > was->stamp);
		*was = o;
		assert_int_equal(ebbfar_small_free(far, &o), 0);
		assert_int_equal(ebbfar_small_free(far, &o), -ESTALE);
		assert_int_equal(ebbfar_small_free(far, &first), -ESTALE);
	}
	assert_int_equal(extents, SLOTS + 1);
	everything_is_free(far);
	ebbfar_close(far);
}

/* A block is divided again until its last epoch, then it is to be freed. */
static void last_epoch(void **state)
{
	const struct ebbfar_extent x = { 5ull << 32 | 3 * SMALL_EXTENT, SMALL_EXTENT, 9 };
	struct small *s = calloc(1, sizeof(*s));
	struct ebbfar_extent freed = { 0 };
	struct ebbfar_object o, before = { 0 };
	uint32_t epochs = 0;
	int r;

	assert_non_null(s);
	assert_int_equal(small_reuse(s, 0), -ENOENT);
	assert_false(small_evict(s, &freed));
	assert_false(small_take(s, 27, &o));
	assert_int_equal(small_add(s, 8, 27, &x), 0);
	do {
		uint32_t class = epochs % 2 ? 26 : 27;

		assert_true(small_take(s, class, &o));
		assert_true(o.stamp > before.stamp);
		before = o;
		epochs++;
		r = small_give(s, &o, &freed);
		assert_int_equal(small_give(s, &o, &freed), -ESTALE);
		if (!r)
			assert_int_equal(small_reuse(s, class ^ 1), 0);
	} while (!r);
	assert_int_equal(r, 1);
	assert_int_equal(epochs, 65536);
	assert_memory_equal(&freed, &x, sizeof(x));
	assert_false(small_has(s, &x));
	assert_false(small_take(s, 26, &o));
	small_end(s);
	free(s);
}

/* --- random programs -------------------------------------------------------------- */

/* An object, and what it holds. */
struct live {
	struct ebbfar_object o;
	uint32_t size;
	uint64_t content;
};

enum { LIVE = 3000 };

struct program {
	ebbfar_t *far;
	uint64_t seed;
	struct live live[LIVE];
	uint32_t n;
	/* For each 16 bytes of the pool, whether an object is there; NULL = not checked. */
	uint8_t *taken;
	const char *wrong; /* what was */
};

static void fill(uint8_t *bytes, const struct live *l)
{
	uint64_t seed = l->content;

	for (uint32_t i = 0; i < l->size; i++)
		bytes[i] = (uint8_t)draw32(&seed);
}

/* Sets what @l takes to @taken; returns false if a part was so already. */
static bool mark(struct program *p, const struct live *l, uint8_t taken)
{
	uint64_t place = l->o.extent.place + l->o.offset;
	uint64_t first = ((place >> 32) * FAR_ARENA + (uint32_t)place) / 16;

	for (uint32_t i = 0; p->taken && i < (l->size + 15) / 16; i++) {
		if (p->taken[first + i] == taken)
			return false;
		p->taken[first + i] = taken;
	}
	return true;
}

static const char *allocate_one(struct program *p)
{
	struct live *l = &p->live[p->n];
	uint8_t bytes[EBBFAR_SMALL_MOST];
	int r;

	/* Small ones more often. */
	l->size = 1 + draw_below(&p->seed, EBBFAR_SMALL_MOST >> draw_below(&p->seed, 9));
	l->content = p->seed;
	r = ebbfar_small_alloc(p->far, l->size, &l->o);
	if (r == -ENOSPC)
		return NULL;
	if (r || !mark(p, l, 1))
		return r ? "allocation" : "overlap";
	fill(bytes, l);
	p->n++;
	return ebbfar_write(p->far, &l->o.extent, l->o.offset, bytes, l->size) ? "write" : NULL;
}

static const char *free_one(struct program *p)
{
	uint8_t bytes[EBBFAR_SMALL_MOST], back[EBBFAR_SMALL_MOST];
	struct live *l = &p->live[draw_below(&p->seed, p->n)];

	fill(bytes, l);
	if (ebbfar_read(p->far, &l->o.extent, l->o.offset, back, l->size) ||
	    memcmp(bytes, back, l->size))
		return "contents";
	mark(p, l, 0);
	if (ebbfar_small_free(p->far, &l->o))
		return "free";
	if (ebbfar_small_free(p->far, &l->o) != -ESTALE)
		return "second free";
	*l = p->live[--p->n];
	return NULL;
}

/* Grows and shrinks by turns, and frees all. */
static void *run(void *data)
{
	struct program *p = data;
	uint32_t steps = at == world.tcp ? 6000 : 60000;

	for (uint32_t i = 0; i < steps && !p->wrong; i++) {
		bool grows = draw_below(&p->seed, 100) < (i / 2000 % 2 ? 25 : 75);

		p->wrong = p->n && (!grows || p->n == LIVE) ? free_one(p) : allocate_one(p);
	}
	while (p->n && !p->wrong)
		p->wrong = free_one(p);
	return NULL;
}

static struct program *begin_program(ebbfar_t *far, uint64_t seed)
{
	struct program *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	p->far = far;
	p->seed = seed;
	return p;
}

static void random_program(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);

	for (uint64_t seed = 1; seed <= 4; seed++) {
		struct program *p = begin_program(far, seed);

		p->taken = calloc(FAR_ARENAS, FAR_ARENA / 16);
		assert_non_null(p->taken);
		run(p);
		if (p->wrong)
			fail_msg("seed %lu: %s", (unsigned long)seed, p->wrong);
		free(p->taken);
		free(p);
	}
	everything_is_free(far);
	ebbfar_close(far);
}

/* Of one handle. */
static void threads(void **state)
{
	enum { THREADS = 4 };
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct program *p[THREADS];
	pthread_t thread[THREADS];

	for (uint64_t i = 0; i < THREADS; i++) {
		p[i] = begin_program(far, 77 + i);
		pthread_create(&thread[i], NULL, run, p[i]);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		if (p[i]->wrong)
			fail_msg("thread %d: %s", i, p[i]->wrong);
		free(p[i]);
	}
	everything_is_free(far);
	ebbfar_close(far);
}

/* --- times ------------------------------------------------------------------------ */

static void measure(ebbfar_t *far, uint32_t size, uint32_t live, uint32_t rounds)
{
	struct ebbfar_object *o = calloc(live, sizeof(*o));
	uint64_t seed = 5, start;

	assert_non_null(o);
	for (uint32_t i = 0; i < live; i++)
		assert_int_equal(ebbfar_small_alloc(far, size, &o[i]), 0);
	start = now_ns();
	for (uint32_t i = 0; i < rounds; i++) {
		struct ebbfar_object *any = &o[draw_below(&seed, live)];

		if (ebbfar_small_free(far, any) || ebbfar_small_alloc(far, size, any))
			fail_msg("round %u", i);
	}
	print_message("%4u bytes, %6u live: %.0f ns for alloc and free\n", size, live,
		      (double)(now_ns() - start) / rounds);
	for (uint32_t i = 0; i < live; i++)
		assert_int_equal(ebbfar_small_free(far, &o[i]), 0);
	free(o);
}

static void times(void **state)
{
	static const uint32_t live[] = { 1, 1000, 60000 };
	ebbfar_t *far;

	if (!getenv("EBB_TEST_TIMES"))
		return;
	far = open_at(at, EBBFAR_CREATE);
	print_message("%s:\n", at);
	for (int i = 0; i < 3; i++) {
		measure(far, 16, live[i], 1000000);
		measure(far, 200, live[i], 1000000);
		measure(far, 4000, live[i] < 4000 ? live[i] : 4000, 1000000);
	}
	ebbfar_close(far);
}

int main(void)
{
#define BOTH(f) \
	{ #f " by tcp", f, by_tcp, end_far_donor, NULL }, \
	{ #f " by mapping", f, by_mapping, end_far_donor, NULL }
	const struct CMUnitTest tests[] = {
		BOTH(sizes),
		BOTH(refused_names),
		BOTH(until_it_is_full),
		BOTH(spare_extent),
		BOTH(killed),
		BOTH(last_stamps),
		cmocka_unit_test(last_epoch),
		BOTH(random_program),
		BOTH(threads),
		BOTH(times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
