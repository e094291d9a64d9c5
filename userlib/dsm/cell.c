// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "cell.h"

#include <stdlib.h>
#include <string.h>

/* How often a sleeper looks whether the process that it waits for is alive. */
#define LOOK_MS 500
/* How long a thread waits for a turn at most while others come and take it. */
#define FAIR_MS 1

/* Of the entry word of a member: its claim with, around it, the lowest bits of its generation. */
#define CLAIM_BITS 0x0003fffffffffff0ull
#define CLAIM_TOP 50

/* Words of a cell that a mutex guards, and what a verb takes without a request for each. */
#define GUARDED_WORDS (EBBDSM_GUARDED_MOST / 8 + 8)
#define REQUESTS (SYNC_PARTS + 1)

struct cells {
	struct queue all;
	pthread_cond_t turned;
	uint64_t entry[EBBDSM_DONORS]; /* this process's word in entries at each donor; 0 = none */
};

int64_t cell_until(int timeout_ms)
{
	return timeout_ms < 0 ? INT64_MAX : bell_now() + timeout_ms;
}

/* --- words ------------------------------------------------------------------------ */

/* What word @i is stored plus. */
static uint64_t mask_of(enum cell_kind kind, uint64_t at, uint64_t stamp, uint32_t i)
{
	return dsm_check(at + ((uint64_t)i << 32 | i), stamp ^ (0x63656c6c73ull + kind) << 20);
}

static bool is_cell(const struct dsm_head *h, uint64_t at, uint64_t stamp)
{
	return h->stamp == stamp && h->check == dsm_check(at, stamp);
}

/* The place has not the cell's header: says why. */
static int gone(struct link *l, uint64_t at, uint64_t stamp, const struct dsm_head *h)
{
	enum link_owner owner;
	int r;

	/* The extent is still the same allocation: its owner has dropped the cell. */
	if (h->stamp && h->check == dsm_check(at, h->stamp) &&
	    dsm_generation(h->stamp) == dsm_generation(stamp))
		return -ESTALE;
	r = link_owner(l, at, stamp, &owner);
	return r ?: owner == LINK_DEAD ? -EOWNERDEAD : -ESTALE;
}

static uint32_t word_offset(const struct name *n, uint32_t i)
{
	return n->offset + (uint32_t)DSM_HEAD + 8 * i;
}

/* --- own cells -------------------------------------------------------------------- */

int cell_make(ebbdsm_t *dsm, enum cell_kind kind, const uint64_t *words, uint32_t n, uint64_t *at,
	      uint64_t *stamp)
{
	size_t size = (size_t)n * 8;
	struct content *c = aligned_alloc(16, DSM_HEAD + ((size + 15) & ~(size_t)15)), *memory;
	uint64_t *stored = c ? (uint64_t *)c->bytes : NULL;
	struct slot *slot;
	uint64_t place;
	int r = c ? dsm_place(dsm, size, &place, &slot) : -ENOMEM;

	if (r) {
		free(c);
		return r;
	}
	slot->stamp = heap_stamp(&dsm->heap, place);
	for (uint32_t i = 0; i < n; i++)
		stored[i] = words[i] + mask_of(kind, place, slot->stamp, i);
	size |= (uint64_t)kind << 32;
	memory = heap_memory(&dsm->heap, place);
	if (memory) {
		memcpy(memory->bytes, stored, (size_t)n * 8);
		dsm_publish(memory, place, slot->stamp, size, 0);
	} else {
		dsm_publish(c, place, slot->stamp, size, 0);
		dsm_leave(dsm, 0);
		r = link_write(dsm->home, place, c, DSM_HEAD + (size_t)n * 8);
		dsm_enter(dsm);
	}
	free(c);
	if (r) {
		heap_free(&dsm->heap, place);
		return r;
	}
	slot->state = SLOT_CELL;
	slot->ticket = kind;
	*at = place;
	*stamp = slot->stamp;
	return 0;
}

/* --- those in use ----------------------------------------------------------------- */

struct cell *cell_find(ebbdsm_t *dsm, uint64_t at, uint64_t stamp)
{
	struct cell *c = dsm->cells ? (struct cell *)queue_find(&dsm->cells->all, at) : NULL;

