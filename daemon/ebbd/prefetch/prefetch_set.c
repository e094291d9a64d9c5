// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch_set.h"
#include "settings.h"

#define SWEEP_PAGES 512

struct prefetch_set {
	int map;
	uint64_t *filter;
	uint64_t next[EBB_FILTER_WORDS];   /* the filter that a sweep makes */
	struct ebb_page page[SWEEP_PAGES]; /* scratch of a sweep */
	struct ebb_prefetch value[SWEEP_PAGES];
};

int prefetch_set_map(const struct plane *p)
{
	return plane_map(p, "prefetched");
}

struct prefetch_set *prefetch_set_new(int map, uint64_t *filter)
{
	struct prefetch_set *s = calloc(1, sizeof(*s));

	if (s) {
		s->map = map;
		s->filter = filter;
	}
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

struct prefetch_entered prefetch_set_enter(struct prefetch_set *s, const struct prefetch_key *key,
					   uint64_t *vpn, uint32_t n, uint64_t now)
{
	struct ebb_prefetch value = { now, key->owner }, old;
	struct prefetch_entered in = { 0 };
	uint64_t again[PREFETCH_BATCH_MAX];

	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { key->tgid, key->exec, vpn[i] };

		filter_add(s->filter, &page);
		if (bpf_map_update_elem(s->map, &page, &value, BPF_NOEXIST) == 0)
			vpn[in.fresh++] = vpn[i];
		else if (errno != EEXIST)
			in.full++;
		else if (bpf_map_lookup_elem(s->map, &page, &old) == 0 &&
			 old.issued_ns + PREFETCH_AGAIN_NS <= now)
			again[in.again++] = vpn[i];
		else
			in.repeated++;
	}
	memcpy(vpn + in.fresh, again, in.again * sizeof(*vpn));
	return in;
}

void prefetch_set_renew(struct prefetch_set *s, const struct prefetch_key *key, const uint64_t *vpn,
			uint32_t n, uint64_t now)
{
	struct ebb_prefetch value;

	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { key->tgid, key->exec, vpn[i] };

		/*
		 * A page stays charged to the owner that counted it, whichever cgroup requests it
		 * now.
		 */
		if (bpf_map_lookup_elem(s->map, &page, &value))
			continue;
		value.issued_ns = now;
		bpf_map_update_elem(s->map, &page, &value, BPF_EXIST);
	}
}

uint32_t prefetch_set_withdraw(struct prefetch_set *s, const struct prefetch_key *key,
			       const uint64_t *vpn, uint32_t n)
{
	uint32_t removed = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { key->tgid, key->exec, vpn[i] };

		removed += bpf_map_delete_elem(s->map, &page) == 0;
	}
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
		r = bpf_map_lookup_batch(s->map, from, &out, s->page, s->value, &n, NULL);
		if (r && errno != ENOENT)
			return false; /* an incomplete look-up must not hide pages */
		in = out;
		from = &in;
		for (uint32_t i = 0; i < n; i++) {
			if (sweep->keep(sweep->data, &s->page[i], &s->value[i]))
				filter_add(s->next, &s->page[i]);
			else if (bpf_map_delete_elem(s->map, &s->page[i]) == 0)
				sweep->expired(sweep->data, s->value[i].owner);
		}
	} while (!r);
	memcpy(s->filter, s->next, sizeof(s->next));
	return true;
}
