// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "ebbd/prefetch/target.h"
#include "lib/base/cleanup.h"
#include "lib/host/cgroup_walk.h"
#include "offload_pages.h"

#define CHUNK 64                /* pages */
#define SAMPLE 8                /* one page in so many */
#define TRIALS 2048             /* chunks on trial at a time: 512 MiB */
#define TRIAL_NS 1000000000ULL
/* Longer for the idle pages of a chunk that is partly in use, which are hardly cold. */
#define TRIAL_PART_NS 16000000000ULL
#define HEAT 16384              /* chunks remembered, 4 GiB; a power of two */
#define LEVEL_MAX 6             /* left alone for up to 2^5 s */
#define EAGER_MAX 2             /* or 1 / 2^this of that, if only partly in use */
#define LOOK_MAX 2048           /* chunks examined in a round: some ms */
#define PROCESSES 256
#define PM_PRESENT (1ULL << 63)
#define PM_SWAPPED (1ULL << 62)

struct trial {
	uint32_t tgid;
	enum { TRIAL_SAMPLE, TRIAL_REST } stage;
	uint64_t chunk;         /* first page / CHUNK */
	uint64_t mask;          /* pages unmapped */
	uint64_t within;        /* pages of the mapping */
	uint64_t used;          /* pages that were touched again */
	uint64_t since_ns, wait_ns;
};

/* Share of a chunk's pages that were touched again. */
enum use { USE_NONE, USE_PART, USE_MOST };

/* Direct-mapped; a chunk whose entry is overwritten is tried once more. */
struct heat {
	uint64_t chunk;
	uint64_t since_ns;      /* start of its 2^(level - 1) s without trial */
	uint32_t tgid;
	uint8_t level;
	uint8_t use;            /* enum use */
	uint8_t on_trial;
	uint8_t out;            /* all its pages were freed: resident ones were touched again */
};

struct offload_pages {
	struct trial trial[TRIALS];
	uint32_t trials;
	const struct worker *worker;
	FILE *maps;             /* of the process at hand, or NULL: a call during a walk may hang */
	uint64_t owner;         /* of the round */
	struct heat heat[HEAT];
	struct target target;   /* the process at hand */
	uint32_t at_tgid;       /* where the next round begins */
	uint64_t at_chunk;
	uint32_t eager;         /* shift of the time without trial; see offload_pages_run() */
};

struct offload_pages *offload_pages_new(const struct worker *w)
{
	struct offload_pages *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->worker = w;
	p->target.pidfd = p->target.pagemap = p->target.maps = -1;
	return p;
}

static void close_maps(struct offload_pages *p)
{
	if (p->maps)
		fclose(p->maps);
	p->maps = NULL;
}

void offload_pages_free(struct offload_pages **p)
{
	if (!*p)
		return;
	target_close(&(*p)->target);
	close_maps(*p);
	free(*p);
	*p = NULL;
}

static bool attend(struct offload_pages *p, uint32_t tgid)
{
	/* It may be in another attached cgroup, too, with which it hung. */
	if (worker_excludes(p->worker, tgid, p->owner))
		return false;
	if (p->target.pidfd >= 0 && p->target.tgid == tgid && target_current(&p->target))
		return true;
	target_close(&p->target);
	return !target_open(&p->target, tgid, 0, p->owner);
}

static struct heat *heat_of(struct offload_pages *p, uint32_t tgid, uint64_t chunk)
{
	uint64_t h = (chunk ^ ((uint64_t)tgid << 32)) * 0x9e3779b97f4a7c15ULL;
	struct heat *heat = &p->heat[h >> 50];

	if (heat->tgid != tgid || heat->chunk != chunk)
		*heat = (struct heat){ .tgid = tgid, .chunk = chunk };
	return heat;
}
_Static_assert(HEAT == 1 << (64 - 50), "the index is what the shift leaves");

