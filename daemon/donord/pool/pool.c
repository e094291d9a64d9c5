// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/size.h"
#include "pool.h"

/* About 30 us of memset: the delay of one request. */
#define ZERO_CHUNK (256u << 10)
/* About 10 ms: the delay of all borrowers for one that needs a slab now. */
#define ZERO_AT_ONCE (64ull << 20)
#define ZERO_AT_ONCE_NS 10000000ull
/* One key's part of the loop's time for that, as a divisor. */
#define ZERO_SHARE 16

/* Descriptors besides those of slabs. */
#define OTHER_FDS 512

static void set_state(struct pool *p, struct lend_slab *s, enum lend_state state)
{
	p->in[s->state]--;
	p->in[state]++;
	s->state = (uint8_t)state;
}

/* Each shared slab has a memfd. */
static int allow_descriptors(struct pool *p, struct error *e)
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

static int make_tables(struct pool *p, struct error *e)
{
	p->slabs = calloc(p->count, sizeof(*p->slabs));
	if (!p->slabs)
		return fail(e, ENOMEM, "memory: no room for %u slabs", p->count);
	p->in[LEND_ABSENT] = p->count;
	for (uint32_t i = 0; i < p->count; i++)
		p->slabs[i].fd = -1;
	return 0;
}

int pool_init(struct pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e)
{
	struct pool pool = { .slab_size = slab_size, .kind = kind, .turn = 1, .done_fd = -1 };
	char a[16], b[16];
	int r;

	if (slab_size < WIRE_MIN_SLAB || slab_size > WIRE_MAX_SLAB || slab_size % WIRE_PAGE)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--slab: %s is out of range; use 1M to 1G in whole pages",
				 size_format(slab_size, a, sizeof(a)));
	if (memory / slab_size == 0 || memory / slab_size > UINT32_MAX / 2)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--memory: %s is not even one slab of %s; lend more or use smaller slabs",
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
		pool_free(&pool);
		return r;
	}
	/* A restarted donor must not reuse generations that a borrower remembers. */
	if (getrandom(&pool.generation, sizeof(pool.generation), GRND_NONBLOCK) < 0)
		pool.generation = 1;
	*p = pool;
	return 0;
}

void pool_free(struct pool *p)
{
	if (p->reserved)
		munmap(p->reserved, p->reserved_size);
	for (uint32_t i = 0; p->slabs && i < p->count; i++)
		if (p->slabs[i].fd >= 0)
			close(p->slabs[i].fd);
	free(p->slabs);
	*p = (struct pool){ 0 };
}

void pool_add_export(struct pool *p, struct export *x)
{
	x->pool = p;
	x->next = p->exports;
	p->exports = x;
}

void pool_remove_export(struct pool *p, struct export *x)
{
	struct export **at = &p->exports;

	while (*at && *at != x)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = x->next;
	for (uint32_t i = 0; x->ops->slab_removed && i < p->count; i++)
		x->ops->slab_removed(x, i);
}

static void drop(struct pool *p, uint32_t slab)
{
	for (struct export *x = p->exports; x; x = x->next)
		if (x->ops->slab_removed)
			x->ops->slab_removed(x, slab);
	slab_memory_drop(pool_memory(p, slab), p->slab_size, p->slabs[slab].fd);
	p->slabs[slab].fd = -1;
}

