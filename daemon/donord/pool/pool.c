// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/base/size.h"
#include "pool.h"

/* About 30 us of memset: what a request may have to wait. */
#define ZERO_CHUNK (256u << 10)
/* About 10 ms: what all may have to wait for one that wants a slab now. */
#define ZERO_AT_ONCE (64ull << 20)

/* Descriptors besides those of slabs. */
#define OTHER_FDS 512

static uint8_t *slab_memory(const struct lend_pool *p, uint32_t slab)
{
	return p->memory + (uint64_t)slab * p->slab_size;
}

static void set_state(struct lend_pool *p, struct lend_slab *s, enum lend_state state)
{
	p->in[s->state]--;
	p->in[state]++;
	s->state = (uint8_t)state;
}

static void queue_put(struct lend_pool *p, struct lend_queue *q, uint32_t slab)
{
	q->slabs[q->put % p->count] = slab;
	__atomic_store_n(&q->put, q->put + 1, __ATOMIC_RELEASE);
}

static bool queue_take(struct lend_pool *p, struct lend_queue *q, uint32_t *slab)
{
	if (q->taken == __atomic_load_n(&q->put, __ATOMIC_ACQUIRE))
		return false;
	*slab = q->slabs[q->taken % p->count];
	__atomic_store_n(&q->taken, q->taken + 1, __ATOMIC_RELEASE);
	return true;
}

/* One memfd each: as many descriptors as slabs. */
static int allow_descriptors(struct lend_pool *p, struct error *e)
{
	struct rlimit limit;

	if (p->kind == LEND_PRIVATE || getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
	    limit.rlim_cur >= p->count + OTHER_FDS)
		return 0;
	limit.rlim_cur = p->count + OTHER_FDS;
	if (limit.rlim_max < limit.rlim_cur)
		limit.rlim_max = limit.rlim_cur;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		return fail(e, EMFILE, "memory: %u slabs need as many descriptors: %m; use larger slabs or raise LimitNOFILE=",
			    p->count);
	return 0;
}

static int make_tables(struct lend_pool *p, struct error *e)
{
	p->slabs = calloc(p->count, sizeof(*p->slabs));
	p->to_do.slabs = calloc(p->count, sizeof(*p->to_do.slabs));
	p->done.slabs = calloc(p->count, sizeof(*p->done.slabs));
	if (!p->slabs || !p->to_do.slabs || !p->done.slabs)
		return fail(e, ENOMEM, "memory: no room for %u slabs", p->count);
	p->in[LEND_ABSENT] = p->count;
	for (uint32_t i = 0; i < p->count; i++)
		p->slabs[i].fd = -1;
	return 0;
}

int lend_init(struct lend_pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e)
{
	struct lend_pool pool = { .slab_size = slab_size, .kind = kind };
	char a[16], b[16];
	int r;

	if (slab_size < WIRE_MIN_SLAB || slab_size > WIRE_MAX_SLAB || slab_size % WIRE_PAGE)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "slab: %s is out of range; use 1M to 1G in whole pages",
				 size_format(slab_size, a, sizeof(a)));
	if (memory / slab_size == 0 || memory / slab_size > UINT32_MAX / 2)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "memory: %s is not even one slab of %s; lend more or use smaller slabs",
				 size_format(memory, a, sizeof(a)),
				 size_format(slab_size, b, sizeof(b)));
	pool.count = (uint32_t)(memory / slab_size);
	r = make_tables(&pool, e);
	if (!r)
		r = allow_descriptors(&pool, e);
	if (!r) {
		pool.reserved = slab_memory_reserve(pool.count * slab_size, &pool.memory,
						    &pool.reserved_size);
		if (!pool.reserved)
			r = fail(e, errno, "memory: cannot map %s: %m; lend less",
				 size_format(memory, a, sizeof(a)));
	}
	if (r) {
		lend_free(&pool);
		return r;
	}
	/* A restarted donor must not give out generations a borrower remembers. */
	if (getrandom(&pool.generation, sizeof(pool.generation), GRND_NONBLOCK) < 0)
		pool.generation = 1;
	*p = pool;
	return 0;
}

void lend_free(struct lend_pool *p)
{
	if (p->reserved)
		munmap(p->reserved, p->reserved_size);
	for (uint32_t i = 0; p->slabs && i < p->count; i++)
		if (p->slabs[i].fd >= 0)
			close(p->slabs[i].fd);
	free(p->slabs);
	free(p->to_do.slabs);
	free(p->done.slabs);
	*p = (struct lend_pool){ 0 };
}