static void leave_alone(struct offload_pages *p, uint32_t tgid, uint64_t chunk, enum use use,
			uint64_t now)
{
	struct heat *heat = heat_of(p, tgid, chunk);

	if (heat->level < LEVEL_MAX)
		heat->level++;
	heat->use = use;
	heat->since_ns = now;
	heat->out = 0;
}

static bool left_alone(const struct offload_pages *p, const struct heat *heat, uint64_t now)
{
	uint64_t time = heat->level ? 500000000ULL << heat->level : 0;

	return now - heat->since_ns < (heat->use == USE_PART ? time >> p->eager : time);
}

/* Classifies a chunk: @part of @whole were touched again. */
static enum use use_of(uint64_t part, uint64_t whole)
{
	int came = __builtin_popcountll(part), of = __builtin_popcountll(whole);

	return !came ? USE_NONE : 2 * came < of ? USE_PART : USE_MOST;
}

/* The pages of @chunk that have @bit and not @without in the pagemap. */
static uint64_t look(const struct target *t, uint64_t chunk, uint64_t bit, uint64_t without)
{
	uint64_t entry[CHUNK], mask = 0;
	ssize_t n = target_pagemap(t, chunk * CHUNK, entry, CHUNK);

	for (ssize_t i = 0; i < n / 8; i++)
		if ((entry[i] & bit) && !(entry[i] & without))
			mask |= 1ULL << i;
	return mask;
}

static uint32_t list(uint64_t chunk, uint64_t mask, uint64_t *vpn)
{
	uint32_t n = 0;

	for (uint64_t i = 0; i < CHUNK; i++)
		if (mask >> i & 1)
			vpn[n++] = chunk * CHUNK + i;
	return n;
}

/* Returns the pages of @mask that are unmapped now. */
static uint64_t page_out(const struct target *t, uint64_t chunk, uint64_t mask)
{
	uint64_t vpn[CHUNK];

	target_advise(t, vpn, list(chunk, mask, vpn), MADV_PAGEOUT);
	return look(t, chunk, PM_SWAPPED, PM_PRESENT) & mask;
}

/*
 * Maps the pages that are still unmapped and in the swap cache.  The program may have mapped a file
 * in their place, which must not be read: its server may never answer.  A swapped-out page is read
 * from swap in any mapping.
 */
static void map(const struct target *t, uint64_t chunk, uint64_t mask)
{
	struct iovec remote[CHUNK], local;
	uint64_t vpn[CHUNK];
	uint32_t n = list(chunk, mask & look(t, chunk, PM_SWAPPED, PM_PRESENT), vpn);
	char byte[CHUNK];

	for (uint32_t i = 0; i < n; i++)
		remote[i] = (struct iovec){ (void *)(uintptr_t)(vpn[i] << EBB_PAGE_SHIFT), 1 };
	local = (struct iovec){ byte, n };
	worker_call_begin(t->tgid, t->owner);
	/* Pages that have been unmapped meanwhile need no mapping. */
	(void)!process_vm_readv((pid_t)t->tgid, &local, 1, remote, n, 0);
	worker_call_end();
}

static uint64_t every_eighth(uint64_t mask)
{
	uint64_t some = 0;
	int n = 0;

	for (int i = 0; i < CHUNK; i++)
		if ((mask >> i & 1) && n++ % SAMPLE == 0)
			some |= 1ULL << i;
	return some;
}

/* Returns whether @trial continues, in its next stage. */
static bool judge(struct offload_pages *p, struct trial *trial, uint64_t now,
		  struct offload_round *round)
{
	struct heat *heat = heat_of(p, trial->tgid, trial->chunk);
	uint64_t present, back;
	enum use used;

