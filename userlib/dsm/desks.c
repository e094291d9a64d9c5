// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* This process's desk, and those of others. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dsm.h"

/* Between samples of the load, ms. */
#define UPDATE_MS 1000
/* A change of a load that others are told over TCP, thousandths. */
#define LOAD_STEP 50u

void desk_begin(ebbdsm_t *dsm)
{
	pthread_mutex_init(&dsm->tasks.lock, NULL);
	pthread_mutex_init(&dsm->tasks.look, NULL);
}

void desk_close(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;

	while (t->kept) {
		struct dsm_kept *k = t->kept;

		t->kept = k->next;
		free(k);
	}
	free(t->peer);
	pthread_mutex_destroy(&t->look);
	pthread_mutex_destroy(&t->lock);
}

static int access_desk(struct link *l, uint32_t op, const struct ebbfar_extent *x, uint32_t offset,
		       void *memory, uint32_t size)
{
	struct ebbfar_request q = { .op = op, .extent = *x, .offset = offset, .memory = memory,
				    .size = size };

	return link_error(link_submit(l, &q, 1));
}

int desk_read(ebbdsm_t *dsm, uint32_t offset, void *to, uint32_t size)
{
	return access_desk(dsm->home, EBBFAR_READ, &dsm->tasks.x, offset, to, size);
}

int desk_write(ebbdsm_t *dsm, uint32_t offset, const void *from, uint32_t size)
{
	return access_desk(dsm->home, EBBFAR_WRITE, &dsm->tasks.x, offset, (void *)from, size);
}

int desk_swap(ebbdsm_t *dsm, uint32_t donor, const struct ebbfar_extent *x, uint32_t offset,
	      uint64_t expect, uint64_t desired)
{
	struct ebbfar_request q = { .op = EBBFAR_CAS, .extent = *x, .offset = offset,
				    .expect = expect, .desired = desired };
	int r = link_submit(&dsm->link[donor], &q, 1);

	return r ? link_error(r) : q.old == expect ? 0 : -EAGAIN;
}

int desk_lives(ebbdsm_t *dsm, uint32_t donor, uint32_t member, const struct ebbfar_extent *x)
{
	int r = link_has(&dsm->link[donor], member, x);

	/* What a dead process's memory has now may be no name at all. */
	return r == -EINVAL ? 0 : r;
}

/* --- own -------------------------------------------------------------------------- */

static int allocate(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;
	int r = ebbfar_alloc(dsm->home->far, DESK_BYTES, &t->x);

	if (r)
		t->x.size = 0;
	return r == -EAGAIN ? -ENOSPC : link_error(r);
}

int desk_open(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;
	struct desk *d;
	int r = allocate(dsm);

	if (r)
		return r;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	*d = (struct desk){ .magic = DESK_MAGIC, .generation = t->x.generation,
			    .check = desk_check(t->x.place, t->x.generation),
			    .donors = dsm->donors, .home = dsm->home->number,
			    .pid = (uint64_t)getpid() };
	if (gethostname(d->host, sizeof(d->host) - 1))
		*d->host = '\0';
	load_sample(&t->load);
	d->load.memory = t->load.memory;
	t->written = d->load;
	r = desk_write(dsm, 0, d, sizeof(*d));
	free(d);
	if (!r)
		r = ebbfar_publish(dsm->home->far, t->x.place | DESK_VERSION);
	t->settle = desk_update;
	/* Counts are since the opening. */
	dsm->home->round_trips = dsm->home->requests = dsm->home->posts = 0;
	/* A donor that is too old: this process is not seen, and has no tasks. */
	if (r == -EACCES) {
		ebbfar_free(dsm->home->far, &t->x);
		t->x.size = 0;
		t->settle = NULL;
		return 0;
	}
	return link_error(r);
}

static bool has_changed(const struct desk_load *now, const struct desk_load *was)
{
	uint32_t cpu = now->cpu > was->cpu ? now->cpu - was->cpu : was->cpu - now->cpu;
	uint32_t memory = now->memory > was->memory ? now->memory - was->memory :
						      was->memory - now->memory;

	return cpu >= LOAD_STEP || memory >= LOAD_STEP || now->running != was->running ||
	       now->executed != was->executed ||
	       memcmp(now->boxes, was->boxes, sizeof(now->boxes)) ||
	       memcmp(now->bytes, was->bytes, sizeof(now->bytes)) || now->bare != was->bare ||
	       now->at_twins != was->at_twins || now->lost != was->lost;
}

