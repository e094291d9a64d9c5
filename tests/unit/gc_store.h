/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A store for far generations in the test's own memory, which can fail. */
#ifndef GC_STORE_H
#define GC_STORE_H

#include <errno.h>
#include <pthread.h>
#include "gc_test.h"

static inline ebbgc_type_t type_new(ebbgc_heap_t *h, struct ebbgc_layout layout, uint32_t flags)
{
	ebbgc_type_t type = 0;

	layout.flags |= flags;
	assert_int_equal(ebbgc_type_register(h, &layout, &type), 0);
	return type;
}

/* A store whose places are malloc'ed. */
struct store {
	pthread_mutex_t lock;
	uint64_t places, bytes, reads, writes;
	int fail_read, fail_write, fail_alloc;	/* errors */
	unsigned int passes;		/* reads that go well before fail_read */
	bool garble;			/* reads return other bytes, after .passes */
	uint64_t most;			/* bytes; the test's */
	unsigned int calls;		/* the test's */
};

static inline int store_alloc(void *arg, size_t bytes, struct ebbgc_far_place *place)
{
	struct store *s = arg;

	if (s->fail_alloc)
		return s->fail_alloc;
	place->words[0] = (uint64_t)(uintptr_t)malloc(bytes);
	place->words[1] = bytes;
	pthread_mutex_lock(&s->lock);
	s->places++;
	s->bytes += bytes;
	pthread_mutex_unlock(&s->lock);
	return place->words[0] ? 0 : -ENOMEM;
}

static inline int store_write(void *arg, const struct ebbgc_far_place *place, const void *from,
			      size_t bytes)
{
	struct store *s = arg;

	if (s->fail_write)
		return s->fail_write;
	assert_int_equal(bytes, place->words[1]);
	memcpy((void *)(uintptr_t)place->words[0], from, bytes);
	__atomic_fetch_add(&s->writes, 1, __ATOMIC_RELAXED);
	return 0;
}

static inline int store_read(void *arg, const struct ebbgc_far_place *place, size_t offset,
			     void *to, size_t bytes)
{
	struct store *s = arg;

	int error = __atomic_load_n(&s->fail_read, __ATOMIC_RELAXED);
	bool garble = s->garble;

	if ((error || garble) && s->passes) {
		s->passes--;
		error = garble = 0;
	}
	if (error)
		return error;
	assert_true(offset + bytes <= place->words[1]);
	memcpy(to, (char *)(uintptr_t)place->words[0] + offset, bytes);
	if (garble)
		memset(to, 0x5a, bytes);
	__atomic_fetch_add(&s->reads, 1, __ATOMIC_RELAXED);
	return 0;
}

static inline int store_free(void *arg, const struct ebbgc_far_place *place)
{
	struct store *s = arg;

	free((void *)(uintptr_t)place->words[0]);
	pthread_mutex_lock(&s->lock);
	s->places--;
	s->bytes -= place->words[1];
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static inline struct ebbgc_far_store store_of(struct store *s)
{
	return (struct ebbgc_far_store){ s, store_alloc, store_write, store_read, store_free,
					 NULL, NULL };
}

#endif
