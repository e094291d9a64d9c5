// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The far generation at its limits: a budget beyond the heap, addresses that run out, names that
 * end, a store that is slow while cycles end, fork() and cancellation while an object is read.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_store.h"
#include "forward.h"
#include "region.h"
#include "type.h"

#define NODES 3000

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, fixed;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[2];
	struct store store;
};

/* Without checking mode, which moves objects in each cycle. */
static void world_open(struct world *w, size_t max, size_t local)
{
	struct ebbgc_far_options fo;
	struct ebbgc_far_store store;
	struct ebbgc_options o;

	*w = (struct world){ .store = { .lock = PTHREAD_MUTEX_INITIALIZER } };
	ebbgc_options_init(&o);
	o.max_bytes = max;
	o.mode = EBBGC_STOP_WORLD;
	assert_int_equal(ebbgc_heap_create(&o, &w->heap), 0);
	ebbgc_far_options_init(&fo);
	fo.local_bytes = local;
	store = store_of(&w->store);
	w->node = type_new(w->heap, node_layout, EBBGC_MOVABLE);
	w->fixed = type_new(w->heap, refs_layout, 0);
	assert_int_equal(ebbgc_far_attach(w->heap, &store, &fo), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 2);
}

static void world_close(struct world *w)
{
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
	assert_int_equal(w->store.places, 0);
}

static ebbgc_ref_t at(struct world *w, size_t i)
{
	return ebbgc_load(w->m, w->roots[0], &refs_of(w->roots[0])->slots[i]);
}

static void nodes_fill(struct world *w, size_t count)
{
	w->roots[0] = ebbgc_alloc_length(w->m, w->fixed, count);
	assert_false(ebbgc_is_null(w->roots[0]));
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

		assert_false(ebbgc_is_null(r));
		node_of(r)->value = i;
		ebbgc_store(w->m, w->roots[0], &refs_of(w->roots[0])->slots[i], r);
	}
}

static void nodes_check(struct world *w, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_int_equal(node_of(at(w, i))->value, i);
}

static void collect(struct world *w)
{
	assert_int_equal(ebbgc_collect(w->m), 0);
}

static uint64_t values[64];
static unsigned int writes;

static int write_listed(void *arg, const struct ebbgc_far_place *place, const void *from,
			size_t bytes)
{
	const struct node *first = (const struct node *)((const char *)from + HEADER);

	if (writes < 64)
		values[writes++] = first->value;
	return store_write(arg, place, from, bytes);
}

/* Also of those that leave in one pause: the newest get the longest second chance. */
static void the_oldest_is_written_first(void **state)
{
	enum { COUNT = 40000 };		/* in 20 regions */
	struct world w;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, COUNT);
	w.heap->far.store.write = write_listed;
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	assert_int_equal(writes, 20);
	for (unsigned int i = 1; i < writes; i++)
		assert_true(values[i] > values[i - 1]);
	nodes_check(&w, COUNT);
	world_close(&w);
}

/* What has stayed while others were taken, however many, is the oldest. */
static void no_region_is_too_old_to_leave(void **state)
{
	struct world w;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	pthread_mutex_lock(&w.heap->lock);
	w.heap->far.clock += UINT64_C(7) << 30;
	pthread_mutex_unlock(&w.heap->lock);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	assert_in_range(w.heap->far.out, 1, 3);
	assert_true(region_is_out(w.heap, region_of(w.heap, refs_of(w.roots[0])->slots[0].bits &
								    EBBGC_ADDRESS_MASK)));
	nodes_check(&w, NODES);
	world_close(&w);
}

/* Makes roots[1] the last node of a list of @count, each with its index. */
static void list_fill(struct world *w, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

		assert_false(ebbgc_is_null(r));
		node_of(r)->value = i;
		ebbgc_store(w->m, r, &node_of(r)->left, w->roots[1]);
		w->roots[1] = r;
	}
}

