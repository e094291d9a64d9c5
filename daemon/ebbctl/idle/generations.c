// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Ageing moves pages that were accessed since the last ageing into the youngest generation and
 * begins an empty one.  So it takes a reading, and what is in older generations is idle.  The
 * kernel keeps four generations and merges the two oldest: a reading knows of two before it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ebb/page.h>
#include "generations.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/text.h"

#define FILE_NAME "/sys/kernel/debug/lru_gen"
#define TRIES 20

struct generations {
	char rel[PATH_MAX];
	struct lrus now;
};

static bool is_below(const char *path, const char *rel)
{
	size_t n = strlen(rel);

	return !strcmp(rel, "/") || (!strncmp(path, rel, n) && (!path[n] || path[n] == '/'));
}

static struct lru *add(struct lrus *all, uint32_t cgroup, uint32_t node)
{
	struct lru *v = realloc(all->v, (all->n + 1) * sizeof(*v));

	if (!v)
		return NULL;
	all->v = v;
	v[all->n] = (struct lru){ .cgroup = cgroup, .node = node };
	return &v[all->n++];
}

static void add_generation(struct lru *l, uint64_t number, uint64_t pages)
{
	if (l->n == GENERATIONS)
		return;
	l->number[l->n] = number;
	l->pages[l->n++] = pages;
	l->youngest = number;
}

int lrus_read(FILE *f, const char *rel, struct lrus *all)
{
	_cleanup_free_ char *line = NULL;
	struct lru *l = NULL;
	uint32_t cgroup = 0, node;
	unsigned long long number, age, pages;
	size_t size = 0;
	int path;

	while (getline(&line, &size, f) >= 0) {
		line[strcspn(line, "\n")] = '\0';
		/* 0: a removed cgroup, which takes no command. */
		if (sscanf(line, "memcg %u %n", &cgroup, &path) == 1) {
			cgroup = is_below(line + path, rel) ? cgroup : 0;
			l = NULL;
		} else if (cgroup && sscanf(line, " node %u", &node) == 1) {
			l = add(all, cgroup, node);
			if (!l)
				return -ENOMEM;
		} else if (l && sscanf(line, "%llu %llu %llu", &number, &age, &pages) == 3) {
			add_generation(l, number, pages);
		}
	}
	return 0;
}

uint64_t lrus_since(const struct lrus *all, uint32_t i)
{
	uint64_t pages = 0;

	for (uint32_t k = 0; k < all->n; k++) {
		const struct lru *l = &all->v[k];

		if (l->border[i] && l->border[i] + GENERATIONS - 2 < l->youngest)
			return IDLE_UNKNOWN;
		for (uint32_t g = 0; g < l->n; g++)
			pages += l->number[g] < l->border[i] ? l->pages[g] : 0;
	}
	return pages * EBB_PAGE;
}

static struct lru *find(const struct lrus *all, const struct lru *like)
{
	for (uint32_t k = 0; k < all->n; k++)
		if (all->v[k].cgroup == like->cgroup && all->v[k].node == like->node)
			return &all->v[k];
	return NULL;
}

/* Reads the file again; keeps the borders of LRUs that still exist. */
static int refresh(struct generations *g, struct error *e)
{
	_cleanup_file_ FILE *f = fopen(FILE_NAME, "re");
	struct lrus now = { NULL, 0 };
	int r = f ? lrus_read(f, g->rel, &now) : -errno;

	if (r) {
		free(now.v);
		return fail(e, r, FILE_NAME ": cannot read: %s; mount debugfs", strerror(-r));
	}
	for (uint32_t k = 0; k < now.n; k++) {
		const struct lru *before = find(&g->now, &now.v[k]);

		if (before)
			memcpy(now.v[k].border, before->border, sizeof(before->border));
	}
	free(g->now.v);
	g->now = now;
	return 0;
}

/* Asks for the ageing of each LRU whose youngest generation is not above @border[@n]. */
static int age(struct lrus *all, uint32_t n, bool *done, struct error *e)
{
	char command[96];

	*done = true;
	for (uint32_t k = 0; k < all->n; k++) {
		struct lru *l = &all->v[k];
		int r;

		if (l->border[n] && l->youngest >= l->border[n])
			continue;
		*done = false;
		l->border[n] = l->youngest + 1;
		/* 1: also without swap; 1: all page tables. */
		snprintf(command, sizeof(command), "+ %u %u %llu 1 1", l->cgroup, l->node,
			 (unsigned long long)l->youngest);
		r = file_write(FILE_NAME, command);
		/* Removed meanwhile, or aged by the kernel: the next look decides. */
		if (r && r != -EINVAL && r != -EEXIST && r != -ENOENT)
			return fail(e, r, FILE_NAME ": cannot write: %s; run without lockdown",
				    strerror(-r));
	}
	return 0;
}

static int read_generations(void *state, uint32_t n, struct idle_counts *counts, struct error *e)
{
	const struct timespec tick = { .tv_nsec = 10000000 };
	struct generations *g = state;
	bool done = false;
	int r = refresh(g, e);

	for (int i = 0; !r && i < TRIES; i++) {
		r = age(&g->now, n, &done, e);
		if (done || r)
			break;
		r = refresh(g, e);
		nanosleep(&tick, NULL);
	}
	if (!r && !done)
		r = fail_exit(e, EXIT_REFUSED, EAGAIN,
			      FILE_NAME ": the kernel does not age the cgroup, or is busy with it; try again");
	if (r)
		return r;
	counts->total = 0;
	for (uint32_t k = 0; k < g->now.n; k++)
		for (uint32_t i = 0; i < g->now.v[k].n; i++)
			counts->total += g->now.v[k].pages[i] * EBB_PAGE;
	for (uint32_t i = 0; i < n; i++)
		counts->since[i] = lrus_since(&g->now, i);
	return 0;
}

static void close_generations(void *state)
{
	struct generations *g = state;

	free(g->now.v);
	free(g);
}

static int open_generations(const struct cgroup_ref *c, void **state, struct error *e)
{
	char enabled[16];
	struct generations *g;
	int r;

	if (file_read("/sys/kernel/mm/lru_gen/enabled", enabled, sizeof(enabled)) <= 0)
		return fail(e, EOPNOTSUPP, "it has no multi-gen LRU");
	/* 2: the kernel looks for accesses in page tables, instead of during reclaim alone. */
	if ((strtoul(enabled, NULL, 0) & 3) != 3)
		return fail(e, EOPNOTSUPP,
			    "multi-gen LRU is off; run \"echo y > /sys/kernel/mm/lru_gen/enabled\"");
	g = calloc(1, sizeof(*g));
	if (!g)
		return fail(e, ENOMEM, "advise: out of memory");
	snprintf(g->rel, sizeof(g->rel), "%s", c->rel);
	r = refresh(g, e);
	if (!r && !g->now.n)
		r = fail(e, ENOENT, FILE_NAME " lacks cgroup %.64s", c->rel);
	if (r) {
		close_generations(g);
		return r;
	}
	*state = g;
	return 0;
}

const struct idle_source idle_generations = {
	"mglru", open_generations, read_generations, close_generations,
};
