// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch_set.h"
#include "program.h"
#include "settings.h"

#define SWEEP_PAGES 512

struct prefetch_set {
	struct prefetch_maps is;
	struct program program;            /* set_batch() */
	uint64_t next[EBB_FILTER_WORDS];   /* the filter that a sweep makes */
	struct ebb_page page[SWEEP_PAGES]; /* scratch of a sweep */
	struct ebb_prefetch value[SWEEP_PAGES];
};

struct prefetch_maps prefetch_set_maps(struct plane *p)
{
	return (struct prefetch_maps){
		.map = plane_map(p, "prefetched"),
		.program = bpf_program__fd(plane_program(p, PLANE_BATCH)),
		.batch = p->batch,
		.filter = p->filter,
	};
}

struct prefetch_set *prefetch_set_new(const struct prefetch_maps *maps)
{
	struct prefetch_set *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->is = *maps;
	s->program = (struct program){ maps->program, "set_batch", "nothing is prefetched", 0 };
	return s;
}

void prefetch_set_free(struct prefetch_set **s)
{
	free(*s);
	*s = NULL;
}

static void filter_add(uint64_t *filter, const struct ebb_page *page)
{
	uint32_t bit = ebb_filter_bit(page->tgid, page->vpn);

	__atomic_fetch_or(&filter[bit / 64], 1ULL << (bit & 63), __ATOMIC_RELEASE);
}

/* Returns what became of each page, or NULL if the call failed: nothing was done to any page. */
static const uint8_t *batch_run(struct prefetch_set *s, enum ebb_batch_op op,
				const struct prefetch_key *key, const uint64_t *vpn, uint32_t n,
				uint64_t now)
{
	struct ebb_batch *b = s->is.batch;

	b->op = op;
	b->owner = key->owner;
	b->tgid = key->tgid;
	b->exec = key->exec;
	b->now_ns = (now & ~EBB_ISSUED_BITS) | key->source;
	if (key->shared)
		b->now_ns |= EBB_ISSUED_SHARED;
	b->n = n;
	memcpy(b->vpn, vpn, n * sizeof(*vpn));
	memset(b->state, EBB_BATCH_FULL, n);
	return program_run(&s->program) ? b->state : NULL;
}

struct prefetch_entered prefetch_set_enter(struct prefetch_set *s, const struct prefetch_key *key,
					   uint64_t *vpn, uint32_t n, uint64_t now)
{
	struct prefetch_entered in = { 0 };
	uint64_t again[PREFETCH_BATCH_MAX];
	const uint8_t *state;

	for (uint32_t i = 0; i < n; i++)
		filter_add(s->is.filter, &(struct ebb_page){ key->tgid, key->exec, vpn[i] });
	state = batch_run(s, EBB_BATCH_ENTER, key, vpn, n, now);
	if (!state)
		return (struct prefetch_entered){ .failed = n };
	for (uint32_t i = 0; i < n; i++) {
		if (state[i] == EBB_BATCH_DONE)
			vpn[in.fresh++] = vpn[i];
		else if (state[i] == EBB_BATCH_OLD)
			again[in.again++] = vpn[i];
		else if (state[i] == EBB_BATCH_YOUNG)
			in.repeated++;
		else
			in.full++;
	}
	memcpy(vpn + in.fresh, again, in.again * sizeof(*vpn));
	return in;
}

void prefetch_set_renew(struct prefetch_set *s, const struct prefetch_key *key, const uint64_t *vpn,
			uint32_t n, uint64_t now)
{
	batch_run(s, EBB_BATCH_RENEW, key, vpn, n, now);
}

static bool remove_one(struct prefetch_set *s, const struct prefetch_key *key, uint64_t vpn)
{
	return !bpf_map_delete_elem(s->is.map, &(struct ebb_page){ key->tgid, key->exec, vpn });
}

uint32_t prefetch_set_withdraw(struct prefetch_set *s, const struct prefetch_key *key,
			       const uint64_t *vpn, uint32_t n)
{
	const uint8_t *state;
	uint32_t removed = 0;

	if (!n)
		return 0;
	state = batch_run(s, EBB_BATCH_WITHDRAW, key, vpn, n, 0);
	/* Those that stayed would be counted as hits: slower, but each of them must go. */
	for (uint32_t i = 0; i < n; i++)
		removed += state ? state[i] == EBB_BATCH_DONE : remove_one(s, key, vpn[i]);
	return removed;
}

bool prefetch_set_sweep(struct prefetch_set *s, const struct prefetch_sweep *sweep)
{
	uint32_t in = 0, out, n;
	void *from = NULL;
	int r;

	memset(s->next, 0, sizeof(s->next));
	do {
		n = SWEEP_PAGES;
		r = bpf_map_lookup_batch(s->is.map, from, &out, s->page, s->value, &n, NULL);
		if (r && errno != ENOENT)
			return false; /* an incomplete look-up must not hide pages */
		in = out;
		from = &in;
		for (uint32_t i = 0; i < n; i++) {
			if (sweep->keep(sweep->data, &s->page[i], &s->value[i]))
				filter_add(s->next, &s->page[i]);
			else if (bpf_map_delete_elem(s->is.map, &s->page[i]) == 0)
				sweep->expired(sweep->data, &s->value[i]);
		}
	} while (!r);
	memcpy(s->is.filter, s->next, sizeof(s->next));
	return true;
}