static void list_check(struct world *w, size_t count)
{
	ebbgc_ref_t r = w->roots[1];

	while (count--) {
		assert_int_equal(node_of(r)->value, count);
		r = ebbgc_load(w->m, r, &node_of(r)->left);
	}
	assert_true(ebbgc_is_null(r));
}

/* Returns how many regions a far cycle looks at for a list in @regions regions. */
static uint64_t visits_for(size_t regions)
{
	const size_t count = regions * (REGION_SIZE / 32);
	struct ebbgc_stats s;
	uint64_t visits;
	struct world w;

	world_open(&w, 64 << 20, 32 << 20);
	list_fill(&w, count);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	/* The last one is pinned. */
	assert_int_equal(w.heap->far.out, regions - 1);
	collect(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_cycles, 1);
	assert_int_equal(s.far_read_objects, (regions - 1) * (REGION_SIZE / 32));
	visits = w.heap->far.marking.visits;
	list_check(&w, count);
	world_close(&w);
	return visits;
}

/* A list leads from each region to the one that left before it: no step looks at all of them. */
static void far_cycles_look_at_what_waits(void **state)
{
	for (size_t regions = 8; regions <= 64; regions *= 2)
		assert_in_range(visits_for(regions), regions, 4 * regions);
}

static uint64_t named_bits(const struct world *w)
{
	const struct ebbgc_heap *h = w->heap;
	uint64_t bits = 0;

	for (size_t i = 0; i < (size_t)h->top * REGION_WORDS; i++)
		bits += (uint64_t)__builtin_popcountll(h->far.named[i]);
	return bits;
}

/*
 * What refers to each other leaves and returns as a whole, often, while others stay in the store:
 * the old names end with what held them, and with them forwards and addresses.
 */
static void names_end(void **state)
{
	uint64_t out, tables;
	struct world w;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	out = w.heap->far.out;
	tables = w.heap->far.tables;
	assert_in_range(out, 1, 3);
	list_fill(&w, NODES);
	for (int round = 0; round < 5; round++) {
		assert_int_equal(ebbgc_far_evict(w.m), 0);
		assert_true(named_bits(&w) >= NODES - 2048);
		list_check(&w, NODES);
		/* A far cycle finds no name in what has returned. */
		collect(&w);
		assert_int_equal(named_bits(&w), 0);
		list_check(&w, NODES);
		for (int i = 0; i < 3; i++)
			collect(&w);
		assert_int_equal(named_bits(&w), 0);
		assert_int_equal(w.heap->far.out, out);
		assert_int_equal(w.heap->far.tables, tables);
		list_check(&w, NODES);
	}
	assert_true(stats_of(w.heap).fetched_objects > NODES);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* The reserve is a share of the budget: of a smaller heap it would leave no address. */
static void a_budget_beyond_the_heap(void **state)
{
	struct world w;

	world_open(&w, 16 << 20, (size_t)4 << 30);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	nodes_check(&w, NODES);
	world_close(&w);
}

static bool cycle_is_requested(struct ebbgc_heap *h)
{
	bool requested;

	pthread_mutex_lock(&h->lock);
	requested = h->requested != h->ended;
	pthread_mutex_unlock(&h->lock);
	return requested;
}

/*
 * What returns takes new addresses until a cycle has freed its old ones.  All of the far objects
 * return in turn to a heap with free addresses for a fraction of them, and of the budget.
 */
static void addresses_last_for_what_returns(void **state)
{
	enum { COUNT = 320000 };	/* 157 regions of nodes, 40 of the array; of 256 */
	struct world w;

	world_open(&w, 16 << 20, 8 << 20);
	nodes_fill(&w, COUNT);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	assert_in_range(w.heap->region_count - w.heap->used, 10, w.heap->far.budget / 2);
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < COUNT; i++) {
			assert_int_equal(node_of(at(&w, i))->value, i);
			if (i % 1024)
				continue;
			/* The collector's thread may be slow to begin. */
			while (cycle_is_requested(w.heap)) {
				ebbgc_poll(w.m);
				usleep(100);
			}
		}
		assert_int_equal(ebbgc_far_evict(w.m), 0);
	}
	world_close(&w);
}

