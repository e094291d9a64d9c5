// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ebbdsm.h"

/* Posts that are not complete when a call waits for one. */
#define POSTS_MOST 32u

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of donors are little-endian");
static_assert(sizeof(struct dsm_head) == 32, "a header");

/* A request that no call waits for. */
struct post {
	struct ebbfar_request q;
	struct post *next; /* of link.later */
	uint8_t bytes[];
};

int link_error(int error)
{
	switch (error) {
	case -ESHUTDOWN:
	case -ETIMEDOUT:
	case -EPROTO:
	case -EACCES: /* of a pool that is not shared, which open refuses */
		return -EIO;
	case -EMFILE:
		return -ENOMEM;
	case -ESRCH:
		return -EIO;
	default:
		return error;
	}
}

/* --- opening ---------------------------------------------------------------------- */

void link_begin(struct link *l)
{
	pthread_mutex_init(&l->lock, NULL);
	bell_begin(&l->bell);
}

static int add_claims(struct link *l);

int link_open(struct link *l, struct ebbdsm_options *options, uint32_t number)
{
	struct ebbfar_options o = {
		.size = sizeof(o), .donor = options->donors[number], .key = options->key,
		.pool = options->pool, .flags = EBBFAR_CREATE | EBBFAR_SHARED,
		.timeout_ms = options->timeout_ms, .resume_ms = options->resume_ms,
	};
	void *memory;
	int r = ebbfar_open(&o, &l->far);

	if (r) {
		memcpy(options->error, o.error, sizeof(o.error));
		return r;
	}
	link_begin(l);
	l->number = number;
	l->donors = options->donor_count;
	l->member = ebbfar_member(l->far);
	pthread_mutex_lock(&l->lock);
	r = add_claims(l);
	pthread_mutex_unlock(&l->lock);
	l->maps = !r && !ebbfar_map(l->far, &l->claims->x, &memory);
	return r;
}

static void drain(struct link *l, uint32_t most);

static struct post *take_later(struct link *l)
{
	struct post *p = __atomic_exchange_n(&l->later, NULL, __ATOMIC_ACQUIRE), *first = NULL;

	while (p) {
		struct post *next = p->next;

		p->next = first;
		first = p;
		p = next;
	}
	return first;
}

void link_close(struct link *l)
{
	if (!l->far)
		return;
	/* The donor frees this process's memory. */
	for (struct post *p = take_later(l), *next; p; p = next) {
		next = p->next;
		free(p);
	}
	/* Those at a lost donor complete, too. */
	drain(l, 0);
	ebbfar_close(l->far);
	bell_end(&l->bell);
	pthread_mutex_destroy(&l->lock);
	while (l->claims) {
		struct link_claims *next = l->claims->next;

		free(l->claims);
		l->claims = next;
	}
	l->far = NULL;
}

/* --- batches ---------------------------------------------------------------------- */

/* Takes a complete request, waiting up to @ms.  Returns 0, or why there is none. */
static int take_one(struct link *l, int ms)
{
	struct ebbfar_request *q;
	int r = ebbfar_complete(l->far, ms, &q);

	if (r)
		return r;
	if (!q->data) {
		l->posted--;
		free(q);
		return 0;
	}
	--*(uint32_t *)q->data;
	return 0;
}

/* Completes posts until at most @most are left. */
static void drain(struct link *l, uint32_t most)
{
	while (l->posted > most && !take_one(l, -1))
		;
}

static void send_later(struct link *l);

static int submit(struct link *l, struct ebbfar_request *q, uint32_t n)
{
	uint32_t left = n;
	int r;

	send_later(l);
	for (uint32_t i = 0; i < n; i++)
		q[i].data = &left;
	r = ebbfar_submit(l->far, q, n);
	if (r)
		return r;
	l->requests += l->maps ? 0 : n;
	l->round_trips += !l->maps;
	while (left && !r)
		r = take_one(l, -1);
	for (uint32_t i = 0; i < n && !r; i++)
		r = q[i].result;
	return r;
}

int link_submit(struct link *l, struct ebbfar_request *q, uint32_t n)
{
	int r;

	pthread_mutex_lock(&l->lock);
	r = submit(l, q, n);
	pthread_mutex_unlock(&l->lock);
	return r;
}

static struct post *post_new(uint32_t op, const struct ebbfar_extent *x, uint32_t offset,
			     size_t bytes)
{
	struct post *p = calloc(1, sizeof(*p) + bytes);

	if (p)
		p->q = (struct ebbfar_request){ .op = op, .extent = *x, .offset = offset,
						.memory = p->bytes, .size = bytes };
	return p;
}