static void drop(struct lend_pool *p, uint32_t slab)
{
	slab_memory_drop(slab_memory(p, slab), p->slab_size, p->slabs[slab].fd);
	p->slabs[slab].fd = -1;
}

static void let_go(struct lend_pool *p, uint32_t slab)
{
	if (p->care.goes)
		p->care.goes(p->care.data, slab);
	drop(p, slab);
}

static int make(struct lend_pool *p, uint32_t slab)
{
	int r = slab_memory_make(slab_memory(p, slab), p->slab_size, p->kind, &p->patience,
				 &p->slabs[slab].fd);

	if (r || !p->care.made)
		return r;
	r = p->care.made(p->care.data, slab);
	if (r)
		drop(p, slab);
	return r;
}

int lend_fill(struct lend_pool *p, uint32_t n, struct error *e)
{
	char a[16];

	for (uint32_t i = 0; i < n; i++) {
		int r = make(p, i);

		if (r == -EINTR)
			return r;
		if (r)
			return fail(e, r, "memory: cannot lock %s: %s; lend less, run as root or raise LimitMEMLOCK=",
				    size_format(n * p->slab_size, a, sizeof(a)), strerror(-r));
		set_state(p, &p->slabs[i], LEND_CLEAN);
	}
	return 0;
}

/* Hands @slab to the worker. */
static void start(struct lend_pool *p, uint32_t slab, enum lend_state state)
{
	set_state(p, &p->slabs[slab], state);
	queue_put(p, &p->to_do, slab);
}

uint32_t lend_grow(struct lend_pool *p, uint32_t n)
{
	uint32_t started = 0;

	for (uint32_t i = 0; i < p->count && started < n && p->in[LEND_ABSENT]; i++) {
		if (p->slabs[i].state != LEND_ABSENT)
			continue;
		start(p, i, LEND_COMING);
		started++;
	}
	return started;
}

uint32_t lend_shrink(struct lend_pool *p, uint32_t n)
{
	static const enum lend_state order[] = { LEND_DIRTY, LEND_CLEAN };
	uint32_t started = 0;

	for (int which = 0; which < 2; which++)
		/* From the end: what is lent gathers at the beginning. */
		for (uint32_t i = p->count; i-- && started < n && p->in[order[which]]; ) {
			if (p->slabs[i].state != order[which] || p->slabs[i].pins)
				continue;
			start(p, i, LEND_GOING);
			started++;
		}
	return started;
}

bool lend_work(struct lend_pool *p)
{
	struct lend_slab *s;
	uint32_t slab;

	if (!queue_take(p, &p->to_do, &slab))
		return false;
	s = &p->slabs[slab];
	if (s->state == LEND_COMING) {
		if (s->handed)
			let_go(p, slab);
		s->result = make(p, slab);
	} else {
		let_go(p, slab);
		s->result = 0;
	}
	queue_put(p, &p->done, slab);
	return true;
}

int lend_settle(struct lend_pool *p)
{
	uint32_t slab;
	int r = 0;

	while (queue_take(p, &p->done, &slab)) {
		struct lend_slab *s = &p->slabs[slab];

		s->handed = false;
		if (s->state == LEND_COMING && !s->result) {
			set_state(p, s, LEND_CLEAN);
			continue;
		}
		r = r ? r : s->result;
		set_state(p, s, LEND_ABSENT);
	}
	return r;
}

static void zero_to(struct lend_pool *p, uint32_t slab, uint64_t end)
{
	struct lend_slab *s = &p->slabs[slab];

	memset(slab_memory(p, slab) + s->dirty_from, 0, end - s->dirty_from);
	s->dirty_from = end;
	if (end == p->slab_size)
		set_state(p, s, LEND_CLEAN);
}

/* A clean slab, or one that is soon zeroed; p->count = none. */
static uint32_t find_free(const struct lend_pool *p)
{
	uint32_t found = p->count;

	for (uint32_t i = 0; i < p->count; i++) {
		const struct lend_slab *s = &p->slabs[i];

		if (s->state == LEND_CLEAN)
			return i;
		if (found == p->count && s->state == LEND_DIRTY && !s->pins && !s->handed &&
		    p->slab_size - s->dirty_from <= ZERO_AT_ONCE)
			found = i;
	}
	return found;
}

