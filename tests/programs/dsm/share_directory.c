// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * By directory coherence on libebbfar's verbs, after SELCC (Wang et al., arXiv 2409.02088, 2025): a
 * latch word beside each object names the workers with copies and the one that writes, so that an
 * access is granted by one compare-and-swap or addition, with the content in the same batch.
 * Copies are kept until a writer tells their workers by a message.
 *
 * A latch: the writer's rank plus 1 in the highest byte; below, 6 bits a rank count how often that
 * rank has registered since the last writer.  What favours this way: a home accesses its own memory
 * without messages, and releases its latches at once, as writers do; nothing is evicted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ebbfar.h>

#include "bench.h"

enum { HEAD = 16, BUCKETS = 1 << 16, RANK_BITS = 6, PAUSE_US = 20 };

static uint64_t bit_of(uint32_t rank)
{
	return 1ull << RANK_BITS * rank;
}

static uint64_t writer_of(uint32_t rank)
{
	return (uint64_t)(rank + 1) << 56;
}

#define WRITER (255ull << 56)

/* A copy of another machine's object. */
struct copy {
	struct copy *next;
	uint64_t place;
	uint32_t home, users;
	_Alignas(16) uint8_t content[];
};

/* Of this process.  The lock is held during fetches: an invalidation waits for them. */
static struct {
	ebbfar_t *far[WORKERS_MOST];
	pthread_mutex_t lock;
	pthread_cond_t unused; /* a copy has no users any more */
	struct copy *bucket[BUCKETS];
	uint64_t invalidations; /* from 1 on */
} here = { .lock = PTHREAD_MUTEX_INITIALIZER, .unused = PTHREAD_COND_INITIALIZER,
	   .invalidations = 1 };

/* At the home, and of all in the cells' table. */
static struct cell {
	struct object o;
} cells[CELLS];

/* What a writer tells the workers that have copies: places of one home. */
struct invalidation {
	uint32_t home, places;
	uint64_t place[];
};

static void check(const char *what, int r)
{
	if (r)
		give_up("directory: %s: %s", what, strerror(-r));
}

static void directory_join(struct worker *w)
{
	for (uint32_t i = 0; i < w->workers; i++) {
		struct ebbfar_options o = {
			.size = sizeof(o), .donor = i == w->rank ? w->local[i] : w->remote[i],
			.pool = "bench", .flags = EBBFAR_CREATE | EBBFAR_SHARED, .timeout_ms = 60000,
		};

		if (ebbfar_open(&o, &here.far[i]))
			give_up("%s", o.error);
	}
}

static void directory_leave(struct worker *w)
{
	for (uint32_t i = 0; i < w->workers; i++)
		ebbfar_close(here.far[i]);
	for (uint32_t i = 0; i < BUCKETS; i++)
		while (here.bucket[i]) {
			struct copy *c = here.bucket[i];

			here.bucket[i] = c->next;
			free(c);
		}
}

/* --- verbs ------------------------------------------------------------------------ */

static struct ebbfar_extent extent_of(const struct object *o)
{
	uint64_t size = EBBFAR_EXTENT_LEAST;

	while (size < HEAD + o->size)
		size *= 2;
	return (struct ebbfar_extent){ .place = o->at, .size = size, .generation = o->stamp };
}

/* The latch of an object of this machine. */
static uint64_t *memory_of(struct worker *w, const struct object *o)
{
	struct ebbfar_extent x = extent_of(o);
	void *memory;

	check("map", ebbfar_map(here.far[o->home], &x, &memory));
	return memory;
}

/* Executes a batch at a donor over TCP: one round trip. */
static void execute(const struct object *o, struct ebbfar_request *q, uint32_t n)
{
	struct ebbfar_request *done;

	for (uint32_t i = 0; i < n; i++)
		q[i].extent = extent_of(o);
	check("submit", ebbfar_submit(here.far[o->home], q, n));
	count(&counts->far_trips, 1);
	count(&counts->far_messages, 2);
	for (uint32_t i = 0; i < n; i++) {
		check("complete", ebbfar_complete(here.far[o->home], -1, &done));
		check("verb", done->result);
	}
}

static uint64_t add(struct worker *w, const struct object *o, uint64_t addend)
{
	struct ebbfar_request q = { .op = EBBFAR_ADD, .desired = addend };

	if (o->home == w->rank)
		return __atomic_fetch_add(memory_of(w, o), addend, __ATOMIC_SEQ_CST);
	execute(o, &q, 1);
	return q.old;
}