/* With the lock held.  The request is sent now or with the next one. */
static void post(struct link *l, struct post *p)
{
	if (ebbfar_submit(l->far, &p->q, 1)) {
		free(p);
		return;
	}
	l->posted++;
	l->posts += !l->maps;
	if (l->maps)
		drain(l, 0);
	else if (l->posted > POSTS_MOST)
		drain(l, POSTS_MOST / 2);
}

/* With the lock held. */
static void send_later(struct link *l)
{
	struct post *p = __atomic_load_n(&l->later, __ATOMIC_RELAXED) ? take_later(l) : NULL;

	while (p) {
		struct post *next = p->next;

		post(l, p);
		p = next;
	}
}

/* --- verbs ------------------------------------------------------------------------ */

struct batch {
	struct ebbfar_request q[DSM_PARTS];
	uint64_t stamps[DSM_PARTS][2];
	uint64_t *swapped; /* where the result of the swap belongs */
};

static void describe(struct ebbfar_request *q, uint32_t op, const struct ebbfar_extent *x,
		   uint32_t offset, void *memory, size_t size)
{
	q->op = op;
	q->extent = *x;
	q->offset = offset;
	q->memory = memory;
	q->size = size;
}

/* Makes a request of a part, at @twin unless that is NULL.  Returns 0, or -EINVAL. */
static int request_of(struct link *l, const struct dsm_part *part, struct dsm_op *op,
		      struct content *c, const struct ebbfar_extent *twin, uint64_t *stamp,
		      struct ebbfar_request *q)
{
	struct ebbfar_extent x;
	struct name n;
	uint32_t offset;

	if (part->kind == DSM_CLAIM || part->kind == DSM_RECORD) {
		name_of_claim(part->at, 0, &x, &offset);
		describe(q, part->kind == DSM_CLAIM ? EBBFAR_WRITE : EBBFAR_READ, &x, offset,
		       part->kind == DSM_CLAIM ? &op->mine : &op->other, sizeof(op->mine));
		return 0;
	}
	if (!name_parse(part->at, 0, l->donors, &n) || (!twin && n.donor != l->number))
		return -EINVAL;
	if (twin)
		n.x = *twin;
	switch (part->kind) {
	case DSM_READ:
		describe(q, EBBFAR_READ, &n.x, n.offset, &c->head, n.bytes);
		break;
	case DSM_HEADER:
		describe(q, EBBFAR_READ, &n.x, n.offset, &op->after, DSM_HEAD);
		break;
	case DSM_STAMP:
		stamp[0] = part->desired;
		stamp[1] = dsm_check(part->at, part->desired);
		describe(q, EBBFAR_WRITE, &n.x, n.offset, stamp, 2 * sizeof(*stamp));
		break;
	case DSM_FILL:
		describe(q, EBBFAR_WRITE, &n.x, n.offset + DSM_HEAD, c->bytes, c->head.size);
		break;
	case DSM_WHOLE:
		describe(q, EBBFAR_WRITE, &n.x, n.offset + offsetof(struct dsm_head, size),
			 &c->head.size, DSM_HEAD - offsetof(struct dsm_head, size) + c->head.size);
		break;
	default: /* DSM_SWAP */
		q->op = EBBFAR_CAS;
		q->extent = n.x;
		q->offset = n.offset + offsetof(struct dsm_head, hold);
		q->expect = part->expect;
		q->desired = part->desired;
		break;
	}
	return 0;
}

static int execute(struct link *l, const struct dsm_verb *v, struct dsm_op *op, struct content *c,
		   const struct ebbfar_extent *twin)
{
	struct batch b = { 0 };
	int r = 0;

	for (uint32_t i = 0; i < v->parts && !r; i++)
		r = request_of(l, &v->part[i], op, c, twin, b.stamps[i], &b.q[i]);
	if (r)
		return r;
	pthread_mutex_lock(&l->lock);
	r = submit(l, b.q, v->parts);
	pthread_mutex_unlock(&l->lock);
	for (uint32_t i = 0; i < v->parts && !r; i++)
		if (b.q[i].op == EBBFAR_CAS)
			op->old = b.q[i].old;
		else if (v->part[i].kind == DSM_READ)
			op->head = c->head;
	return r;
}

/* Returns 1 if @member has the extent under that name, 0 or -errno. */
static int has_extent(struct link *l, uint32_t member, const struct ebbfar_extent *x)
{
	int r = ebbfar_check(l->far, member, x);

	l->round_trips += !l->maps;
	return r == -ESTALE ? 0 : r ?: 1;
}

int link_has(struct link *l, uint32_t member, const struct ebbfar_extent *x)
{
	int r;

	pthread_mutex_lock(&l->lock);
	r = has_extent(l, member, x);
	pthread_mutex_unlock(&l->lock);
	return r < 0 ? link_error(r) : r;
}

