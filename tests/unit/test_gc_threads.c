// SPDX-License-Identifier: GPL-2.0-or-later
/* Threads that attach, exit, block and fork; conservative stacks; names of threads. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

struct shared {
	ebbgc_heap_t *heap;
	ebbgc_type_t node;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int stage;
};

static void stage_set(struct shared *s, int stage)
{
	pthread_mutex_lock(&s->lock);
	s->stage = stage;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static void stage_wait(struct shared *s, int stage)
{
	pthread_mutex_lock(&s->lock);
	while (s->stage < stage)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static struct shared shared_new(struct ebbgc_options *o)
{
	struct shared s = { .lock = PTHREAD_MUTEX_INITIALIZER,
			    .changed = PTHREAD_COND_INITIALIZER };

	o->check = true;
	o->max_bytes = 32 << 20;
	assert_int_equal(ebbgc_heap_create(o, &s.heap), 0);
	assert_int_equal(ebbgc_type_register(s.heap, &node_layout, &s.node), 0);
	return s;
}

/* Attaches, holds a list in a frame, and exits without detaching. */
static void *exits_attached(void *arg)
{
	struct shared *s = arg;
	ebbgc_ref_t list = { 0 };
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m, *twice;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	assert_int_equal(ebbgc_attach(s->heap, &twice), -EALREADY);
	ebbgc_frame_push(m, &frame, &list, 1);
	for (int i = 0; i < 1000; i++) {
		ebbgc_ref_t r = ebbgc_alloc(m, s->node);

		ebbgc_init(&node_of(r)->left, list);
		list = r;
	}
	return NULL;
}

