// SPDX-License-Identifier: GPL-2.0-or-later
/* Threads that are attached to two heaps: a collection of one never waits for one of the other. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

#define HEAPS 2
#define THREADS 3
#define CYCLES 1000		/* of each heap */
#define LIST 50u
#define PATIENCE_S 100

struct shared {
	ebbgc_heap_t *heaps[HEAPS];	/* the first one is precise */
	ebbgc_type_t node[HEAPS];
	unsigned int wrong;	/* atomic, like what follows */
	bool quit;
};

struct worker {
	struct shared *s;
	ebbgc_mutator_t *m[HEAPS];
	struct ebbgc_frame frame;
};

static void attach(struct worker *w, int heap)
{
	assert_int_equal(ebbgc_attach(w->s->heaps[heap], &w->m[heap]), 0);
}

/* A list that counts down. */
static ebbgc_ref_t grow(struct worker *w, int heap, ebbgc_ref_t list)
{
	struct ebbgc_frame frame;
	ebbgc_ref_t r;

	ebbgc_frame_push(w->m[heap], &frame, &list, 1);
	r = ebbgc_alloc(w->m[heap], w->s->node[heap]);
	ebbgc_frame_pop(w->m[heap], &frame);
	if (ebbgc_is_null(list) || node_of(list)->value == LIST)
		return r;
	node_of(r)->value = node_of(list)->value + 1;
	ebbgc_store(w->m[heap], r, &node_of(r)->left, list);
	return r;
}

static void check(struct worker *w, int heap, ebbgc_ref_t list)
{
	for (uint64_t expected = ebbgc_is_null(list) ? 0 : node_of(list)->value;
	     !ebbgc_is_null(list); list = ebbgc_load(w->m[heap], list, &node_of(list)->left))
		if (node_of(list)->value != expected--)
			__atomic_fetch_add(&w->s->wrong, 1, __ATOMIC_RELAXED);
}

static void *works(void *arg)
{
	ebbgc_ref_t framed = EBBGC_NULL, scanned = EBBGC_NULL;
	struct worker w = { .s = arg };

	for (int heap = 0; heap < HEAPS; heap++)
		attach(&w, heap);
	ebbgc_frame_push(w.m[0], &w.frame, &framed, 1);
	for (unsigned int n = 1; !__atomic_load_n(&w.s->quit, __ATOMIC_RELAXED); n++) {
		framed = grow(&w, 0, framed);
		scanned = grow(&w, 1, scanned);
		check(&w, 0, framed);
		check(&w, 1, scanned);
		ebbgc_collect_start(w.m[n % HEAPS]);
		if (n % 64 == 0)
			ebbgc_collect(w.m[n / 64 % HEAPS]);
		if (n % 100 == 0) {
			/* While the other heap has its cycles. */
			scanned = EBBGC_NULL;
			ebbgc_detach(w.m[1]);
			attach(&w, 1);
		}
		if (n % 30 == 0) {
			for (int heap = 0; heap < HEAPS; heap++)
				ebbgc_poll(w.m[heap]);
			assert_int_equal(ebbgc_blocked_begin(w.m[0]), 0);
			ebbgc_poll(w.m[1]);
			ebbgc_blocked_end(w.m[0]);
		}
	}
	/* The other thread's exit detaches it. */
	ebbgc_detach(w.m[0]);
	return NULL;
}

static void begin(struct shared *s, enum ebbgc_stacks second)
{
	struct ebbgc_options o;

	*s = (struct shared){ .quit = false };
	s->heaps[0] = checked_heap(EBBGC_CONCURRENT, 16 << 20);
	ebbgc_options_init(&o);
	o.stacks = second;
	o.max_bytes = 16 << 20;
	o.check = true;
	assert_int_equal(ebbgc_heap_create(&o, &s->heaps[1]), 0);
	for (int heap = 0; heap < HEAPS; heap++)
		assert_int_equal(ebbgc_type_register(s->heaps[heap], &node_layout, &s->node[heap]),
				 0);
}