/* Returns the word as it was. */
static uint64_t compare_and_swap(struct worker *w, const struct object *o, uint64_t expect,
				 uint64_t desired)
{
	struct ebbfar_request q = { .op = EBBFAR_CAS, .expect = expect, .desired = desired };

	if (o->home == w->rank) {
		__atomic_compare_exchange_n(memory_of(w, o), &expect, desired, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		return expect;
	}
	execute(o, &q, 1);
	return q.old;
}

/* --- copies ----------------------------------------------------------------------- */

static struct copy **find(uint32_t home, uint64_t place)
{
	struct copy **at = &here.bucket[hash(place ^ home) % BUCKETS];

	while (*at && ((*at)->place != place || (*at)->home != home))
		at = &(*at)->next;
	return at;
}

static struct copy *copy_new(const struct object *o)
{
	struct copy *c = aligned_alloc(16, (sizeof(*c) + o->size + 15) & ~(size_t)15);

	if (!c)
		give_up("out of memory");
	*c = (struct copy){ .place = o->at, .home = o->home };
	return c;
}

/*
 * With the lock held.  Returns NULL while another worker writes.  Then this worker stays
 * registered: a writer's compare-and-swap may have taken its bit away before it could do so itself.
 * *@since is then the number of invalidations so far, else 0; after another one, it has to register
 * again, so that the writer does not miss it.
 */
static struct copy *fetch(struct worker *w, const struct object *o, uint64_t *since)
{
	struct copy *c = copy_new(o), **at;
	uint64_t latch;
	struct ebbfar_request q[2] = {
		{ .op = EBBFAR_ADD, .desired = bit_of(w->rank) },
		{ .op = EBBFAR_READ, .offset = HEAD, .memory = c->content, .size = o->size },
	};

	if (*since == here.invalidations)
		q[0] = (struct ebbfar_request){ .op = EBBFAR_READ, .memory = &latch,
						.size = sizeof(latch) };
	execute(o, q, 2);
	if (q[0].op == EBBFAR_ADD)
		latch = q[0].old;
	if ((latch / bit_of(w->rank) & (bit_of(1) - 1)) == bit_of(1) - 2)
		give_up("directory: too many registrations");
	if (latch & WRITER) {
		*since = here.invalidations;
		free(c);
		return NULL;
	}
	at = find(o->home, o->at);
	c->next = *at;
	*at = c;
	return c;
}

static const void *read_remote(struct worker *w, const struct object *o)
{
	uint64_t since = 0;
	struct copy *c;

	pthread_mutex_lock(&here.lock);
	while (!(c = *find(o->home, o->at)) && !(c = fetch(w, o, &since))) {
		pthread_mutex_unlock(&here.lock);
		usleep(PAUSE_US);
		pthread_mutex_lock(&here.lock);
	}
	c->users++;
	pthread_mutex_unlock(&here.lock);
	return c->content;
}

static const void *directory_read(struct worker *w, const struct object *o)
{
	if (o->home != w->rank)
		return read_remote(w, o);
	while (add(w, o, bit_of(w->rank)) & WRITER) {
		add(w, o, -bit_of(w->rank));
		usleep(PAUSE_US);
	}
	return (uint8_t *)memory_of(w, o) + HEAD;
}

static void directory_done(struct worker *w, const struct object *o, const void *content)
{
	struct copy *c = (struct copy *)((uint8_t *)content - offsetof(struct copy, content));

	if (o->home == w->rank) {
		add(w, o, -bit_of(w->rank));
		return;
	}
	pthread_mutex_lock(&here.lock);
	c->users--;
	pthread_cond_broadcast(&here.unused);
	pthread_mutex_unlock(&here.lock);
}

/* Removes this process's copy, when it has no users. */
static void forget_copy(uint32_t home, uint64_t place)
{
	struct copy **at, *c;

	pthread_mutex_lock(&here.lock);
	here.invalidations++;
	while ((c = *(at = find(home, place))) && c->users)
		pthread_cond_wait(&here.unused, &here.lock);
	if (c) {
		*at = c->next;
		free(c);
	}
	pthread_mutex_unlock(&here.lock);
}

static void directory_handle(struct worker *w, struct message *request)
{
	const struct invalidation *i = (const struct invalidation *)request->bytes;

	for (uint32_t k = 0; k < i->places; k++)
		forget_copy(i->home, i->place[k]);
	answer(w, request, NULL, 0);
}

/* Has other workers, a bit each, forget their copies: one message to each of them. */
static void invalidate(struct worker *w, uint32_t others, const struct object *o, uint32_t n)
{
	size_t size = sizeof(struct invalidation) + n * sizeof(uint64_t);
	struct invalidation *i = malloc(size);

	if (!i)
		give_up("out of memory");
	*i = (struct invalidation){ .home = o->home, .places = n };
	for (uint32_t k = 0; k < n; k++)
		i->place[k] = o[k].at;
	free(call(w, others, KIND_INVALIDATE, i, (uint32_t)size));
	free(i);
}

/* Returns the workers but this one and the home that a latch says have copies. */
static uint32_t others_in(struct worker *w, const struct object *o, uint64_t latch)
{
	uint32_t others = 0;

	for (uint32_t r = 0; r < w->workers; r++)
		if (latch >> RANK_BITS * r & (bit_of(1) - 1) && r != w->rank && r != o->home)
			others |= 1u << r;
	return others;
}

/* --- writers ---------------------------------------------------------------------- */

/* Takes the latch for writing.  Copies of all are removed. */
static void acquire(struct worker *w, const struct object *o)
{
	uint64_t expect = 0, old;

	if (o->home != w->rank) {
		pthread_mutex_lock(&here.lock);
		expect = *find(o->home, o->at) ? bit_of(w->rank) : 0;
		pthread_mutex_unlock(&here.lock);
	}
	while ((old = compare_and_swap(w, o, expect, writer_of(w->rank))) != expect) {
		/* A home that reads holds its bits for that time alone, and so does a writer. */
		uint64_t at_home = bit_of(o->home) * (bit_of(1) - 1);
		uint32_t others = others_in(w, o, old);

		expect = old & WRITER ? 0 : old & ~at_home;
		if (others && !(old & WRITER))
			invalidate(w, others, o, 1);
		else if (old & (WRITER | at_home))
			usleep(PAUSE_US);
	}
}

static void directory_make(struct worker *w, const void *content, uint32_t size, struct object *o)
{
	struct ebbfar_extent x;
	uint64_t *memory;

	check("allocation", ebbfar_alloc(here.far[w->rank], HEAD + (size_t)size, &x));
	*o = (struct object){ .at = x.place, .stamp = x.generation, .home = w->rank, .size = size };
	memory = memory_of(w, o);
	memcpy((uint8_t *)memory + HEAD, content, size);
	__atomic_store_n(memory, 0, __ATOMIC_SEQ_CST);
}

/* Copies of all objects are invalidated at once, so that no acquire() waits. */
static void directory_drop(struct worker *w, const struct object *o, uint32_t n)
{
	uint32_t others = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t latch = __atomic_load_n(memory_of(w, &o[i]), __ATOMIC_SEQ_CST);

		others |= others_in(w, &o[i], latch);
	}
	if (others)
		invalidate(w, others, o, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct ebbfar_extent x = extent_of(&o[i]);

		/* It is not shared any more, and nothing reads it. */
		check("free", ebbfar_free(here.far[w->rank], &x));
	}
}