	if (!attend(p, trial->tgid))
		return false;
	present = look(&p->target, trial->chunk, PM_PRESENT, 0) & trial->within;
	back = present & trial->mask;
	used = use_of(back, trial->mask);
	round->back += (uint64_t)__builtin_popcountll(back);
	trial->mask &= ~back;
	trial->used |= back;
	if (used == USE_MOST || (used == USE_PART && p->trials > TRIALS / 2)) {
		leave_alone(p, trial->tgid, trial->chunk, used, now);
		return false;
	}
	if (trial->stage == TRIAL_SAMPLE && (present & ~trial->used)) {
		trial->mask |= page_out(&p->target, trial->chunk, present & ~trial->used);
		trial->stage = TRIAL_REST;
		trial->since_ns = now;
		if (used == USE_PART)
			trial->wait_ns = TRIAL_PART_NS >> p->eager;
		return true;
	}
	/*
	 * Otherwise the cgroup is at its limit: the kernel frees the pages, and mapping would read
	 * them.
	 */
	if (round->cached) {
		map(&p->target, trial->chunk, trial->mask);
		trial->mask = page_out(&p->target, trial->chunk, trial->mask);
	}
	round->out += (uint64_t)__builtin_popcountll(trial->mask);
	if (trial->used)
		leave_alone(p, trial->tgid, trial->chunk, USE_PART, now);
	heat->out = !trial->used;
	return false;
}

static void judge_all(struct offload_pages *p, uint64_t now, struct offload_round *round)
{
	uint32_t kept = 0;
	uint64_t on_trial = 0;

	for (uint32_t i = 0; i < p->trials; i++)
		on_trial += (uint64_t)__builtin_popcountll(p->trial[i].mask) << EBB_PAGE_SHIFT;
	if (round->cached < on_trial / 2)
		round->cached = 0;
	for (uint32_t i = 0; i < p->trials; i++)
		if (now - p->trial[i].since_ns < p->trial[i].wait_ns ||
		    judge(p, &p->trial[i], now, round))
			p->trial[kept++] = p->trial[i];
		else
			heat_of(p, p->trial[i].tgid, p->trial[i].chunk)->on_trial = 0;
	p->trials = kept;
}

/*
 * Puts the pages @within of @chunk on trial unless they are known to be in use; returns how many
 * are resident.
 */
static uint64_t begin(struct offload_pages *p, uint32_t tgid, uint64_t chunk, uint64_t within,
		      uint64_t now)
{
	struct heat *heat = heat_of(p, tgid, chunk);
	uint64_t present, mask;

	if (heat->on_trial || left_alone(p, heat, now))
		return 0;
	present = look(&p->target, chunk, PM_PRESENT, 0) & within;
	if (!present)
		return 0;
	if (heat->out) {
		leave_alone(p, tgid, chunk, use_of(present, within), now);
		return 0;
	}
	mask = page_out(&p->target, chunk, every_eighth(present));
	if (!mask) {
		/* The pages are locked or shared, or there is no swap. */
		leave_alone(p, tgid, chunk, USE_MOST, now);
		return 0;
	}
	p->trial[p->trials++] = (struct trial){
		.tgid = tgid, .chunk = chunk, .mask = mask, .within = within, .since_ns = now,
		.wait_ns = TRIAL_NS,
	};
	heat->on_trial = 1;
	return (uint64_t)__builtin_popcountll(present);
}

/* Returns the mask of @chunk's pages from @from up to @to. */
static uint64_t part(uint64_t chunk, uint64_t from, uint64_t to)
{
	uint64_t mask = ~0ULL;

	if (from > chunk * CHUNK)
		mask <<= from - chunk * CHUNK;
	if (to < (chunk + 1) * CHUNK)
		mask &= ~0ULL >> ((chunk + 1) * CHUNK - to);
	return mask;
}

/* Accepts private anonymous mappings: pages that go to swap and have one owner. */
static bool wanted(const char *line, uint64_t *from, uint64_t *to)
{
	unsigned long long start, end, inode;
	char perms[8], name[8] = "";

	if (sscanf(line, "%llx-%llx %7s %*x %*s %llu %7s", &start, &end, perms, &inode, name) < 4 ||
	    inode || perms[3] != 'p' || !strncmp(name, "[v", 2) || !strncmp(name, "[stack", 6))
		return false;
	*from = start >> EBB_PAGE_SHIFT;
	*to = end >> EBB_PAGE_SHIFT;
	return true;
}