/* Cycles of the heap that has had fewest. */
static uint64_t cycles(struct shared *s)
{
	uint64_t a = stats_of(s->heaps[0]).cycles, b = stats_of(s->heaps[1]).cycles;

	return a < b ? a : b;
}

static void threads_have_two_heaps(void **state)
{
	static struct shared s;
	pthread_t t[THREADS];

	begin(&s, EBBGC_CONSERVATIVE);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, works, &s), 0);
	for (int i = 0; i < PATIENCE_S * 1000 && cycles(&s) < CYCLES; i++)
		usleep(1000);
	assert_true(cycles(&s) >= CYCLES);
	__atomic_store_n(&s.quit, true, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(s.wrong, 0);
	for (int heap = 0; heap < HEAPS; heap++)
		assert_int_equal(ebbgc_heap_destroy(s.heaps[heap]), 0);
}

/* Returns 1 if a heap created in the child ignores heaps whose collector threads do not exist. */
static int child_of_fork(struct shared *s, ebbgc_mutator_t *const m[HEAPS])
{
	ebbgc_mutator_t *mine;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	heap = checked_heap(EBBGC_CONCURRENT, 16 << 20);
	if (ebbgc_type_register(heap, &node_layout, &node) || ebbgc_attach(heap, &mine) ||
	    ebbgc_collect(mine) || ebbgc_heap_destroy(s->heaps[0]) || ebbgc_collect(mine))
		return 2;
	ebbgc_detach(m[1]);
	if (ebbgc_heap_destroy(s->heaps[1]) || ebbgc_is_null(ebbgc_alloc(mine, node)) ||
	    ebbgc_collect(mine))
		return 3;
	ebbgc_detach(mine);
	return ebbgc_heap_destroy(heap) ? 4 : 1;
}

