// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cell.h"

#define CACHE_BYTES ((size_t)64 << 20)
/* Of the first release, which had no replicas. */
#define OPTIONS_LEAST offsetof(struct ebbdsm_options, replicas)
/* A larger options.size is a mistake, such as one that was not set. */
#define OPTIONS_MOST 4096u
#define MARK_BYTES 4096u

__attribute__((format(printf, 3, 4)))
static int say(struct ebbdsm_options *o, int error, const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	/* A smaller struct has no room for the text. */
	if (o->size >= OPTIONS_LEAST)
		vsnprintf(o->error, sizeof(o->error), fmt, list);
	va_end(list);
	return -error;
}

static unsigned replicas_of(const struct ebbdsm_options *o)
{
	return o->size >= offsetof(struct ebbdsm_options, unused) ? o->replicas : 0;
}

static int check_options(struct ebbdsm_options *o)
{
	const uint8_t *bytes = (const uint8_t *)o;

	if (o->size < OPTIONS_LEAST || o->size > OPTIONS_MOST)
		return say(o, EINVAL, "options: size %zu; set it to sizeof(struct ebbdsm_options)",
			   o->size);
	for (size_t i = offsetof(struct ebbdsm_options, unused); i < o->size; i++)
		if (bytes[i])
			return say(o, EINVAL,
				   "options: the program sets a field that this libebbdsm lacks; update libebbdsm");
	if (!o->donors || !o->donor_count || o->donor_count > EBBDSM_DONORS)
		return say(o, EINVAL, "options: %u donors; give 1 to %u", o->donor_count,
			   EBBDSM_DONORS);
	if (o->home >= o->donor_count)
		return say(o, EINVAL, "options: home %u: there are %u donors; give the index of one",
			   o->home, o->donor_count);
	if (replicas_of(o) > 1 || replicas_of(o) >= o->donor_count)
		return say(o, EINVAL,
			   "options: replicas %u at %u donors; give 0, or 1 with two donors or more",
			   replicas_of(o), o->donor_count);
	if (!o->pool)
		return say(o, EINVAL, "options: pool is NULL; set it");
	return 0;
}

