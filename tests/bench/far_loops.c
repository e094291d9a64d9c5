// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Loops that allocate and free, with extents and with malloc.  Each is compiled for both, so that
 * neither pays for an indirect call.  An allocation ends with a pointer, as malloc's does; the
 * memory is not touched, because that costs both alike.  malloc never returns memory to the kernel,
 * which the pool does not, either.
 */
#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "far_speed.h"
#include "lib/base/draw.h"

/* Blocks that a worker has. */
enum { REPLACED = 400, THREADTEST = 400, LARSON = 256 };
enum { LEAST = 4096, MOST = 65536 };
enum { TOP_PAD = 64 << 20 };

enum source { FAR, MALLOC };

struct block {
	struct ebbfar_extent x;
	void *memory;
};

/* What all loops take. */
struct world {
	const char *donor; /* NULL = malloc */
	ebbfar_t *shared;  /* the handle of all threads; NULL: each process opens its own */
	void (*loop)(struct job *j, ebbfar_t *far);
};

#define INLINE static inline __attribute__((always_inline))

INLINE void get(enum source s, ebbfar_t *far, size_t size, struct block *b)
{
	int r = 0;

	if (s == FAR) {
		do
			r = ebbfar_alloc(far, size, &b->x);
		while (r == -EAGAIN);
		r = r ?: ebbfar_map(far, &b->x, &b->memory);
	} else {
		b->memory = malloc(size);
		r = b->memory ? 0 : -ENOMEM;
	}
	if (r)
		give_up("%zu bytes: %s", size, strerror(-r));
	__asm__ volatile("" : : "r"(b->memory) : "memory");
}

INLINE void put(enum source s, ebbfar_t *far, struct block *b)
{
	int r = 0;

	if (s == FAR)
		r = ebbfar_free(far, &b->x);
	else
		free(b->memory);
	if (r)
		give_up("free: %s", strerror(-r));
}

/* Frees each block before it allocates the next one. */
INLINE void pairs(enum source s, struct job *j, ebbfar_t *far)
{
	struct block b;
	uint64_t n = 0;

	do {
		get(s, far, LEAST, &b);
		put(s, far, &b);
		n++;
	} while (!worker_stops(j->run));
	worker_end(j, n);
}

/* Replaces one of @count blocks, at random. */
INLINE void replace(enum source s, struct job *j, ebbfar_t *far, uint32_t count, bool sizes)
{
	uint64_t seed = draw_stream(1, j->number), n = 0;
	struct block *b = calloc(count, sizeof(*b));

	for (uint32_t i = 0; i < count; i++)
		get(s, far, sizes ? LEAST + draw_below(&seed, MOST - LEAST + 1) : LEAST, &b[i]);
	worker_begin(j->run);
	do {
		struct block *at = &b[draw_below(&seed, count)];

		put(s, far, at);
		get(s, far, sizes ? LEAST + draw_below(&seed, MOST - LEAST + 1) : LEAST, at);
		n++;
	} while (!worker_stops(j->run));
	worker_end(j, n);
	for (uint32_t i = 0; i < count; i++)
		put(s, far, &b[i]);
	free(b);
}

/* Hoard's: allocates all blocks, then frees all, and so on. */
INLINE void threadtest(enum source s, struct job *j, ebbfar_t *far)
{
	struct block b[THREADTEST];
	uint64_t n = 0;

	do {
		for (int i = 0; i < THREADTEST; i++)
			get(s, far, LEAST, &b[i]);
		for (int i = 0; i < THREADTEST; i++)
			put(s, far, &b[i]);
		n += THREADTEST;
	} while (!worker_stops(j->run));
	worker_end(j, n);
}

static bool offer(struct worker *to, const struct offer *o)
{
	uint64_t put = to->put;

	if (put - __atomic_load_n(&to->taken, __ATOMIC_ACQUIRE) == RING)
		return false;
	to->offers[put % RING] = *o;
	__atomic_store_n(&to->put, put + 1, __ATOMIC_RELEASE);
	return true;
}

