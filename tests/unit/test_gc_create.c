// SPDX-License-Identifier: GPL-2.0-or-later
/* Creation that fails leaks nothing: at any request for memory, and with pages of another size. */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gc_test.h"

/* Refuse this request for memory, counted from now on; 0: none. */
static unsigned int refused;
static size_t mapped;		/* bytes */
static size_t allocated;	/* pieces, of this thread's */
static pthread_t here;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REFUSES 0	/* they have functions of their own */
#else
#define REFUSES 1

void *__libc_calloc(size_t count, size_t size);
void __libc_free(void *p);

static bool refuse(void)
{
	return refused && pthread_equal(pthread_self(), here) && !--refused;
}

void *calloc(size_t count, size_t size)
{
	void *p = refuse() ? NULL : __libc_calloc(count, size);

	allocated += p && pthread_equal(pthread_self(), here);
	return p;
}

void *malloc(size_t size)
{
	return calloc(1, size);
}

void free(void *p)
{
	allocated -= p && pthread_equal(pthread_self(), here);
	__libc_free(p);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	long p;

	if (refuse())
		return MAP_FAILED;
	p = syscall(SYS_mmap, at, size, protection, flags, fd, offset);
	if (p != -1)
		mapped += size;
	return (void *)p;
}

int munmap(void *at, size_t size)
{
	mapped -= size;
	return (int)syscall(SYS_munmap, at, size);
}
#endif

long __sysconf(int name);
static long page_bytes = 4096;

long sysconf(int name)
{
	return name == _SC_PAGESIZE ? page_bytes : __sysconf(name);
}

/* Residency, MADV_FREE and mincore() would speak of other pages than the heap's. */
static void other_page_sizes(void **state)
{
	static const struct {
		const char *words;
		int result;
	} heaps[] = {
		{ "mode=concurrent", 0 }, { "mode=stop,lock", 0 }, { "mode=memliner", -ENOTSUP },
		{ "mode=memliner,park", -ENOTSUP }, { "mode=concurrent,drop", -ENOTSUP },
		{ "mode=stop,budget=1M", -ENOTSUP }, { "mode=concurrent,exact", -ENOTSUP },
		{ "mode=swapping", -ENOTSUP }, { "mode=concurrent,nursery=1M", 0 },
	};

	for (size_t i = 0; i < sizeof(heaps) / sizeof(*heaps); i++) {
		ebbgc_heap_t *heap = NULL;
		struct ebbgc_options o;
		int r;

		ebbgc_options_init(&o);
		assert_int_equal(ebbgc_debug(&o, heaps[i].words), 0);
		o.max_bytes = 16 << 20;
		page_bytes = 16384;
		r = ebbgc_heap_create(&o, &heap);
		page_bytes = 4096;
		assert_int_equal(r, heaps[i].result);
		assert_int_equal(!heap, r != 0);
		assert_int_equal(ebbgc_heap_destroy(heap), 0);
		assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
		assert_int_equal(ebbgc_heap_destroy(heap), 0);
	}
}

static void heap_is_all_or_nothing(void **state)
{
	unsigned int n = 0, left;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	if (!REFUSES)
		skip();
	here = pthread_self();
	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, *state), 0);
	o.max_bytes = 16 << 20;
	o.markers = 2;
	/* Memory that libc keeps for itself is allocated here. */
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	do {
		size_t pieces = allocated, bytes = mapped;
		int r;

		heap = NULL;
		refused = ++n;
		r = ebbgc_heap_create(&o, &heap);
		left = refused;
		refused = 0;
		if (left) {
			assert_int_equal(r, 0);
			assert_int_equal(ebbgc_heap_destroy(heap), 0);
		} else {
			assert_in_set(-r, ((const unsigned long[]){ ENOMEM, EAGAIN }), 2);
			assert_null(heap);
		}
		assert_int_equal(mapped, bytes);
		assert_int_equal(allocated, pieces);
	} while (!left);
	assert_true(n > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{ "a plain heap", heap_is_all_or_nothing, NULL, NULL, (void *)"mode=concurrent" },
		{ "one with all tables", heap_is_all_or_nothing, NULL, NULL,
		  (void *)"mode=memliner,park,check,hints,nursery=1M" },
		cmocka_unit_test(other_page_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