/* Without a lock: the loop must not wait for a thread of lower priority. */
static void push(struct pool_task **list, struct pool_task *t)
{
	t->next = __atomic_load_n(list, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(list, &t->next, t, true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

/* Returns all of @list, the first one first. */
static struct pool_task *take_all(struct pool_task **list)
{
	struct pool_task *t = __atomic_exchange_n(list, NULL, __ATOMIC_ACQUIRE), *first = NULL;

	while (t) {
		struct pool_task *next = t->next;

		t->next = first;
		first = t;
		t = next;
	}
	return first;
}

static void put(struct pool *p, struct pool_queue *q, struct pool_task *t)
{
	push(&q->put, t);
	p->tasks_put++;
}

void pool_task(struct pool *p, struct pool_task *t)
{
	put(p, &p->tasks, t);
}

void pool_task_later(struct pool *p, struct pool_task *t)
{
	put(p, &p->later, t);
}

/* Runs the next task of @q.  Returns false if @q is empty. */
static bool work(struct pool *p, struct pool_queue *q)
{
	struct pool_task *t = q->taken ?: take_all(&q->put);

	if (!t)
		return false;
	q->taken = t->next;
	t->run(t);
	push(&p->ran, t);
	if (p->done_fd >= 0)
		eventfd_write(p->done_fd, 1);
	return true;
}

static bool run_task(struct pool *p)
{
	return work(p, &p->tasks) || work(p, &p->later);
}

/* Making a slab of 1 GiB takes a second: tasks must not wait for it. */
static bool between_pieces(void *data)
{
	struct pool *p = data;

	while (run_task(p))
		;
	return p->patience.over && p->patience.over(p->patience.data);
}

static int make(struct pool *p, uint32_t slab)
{
	const struct patience patience = { between_pieces, p };
	int r = slab_memory_make(pool_memory(p, slab), p->slab_size, p->kind, &patience,
				 &p->slabs[slab].fd);

	for (struct export *x = p->exports; !r && x; x = x->next) {
		r = x->ops->slab_added ? x->ops->slab_added(x, slab) : 0;
		if (r)
			drop(p, slab);
	}
	return r;
}

int pool_fill(struct pool *p, uint32_t n, struct error *e)
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

/* Pool thread. */
static void work_slab(struct pool_task *t)
{
	struct lend_slab *s = (struct lend_slab *)t;
	uint32_t slab = (uint32_t)(s - s->pool->slabs);

	if (s->state != LEND_COMING || s->handed)
		drop(s->pool, slab);
	s->result = s->state == LEND_COMING ? make(s->pool, slab) : 0;
}

static void slab_done(struct pool_task *t)
{
	struct lend_slab *s = (struct lend_slab *)t;

	s->handed = false;
	s->pool->failed = s->pool->failed ?: s->result;
	set_state(s->pool, s, s->state == LEND_COMING && !s->result ? LEND_CLEAN : LEND_ABSENT);
}

/* Hands @slab to the pool thread. */
static void start(struct pool *p, uint32_t slab, enum lend_state state)
{
	struct lend_slab *s = &p->slabs[slab];

	set_state(p, s, state);
	s->pool = p;
	s->work = (struct pool_task){ .run = work_slab, .done = slab_done };
	put(p, &p->slabs_to_do, &s->work);
}

uint32_t pool_grow(struct pool *p, uint32_t n)
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

uint32_t pool_shrink(struct pool *p, uint32_t n)
{
	static const enum lend_state order[] = { LEND_DIRTY, LEND_CLEAN };
	uint32_t started = 0;

	for (int which = 0; which < 2; which++)
		/* From the end: loans gather at the beginning. */
		for (uint32_t i = p->count; i-- && started < n && p->in[order[which]];) {
			if (p->slabs[i].state != order[which] || p->slabs[i].pins)
				continue;
			start(p, i, LEND_GOING);
			started++;
		}
	return started;
}

bool pool_work(struct pool *p)
{
	return run_task(p) || work(p, &p->slabs_to_do);
}

int pool_settle(struct pool *p)
{
	struct pool_task *t = take_all(&p->ran), *next;

	p->failed = 0;
	for (; t; t = next) {
		next = t->next;
		t->done(t);
	}
	return p->failed;
}

static void zero_to(struct pool *p, uint32_t slab, uint64_t end)
{
	struct lend_slab *s = &p->slabs[slab];

	memset(pool_memory(p, slab) + s->dirty_from, 0, end - s->dirty_from);
	s->dirty_from = end;
	if (end == p->slab_size)
		set_state(p, s, LEND_CLEAN);
}

/* Returns a clean slab, or one that is zeroed soon; p->count = none. */
static uint32_t find_free(const struct pool *p)
{
	uint32_t found = p->count;

	for (uint32_t i = 0; i < p->count; i++) {
		const struct lend_slab *s = &p->slabs[i];

		/* Its last borrower has yet to hear that it must unmap the memory before. */
		if (s->untold && s->mapped)
			continue;
		if (s->state == LEND_CLEAN)
			return i;
		if (found == p->count && s->state == LEND_DIRTY && !s->pins && !s->handed &&
		    p->slab_size - s->dirty_from <= ZERO_AT_ONCE)
			found = i;
	}
	return found;
}

void pool_add(struct pool *p, struct borrower *b)
{
	b->next = p->borrowers;
	p->borrowers = b;
}

/* By all exports: that of an earlier connection of the session may still have a window open. */
static void revoke_everywhere(struct pool *p, struct borrower *b, uint32_t slab)
{
	if (b->export->ops->revoke)
		b->export->ops->revoke(b->export, b, slab);
	for (struct export *x = p->exports; x; x = x->next)
		if (x != b->export && x->ops->revoke)
			x->ops->revoke(x, b, slab);
}

static void end_loan(struct pool *p, uint32_t slab)
{
	struct lend_slab *s = &p->slabs[slab];

	s->granting = false;
	s->dirty_from = 0;
	s->owner->lent--;
	set_state(p, s, LEND_DIRTY);
	revoke_everywhere(p, s->owner, slab);
	if (s->pins && s->owner->ops->ended)
		s->owner->ops->ended(s->owner, slab);
}

uint32_t pool_remove(struct pool *p, struct borrower *b)
{
	struct borrower **at = &p->borrowers;
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];

		if (s->owner != b)
			continue;
		if (s->state == LEND_LENT) {
			end_loan(p, i);
			n++;
		}
		s->owner = NULL;
	}
	while (*at && *at != b)
		at = &(*at)->next;
	if (*at)
		*at = b->next;
	b->reserved = 0;
	return n;
}

/* Returns whether @s is released and still in use by @b, or by others with its key. */
static bool is_leaving(const struct lend_slab *s, const struct borrower *b)
{
	return s->state != LEND_LENT && pool_holds(s) &&
	       (s->owner == b || (*s->key && !strcmp(s->key, b->key)));
}

uint32_t pool_quota_left(const struct pool *p, const struct borrower *b)
{
	uint64_t most = b->quota / p->slab_size, has = b->lent;

	if (!b->quota)
		return UINT32_MAX;
	/* Slabs in use are not zeroed; each PING asks for this. */
	for (uint32_t i = 0; i < p->count && p->in[LEND_DIRTY] + p->in[LEND_WITHDRAWN]; i++)
		has += is_leaving(&p->slabs[i], b);
	for (const struct borrower *other = p->borrowers; other; other = other->next)
		if (other != b && *b->key && !strcmp(other->key, b->key))
			has += other->lent + pool_promised_to(other);
	return has < most ? (uint32_t)(most - has) : 0;
}

uint32_t pool_total(const struct pool *p)
{
	uint32_t present = pool_present(p);

	if (p->draining)
		return present;
	/* Slabs that are being re-created count, except with HeadRoom, which may need them. */
	if (!p->follows)
		return pool_allocated(p) - p->in[LEND_WITHDRAWN];
	return p->allowed > present ? p->allowed : present;
}

uint32_t pool_promised(const struct pool *p)
{
	uint64_t n = 0;

	for (const struct borrower *b = p->borrowers; b; b = b->next)
		n += pool_promised_to(b);
	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Returns how many slabs are not lent. */
static uint32_t unlent(const struct pool *p)
{
	uint32_t total = pool_total(p);

	return !p->draining && total > p->in[LEND_LENT] ? total - p->in[LEND_LENT] : 0;
}

uint32_t pool_lendable(const struct pool *p)
{
	uint32_t left = unlent(p), promised = pool_promised(p);

	return left > promised ? left - promised : 0;
}

uint32_t pool_room(const struct pool *p, const struct borrower *b)
{
	uint32_t left = unlent(p), own = pool_promised_to(b), others = pool_promised(p) - own;
	uint32_t room = left > others ? left - others : 0, quota = pool_quota_left(p, b);

	/* If the machine's programs use promised memory, each promise covers the rest of it. */
	own = own < left ? own : left;
	room = room > own ? room : own;
	return room < quota ? room : quota;
}

void pool_reserve(struct pool *p, struct borrower *b, uint32_t slabs)
{
	uint64_t most = (uint64_t)b->lent + pool_room(p, b);

	most = most > b->reserved ? most : b->reserved;
	b->reserved = slabs < most ? slabs : (uint32_t)most;
}

static enum wire_status grant(struct pool *p, struct borrower *b, const struct wire_frame *request)
{
	enum wire_status st;

	p->slabs[request->slab].granting = true;
	st = b->export->ops->grant(b->export, b, request);
	if (st != WIRE_OK)
		p->slabs[request->slab].granting = false;
	return st;
}

/*
 * Returns the place to note in that a slab is zeroed at once for @key, or -1: not now.  It is the
 * key's, and outlives its connections.
 */
static int zero_place(const struct pool *p, const char *key)
{
	int found = -1;

	for (int i = 0; i < POOL_ZERO_KEYS; i++) {
		const struct pool_zero_key *z = &p->zeroed_for[i];

		if (z->until <= p->now)
			found = i;
		else if (!strcmp(z->key, key))
			return -1;
	}
	return found;
}

bool pool_may_lend(const struct pool *p, const struct borrower *b)
{
	if (p->maps >= POOL_MAPS || b->refused == p->turn)
		return false;
	/* None is zeroed behind other loans: they would be one borrower's. */
	return p->in[LEND_CLEAN] ||
	       (!p->maps && (!p->in[LEND_DIRTY] || zero_place(p, b->key) >= 0));
}

static void zero_at_once(struct pool *p, uint32_t slab, const struct borrower *b)
{
	uint64_t bytes = p->slab_size - p->slabs[slab].dirty_from;
	int place = zero_place(p, b->key);

	zero_to(p, slab, p->slab_size);
	if (place < 0)
		return;
	memcpy(p->zeroed_for[place].key, b->key, sizeof(b->key));
	p->zeroed_for[place].until =
		now_ns() + ZERO_SHARE * (bytes * ZERO_AT_ONCE_NS / ZERO_AT_ONCE);
}

enum wire_status pool_lend(struct pool *p, struct borrower *b, struct wire_frame *request)
{
	uint32_t found;
	enum wire_status st;
	struct lend_slab *s;

	b->refused = p->turn;
	if (p->draining)
		return WIRE_NO_SPACE;
	if (!pool_quota_left(p, b))
		return WIRE_OVER_QUOTA;
	if (!pool_promised_to(b) && !pool_lendable(p)) {
		p->refused = true;
		return WIRE_NO_SPACE;
	}
	found = pool_free_slabs(p) ? find_free(p) : p->count;
	if (found == p->count) {
		p->refused = true;
		return WIRE_NO_SPACE;
	}
	b->refused = 0;
	p->maps++;
	s = &p->slabs[found];
	if (s->state == LEND_DIRTY)
		zero_at_once(p, found, b);
	set_state(p, s, LEND_LENT);
	s->owner = b;
	b->lent++;
	memcpy(s->key, b->key, sizeof(s->key));
	s->generation = ++p->generation;
	s->asked = LEND_NOT_ASKED;
	s->revoked = s->untold = s->mapped = s->overdue = s->unclaimed = s->backed = false;
	request->slab = found;
	request->generation = s->generation;
	st = grant(p, b, request);
	if (st != WIRE_OK)
		end_loan(p, found);
	return st;
}

enum wire_status pool_lend_again(struct pool *p, struct borrower *b,
				 const struct wire_frame *request)
{
	enum wire_status st = pool_check(p, b, (struct wire_loan){ request->slab,
								   request->generation });

	if (st != WIRE_OK)
		return st;
	st = grant(p, b, request);
	/* The connection may have ended meanwhile: then the next resumption asks again. */
	p->slabs[request->slab].unclaimed = st != WIRE_OK;
	if (st == WIRE_STALE)
		end_loan(p, request->slab);
	return st;
}

void pool_granted(struct pool *p, const struct wire_frame *request, const struct lend_grant *g)
{
	struct lend_slab *s = &p->slabs[request->slab];

	s->granting = false;
	if (!g)
		end_loan(p, request->slab);
	s->owner->ops->granted(s->owner, request, g);
}

void pool_not_again(struct pool *p, const struct wire_frame *request)
{
	struct lend_slab *s = &p->slabs[request->slab];

	s->granting = false;
	s->owner->ops->granted(s->owner, request, NULL);
}

enum wire_status pool_check(const struct pool *p, const struct borrower *b, struct wire_loan loan)
{
	const struct lend_slab *s = loan.slab < p->count ? &p->slabs[loan.slab] : NULL;

	if (!s || s->owner != b)
		return WIRE_NO_SLAB;
	if (s->state != LEND_LENT)
		return s->revoked && s->generation == loan.generation ? WIRE_STALE : WIRE_NO_SLAB;
	return s->generation == loan.generation ? WIRE_OK : WIRE_STALE;
}

void pool_back(struct pool *p, uint32_t slab, bool backed)
{
	p->slabs[slab].backed = backed;
}

enum wire_status pool_return(struct pool *p, struct borrower *b, struct wire_loan loan)
{
	enum wire_status st = pool_check(p, b, loan);

	if (st == WIRE_OK)
		end_loan(p, loan.slab);
	return st;
}

uint32_t pool_take_over(struct pool *p, struct borrower *from, struct borrower *to)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];

		if (s->owner != from || (s->state != LEND_LENT && !s->revoked))
			continue;
		s->owner = to;
		if (s->state != LEND_LENT)
			continue;
		from->lent--;
		to->lent++;
		s->unclaimed = true;
		/* The old connection does not answer any more. */
		if (s->asked == LEND_ASKED)
			s->asked = LEND_TO_ASK;
		n++;
	}
	return n;
}