int link_owner(struct link *l, uint64_t at, uint64_t stamp, enum link_owner *owner)
{
	struct name n;
	int r;

	if (!name_parse(at, dsm_generation(stamp), l->donors, &n) || n.donor != l->number)
		return -EINVAL;
	pthread_mutex_lock(&l->lock);
	r = has_extent(l, n.member, &n.x);
	*owner = r > 0 ? LINK_OWNS : LINK_DEAD;
	/* It may have freed the extent.  A doorbell tells whether there is such a member. */
	if (!r) {
		r = n.member == l->member ? 0 : ebbfar_notify(l->far, n.member, 0);
		l->round_trips += !l->maps;
		*owner = r == -ESRCH ? LINK_DEAD : LINK_ALIVE;
		r = r == -ESRCH ? 0 : r;
	}
	pthread_mutex_unlock(&l->lock);
	return r < 0 ? link_error(r) : 0;
}

int link_claim_lives(struct link *l, uint64_t claim, uint64_t generation)
{
	struct ebbfar_extent x;
	uint32_t offset, member = name_of_claim(claim, generation, &x, &offset);
	int r;

	pthread_mutex_lock(&l->lock);
	r = has_extent(l, member, &x);
	pthread_mutex_unlock(&l->lock);
	/* What a dead member's memory has now may be no name at all. */
	return r == -EINVAL ? 0 : r;
}

int link_notify(struct link *l, uint32_t member)
{
	int r;

	pthread_mutex_lock(&l->lock);
	r = ebbfar_notify(l->far, member, 0);
	l->round_trips++;
	pthread_mutex_unlock(&l->lock);
	return r;
}

int link_ring(struct link *l)
{
	return bell_ring(&l->bell) ? link_notify(l, l->member) : 0;
}

int link_run_at(struct link *l, struct dsm_op *op, struct content *content,
		const struct ebbfar_extent *x)
{
	struct dsm_verb v = dsm_next(op, 0);

	while (v.kind != DSM_ENDED) {
		enum link_owner owner = LINK_DEAD;
		int r;

		if (v.kind == DSM_EXECUTE)
			r = execute(l, &v, op, content, x);
		else if (v.kind == DSM_ALIVE)
			r = link_owner(l, v.at, v.generation << DSM_GENERATION_SHIFT, &owner) ?:
				    owner != LINK_DEAD;
		else
			r = link_claim_lives(l, v.at, v.generation);
		if (r < 0)
			return link_error(r);
		v = dsm_next(op, r);
	}
	return op->result;
}

int link_run(struct link *l, struct dsm_op *op, struct content *content)
{
	return link_run_at(l, op, content, NULL);
}

bool link_is_lost(const struct link *l)
{
	return *ebbfar_why(l->far);
}

/* --- own memory ------------------------------------------------------------------- */

int link_write(struct link *l, uint64_t at, const struct content *from, size_t bytes)
{
	struct ebbfar_request q = { .op = EBBFAR_WRITE, .memory = (void *)from, .size = bytes };
	struct name n;
	int r;

	if (!name_parse(at, 0, l->donors, &n))
		return -EINVAL;
	q.extent = n.x;
	q.offset = n.offset;
	pthread_mutex_lock(&l->lock);
	r = submit(l, &q, 1);
	pthread_mutex_unlock(&l->lock);
	return link_error(r);
}

int link_zero(struct link *l, const struct ebbfar_extent *x, uint32_t offset, size_t bytes)
{
	return link_post(l, x, offset, NULL, bytes);
}

int link_post(struct link *l, const struct ebbfar_extent *x, uint32_t offset, const void *from,
	      size_t bytes)
{
	struct post *p = post_new(EBBFAR_WRITE, x, offset, bytes);

	if (!p)
		return -ENOMEM;
	if (from)
		memcpy(p->bytes, from, bytes);
	pthread_mutex_lock(&l->lock);
	send_later(l);
	post(l, p);
	pthread_mutex_unlock(&l->lock);
	return 0;
}