/* --- a slow writer ------------------------------------------------------------------- */

static struct {
	pthread_t thread;
	char *region;		/* whose memory it is about to return */
	bool writes, go_on, holds, let_go;
} writer;

static bool is(const bool *flag)
{
	return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

static void set(bool *flag)
{
	__atomic_store_n(flag, true, __ATOMIC_SEQ_CST);
}

static void wait_for(const bool *flag)
{
	while (!is(flag))
		usleep(1000);
}

static bool locked;

/* The library's call, which returns a region's memory after it was written. */
int madvise(void *start, size_t bytes, int advice)
{
	/* As of the kernel after mlockall(). */
	if (advice == MADV_DONTNEED && is(&locked)) {
		errno = EINVAL;
		return -1;
	}
	if (advice == MADV_DONTNEED && is(&writer.writes) && !is(&writer.holds) &&
	    pthread_equal(pthread_self(), writer.thread)) {
		writer.region = start;
		set(&writer.holds);
		wait_for(&writer.let_go);
	}
	return (int)syscall(SYS_madvise, start, bytes, advice);
}

static int write_slowly(void *arg, const struct ebbgc_far_place *place, const void *from,
			size_t bytes)
{
	if (!is(&writer.writes)) {
		writer.thread = pthread_self();
		set(&writer.writes);
		wait_for(&writer.go_on);
	}
	return store_write(arg, place, from, bytes);
}

static void *evict_all(void *arg)
{
	struct world *w = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	assert_int_equal(ebbgc_far_evict(m), 0);
	ebbgc_detach(m);
	return NULL;
}

/*
 * All of a region is rescued while it is written, and its forwards are dropped, when it is AWAY:
 * cycles that then end may not free it before its memory is returned, as another thread's new
 * objects would be returned with it.
 */
static void a_region_is_freed_once_its_memory_is_returned(void **state)
{
	pthread_t thread;
	struct world w;
	uint32_t region;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	w.heap->far.store.write = write_slowly;
	assert_int_equal(pthread_create(&thread, NULL, evict_all, &w), 0);
	while (!is(&writer.writes)) {
		ebbgc_poll(w.m);
		usleep(1000);
	}
	nodes_check(&w, NODES);
	for (int i = 0; i < 2; i++)
		collect(&w);
	set(&writer.go_on);
	wait_for(&writer.holds);
	region = region_of(w.heap, (uint64_t)(uintptr_t)writer.region);
	assert_true(far_is_out(region_state(w.heap, region)));
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_true(far_is_out(region_state(w.heap, region)));
	assert_int_not_equal(w.heap->kinds[region], KIND_FREE);
	set(&writer.let_go);
	while (pthread_tryjoin_np(thread, NULL) == EBUSY) {
		ebbgc_poll(w.m);
		usleep(1000);
	}
	/* Then it ends as others do. */
	nodes_check(&w, NODES);
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_int_equal(w.heap->far.out, 0);
	assert_int_equal(w.heap->far.stored, 0);
	assert_int_equal(w.store.places, 0);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* Locked memory cannot be returned: where what left was, new objects are zero, nevertheless. */
static void locked_memory_is_zeroed(void **state)
{
	unsigned int there = 0;
	uint32_t region;
	struct world w;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	region = region_of(w.heap, refs_of(w.roots[0])->slots[0].bits & EBBGC_ADDRESS_MASK);
	set(&locked);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	nodes_check(&w, NODES);
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_int_equal(w.heap->far.out, 0);
	for (int i = 0; i < 4 * NODES; i++) {
		ebbgc_ref_t r = ebbgc_alloc(w.m, w.node);

		assert_false(ebbgc_is_null(r));
		there += region_of(w.heap, r.bits & EBBGC_ADDRESS_MASK) == region;
		assert_true(ebbgc_is_null(node_of(r)->left) && ebbgc_is_null(node_of(r)->right));
		assert_int_equal(node_of(r)->value, 0);
	}
	assert_true(there > 0);
	locked = false;
	nodes_check(&w, NODES);
	world_close(&w);
}

/* --- no addresses ------------------------------------------------------------------------ */

static struct {
	struct ebbgc_heap *heap;
	uint32_t region;		/* of the object that is loaded */
	unsigned int sleeps, claims;	/* with a claim */
	unsigned int failures;
	uint32_t taken[256], count;
} full;

/* The library's call, between two attempts to find a place. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
	const uint64_t *table;

	if (full.heap) {
		full.sleeps++;
		table = forwards_of(full.heap, full.region);
		for (size_t i = 0; table && i < forwards_count(full.heap, full.region); i++)
			full.claims += table[i] & FAR_BUSY;
	}
	return (int)syscall(SYS_nanosleep, time, left);
}

/* Takes all addresses, or frees them. */
static void addresses_take(struct ebbgc_heap *h)
{
	uint32_t region;

	pthread_mutex_lock(&h->lock);
	while ((region = regions_take_any(h, 1, KIND_LARGE_LEAF)) != REGION_NONE)
		full.taken[full.count++] = region;
	pthread_mutex_unlock(&h->lock);
}

static void addresses_free(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->lock);
	while (full.count)
		regions_free(h, full.taken[--full.count], 1);
	pthread_mutex_unlock(&h->lock);
}

static enum ebbgc_far_verdict free_and_retry(void *arg, ebbgc_heap_t *heap, int error)
{
	assert_int_equal(error, -ENOMEM);
	full.failures++;
	addresses_free(heap);
	return EBBGC_FAR_RETRY;
}

/* What ends a region waits for claims there: a load without a place to load to has none. */
static void no_claim_without_a_place(void **state)
{
	struct world w;

	world_open(&w, 16 << 20, 4 << 20);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	w.heap->far.options.failed = free_and_retry;
	addresses_take(w.heap);
	full.region = region_of(w.heap, refs_of(w.roots[0])->slots[0].bits & EBBGC_ADDRESS_MASK);
	full.heap = w.heap;
	assert_int_equal(node_of(at(&w, 0))->value, 0);
	full.heap = NULL;
	assert_int_equal(full.failures, 1);
	assert_true(full.sleeps > 0);
	assert_int_equal(full.claims, 0);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* --- a place that is not needed ---------------------------------------------------------- */

static struct {
	struct world *w;
	jmp_buf out;
	unsigned int calls, failures;
} undone;

static struct far_arrival *arrival_of(const struct world *w)
{
	return &w->heap->far.arrivals[w->heap->types[w->node].kind - KIND_MOVABLE];
}

/* Once a load has the last slot of a region, another one takes the first of the next region. */
static int read_and_fail(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
			 size_t bytes)
{
	undone.calls++;
	if (undone.calls > 2)
		return store_read(arg, place, offset, to, bytes);
	if (undone.calls == 1 && !setjmp(undone.out))
		at(undone.w, NODES - 1);
	return -EIO;
}

static enum ebbgc_far_verdict failed_twice(void *arg, ebbgc_heap_t *heap, int error)
{
	const struct far_arrival *a = arrival_of(undone.w);

	assert_int_equal(error, -EIO);
	if (++undone.failures == 1)
		longjmp(undone.out, 1);
	assert_int_equal(region_of(heap, (uint64_t)(uintptr_t)a->next), a->region);
	return EBBGC_FAR_RETRY;
}

/* Both fail, the second one first: the region that is full gets no slot back. */
static void no_place_in_a_region_that_is_full(void **state)
{
	struct far_arrival *a;
	struct world w;
	uint32_t last;
	size_t i = 0;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	w.heap->far.options.failed = failed_twice;
	for (a = arrival_of(&w); a->region == REGION_NONE || a->next + 32 != a->end; i++)
		at(&w, i);
	assert_true(i < NODES - 1);
	last = a->region;
	undone.w = &w;
	undone.calls = undone.failures = 0;
	w.heap->far.store.read = read_and_fail;
	assert_int_equal(node_of(at(&w, i))->value, i);
	w.heap->far.store.read = store_read;
	assert_int_equal(undone.failures, 2);
	assert_int_equal(a->region, last + 1);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* --- a slow reader ------------------------------------------------------------------- */

static bool reads, answered;

static int read_slowly(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		       size_t bytes)
{
	set(&reads);
	wait_for(&answered);
	return store_read(arg, place, offset, to, bytes);
}

static void *load_first(void *arg)
{
	struct world *w = arg;
	ebbgc_mutator_t *m;
	ebbgc_ref_t r;

	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	r = ebbgc_load(m, w->roots[0], &refs_of(w->roots[0])->slots[0]);
	assert_int_equal(node_of(r)->value, 0);
	ebbgc_detach(m);
	return NULL;
}

/* The thread that reads the object does not exist in the child: the load fails, as others do. */
static void fork_while_an_object_is_read(void **state)
{
	pthread_t thread;
	struct world w;
	int status = 0;
	pid_t pid;

	if (!FORKS)
		skip();
	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	w.heap->far.store.read = read_slowly;
	assert_int_equal(pthread_create(&thread, NULL, load_first, &w), 0);
	wait_for(&reads);
	pid = fork();
	if (!pid) {
		close(2);
		alarm(20);
		at(&w, 0);
		_exit(9);
	}
	waitpid(pid, &status, 0);
	set(&answered);
	pthread_join(thread, NULL);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* --- a cancelled reader --------------------------------------------------------------- */

static int read_and_be_cancelled(void *arg, const struct ebbgc_far_place *place, size_t offset,
				 void *to, size_t bytes)
{
	pthread_cancel(pthread_self());
	pthread_testcancel();
	return store_read(arg, place, offset, to, bytes);
}

static void *load_cancelled(void *arg)
{
	load_first(arg);
	pthread_testcancel();
	return NULL;
}

/* The claim ends, whatever the store's read() does: other loads of the object wait for that. */
static void cancelled_while_an_object_is_read(void **state)
{
	uint32_t region;
	const uint64_t *table;
	pthread_t thread;
	struct world w;
	void *result;

	world_open(&w, 64 << 20, 32 << 20);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_far_evict(w.m), 0);
	region = region_of(w.heap, refs_of(w.roots[0])->slots[0].bits & EBBGC_ADDRESS_MASK);
	w.heap->far.store.read = read_and_be_cancelled;
	assert_int_equal(pthread_create(&thread, NULL, load_cancelled, &w), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	w.heap->far.store.read = store_read;
	table = forwards_of(w.heap, region);
	assert_non_null(table);
	for (size_t i = 0; i < forwards_count(w.heap, region); i++)
		assert_false(table[i] & FAR_BUSY);
	nodes_check(&w, NODES);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_oldest_is_written_first),
		cmocka_unit_test(no_region_is_too_old_to_leave),
		cmocka_unit_test(far_cycles_look_at_what_waits),
		cmocka_unit_test(names_end),
		cmocka_unit_test(a_budget_beyond_the_heap),
		cmocka_unit_test(addresses_last_for_what_returns),
		cmocka_unit_test(a_region_is_freed_once_its_memory_is_returned),
		cmocka_unit_test(locked_memory_is_zeroed),
		cmocka_unit_test(no_claim_without_a_place),
		cmocka_unit_test(no_place_in_a_region_that_is_full),
		cmocka_unit_test(fork_while_an_object_is_read),
		cmocka_unit_test(cancelled_while_an_object_is_read),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