/* Threads that run @even and @odd end during collections; nothing of them remains. */
static void threads_end(void *(*even)(void *), void *(*odd)(void *))
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;

	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	for (int i = 0; i < 20; i++) {
		pthread_t t;

		assert_int_equal(pthread_create(&t, NULL, i & 1 ? odd : even, &s), 0);
		ebbgc_collect_start(m);
		for (int j = 0; j < 100; j++)
			ebbgc_poll(m);
		/* A collection may wait for this thread, so it joins in a blocked region. */
		assert_int_equal(ebbgc_blocked_begin(m), 0);
		pthread_join(t, NULL);
		ebbgc_blocked_end(m);
		assert_int_equal(ebbgc_collect(m), 0);
	}
	assert_int_equal(stats_of(s.heap).live_bytes, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static void exit_detaches(void **state)
{
	threads_end(exits_attached, exits_attached);
}

static void *blocks(void *arg)
{
	struct shared *s = arg;
	ebbgc_ref_t kept;
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	kept = ebbgc_alloc(m, s->node);
	node_of(kept)->value = 7;
	ebbgc_frame_push(m, &frame, &kept, 1);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	stage_set(s, 1);
	stage_wait(s, 2);
	ebbgc_blocked_end(m);
	assert_int_equal(node_of(kept)->value, 7);
	ebbgc_frame_pop(m, &frame);
	ebbgc_detach(m);
	return NULL;
}

/* A collection does not wait for a blocked thread, and keeps what its frames hold. */
static void blocked_region(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	pthread_t t;

	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	assert_int_equal(pthread_create(&t, NULL, blocks, &s), 0);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	stage_wait(&s, 1);
	ebbgc_blocked_end(m);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_true(stats_of(s.heap).live_bytes > 0);
	stage_set(&s, 2);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	pthread_join(t, NULL);
	ebbgc_blocked_end(m);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_int_equal(stats_of(s.heap).live_bytes, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static __attribute__((noinline)) void *collects(void *arg)
{
	ebbgc_mutator_t *m;

	/* From another thread, while the caller is blocked. */
	assert_int_equal(ebbgc_attach(arg, &m), 0);
	assert_int_equal(ebbgc_collect(m), 0);
	ebbgc_detach(m);
	return NULL;
}

static void *collects_elsewhere(void *arg)
{
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, collects, arg), 0);
	pthread_join(t, NULL);
	return NULL;
}

/* A list that nothing but local variables hold, one of them an address in an object's middle. */
static void conservative_stacks(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	ebbgc_ref_t list = { 0 };
	uint64_t *volatile inside;

	ebbgc_options_init(&o);
	o.stacks = EBBGC_CONSERVATIVE;
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	assert_int_equal(ebbgc_blocked_begin(m), -EINVAL);
	for (uint64_t i = 0; i < 10000; i++) {
		ebbgc_ref_t r = ebbgc_alloc(m, s.node);

		node_of(r)->value = i;
		ebbgc_init(&node_of(r)->left, list);
		list = r;
		if (i % 3000 == 0)
			assert_int_equal(ebbgc_collect(m), 0);
	}
	inside = &node_of(list)->value;
	list = EBBGC_NULL;
	ebbgc_blocked_call(m, collects_elsewhere, s.heap);
	assert_int_equal(ebbgc_collect(m), 0);
	for (struct node *n =
		     (struct node *)(void *)((char *)inside - offsetof(struct node, value));
	     ; n = node_of(n->left)) {
		static uint64_t expected = 9999;

		assert_int_equal(n->value, expected);
		if (!expected--)
			break;
	}
	assert_int_equal(stats_of(s.heap).check_failures, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static void *exits_blocked(void *arg)
{
	struct shared *s = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	ebbgc_alloc(m, s->node);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	return NULL;
}

static void *exits(void *arg)
{
	pthread_exit(arg);
}

static void *exits_in_call(void *arg)
{
	struct shared *s = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	return ebbgc_blocked_call(m, exits, NULL);
}

/* A thread that exits in a blocked region, for instance cancelled in read(), is detached. */
static void exit_in_blocked_region(void **state)
{
	threads_end(exits_blocked, exits_in_call);
}

static void *polls(void *arg)
{
	struct shared *s = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	for (;; pthread_testcancel())
		ebbgc_poll(m);
	return NULL;
}

static bool is_stopping(struct shared *s, unsigned int running)
{
	bool is;

	pthread_mutex_lock(&s->heap->lock);
	is = s->heap->stop && s->heap->running == running;
	pthread_mutex_unlock(&s->heap->lock);
	return is;
}

/* A thread that is cancelled while the world is stopped does not keep the heap's lock. */
static void cancelled_at_a_safepoint(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	pthread_t t;
	void *result;

	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	assert_int_equal(pthread_create(&t, NULL, polls, &s), 0);
	for (unsigned int threads = 0; threads < 2; usleep(100)) {
		pthread_mutex_lock(&s.heap->lock);
		threads = s.heap->running;
		pthread_mutex_unlock(&s.heap->lock);
	}
	ebbgc_collect_start(m);
	/* The other thread waits for this one. */
	while (!is_stopping(&s, 1))
		usleep(100);
	assert_int_equal(pthread_cancel(t), 0);
	usleep(10000);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	assert_int_equal(pthread_join(t, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	ebbgc_blocked_end(m);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static void *is_cancelled_as_it_grows(void *arg)
{
	struct shared *s = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	pthread_cancel(pthread_self());
	assert_false(ebbgc_is_null(ebbgc_alloc(m, s->node)));
	pthread_testcancel();
	return NULL;
}

/* Reading what the kernel can back, under the lock, is no cancellation point. */
static void cancelled_in_allocation(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	pthread_t t;
	void *result;

	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(pthread_create(&t, NULL, is_cancelled_as_it_grows, &s), 0);
	assert_int_equal(pthread_join(t, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc(m, s.node)));
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static void is_listed(void *arg, ebbgc_ref_t object)
{
	++*(unsigned int *)arg;
	pthread_testcancel();
}

static void *is_cancelled_as_it_walks(void *arg)
{
	struct shared *s = arg;
	unsigned int objects = 0;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc(m, s->node)));
	pthread_cancel(pthread_self());
	assert_int_equal(ebbgc_heap_walk(m, is_listed, &objects), 0);
	assert_int_equal(objects, 1);
	pthread_testcancel();
	return NULL;
}

/* A walk waits for the other thread, and calls back, with locks of the heap. */
static void cancelled_in_a_walk(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	pthread_t t;
	void *result;

	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	assert_int_equal(pthread_create(&t, NULL, is_cancelled_as_it_walks, &s), 0);
	while (!is_stopping(&s, 1))
		usleep(100);
	while (pthread_tryjoin_np(t, &result))
		ebbgc_poll(m);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(ebbgc_collect(m), 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static void *is_cancelled_around_a_heap(void *arg)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;
	int *done = arg;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,park,arrivals,max=16M,markers=4"), 0);
	pthread_cancel(pthread_self());
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	++*done;
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	++*done;
	pthread_testcancel();
	return NULL;
}

/* Creating and destroying a heap are no cancellation points. */
static void cancelled_in_creation_and_end(void **state)
{
	for (int i = 0; i < 10; i++) {
		int done = 0;
		void *result;
		pthread_t t;

		assert_int_equal(pthread_create(&t, NULL, is_cancelled_around_a_heap, &done), 0);
		assert_int_equal(pthread_join(t, &result), 0);
		assert_int_equal(done, 2);
		assert_ptr_equal(result, PTHREAD_CANCELED);
	}
}

static void *lives_short(void *arg)
{
	struct shared *s = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(s->heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc(m, s->node)));
	ebbgc_detach(m);
	return NULL;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FRAMES_ARE_SMALL 0
#else
#define FRAMES_ARE_SMALL 1
#endif

/* A thread with the smallest stack can grow the heap, which reads files. */
static void little_stack(void **state)
{
	struct ebbgc_options o;
	pthread_attr_t attr;
	struct shared s;
	pthread_t t;

	if (!FRAMES_ARE_SMALL)
		skip();
	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(pthread_attr_init(&attr), 0);
	assert_int_equal(pthread_attr_setstacksize(&attr, (size_t)PTHREAD_STACK_MIN), 0);
	assert_int_equal(pthread_create(&t, &attr, lives_short, &s), 0);
	assert_int_equal(pthread_join(t, NULL), 0);
	pthread_attr_destroy(&attr);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

/* Allocation by short-lived threads triggers cycles: here one slot of 5 KiB each. */
static void short_lives_are_counted(void **state)
{
	struct ebbgc_layout layout = node_layout;
	struct ebbgc_options o;
	struct shared s;

	ebbgc_options_init(&o);
	o.min_bytes = 1 << 20;
	s = shared_new(&o);
	layout.size = 5000;
	assert_int_equal(ebbgc_type_register(s.heap, &layout, &s.node), 0);
	for (int i = 0; i < 1000; i++)
		lives_short(&s);
	assert_in_range(stats_of(s.heap).allocated_bytes, 5000000, 6000000);
	while (!stats_of(s.heap).cycles)
		usleep(100);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	signals++;
}

/* Handlers of the program's signals run on the program's threads. */
static void signals_are_the_programs(void **state)
{
	sigset_t set, old;
	struct ebbgc_options o;
	struct shared s;

	assert_true(signal(SIGUSR1, on_signal) != SIG_ERR);
	ebbgc_options_init(&o);
	o.markers = 3;
	s = shared_new(&o);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, &old), 0);
	assert_int_equal(kill(getpid(), SIGUSR1), 0);
	usleep(100000);
	assert_int_equal(signals, 0);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
	assert_int_equal(signals, 1);
	signal(SIGUSR1, SIG_DFL);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

/* Returns 1 if allocation fails with ECHILD in the end, and the rest is as documented. */
static int child_of_fork(struct shared *s, ebbgc_mutator_t *m, ebbgc_ref_t kept)
{
	ebbgc_mutator_t *again;
	int left = 1 << 20;

	if (node_of(ebbgc_load(m, kept, &node_of(kept)->left))->value != 9)
		return 2;
	ebbgc_store(m, kept, &node_of(kept)->left, EBBGC_NULL);
	while (left-- && !ebbgc_is_null(ebbgc_alloc(m, s->node)))
		;
	if (left <= 0 || errno != ECHILD)
		return 3;
	if (ebbgc_collect(m) != -ECHILD || ebbgc_attach(s->heap, &again) != -ECHILD)
		return 4;
	return ebbgc_heap_destroy(s->heap) ? 5 : 1;
}

static void fork_child(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	ebbgc_ref_t kept;
	struct ebbgc_frame frame;
	int status;
	pid_t pid;

	if (!FORKS)
		skip();
	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	kept = ebbgc_alloc(m, s.node);
	ebbgc_frame_push(m, &frame, &kept, 1);
	ebbgc_store(m, kept, &node_of(kept)->left, ebbgc_alloc(m, s.node));
	node_of(ebbgc_load(m, kept, &node_of(kept)->left))->value = 9;
	ebbgc_collect_start(m);
	pid = fork();
	if (!pid) {
		alarm(100);
		_exit(child_of_fork(&s, m, kept));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_int_equal(ebbgc_collect(m), 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static void *collects_nothing(void *arg)
{
	return arg;
}

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
}

/* Returns 1 if no function waits for the lock, which no thread releases in the child. */
static int child_without_lock(struct shared *s, ebbgc_mutator_t *m)
{
	static ebbgc_ref_t root;
	ebbgc_type_t type;

	if (ebbgc_blocked_begin(m))
		return 2;
	ebbgc_blocked_end(m);
	if (ebbgc_blocked_call(m, collects_nothing, s) != s)
		return 3;
	if (ebbgc_roots_add(m, &root, 1) != -ECHILD || ebbgc_roots_remove(m, &root) != -ECHILD ||
	    ebbgc_type_register(s->heap, &node_layout, &type) != -ECHILD ||
	    ebbgc_finalizers_run(m, 1))
		return 4;
	/* A cycle would be due. */
	s->heap->trigger = 0;
	root = ebbgc_alloc(m, s->node);
	if (ebbgc_is_null(root) || ebbgc_finalizer_add(m, root, finalizer, NULL) != -ECHILD)
		return 5;
	while (!ebbgc_is_null(ebbgc_alloc(m, s->node)))
		;
	if (errno != ECHILD || !stats_of(s->heap).allocated_bytes ||
	    ebbgc_pause_quantile(s->heap, 1))
		return 6;
	ebbgc_detach(m);
	return ebbgc_heap_destroy(s->heap) ? 7 : 1;
}

static void fork_with_the_lock_taken(void **state)
{
	struct ebbgc_options o;
	struct shared s;
	ebbgc_mutator_t *m;
	int status;
	pid_t pid;

	if (!FORKS)
		skip();
	ebbgc_options_init(&o);
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc(m, s.node)));
	pthread_mutex_lock(&s.heap->lock);
	pid = fork();
	if (!pid) {
		alarm(100);
		_exit(child_without_lock(&s, m));
	}
	pthread_mutex_unlock(&s.heap->lock);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

struct forking {
	ebbgc_heap_t *heap;
	pid_t pid;
};

/* As if another thread had the lock, which no thread releases in the child. */
static void *forks(void *arg)
{
	struct forking *f = arg;

	pthread_mutex_lock(&f->heap->lock);
	f->pid = fork();
	if (f->pid)
		pthread_mutex_unlock(&f->heap->lock);
	else
		alarm(20);
	return arg;
}

static void finalizer_forks(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	forks(data);
}

/* The child comes here, too: it returns from the function that has called back. */
static void child_returned(const struct forking *f, bool right)
{
	int status;

	if (!f->pid)
		_exit(right ? 1 : 2);
	assert_int_equal(waitpid(f->pid, &status, 0), f->pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
}

/* In a blocked region, in a finalizer. */
static void callbacks_fork(void **state)
{
	struct ebbgc_options o;
	ebbgc_mutator_t *m;
	struct forking f;
	struct shared s;
	size_t ran;

	if (!FORKS)
		skip();
	ebbgc_options_init(&o);
	s = shared_new(&o);
	f.heap = s.heap;
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	child_returned(&f, ebbgc_blocked_call(m, forks, &f) == &f);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ebbgc_finalizer_add(m, ebbgc_alloc(m, s.node),
						     i ? finalizer : finalizer_forks, &f), 0);
	ebbgc_finalizers_all(m);
	ran = ebbgc_finalizers_run(m, 3);
	child_returned(&f, ran == 1);
	assert_int_equal(ran, 2);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

static enum ebbgc_oom oom_forks(void *arg, ebbgc_heap_t *heap, size_t bytes)
{
	struct forking *f = arg;

	f->heap = heap;
	forks(f);
	/* In the child, a retry would wait for a collection that never ends. */
	return f->pid ? EBBGC_OOM_FAIL : EBBGC_OOM_RETRY;
}

/* Of a small object, of a large one. */
static void out_of_memory_handler_forks(void **state)
{
	struct forking f = { .pid = -1 };
	struct ebbgc_options o;
	struct ebbgc_frame frame;
	ebbgc_type_t refs;
	ebbgc_ref_t list = { 0 }, r;
	ebbgc_mutator_t *m;
	struct shared s;

	if (!FORKS)
		skip();
	ebbgc_options_init(&o);
	o.oom = oom_forks;
	o.oom_arg = &f;
	s = shared_new(&o);
	assert_int_equal(ebbgc_type_register(s.heap, &refs_layout, &refs), 0);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	ebbgc_frame_push(m, &frame, &list, 1);
	while (!ebbgc_is_null(r = ebbgc_alloc_length(m, refs, SMALL_MAX / 16))) {
		ebbgc_store(m, r, refs_of(r)->slots, list);
		list = r;
	}
	child_returned(&f, errno == ECHILD);
	assert_int_equal(errno, ENOMEM);
	f.pid = -1;
	r = ebbgc_alloc_length(m, refs, SMALL_MAX);
	child_returned(&f, ebbgc_is_null(r) && errno == ECHILD);
	assert_true(ebbgc_is_null(r) && f.pid > 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

/* The policy gcaware tells collectors by their name. */
static void collector_names(void **state)
{
	unsigned int named = 0;
	struct ebbgc_options o;
	struct dirent *task;
	ebbgc_mutator_t *m;
	struct shared s;
	DIR *tasks;

	ebbgc_options_init(&o);
	o.markers = 3;
	s = shared_new(&o);
	assert_int_equal(ebbgc_attach(s.heap, &m), 0);
	/* They name themselves before they work. */
	assert_int_equal(ebbgc_collect(m), 0);
	tasks = opendir("/proc/self/task");
	assert_non_null(tasks);
	while ((task = readdir(tasks))) {
		char path[300], name[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		named += fgets(name, sizeof(name), f) && !strncmp(name, "ebb-gc", 6);
		fclose(f);
	}
	closedir(tasks);
	assert_int_equal(named, 3);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(s.heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exit_detaches),
		cmocka_unit_test(blocked_region),
		cmocka_unit_test(exit_in_blocked_region),
		cmocka_unit_test(cancelled_at_a_safepoint),
		cmocka_unit_test(cancelled_in_allocation),
		cmocka_unit_test(cancelled_in_a_walk),
		cmocka_unit_test(cancelled_in_creation_and_end),
		cmocka_unit_test(little_stack),
		cmocka_unit_test(short_lives_are_counted),
		cmocka_unit_test(signals_are_the_programs),
		cmocka_unit_test(conservative_stacks),
		cmocka_unit_test(fork_child),
		cmocka_unit_test(fork_with_the_lock_taken),
		cmocka_unit_test(callbacks_fork),
		cmocka_unit_test(out_of_memory_handler_forks),
		cmocka_unit_test(collector_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