	while (c && (c->at != at || c->stamp != stamp))
		c = (struct cell *)c->entry.chain;
	return c;
}

void cells_begin(struct cells *cells)
{
	if (cells)
		pthread_cond_init(&cells->turned, NULL);
}

static int make_table(ebbdsm_t *dsm)
{
	if (dsm->cells)
		return 0;
	dsm->cells = calloc(1, sizeof(*dsm->cells));
	if (!dsm->cells)
		return -ENOMEM;
	cells_begin(dsm->cells);
	return 0;
}

static void discard(struct cell *c)
{
	free(c->before);
	free(c->content);
	free(c->requests);
	free(c);
}

static void forget(ebbdsm_t *dsm, struct cell *c)
{
	queue_remove(&dsm->cells->all, &c->entry);
	discard(c);
}

void cells_end(struct cells *cells)
{
	if (!cells)
		return;
	while (cells->all.first) {
		struct cell *c = (struct cell *)cells->all.first;

		queue_remove(&cells->all, &c->entry);
		discard(c);
	}
	queue_end(&cells->all);
	pthread_cond_destroy(&cells->turned);
	free(cells);
}

int cell_begin(ebbdsm_t *dsm, enum cell_kind kind, uint64_t at, uint64_t stamp, struct cell **cell)
{
	struct cell *c = cell_find(dsm, at, stamp);
	struct name n;
	int r = make_table(dsm);

	if (r)
		return r;
	if (!c) {
		if (!stamp || !name_parse(at, 0, dsm->donors, &n) || n.bytes <= DSM_HEAD)
			return -EINVAL;
		c = calloc(1, sizeof(*c));
		if (!c)
			return -ENOMEM;
		*c = (struct cell){ .entry.key = at, .at = at, .stamp = stamp,
				    .link = &dsm->link[n.donor], .kind = kind,
				    .space = (n.bytes - (uint32_t)DSM_HEAD) / 8 };
		queue_add(&dsm->cells->all, &c->entry, dsm->turn);
	}
	if (c->kind != kind)
		return -EINVAL;
	c->calls++;
	*cell = c;
	return 0;
}

struct cell *cell_next_forgotten(ebbdsm_t *dsm, uint32_t turn)
{
	struct cell *c = NULL;

	while (dsm->cells &&
	       (c = (struct cell *)queue_next(&dsm->cells->all, turn, dsm->turn)) && !c->forgotten)
		;
	return c;
}

void cell_end(ebbdsm_t *dsm, struct cell *c)
{
	c->calls--;
	/* Others keep their entry, what is locked, or references. */
	if (!c->calls && !c->joined && !c->references && !c->value_at)
		forget(dsm, c);
}

int cell_drop(ebbdsm_t *dsm, uint64_t at, uint64_t stamp)
{
	const struct ebbdsm_box box = { at, stamp };
	struct cell *c = cell_find(dsm, at, stamp);
	struct slot *slot;
	int r = dsm_own(dsm, &box, &slot);

	if (!r && slot->state != SLOT_CELL)
		r = -ESTALE;
	if (!r && c && (c->calls || c->locked))
		r = -EBUSY;
	if (r)
		return r;
	if (c)
		forget(dsm, c);
	heap_free(&dsm->heap, at);
	return 0;
}

struct cell_waiter {
	struct cell_waiter *next;
	int64_t since;
	bool has_turn;
};