int link_later(struct link *l, uint32_t op, const struct ebbfar_extent *x, uint32_t offset,
	       const void *from, size_t bytes)
{
	struct post *p = post_new(op, x, offset, bytes);

	if (!p)
		return -ENOMEM;
	if (from)
		memcpy(p->bytes, from, bytes);
	p->next = __atomic_load_n(&l->later, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&l->later, &p->next, p, true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
	return 0;
}

void link_flush(struct link *l)
{
	pthread_mutex_lock(&l->lock);
	send_later(l);
	pthread_mutex_unlock(&l->lock);
}

void link_free(struct link *l, const struct ebbfar_extent *x)
{
	struct post *p = post_new(EBBFAR_FREE, x, 0, 0);

	pthread_mutex_lock(&l->lock);
	/* Without memory it is freed when this process leaves. */
	if (p)
		post(l, p);
	pthread_mutex_unlock(&l->lock);
}

/* --- claims ----------------------------------------------------------------------- */

/* With the lock held: adds an extent of claims, which are zero. */
static int add_claims(struct link *l)
{
	struct link_claims *c = calloc(1, sizeof(*c));
	int r = c ? ebbfar_alloc(l->far, NAME_CLAIMS, &c->x) : -ENOMEM;
	struct post *p = r ? NULL : post_new(EBBFAR_WRITE, &c->x, 0, NAME_CLAIMS);

	if (!p) {
		if (!r)
			ebbfar_free(l->far, &c->x);
		free(c);
		return r == -EAGAIN ? -ENOSPC : r ?: -ENOMEM;
	}
	post(l, p);
	c->next = l->claims;
	l->claims = c;
	l->claim_extents++;
	return 0;
}

/* With the lock held: returns a claim that is not used, or 0. */
static uint64_t unused_claim(struct link *l, uint64_t *generation)
{
	for (struct link_claims *c = l->claims; c; c = c->next)
		for (uint32_t i = 0; i < LINK_CLAIMS / 64; i++) {
			uint32_t bit;

			if (!~c->used[i])
				continue;
			bit = (uint32_t)__builtin_ctzll(~c->used[i]);
			c->used[i] |= 1ull << bit;
			*generation = c->x.generation;
			return name_claim(l->member, &c->x, (i * 64 + bit) *
					  (uint32_t)sizeof(struct dsm_record));
		}
	return 0;
}

int link_claim(struct link *l, uint64_t *claim, uint64_t *generation)
{
	int r = 0;

	pthread_mutex_lock(&l->lock);
	*claim = unused_claim(l, generation);
	if (!*claim)
		r = l->claim_extents < LINK_CLAIM_EXTENTS ? add_claims(l) : -ENOBUFS;
	if (!*claim && !r)
		*claim = unused_claim(l, generation);
	pthread_mutex_unlock(&l->lock);
	return link_error(r);
}

/* With the lock held: the extent of a claim. */
static struct link_claims *claims_of(const struct link *l, uint64_t claim)
{
	struct link_claims *c = l->claims;
	struct ebbfar_extent x;
	uint32_t offset;

	name_of_claim(claim, 0, &x, &offset);
	while (c->x.place != x.place)
		c = c->next;
	return c;
}

uint64_t link_claim_generation(struct link *l, uint64_t claim)
{
	uint64_t generation;

	pthread_mutex_lock(&l->lock);
	generation = claims_of(l, claim)->x.generation;
	pthread_mutex_unlock(&l->lock);
	return generation;
}

/* With the lock held.  What is posted takes effect before the record's next use. */
static void clear_claim(struct link *l, uint64_t claim)
{
	struct ebbfar_extent x;
	struct post *p;
	uint32_t offset, n;

	name_of_claim(claim, 0, &x, &offset);
	p = post_new(EBBFAR_WRITE, &x, offset, sizeof(struct dsm_record));
	/* Without memory the claim stays in use. */
	if (!p)
		return;
	post(l, p);
	n = offset / (uint32_t)sizeof(struct dsm_record);
	claims_of(l, claim)->used[n / 64] &= ~(1ull << n % 64);
}

void link_unclaim(struct link *l, uint64_t claim)
{
	pthread_mutex_lock(&l->lock);
	clear_claim(l, claim);
	pthread_mutex_unlock(&l->lock);
}

void link_finish(struct link *l, uint64_t at, uint64_t claim)
{
	struct dsm_op op;
	struct dsm_verb v;
	struct post *p = NULL;
	struct name n;

	dsm_finish(&op, at, claim);
	v = dsm_next(&op, 0);
	pthread_mutex_lock(&l->lock);
	if (name_parse(at, 0, l->donors, &n))
		p = post_new(EBBFAR_CAS, &n.x, n.offset + offsetof(struct dsm_head, hold), 0);
	/* Without memory the giver frees the place when this process has left. */
	if (p) {
		p->q.expect = v.part[0].expect;
		p->q.desired = v.part[0].desired;
		post(l, p);
		clear_claim(l, claim);
	}
	pthread_mutex_unlock(&l->lock);
}

int link_settle(struct link *l)
{
	uint32_t member;
	uint64_t word;
	int r = ebbfar_wait(l->far, 0, &member, &word);

	/* Another thread may be waiting for that word. */
	if (!r)
		r = link_ring(l);
	pthread_mutex_lock(&l->lock);
	send_later(l);
	while (l->posted && !take_one(l, 0))
		;
	pthread_mutex_unlock(&l->lock);
	return r == -EAGAIN || !r ? 0 : link_error(r);
}