/* Sets *@now to this process's load.  Returns whether others are to be told. */
static bool take_load(ebbdsm_t *dsm, struct desk_load *now)
{
	struct dsm_tasks *t = &dsm->tasks;
	int64_t at = bell_now();
	bool due;

	if (dsm_enter(dsm))
		return false;
	for (uint32_t i = 0; i < dsm->donors; i++) {
		now->boxes[i] = dsm->heap.part[i].places;
		now->bytes[i] = dsm->heap.part[i].bytes;
	}
	now->bare = dsm->heap.bare;
	now->at_twins = dsm->twin_reads;
	now->lost = dsm->lost;
	dsm_leave(dsm, 0);
	pthread_mutex_lock(&t->lock);
	due = t->x.size && at - t->written_at >= UPDATE_MS;
	if (due) {
		load_sample(&t->load);
		t->written_at = at;
		now->cpu = t->load.cpu;
		now->memory = t->load.memory;
		now->running = t->running;
		now->executed = t->executed;
		due = dsm->home->maps || has_changed(now, &t->written);
	}
	if (due)
		t->written = *now;
	pthread_mutex_unlock(&t->lock);
	return due;
}

void desk_update(ebbdsm_t *dsm)
{
	struct desk_load now = { 0 };

	if (take_load(dsm, &now))
		link_post(dsm->home, &dsm->tasks.x, offsetof(struct desk, load), &now,
			  sizeof(now));
}

void dsm_ring(ebbdsm_t *dsm, uint32_t donor, uint32_t member)
{
	struct link *l = &dsm->link[donor];

	/* A process that has exited needs no ring. */
	link_notify(l, member);
}

/* --- others ----------------------------------------------------------------------- */

struct found {
	struct dsm_peer *peer;
	struct ebbfar_request *q;
	uint32_t n;
};

/* Adds the peers of donor @l to @f, not read yet.  Returns how many, or -errno. */
static int find(struct link *l, struct found *f)
{
	uint64_t words[EBBFAR_MEMBERS];
	int n = 0, r = ebbfar_published(l->far, words);

	if (r)
		return link_error(r);
	pthread_mutex_lock(&l->lock);
	l->round_trips += !l->maps;
	pthread_mutex_unlock(&l->lock);
	for (uint32_t i = 0; i < EBBFAR_MEMBERS; i++) {
		uint64_t place = desk_place(words[i]);

		if (!place)
			continue;
		f->peer[f->n + (uint32_t)n++] = (struct dsm_peer){
			.donor = l->number, .member = i + 1,
			.x = { .place = place, .size = DESK_BYTES },
		};
	}
	return n;
}

/*
 * Reads the desks of @n peers from f->n on, and keeps those that are valid.  What one process
 * publishes wrong does not keep others from being read.
 */
static int read_desks(struct link *l, struct found *f, uint32_t n)
{
	struct dsm_peer *first = &f->peer[f->n];
	int r;

	for (uint32_t i = 0; i < n; i++)
		f->q[i] = (struct ebbfar_request){ .op = EBBFAR_READ, .extent = first[i].x,
						   .memory = first[i].shown, .size = DESK_SHOWN };
	r = n ? link_error(link_submit(l, f->q, n)) : 0;
	if (r && (r == -ENOMEM || link_is_lost(l)))
		return r;
	for (uint32_t i = 0; i < n; i++) {
		const struct desk *d = peer_desk(&first[i]);

		/* One that is being made or freed has no desk; what was not read is zeros. */
		if (!desk_is_valid(d, first[i].x.place))
			continue;
		f->peer[f->n] = first[i];
		f->peer[f->n++].x.generation = d->generation;
	}
	return 0;
}

static int look(ebbdsm_t *dsm, struct found *f)
{
	int first = 0;

	f->peer = calloc((size_t)dsm->donors * EBBFAR_MEMBERS, sizeof(*f->peer));
	f->q = calloc(EBBFAR_MEMBERS, sizeof(*f->q));
	if (!f->peer || !f->q)
		return -ENOMEM;
	/* What is at other donors can be used while one has exited. */
	for (uint32_t i = 0; i < dsm->donors; i++) {
		int n = find(&dsm->link[i], f);
		int r = n < 0 ? n : read_desks(&dsm->link[i], f, (uint32_t)n);

		first = first ?: r;
	}
	return f->n ? 0 : first;
}

int desk_look(ebbdsm_t *dsm, int64_t age_ms)
{
	struct dsm_tasks *t = &dsm->tasks;
	struct found f = { 0 };
	int r;

	if (t->peer && bell_now() - t->looked_at < age_ms)
		return 0;
	r = look(dsm, &f);
	free(f.q);
	if (r) {
		free(f.peer);
		return r;
	}
	free(t->peer);
	t->peer = realloc(f.peer, (f.n ?: 1) * sizeof(*f.peer)) ?: f.peer;
	t->peers = f.n;
	t->looked_at = bell_now();
	return 0;
}