static void fork_with_heaps(void **state)
{
	ebbgc_mutator_t *m[HEAPS];
	struct shared s;
	int status;
	pid_t pid;

	if (!FORKS)
		skip();
	begin(&s, EBBGC_CONSERVATIVE);
	for (int heap = 0; heap < HEAPS; heap++)
		assert_int_equal(ebbgc_attach(s.heaps[heap], &m[heap]), 0);
	pid = fork();
	if (!pid) {
		alarm(100);
		_exit(child_of_fork(&s, m));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	for (int heap = 0; heap < HEAPS; heap++) {
		ebbgc_detach(m[heap]);
		assert_int_equal(ebbgc_heap_destroy(s.heaps[heap]), 0);
	}
}

/* A pause of the first heap that the test ends. */
struct pause {
	struct shared s;
	bool held, go, blocked, exits;	/* atomic */
	ebbgc_mutator_t *mine;
};

static bool is_set(const bool *flag)
{
	return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static void set(bool *flag)
{
	__atomic_store_n(flag, true, __ATOMIC_RELEASE);
}

static void wait_for(const bool *flag)
{
	while (!is_set(flag))
		usleep(100);
}

static void hold(void *arg, const struct ebbgc_event *e)
{
	struct pause *p = arg;

	if (e->kind != EBBGC_EVENT_PAUSE_BEGIN)
		return;
	set(&p->held);
	wait_for(&p->go);
}

static void *joins(void *thread)
{
	pthread_join(*(pthread_t *)thread, NULL);
	return NULL;
}

/* Stops the first heap's world, by *@m, once the thread that runs @fn is blocked. */
static pthread_t pause_begin(struct pause *p, enum ebbgc_stacks second, void *(*fn)(void *),
			     ebbgc_mutator_t **m)
{
	pthread_t t;

	begin(&p->s, second);
	p->s.heaps[0]->options.event_arg = p;
	p->s.heaps[0]->options.event = hold;
	assert_int_equal(pthread_create(&t, NULL, fn, p), 0);
	wait_for(&p->blocked);
	assert_int_equal(ebbgc_attach(p->s.heaps[0], m), 0);
	ebbgc_collect_start(*m);
	assert_int_equal(ebbgc_blocked_begin(*m), 0);
	wait_for(&p->held);
	return t;
}

static void pause_end(struct pause *p, ebbgc_mutator_t *m[HEAPS], pthread_t t)
{
	set(&p->go);
	ebbgc_blocked_call(m[1], joins, &t);
	ebbgc_blocked_end(m[0]);
	assert_int_equal(p->s.wrong, 0);
	for (int heap = 0; heap < HEAPS; heap++)
		ebbgc_detach(m[heap]);
	for (int heap = 0; heap < HEAPS; heap++)
		assert_int_equal(ebbgc_heap_destroy(p->s.heaps[heap]), 0);
}

static void *exits_with_a_frame(void *arg)
{
	struct pause *p = arg;
	ebbgc_mutator_t *m[HEAPS];
	struct ebbgc_frame frame;
	ebbgc_ref_t root;

	for (int heap = 0; heap < HEAPS; heap++)
		assert_int_equal(ebbgc_attach(p->s.heaps[heap], &m[heap]), 0);
	root = ebbgc_alloc(m[1], p->s.node[1]);
	ebbgc_frame_push(m[1], &frame, &root, 1);
	assert_int_equal(ebbgc_blocked_begin(m[0]), 0);
	set(&p->blocked);
	wait_for(&p->exits);
	/* As the next user of this stack would do. */
	memset(&frame, 0x55, sizeof(frame));
	__asm__ volatile("" : : "r"(&frame) : "memory");
	return NULL;
}

/* An exiting thread that waits for one heap to detach has no frames in the other. */
static void exit_detaches_from_all(void **state)
{
	static struct pause p;
	ebbgc_mutator_t *m[HEAPS];
	pthread_t t;

	t = pause_begin(&p, EBBGC_PRECISE, exits_with_a_frame, &m[0]);
	set(&p.exits);
	/* The object exists. */
	assert_int_equal(ebbgc_attach(p.s.heaps[1], &m[1]), 0);
	assert_int_equal(ebbgc_collect(m[1]), 0);
	assert_int_equal(stats_of(p.s.heaps[1]).live_bytes, 0);
	pause_end(&p, m, t);
}

/* Objects of the second heap that only the result leads to, while the first is stopped. */
static void *makes(void *arg)
{
	struct pause *p = arg;
	ebbgc_ref_t made = ebbgc_alloc(p->mine, p->s.node[1]);

	node_of(made)->value = 7;
	set(&p->blocked);
	wait_for(&p->held);
	return ebbgc_ptr(made);
}

static void *makes_while_it_blocks(void *arg)
{
	struct pause *p = arg;
	ebbgc_mutator_t *m;
	struct node *made;

	assert_int_equal(ebbgc_attach(p->s.heaps[0], &m), 0);
	assert_int_equal(ebbgc_attach(p->s.heaps[1], &p->mine), 0);
	made = ebbgc_blocked_call(m, makes, p);
	p->s.wrong = made->value != 7;
	ebbgc_detach(p->mine);
	ebbgc_detach(m);
	return NULL;
}

/* The result of a blocked call is a root of other heaps while the thread waits to resume. */
static void result_of_a_blocked_call(void **state)
{
	static struct pause p;
	ebbgc_mutator_t *m[HEAPS];
	pthread_t t;

	t = pause_begin(&p, EBBGC_CONSERVATIVE, makes_while_it_blocks, &m[0]);
	assert_int_equal(ebbgc_attach(p.s.heaps[1], &m[1]), 0);
	/* Stop that world once the thread waits for the other one. */
	assert_int_equal(ebbgc_collect(m[1]), 0);
	pause_end(&p, m, t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_have_two_heaps),
		cmocka_unit_test(fork_with_heaps),
		cmocka_unit_test(exit_detaches_from_all),
		cmocka_unit_test(result_of_a_blocked_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