/* --- cells: their names are sent once --------------------------------------------- */

static const struct object *cell_of(struct worker *w, uint32_t number)
{
	uint32_t home = number % w->workers;
	struct cell *c = &cells[number];

	if (!c->o.size) {
		struct message *m = call(w, 1u << home, KIND_GET, &number, sizeof(number));

		memcpy(&c->o, m->bytes, sizeof(c->o));
		free(m);
	}
	return &c->o;
}

static void directory_learn(struct worker *w, uint32_t cell)
{
	cell_of(w, cell);
}

static void cell_handle(struct worker *w, struct message *request)
{
	uint32_t number;

	if (request->kind == KIND_INVALIDATE) {
		directory_handle(w, request);
		return;
	}
	memcpy(&number, request->bytes, sizeof(number));
	answer(w, request, &cells[number].o, sizeof(struct object));
}

static void directory_get(struct worker *w, uint32_t cell, void *to)
{
	const struct object *o = cell_of(w, cell);
	const void *content = directory_read(w, o);

	memcpy(to, content, CELL);
	directory_done(w, o, content);
}

/* The content and the release are one batch; the writer keeps a copy. */
static void write_remote(struct worker *w, const struct object *o, const void *from)
{
	struct ebbfar_request q[2] = {
		{ .op = EBBFAR_WRITE, .offset = HEAD, .memory = (void *)from, .size = CELL },
		{ .op = EBBFAR_ADD, .desired = bit_of(w->rank) - writer_of(w->rank) },
	};
	struct copy **at;

	pthread_mutex_lock(&here.lock);
	at = find(o->home, o->at);
	if (!*at) {
		*at = copy_new(o);
		(*at)->next = NULL;
	}
	memcpy((*at)->content, from, CELL);
	execute(o, q, 2);
	pthread_mutex_unlock(&here.lock);
}

static void directory_put(struct worker *w, uint32_t cell, const void *from)
{
	const struct object *o;

	if (cell % w->workers == w->rank && !cells[cell].o.size) {
		directory_make(w, from, CELL, &cells[cell].o);
		return;
	}
	o = cell_of(w, cell);
	acquire(w, o);
	if (o->home != w->rank) {
		write_remote(w, o, from);
		return;
	}
	memcpy((uint8_t *)memory_of(w, o) + HEAD, from, CELL);
	add(w, o, -writer_of(w->rank));
}

const struct share share_directory = {
	.name = "directory", .learn = directory_learn, .join = directory_join, .leave = directory_leave,
	.make = directory_make, .read = directory_read, .done = directory_done,
	.drop = directory_drop, .get = directory_get, .put = directory_put, .handle = cell_handle,
};