uint32_t pool_return_rest(struct pool *p, struct borrower *b)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		if (p->slabs[i].owner != b || p->slabs[i].state != LEND_LENT ||
		    !p->slabs[i].unclaimed)
			continue;
		end_loan(p, i);
		n++;
	}
	return n;
}

uint32_t pool_owned(const struct pool *p, const struct borrower *b)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++)
		n += pool_holds(&p->slabs[i]) && p->slabs[i].owner == b;
	return n;
}

void pool_revoke(struct pool *p, uint32_t slab, uint64_t now)
{
	struct lend_slab *s = &p->slabs[slab];

	s->revoked = true;
	s->revoked_at = now;
	s->mapped = s->handed && !s->owner->away;
	s->untold = s->owner->hears_revoked && !s->owner->away;
	end_loan(p, slab);
}

void pool_unmapped(struct pool *p, uint32_t slab)
{
	p->slabs[slab].mapped = false;
}

void pool_withdraw(struct pool *p, uint32_t slab)
{
	set_state(p, &p->slabs[slab], LEND_WITHDRAWN);
}

void pool_asked(struct pool *p, uint32_t slab, enum lend_asked asked, uint64_t now)
{
	struct lend_slab *s = &p->slabs[slab];

	if (s->asked == LEND_NOT_ASKED)
		s->asked_at = now;
	if (asked != LEND_TO_ASK)
		s->answered_at = now;
	s->asked = (uint8_t)asked;
}

enum wire_status pool_access(struct pool *p, const struct borrower *b, const struct wire_frame *f,
			     void **memory)
{
	enum wire_status st = pool_check(p, b, (struct wire_loan){ f->slab, f->generation });

	if (st != WIRE_OK)
		return st;
	if ((uint64_t)f->offset + f->length > p->slab_size)
		return WIRE_BAD_RANGE;
	*memory = pool_memory(p, f->slab) + f->offset;
	return WIRE_OK;
}

int pool_hand_over(struct pool *p, uint32_t slab)
{
	p->slabs[slab].handed = true;
	return p->slabs[slab].fd;
}

void pool_pin(struct pool *p, uint32_t slab)
{
	p->slabs[slab].pins++;
}

void pool_unpin(struct pool *p, uint32_t slab)
{
	p->slabs[slab].pins--;
}

bool pool_zero_some(struct pool *p, enum lend_return handed)
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