/* A page of ones that is a page of zeros after fork(2). */
static int mark_process(ebbdsm_t *dsm)
{
	uint32_t *page = mmap(NULL, MARK_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	dsm->alive = page;
	if (madvise(page, MARK_BYTES, MADV_WIPEONFORK) < 0)
		return -errno;
	*page = 1;
	return 0;
}

/*
 * In a child of fork(2), which has not the threads of the parent that wait: glibc's
 * pthread_cond_destroy() waits for them.  Returns whether one of these held a lock: what that
 * guards may be half changed.
 */
static bool renew_locks(ebbdsm_t *dsm)
{
	bool held = pthread_mutex_trylock(&dsm->lock) || pthread_mutex_trylock(&dsm->tasks.lock) ||
		    pthread_mutex_trylock(&dsm->tasks.look) ||
		    pthread_mutex_trylock(&dsm->lists_lock);

	pthread_mutex_init(&dsm->lock, NULL);
	pthread_cond_init(&dsm->changed, NULL);
	pthread_mutex_init(&dsm->lists_lock, NULL);
	desk_begin(dsm);
	cells_begin(dsm->cells);
	for (uint32_t i = 0; i < dsm->donors; i++)
		link_begin(&dsm->link[i]);
	return held;
}

void ebbdsm_close(ebbdsm_t *dsm)
{
	bool is_child, held = false;

	if (!dsm)
		return;
	is_child = dsm->alive && !*dsm->alive;
	if (is_child)
		held = renew_locks(dsm);
	else
		check_free(dsm->check); /* a child has no borrows */
	for (uint32_t i = 0; i < dsm->donors; i++)
		link_close(&dsm->link[i]);
	if (held)
		return;
	desk_close(dsm);
	while (dsm->pending.first)
		dsm_pending_end(dsm, (struct pending *)dsm->pending.first);
	queue_end(&dsm->pending);
	while (dsm->received) {
		struct received *next = dsm->received->next;

		free(dsm->received);
		dsm->received = next;
	}
	heap_end(&dsm->heap);
	for (uint32_t i = 0; i < EBBDSM_DONORS; i++)
		free(dsm->lists[i].list);
	cells_end(dsm->cells);
	cache_end(&dsm->cache);
	if (dsm->alive)
		munmap((void *)dsm->alive, MARK_BYTES);
	pthread_mutex_destroy(&dsm->lists_lock);
	pthread_cond_destroy(&dsm->changed);
	pthread_mutex_destroy(&dsm->lock);
	free(dsm);
}

static int open_links(ebbdsm_t *dsm, struct ebbdsm_options *o)
{
	for (uint32_t i = 0; i < o->donor_count; i++) {
		struct link *l = &dsm->link[i];
		int r;

		dsm->donors = i + 1;
		r = link_open(l, o, i);
		if (r && l->far)
			return say(o, -r, "pool %s of donor %s: no memory for this process: %s; see ebbctl far list",
				   o->pool, o->donors[i], strerror(-r));
		if (r)
			return r;
	}
	return 0;
}

static int open_desk(ebbdsm_t *dsm, struct ebbdsm_options *o)
{
	int r = desk_open(dsm);

	return r ? say(o, -r, "pool %s of donor %s: no memory for this process: %s; see ebbctl far list",
		       o->pool, o->donors[o->home], strerror(-r)) : 0;
}

int ebbdsm_open(struct ebbdsm_options *o, ebbdsm_t **out)
{
	ebbdsm_t *dsm;
	int r = check_options(o);

	if (r)
		return r;
	dsm = calloc(1, sizeof(*dsm));
	if (!dsm)
		return say(o, ENOMEM, "out of memory");
	pthread_mutex_init(&dsm->lock, NULL);
	pthread_cond_init(&dsm->changed, NULL);
	pthread_mutex_init(&dsm->lists_lock, NULL);
	desk_begin(dsm);
	dsm->cache.budget = o->cache ?: CACHE_BYTES;
	dsm->home = &dsm->link[o->home];
	dsm->heap.home = dsm->home;
	dsm->heap.link = dsm->link;
	dsm->heap.told.lock = &dsm->lock;
	r = mark_process(dsm);
	if (!r)
		r = check_new(&dsm->check);
	if (r)
		say(o, -r, "memory: %s; try again", strerror(-r));
	else
		r = open_links(dsm, o);
	if (!r)
		r = open_desk(dsm, o);
	dsm->heap.replicas = replicas_of(o);
	dsm->heap.told = (struct twin_told){ .links = dsm->link, .home = dsm->home,
					     .donors = dsm->donors, .desk = dsm->tasks.x,
					     .lock = &dsm->lock, .changed = &dsm->changed };
	if (r) {
		ebbdsm_close(dsm);
		return r;
	}
	*out = dsm;
	return 0;
}

const char *ebbdsm_why(const ebbdsm_t *dsm)
{
	for (uint32_t i = 0; i < dsm->donors; i++)
		if (*ebbfar_why(dsm->link[i].far))
			return ebbfar_why(dsm->link[i].far);
	return "";
}

void ebbdsm_count(ebbdsm_t *dsm, struct ebbdsm_counts *counts)
{
	struct ebbdsm_counts now = { .size = counts->size };

	if (!*dsm->alive)
		return;
	for (uint32_t i = 0; i < dsm->donors; i++) {
		struct link *l = &dsm->link[i];

		pthread_mutex_lock(&l->lock);
		now.round_trips += l->round_trips;
		now.requests += l->requests;
		now.posted += l->posts;
		pthread_mutex_unlock(&l->lock);
	}
	pthread_mutex_lock(&dsm->lock);
	now.hits = dsm->hits;
	now.misses = dsm->misses;
	now.cached = dsm->cache.bytes;
	now.places = dsm->heap.places;
	now.at_twins = dsm->twin_reads;
	now.lost = dsm->lost;
	now.bare = dsm->heap.bare;
	pthread_mutex_unlock(&dsm->lock);
	memcpy(counts, &now, counts->size < sizeof(now) ? counts->size : sizeof(now));
}
