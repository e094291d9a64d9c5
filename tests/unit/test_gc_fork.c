// SPDX-License-Identifier: GPL-2.0-or-later
/* fork() while another thread of the heap is about to store its table's new address. */
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"

static ebbgc_heap_t *heap;
static bool armed;		/* atomic */
static int status = -1;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FORKS_ANYWHERE 0	/* they have functions of their own */
#else
#define FORKS_ANYWHERE 1

static void fork_here(void)
{
	pid_t pid = fork();

	if (!pid) {
		alarm(100);
		_exit(ebbgc_heap_destroy(heap) ? 2 : 1);
	}
	waitpid(pid, &status, 0);
}

/* Moves the memory, then forks: the old place is free in the child. */
void *realloc(void *p, size_t size)
{
	void *to = malloc(size);
	size_t had;

	if (!to || !p)
		return to;
	had = malloc_usable_size(p);
	memcpy(to, p, had < size ? had : size);
	free(p);
	if (__atomic_exchange_n(&armed, false, __ATOMIC_ACQ_REL))
		fork_here();
	return to;
}
#endif

#define WEAK 1000

/* @add makes the heap's tables grow, on any thread. */
static void destroyed_in_a_child(void (*add)(ebbgc_mutator_t *m, ebbgc_ref_t targets))
{
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;
	ebbgc_type_t refs;
	ebbgc_ref_t kept;

	if (!FORKS_ANYWHERE)
		skip();
	status = -1;
	heap = checked_heap_with("mode=stop", 16 << 20);
	assert_int_equal(ebbgc_type_register(heap, &refs_layout, &refs), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	kept = ebbgc_alloc_length(m, refs, WEAK);
	ebbgc_frame_push(m, &frame, &kept, 1);
	for (size_t i = 0; i < WEAK; i++)
		ebbgc_store(m, kept, &refs_of(kept)->slots[i], ebbgc_weak_new(m, kept));
	__atomic_store_n(&armed, true, __ATOMIC_RELEASE);
	add(m, kept);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_false(__atomic_load_n(&armed, __ATOMIC_ACQUIRE));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void nothing(ebbgc_mutator_t *m, ebbgc_ref_t targets)
{
}

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
}

static void add_finalizers(ebbgc_mutator_t *m, ebbgc_ref_t targets)
{
	for (size_t i = 0; i < WEAK; i++)
		assert_int_equal(ebbgc_finalizer_add(m, targets, finalizer, NULL), 0);
}

static void as_a_tracer_finds_weak_objects(void **state)
{
	destroyed_in_a_child(nothing);
}

static void as_finalizers_are_added(void **state)
{
	destroyed_in_a_child(add_finalizers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_a_tracer_finds_weak_objects),
		cmocka_unit_test(as_finalizers_are_added),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
