// SPDX-License-Identifier: GPL-2.0-or-later
#include <poll.h>
#include <stdlib.h>

#include "targets.h"

#define BUCKETS 4096
#define DROPS 64                 /* unused processes that a sweep forgets */

/* A ring whose head is no entry: .next was used last, .previous longest ago. */
struct link {
	struct link *next, *previous;
};

struct known {
	struct target target;    /* first: it is what callers have */
	struct link used;        /* in targets.used */
	struct link open;        /* in targets.open; alone if it has no descriptors */
	struct known *next;      /* in its bucket */
};

struct targets {
	struct collapser *collapser;
	struct link used, open;
	uint32_t n, opened;
	struct known *bucket[BUCKETS];
};

static void link_alone(struct link *l)
{
	l->next = l->previous = l;
}

static bool is_alone(const struct link *l)
{
	return l->next == l;
}

static void link_out(struct link *l)
{
	l->next->previous = l->previous;
	l->previous->next = l->next;
	link_alone(l);
}

/* Makes @l the latest one of the ring @head. */
static void link_first(struct link *head, struct link *l)
{
	link_out(l);
	l->next = head->next;
	l->previous = head;
	head->next->previous = l;
	head->next = l;
}

static struct known *of_used(struct link *l)
{
	return (struct known *)((char *)l - offsetof(struct known, used));
}

static struct known *of_open(struct link *l)
{
	return (struct known *)((char *)l - offsetof(struct known, open));
}

static struct known **bucket_of(struct targets *t, uint32_t tgid)
{
	return &t->bucket[tgid * 0x9e3779b97f4a7c15ULL >> 52];
}
_Static_assert(BUCKETS == 1 << (64 - 52), "the index is what the shift leaves");

static struct known *find(struct targets *t, uint32_t tgid)
{
	struct known *k = *bucket_of(t, tgid);

	while (k && k->target.tgid != tgid)
		k = k->next;
	return k;
}

/* Frees @k, whose descriptors the collapser does not use. */
static void release(struct targets *t, struct known *k)
{
	struct known **at = bucket_of(t, k->target.tgid);

	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
	t->n--;
	t->opened -= !is_alone(&k->open);
	link_out(&k->used);
	link_out(&k->open);
	target_clear(&k->target);
	free(k);
}

/* Closes the descriptors of @k.  During the calls, targets_leave() may free it. */
static void close_target(struct targets *t, struct known *k)
{
	if (is_alone(&k->open))
		return;
	collapser_forget(t->collapser, &k->target);
	target_close(&k->target);
	link_out(&k->open);
	t->opened--;
}

static void forget(struct targets *t, struct known *k)
{
	close_target(t, k);
	release(t, k);
}

struct targets *targets_new(struct collapser *collapser)
{
	struct targets *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->collapser = collapser;
	link_alone(&t->used);
	link_alone(&t->open);
	return t;
}

void targets_free(struct targets **pt)
{
	struct targets *t = *pt;

	while (t && !is_alone(&t->used))
		release(t, of_used(t->used.next));
	free(t);
	*pt = NULL;
}

static struct known *add(struct targets *t, uint32_t tgid, uint32_t exec)
{
	struct known *k;

	if (t->n >= TARGETS_MAX)
		forget(t, of_used(t->used.previous));
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->target = (struct target){ .tgid = tgid, .exec = exec, .pidfd = -1, .pagemap = -1,
				     .maps = -1, .type = UINT32_MAX };
	link_alone(&k->used);
	link_alone(&k->open);
	k->next = *bucket_of(t, tgid);
	*bucket_of(t, tgid) = k;
	t->n++;
	return k;
}

static struct target *use(struct targets *t, struct known *k, uint64_t owner, uint64_t now)
{
	link_first(&t->used, &k->used);
	k->target.owner = owner;
	k->target.used_ns = now;
	return &k->target;
}

struct target *targets_learn(struct targets *t, const struct ebb_memory *m, uint64_t now)
{
	struct known *k = find(t, m->tgid);

	/* It has executed another program, or the number is another process's. */
	if (k && k->target.exec != m->exec) {
		forget(t, k);
		k = NULL;
	}
	if (!k)
		k = add(t, m->tgid, m->exec);
	if (!k)
		return NULL;
	target_learn(&k->target, m);
	k->target.leaf = m->leaf;
	return use(t, k, m->owner, now);
}

struct target *targets_find(struct targets *t, uint32_t tgid, uint32_t exec, uint64_t owner,
			    uint64_t now)
{
	struct known *k = find(t, tgid);

	return k && k->target.exec == exec ? use(t, k, owner, now) : NULL;
}

int targets_open(struct targets *t, struct target *one)
{
	struct known *k = (struct known *)one;
	int r;

	if (is_alone(&k->open)) {
		if (t->opened >= TARGETS_OPEN)
			close_target(t, of_open(t->open.previous));
		r = target_reopen(one);
		if (r) {
			release(t, k);
			return r;
		}
		t->opened++;
	}
	link_first(&t->open, &k->open);
	return 0;
}

/* Forgets the processes with descriptors that have exited. */
static void forget_exited(struct targets *t)
{
	struct pollfd at[TARGETS_OPEN];
	struct known *known[TARGETS_OPEN];
	nfds_t n = 0;

	for (struct link *l = t->open.next; l != &t->open; l = l->next) {
		known[n] = of_open(l);
		at[n] = (struct pollfd){ .fd = known[n]->target.pidfd, .events = POLLIN };
		n++;
	}
	if (poll(at, n, 0) <= 0)
		return;
	for (nfds_t i = 0; i < n; i++)
		if (at[i].revents)
			forget(t, known[i]);
}

void targets_sweep(struct targets *t, uint64_t now)
{
	struct known *k;

	forget_exited(t);
	for (int i = 0; i < DROPS && !is_alone(&t->used); i++) {
		k = of_used(t->used.previous);
		if (k->target.used_ns + TARGETS_UNUSED_NS > now)
			break;
		forget(t, k);
	}
}

void targets_leave(struct targets *t, uint32_t tgid, uint64_t owner)
{
	struct link *l, *before;
	struct known *k;

	for (l = t->used.previous; l != &t->used; l = before) {
		before = l->previous;
		k = of_used(l);
		if (k->target.tgid != tgid && k->target.owner != owner)
			continue;
		collapser_leave(t->collapser, &k->target);
		release(t, k);
	}
}