static FILE *open_maps(uint32_t tgid, uint64_t owner)
{
	char path[32];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%u/maps", tgid);
	worker_call_begin(tgid, owner);
	maps = fopen(path, "re");
	if (worker_call_returned())
		return maps;
	if (maps)
		fclose(maps);
	worker_quit();
}

/* While it reads the file, offload_pages_free() must not close that. */
static bool next_mapping(struct offload_pages *p, char *line, int size)
{
	FILE *maps = p->maps;
	bool got;

	p->maps = NULL;
	worker_call_begin(p->target.tgid, p->target.owner);
	got = fgets(line, size, maps);
	if (!worker_call_returned()) {
		fclose(maps);
		worker_quit();
	}
	p->maps = maps;
	return got;
}

/* Scans the process with .maps from chunk @at; returns false when the round is complete. */
static bool scan(struct offload_pages *p, uint32_t tgid, uint64_t at, uint64_t now, uint64_t *pages,
		 uint32_t *looks)
{
	uint64_t from, to, taken;
	char line[512];

	while (next_mapping(p, line, sizeof(line))) {
		if (!wanted(line, &from, &to))
			continue;
		for (uint64_t chunk = from / CHUNK; chunk * CHUNK < to; chunk++) {
			if (chunk < at)
				continue;
			if (!*pages || !*looks || p->trials == TRIALS) {
				p->at_tgid = tgid;
				p->at_chunk = chunk;
				return false;
			}
			(*looks)--;
			taken = begin(p, tgid, chunk, part(chunk, from, to), now);
			*pages -= taken < *pages ? taken : *pages;
		}
	}
	return true;
}

static bool walk(struct offload_pages *p, uint32_t tgid, uint64_t at, uint64_t now, uint64_t *pages,
		 uint32_t *looks)
{
	bool more;

	p->maps = open_maps(tgid, p->owner);
	if (!p->maps)
		return true;
	more = scan(p, tgid, at, now, pages, looks);
	close_maps(p);
	return more;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

struct listing {
	uint32_t *tgid, n;
};

static int list_processes(const char *dir, void *data)
{
	_cleanup_file_ FILE *f = NULL;
	struct listing *l = data;
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/cgroup.procs", dir) >= (int)sizeof(path))
		return 0;
	f = fopen(path, "re");
	while (f && l->n < PROCESSES && fscanf(f, "%u", &l->tgid[l->n]) == 1)
		l->n++;
	return 0;
}

/* Lists the processes of the tree below @dir, ascending; at most PROCESSES. */
static uint32_t processes(const char *dir, uint32_t *tgid)
{
	struct listing l = { .tgid = tgid };

	cgroup_walk(dir, list_processes, &l);
	qsort(tgid, l.n, sizeof(*tgid), by_number);
	return l.n;
}

void offload_pages_run(struct offload_pages *p, const struct cgroup_ref *c, uint64_t now_ns,
		       struct offload_round *round)
{
	uint64_t pages = round->bytes >> EBB_PAGE_SHIFT, at = p->at_chunk;
	uint32_t tgid[PROCESSES], n, first = 0, looks = LOOK_MAX;

	p->owner = c->id;
	judge_all(p, now_ns, round);
	if (!pages && p->eager)
		p->eager--;
	n = pages ? processes(c->path, tgid) : 0;
	while (first < n && tgid[first] < p->at_tgid)
		first++;
	if (first == n || tgid[first] != p->at_tgid)
		at = 0;
	/* One lap that ends with the first process again, from its start. */
	for (uint32_t i = 0; i <= n && n; i++, at = 0) {
		uint32_t id = tgid[(first + i) % n];

		if (attend(p, id) && !walk(p, id, at, now_ns, &pages, &looks))
			return;
	}
	p->at_tgid = 0;
	p->at_chunk = 0;
	/* Nothing was left to try: retry partly used chunks sooner. */
	if (pages && p->eager < EAGER_MAX)
		p->eager++;
}