static bool receive(struct worker *me, struct offer *o)
{
	uint64_t taken = me->taken;

	if (__atomic_load_n(&me->put, __ATOMIC_ACQUIRE) == taken)
		return false;
	*o = me->offers[taken % RING];
	__atomic_store_n(&me->taken, taken + 1, __ATOMIC_RELEASE);
	return true;
}

/* Larson's with a neighbour that frees: counts the blocks that another worker has freed. */
INLINE void handover(enum source s, struct job *j, ebbfar_t *far)
{
	struct worker *me = &j->run->worker[j->number];
	struct worker *next = &j->run->worker[(j->number + 1) % j->run->workers];
	uint32_t number = s == FAR ? ebbfar_member(far) : 0;
	bool has = false, ends = false;
	struct offer o, mine;
	struct block b;
	uint64_t n = 0;

	/* The first block may take long to come. */
	while (!ends && (!n || !worker_stops(j->run))) {
		bool moved = false;

		if (!has)
			get(s, far, LEAST, &b);
		mine = (struct offer){ b.x, b.memory, number };
		has = !offer(next, &mine);
		while (receive(me, &o)) {
			struct block other = { o.x, o.memory };
			int r = s == FAR && o.owner != number ?
				ebbfar_take(far, o.owner, &other.x) : 0;

			/* What it had is freed when it closes the pool. */
			ends = r == -ESTALE && worker_stops(j->run);
			if (ends)
				break;
			if (r)
				give_up("take: %s", strerror(-r));
			put(s, far, &other);
			moved = true;
			n++;
		}
		if (has && !moved)
			sched_yield();
	}
	worker_end(j, n);
}

#define LOOPS(name, how)                                                                           \
	static void far_##name(struct job *j, ebbfar_t *far)                                       \
	{                                                                                          \
		enum source s = FAR;                                                               \
		how;                                                                               \
	}                                                                                          \
	static void malloc_##name(struct job *j, ebbfar_t *far)                                    \
	{                                                                                          \
		enum source s = MALLOC;                                                            \
		how;                                                                               \
	}

LOOPS(pairs, worker_begin(j->run); pairs(s, j, far))
LOOPS(replace, replace(s, j, far, REPLACED, false))
LOOPS(larson, replace(s, j, far, LARSON, true))
LOOPS(threadtest, worker_begin(j->run); threadtest(s, j, far))
LOOPS(handover, worker_begin(j->run); handover(s, j, far))

static const struct loop {
	const char *name;
	void (*loop[2])(struct job *j, ebbfar_t *far); /* by enum source */
} loops[] = {
	{ "pairs", { far_pairs, malloc_pairs } },
	{ "replace", { far_replace, malloc_replace } },
	{ "larson", { far_larson, malloc_larson } },
	{ "threadtest", { far_threadtest, malloc_threadtest } },
	{ "handover", { far_handover, malloc_handover } },
};

static void work(struct job *j)
{
	const struct world *w = j->data;
	ebbfar_t *far = w->donor && !w->shared ? open_pool(w->donor) : w->shared;

	w->loop(j, far);
	if (far != w->shared)
		ebbfar_close(far);
}

struct timing measure_loop(const char *on, const char *loop, enum kind kind, uint32_t workers,
			   double seconds)
{
	enum source s = strcmp(on, "malloc") ? FAR : MALLOC;
	struct world w = { .donor = s == FAR ? on : NULL };
	struct timing t;

	for (size_t i = 0; i < sizeof(loops) / sizeof(*loops); i++)
		if (!strcmp(loops[i].name, loop))
			w.loop = loops[i].loop[s];
	if (!w.loop)
		give_up("loop %s: there is none of that name", loop);
	mallopt(M_TRIM_THRESHOLD, INT32_MAX);
	mallopt(M_TOP_PAD, TOP_PAD);
	if (s == FAR && kind == THREADS)
		w.shared = open_pool(on);
	t = run_workers(kind, workers, seconds, work, &w);
	ebbfar_close(w.shared);
	return t;
}