/* @w waits no longer. */
static void unqueue(struct cell_turn *t, const struct cell_waiter *w)
{
	struct cell_waiter **at = &t->first;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

static void wait_for_turn(ebbdsm_t *dsm, int64_t until)
{
	const struct timespec end = { .tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000 };

	if (until == INT64_MAX)
		pthread_cond_wait(&dsm->cells->turned, &dsm->lock);
	else
		pthread_cond_clockwait(&dsm->cells->turned, &dsm->lock, CLOCK_MONOTONIC, &end);
}

int cell_turn(ebbdsm_t *dsm, struct cell_turn *t, int64_t until)
{
	struct cell_waiter me = { .since = bell_now() }, **at = &t->first;

	if (!t->taken) {
		t->taken = true;
		return 0;
	}
	while (*at)
		at = &(*at)->next;
	*at = &me;
	while (!me.has_turn && (t->taken || t->first != &me)) {
		if (until <= bell_now()) {
			unqueue(t, &me);
			return -EAGAIN;
		}
		wait_for_turn(dsm, until);
	}
	if (!me.has_turn)
		unqueue(t, &me);
	t->taken = true;
	return 0;
}

void cell_pass(ebbdsm_t *dsm, struct cell_turn *t)
{
	struct cell_waiter *w = t->first;

	t->taken = w && bell_now() - w->since >= FAIR_MS;
	if (t->taken) {
		w->has_turn = true;
		unqueue(t, w);
	}
	if (w)
		pthread_cond_broadcast(&dsm->cells->turned);
}

/* --- members ---------------------------------------------------------------------- */

static uint64_t entry_of(uint64_t claim, uint64_t generation)
{
	return claim | (generation & 15) | generation >> 4 << CLAIM_TOP;
}

/* Returns the check word of the record that a member keeps for its entries. */
static uint64_t record_check(uint64_t claim, uint64_t generation)
{
	return dsm_check(claim, generation << DSM_GENERATION_SHIFT);
}

static int access_record(struct link *l, uint64_t claim, uint32_t op, struct dsm_record *record)
{
	struct ebbfar_request q = { .op = op, .memory = record, .size = sizeof(*record) };
	uint32_t offset;

	name_of_claim(claim, 0, &q.extent, &offset);
	q.offset = offset;
	return link_submit(l, &q, 1);
}

int cell_own_entry(ebbdsm_t *dsm, struct link *l, uint64_t *entry)
{
	struct dsm_record record = { 0 };
	uint64_t *at, claim = 0;
	int r = make_table(dsm);

	if (r)
		return r;
	at = &dsm->cells->entry[l->number];
	if (!*at) {
		dsm_leave(dsm, 0);
		r = link_claim(l, &claim, &record.generation);
		if (!r) {
			record.ticket = record_check(claim, record.generation);
			r = link_error(access_record(l, claim, EBBFAR_WRITE, &record));
		}
		dsm_enter(dsm);
	}
	/* Unless another thread has made one. */
	if (claim && !r && !*at) {
		*at = entry_of(claim, record.generation);
		claim = 0;
	}
	*entry = *at;
	if (claim) {
		dsm_leave(dsm, 0);
		link_unclaim(l, claim);
		dsm_enter(dsm);
	}
	return r;
}

int cell_is_alive(struct link *l, uint64_t entry)
{
	uint64_t claim = entry & CLAIM_BITS;
	struct dsm_record record;
	int r;

	if (!entry)
		return 0;
	r = access_record(l, claim, EBBFAR_READ, &record);
	/* What a dead member's memory has now may be no extent that can be read. */
	if (r == -EINVAL)
		return 0;
	if (r)
		return link_error(r);
	if (record.ticket != record_check(claim, record.generation) ||
	    entry_of(claim, record.generation) != entry)
		return 0;
	r = link_claim_lives(l, claim, record.generation);
	return r < 0 ? link_error(r) : r;
}

int cell_ring(struct link *l, uint64_t entry)
{
	struct ebbfar_extent x;
	uint32_t offset, member = name_of_claim(entry & CLAIM_BITS, 0, &x, &offset);
	int r;

	if (!entry)
		return 0;
	r = member == l->member ? link_ring(l) : link_notify(l, member);
	return r == -ESRCH ? 0 : link_error(r);
}

void cell_ended(struct cell *c, int r)
{
	if (r == -ESTALE || r == -ENOTRECOVERABLE)
		c->joined = c->entered = false;
}

int cell_join(ebbdsm_t *dsm, struct cell *c)
{
	struct sync_op op;
	uint64_t me;
	size_t bytes;
	int r = c->joined ? 0 : cell_own_entry(dsm, c->link, &me);

	if (r || c->joined)
		return r;
	if (c->space < SYNC_CONTENT || c->space > SYNC_CONTENT + GUARDED_WORDS)
		return -EINVAL;
	bytes = ((c->space - SYNC_CONTENT) * 8u + 16) & ~15u;
	if (!c->before)
		c->before = aligned_alloc(16, bytes);
	if (!c->content)
		c->content = aligned_alloc(16, bytes);
	/* Now: an unlock has to succeed. */
	if (!c->requests)
		c->requests = calloc(c->space - SYNC_CONTENT + REQUESTS, sizeof(*c->requests));
	if (!c->before || !c->content || !c->requests)
		return -ENOMEM;
	sync_join(&op, me);
	dsm_leave(dsm, 0);
	r = cell_run(c, &op, INT64_MAX);
	dsm_enter(dsm);
	if (r)
		return r;
	c->user = op.user;
	c->me = me;
	c->state = op.word;
	c->joined = true;
	return 0;
}

/* --- execution -------------------------------------------------------------------- */

/* Requests of a verb, and where their results belong. */
struct batch {
	struct ebbfar_request *q, few[REQUESTS];
	uint32_t n;
	struct name name;
	struct dsm_head head; /* read last */
	uint32_t swapped;     /* request of the swap */
};

static struct ebbfar_request *add(struct batch *b, uint32_t op, uint32_t word, void *memory,
				  size_t size)
{
	struct ebbfar_request *q = &b->q[b->n++];

	*q = (struct ebbfar_request){ .op = op, .extent = b->name.x,
				      .offset = word_offset(&b->name, word), .memory = memory,
				      .size = size };
	return q;
}

static uint64_t mask_in(const struct cell *c, uint32_t i)
{
	return mask_of(c->kind, c->at, c->stamp, i);
}

static void add_swap(struct batch *b, const struct cell *c, uint32_t word, uint64_t expect,
		     uint64_t desired)
{
	uint64_t mask = mask_in(c, word);
	struct ebbfar_request *q = add(b, EBBFAR_CAS, word, NULL, 8);

	q->expect = expect + mask;
	q->desired = desired + mask;
}

/* Words that have changed, in ascending order: a channel's last word makes the rest valid. */
static void add_changes(struct batch *b, const struct cell *c)
{
	for (uint32_t i = 0; i < c->words - SYNC_CONTENT; i++)
		if (c->content[i] != c->before[i])
			add_swap(b, c, SYNC_CONTENT + i, c->before[i], c->content[i]);
}

static void add_part(struct batch *b, const struct cell *c, const struct sync_part *part,
		     struct sync_op *op)
{
	switch (part->kind) {
	case SYNC_SWAP:
		b->swapped = b->n;
		add_swap(b, c, part->word, part->expect, part->desired);
		break;
	case SYNC_READ:
		add(b, EBBFAR_READ, part->word, &op->seen[part->word], 8ul * part->count);
		break;
	case SYNC_FETCH:
		if (c->words > SYNC_CONTENT)
			add(b, EBBFAR_READ, SYNC_CONTENT, c->before,
			    8ul * (c->words - SYNC_CONTENT));
		break;
	case SYNC_STORE:
		add_changes(b, c);
		break;
	}
}

/* Takes the masks off what the parts have read. */
static void unmask(const struct cell *c, const struct sync_verb *v, const struct batch *b,
		   struct sync_op *op)
{
	for (uint32_t k = 0; k < v->parts; k++) {
		const struct sync_part *p = &v->part[k];

		if (p->kind == SYNC_SWAP)
			op->old = b->q[b->swapped].old - mask_in(c, p->word);
		for (uint32_t i = 0; p->kind == SYNC_READ && i < p->count; i++)
			op->seen[p->word + i] -= mask_in(c, p->word + i);
		for (uint32_t i = SYNC_CONTENT; p->kind == SYNC_FETCH && i < c->words; i++)
			c->before[i - SYNC_CONTENT] -= mask_in(c, i);
	}
}

static int check_head(struct cell *c, const struct dsm_head *h)
{
	uint64_t words = (h->size & UINT32_MAX) / 8;

	if (!is_cell(h, c->at, c->stamp))
		return gone(c->link, c->at, c->stamp, h);
	if (h->size >> 32 != c->kind || words < SYNC_CONTENT || words > c->space)
		return -EINVAL;
	c->words = (uint32_t)words;
	return 0;
}

static int execute(struct cell *c, const struct sync_verb *v, struct sync_op *op)
{
	struct batch b = { .q = c->requests ?: b.few };
	struct ebbfar_request *q;
	int r;

	name_parse(c->at, 0, EBBDSM_DONORS, &b.name);
	for (uint32_t i = 0; i < v->parts; i++)
		add_part(&b, c, &v->part[i], op);
	/* Last: then all was done in the cell's life. */
	q = add(&b, EBBFAR_READ, 0, &b.head, DSM_HEAD);
	q->offset = b.name.offset;
	r = link_error(link_submit(c->link, b.q, b.n));
	if (!r)
		r = check_head(c, &b.head);
	/* Of a lock, the other one is no failure. */
	if (r == -EOWNERDEAD)
		r = -ENOTRECOVERABLE;
	if (!r)
		unmask(c, v, &b, op);
	return r;
}

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int cell_check(const struct cell *c)
{
	enum link_owner owner;
	int r = link_owner(c->link, c->at, c->stamp, &owner);

	if (r || owner == LINK_OWNS)
		return r;
	return owner == LINK_DEAD ? -ENOTRECOVERABLE : -ESTALE;
}

/* Returns an enum sync_wake, or a negative errno. */
static int sleep_until(const struct cell *c, uint32_t rings, int64_t *look, int64_t until)
{
	struct link *l = c->link;
	int r = bell_wait(&l->bell, l->far, rings, earlier(*look, until));
	int64_t now = bell_now();

	if (r)
		return link_error(r);
	if (now >= until)
		return SYNC_TIMEOUT;
	if (now < *look)
		return SYNC_RANG;
	*look = now + LOOK_MS;
	/* Its memory stays as it is until it is used again. */
	return cell_check(c) ?: SYNC_LOOK;
}

int cell_run(struct cell *c, struct sync_op *op, int64_t until)
{
	int64_t look = bell_now() + LOOK_MS;
	struct sync_verb v = sync_next(op, 0);
	uint32_t rings = 0;

	while (v.kind != SYNC_ENDED) {
		int r;

		switch (v.kind) {
		case SYNC_EXECUTE:
			rings = bell_rings(&c->link->bell);
			r = execute(c, &v, op);
			break;
		case SYNC_ALIVE:
			r = cell_is_alive(c->link, v.entry);
			break;
		case SYNC_RING:
			r = cell_ring(c->link, v.entry);
			break;
		default: /* SYNC_SLEEP */
			r = sleep_until(c, rings, &look, until);
			break;
		}
		v = sync_next(op, r);
	}
	return op->result;
}

int cell_word(ebbdsm_t *dsm, enum cell_kind kind, uint64_t at, uint64_t stamp, uint32_t i,
	      struct word_op *op)
{
	uint64_t mask = mask_of(kind, at, stamp, i);
	struct ebbfar_request q[2] = { { .op = EBBFAR_READ, .memory = &op->old, .size = 8 } };
	struct dsm_head head;
	struct name n;
	struct link *l;
	int r;

	if (!stamp || !name_parse(at, 0, dsm->donors, &n) || n.bytes <= DSM_HEAD ||
	    i >= (n.bytes - DSM_HEAD) / 8)
		return -EINVAL;
	l = &dsm->link[n.donor];
	q[0].extent = n.x;
	q[0].offset = word_offset(&n, i);
	if (op->kind != WORD_LOAD) {
		q[0].op = op->kind == WORD_SWAP ? EBBFAR_CAS : EBBFAR_ADD;
		q[0].expect = op->expect + mask;
		q[0].desired = op->kind == WORD_SWAP ? op->desired + mask : op->desired;
	}
	q[1] = (struct ebbfar_request){ .op = EBBFAR_READ, .extent = n.x, .offset = n.offset,
					.memory = &head, .size = sizeof(head) };
	r = link_submit(l, q, 2);
	if (r)
		return link_error(r);
	if (!is_cell(&head, at, stamp))
		return gone(l, at, stamp, &head);
	if (head.size >> 32 != kind || i >= (head.size & UINT32_MAX) / 8)
		return -EINVAL;
	op->old = (op->kind == WORD_LOAD ? op->old : q[0].old) - mask;
	return 0;
}