enum wire_status lend_map(struct lend_pool *p, uint32_t owner, uint32_t *slab,
			  uint32_t *generation)
{
	uint32_t found = lend_free_slabs(p) ? find_free(p) : p->count;
	struct lend_slab *s;

	if (found == p->count)
		return WIRE_NO_SPACE;
	s = &p->slabs[found];
	if (s->state == LEND_DIRTY)
		zero_to(p, found, p->slab_size);
	set_state(p, s, LEND_LENT);
	s->owner = owner;
	s->generation = ++p->generation;
	s->asked = LEND_NOT_ASKED;
	s->revoked = s->overdue = s->unclaimed = false;
	*slab = found;
	*generation = p->generation;
	return WIRE_OK;
}

static void release(struct lend_pool *p, struct lend_slab *s)
{
	s->dirty_from = 0;
	set_state(p, s, LEND_DIRTY);
}

enum wire_status lend_check(const struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation)
{
	const struct lend_slab *s = slab < p->count ? &p->slabs[slab] : NULL;

	if (!s || s->owner != owner)
		return WIRE_NO_SLAB;
	if (s->state != LEND_LENT)
		return s->revoked && s->generation == generation ? WIRE_STALE : WIRE_NO_SLAB;
	return s->generation == generation ? WIRE_OK : WIRE_STALE;
}

enum wire_status lend_unmap(struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation)
{
	enum wire_status st = lend_check(p, owner, slab, generation);

	if (st == WIRE_OK)
		release(p, &p->slabs[slab]);
	return st;
}

uint32_t lend_release_owner(struct lend_pool *p, uint32_t owner)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];

		if (s->owner != owner)
			continue;
		/* The number will be another borrower's. */
		s->revoked = false;
		if (s->state != LEND_LENT)
			continue;
		release(p, s);
		n++;
	}
	return n;
}

uint32_t lend_move(struct lend_pool *p, uint32_t from, uint32_t to)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];

		if (s->owner != from || (s->state != LEND_LENT && !s->revoked))
			continue;
		s->owner = to;
		if (s->state != LEND_LENT)
			continue;
		s->unclaimed = true;
		/* The answer will not come. */
		if (s->asked == LEND_ASKED)
			s->asked = LEND_TO_ASK;
		n++;
	}
	return n;
}

enum wire_status lend_again(struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation)
{
	enum wire_status st = lend_check(p, owner, slab, generation);

	if (st == WIRE_OK)
		p->slabs[slab].unclaimed = false;
	return st;
}

uint32_t lend_release_rest(struct lend_pool *p, uint32_t owner)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];

		if (s->owner != owner || s->state != LEND_LENT || !s->unclaimed)
			continue;
		release(p, s);
		n++;
	}
	return n;
}

uint32_t lend_owned(const struct lend_pool *p, uint32_t owner)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++)
		n += lend_holds(&p->slabs[i]) && p->slabs[i].owner == owner;
	return n;
}

void lend_revoke(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].revoked = true;
	release(p, &p->slabs[slab]);
}

enum wire_status lend_access(struct lend_pool *p, uint32_t owner, const struct wire_frame *f,
			     void **memory)
{
	enum wire_status st = lend_check(p, owner, f->slab, f->generation);

	if (st != WIRE_OK)
		return st;
	if ((uint64_t)f->offset + f->length > p->slab_size)
		return WIRE_BAD_RANGE;
	*memory = slab_memory(p, f->slab) + f->offset;
	return WIRE_OK;
}

int lend_hand_over(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].handed = true;
	return p->slabs[slab].fd;
}

void lend_pin(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].pins++;
}

void lend_unpin(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].pins--;
}

bool lend_zero_some(struct lend_pool *p, enum lend_return handed)
{
	for (uint32_t i = 0; p->in[LEND_DIRTY] && i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];
		uint64_t end = s->dirty_from + ZERO_CHUNK;

		if (s->state != LEND_DIRTY || s->pins)
			continue;
		if (s->handed)
			start(p, i, handed == LEND_RENEW ? LEND_COMING : LEND_GOING);
		else
			zero_to(p, i, end < p->slab_size ? end : p->slab_size);
		return true;
	}
	return false;
}
