// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "leaf.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/log.h"

#define LEVELS 8            /* ancestors with a limit of their own */
#define BUCKETS 256         /* a power of two */
#define PROCESSES 8192      /* a power of two */
#define LIMIT_NS 1000000000ULL
#define UNUSED_NS 60000000000ULL
#define FLUSH_SHARE 256     /* statistics are refreshed after limit / this was prefetched */
#define WRITEBACK_SHARE 4   /* more than limit / this under writeback stops prefetching */
#define RECLAIM_TIMES 4     /* programs reclaim more than this multiple of what is needed */
/*
 * Swap that prefetching leaves unused: that much, and of a small swap this share.  While pages are
 * under writeback, free swap moves by 7 MiB for one program limited to 64 MiB (measured on 6.18).
 */
#define SPARE_SWAP (32ULL << 20)
#define SPARE_SHARE 16

/* A limited cgroup: the first @length bytes of the leaf's path. */
struct level {
	size_t length;
	uint64_t limit;      /* UINT64_MAX = none */
	uint64_t swap_limit; /* of cgroup_own_swap_limit() */
};

struct leaf {
	struct leaf *next;
	uint64_t id;
	char *path;
	size_t top;             /* length of the mount's part of it */
	bool v2;
	int stat_fd;            /* memory.stat, or -1 */
	struct level level[LEVELS];
	uint32_t levels;
	uint64_t limit;         /* the least of them */
	uint64_t room;          /* pages that may be outstanding */
	uint64_t learnt_ns, read_ns;
	uint64_t counted;       /* pages in flight at the last sweep */
	uint64_t asked;         /* pages requested since */
	uint64_t used, before;  /* pages used, by the map: as read last, and at the last sweep */
	uint64_t swept;
	uint64_t unflushed;     /* pages requested since memory.stat was read */
	uint64_t writeback;     /* bytes, by memory.stat */
};

/* Direct-mapped: of a process whose entry is overwritten, no pages are counted. */
struct process {
	uint32_t tgid;
	uint64_t leaf;
};

struct leaves {
	int map;
	uint32_t headroom;
	struct leaf *bucket[BUCKETS];
	uint32_t n;
	struct process process[PROCESSES];
	struct cgroup_ref scratch;
};

static struct leaf **bucket_of(struct leaves *l, uint64_t id)
{
	return &l->bucket[id * 0x9e3779b97f4a7c15ULL >> 56];
}
_Static_assert(BUCKETS == 1 << (64 - 56), "the index is what the shift leaves");

static struct leaf *find(struct leaves *l, uint64_t id)
{
	struct leaf *leaf = *bucket_of(l, id);

	while (leaf && leaf->id != id)
		leaf = leaf->next;
	return leaf;
}

static struct process *process_of(struct leaves *l, uint32_t tgid)
{
	return &l->process[tgid & (PROCESSES - 1)];
}

struct leaves *leaves_new(int map, uint32_t headroom)
{
	struct leaves *l = calloc(1, sizeof(*l));

	if (l) {
		l->map = map;
		l->headroom = headroom;
	}
	return l;
}

static void leaf_free(struct leaves *l, struct leaf *leaf)
{
	bpf_map_delete_elem(l->map, &leaf->id);
	if (leaf->stat_fd >= 0)
		close(leaf->stat_fd);
	free(leaf->path);
	free(leaf);
	l->n--;
}

/* Frees all leaves that were not learnt since @oldest. */
static void drop(struct leaves *l, uint64_t oldest)
{
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (struct leaf **at = &l->bucket[i], *leaf; (leaf = *at);) {
			if (leaf->learnt_ns >= oldest) {
				at = &leaf->next;
				continue;
			}
			*at = leaf->next;
			leaf_free(l, leaf);
		}
}

/* Frees the leaf that was learnt longest ago: a user may have any number of cgroups that page. */
static void drop_oldest(struct leaves *l)
{
	struct leaf **oldest = NULL, *leaf;

	for (uint32_t i = 0; i < BUCKETS; i++)
		for (struct leaf **at = &l->bucket[i]; *at; at = &(*at)->next)
			if (!oldest || (*at)->learnt_ns < (*oldest)->learnt_ns)
				oldest = at;
	leaf = *oldest;
	*oldest = leaf->next;
	leaf_free(l, leaf);
}

void leaves_free(struct leaves **l)
{
	if (*l)
		drop(*l, UINT64_MAX);
	free(*l);
	*l = NULL;
}

static void read_limits(struct leaf *leaf)
{
	char dir[PATH_MAX];
	size_t length = strlen(leaf->path);

	leaf->levels = 0;
	leaf->limit = UINT64_MAX;
	snprintf(dir, sizeof(dir), "%s", leaf->path);
	while (length >= leaf->top) {
		uint64_t limit = cgroup_own_limit(dir, leaf->v2);
		uint64_t swap = cgroup_own_swap_limit(dir, leaf->v2);

		if ((limit != UINT64_MAX || swap != UINT64_MAX) && leaf->levels < LEVELS)
			leaf->level[leaf->levels++] = (struct level){ length, limit, swap };
		leaf->limit = limit < leaf->limit ? limit : leaf->limit;
		while (length && dir[length] != '/')
			length--;
		dir[length] = '\0';
		if (!length)
			break;
	}
}

/* An increment by a fault at the same time may be lost, until the next sweep. */
static void tell_room(struct leaves *l, struct leaf *leaf)
{
	struct ebb_leaf value = { 0 };

	bpf_map_lookup_elem(l->map, &leaf->id, &value);
	value.room = leaf->room;
	bpf_map_update_elem(l->map, &leaf->id, &value, BPF_ANY);
}

static void refresh(struct leaves *l, struct leaf *leaf, uint64_t now)
{
	uint64_t before = leaf->room, room = EBB_MAX_PREFETCHED / 2;

	leaf->read_ns = now;
	read_limits(leaf);
	if (leaf->limit != UINT64_MAX && (leaf->limit >> EBB_PAGE_SHIFT) / l->headroom < room)
		room = (leaf->limit >> EBB_PAGE_SHIFT) / l->headroom;
	leaf->room = room;
	if (room != before)
		tell_room(l, leaf);
}

void leaves_add(struct leaves *l, const struct cgroup_ref *c, uint64_t now)
{
	struct leaf *leaf = calloc(1, sizeof(*leaf));
	char path[PATH_MAX + 16];

	if (!leaf)
		return;
	leaf->id = c->id;
	leaf->path = strdup(c->path);
	if (!leaf->path) {
		free(leaf);
		return;
	}
	leaf->top = strcmp(c->rel, "/") ? strlen(c->path) - strlen(c->rel) : strlen(c->path);
	leaf->v2 = c->v2;
	snprintf(path, sizeof(path), "%s/memory.stat", c->path);
	leaf->stat_fd = open(path, O_RDONLY | O_CLOEXEC);
	leaf->learnt_ns = now;
	if (l->n == EBB_MAX_LEAVES)
		drop_oldest(l);
	l->n++;
	leaf->next = *bucket_of(l, c->id);
	*bucket_of(l, c->id) = leaf;
	refresh(l, leaf, now);
}

void leaves_learn(struct leaves *l, uint32_t tgid, uint64_t id, uint64_t now)
{
	struct leaf *leaf = find(l, id);

	*process_of(l, tgid) = (struct process){ tgid, id };
	if (leaf)
		leaf->learnt_ns = now;
	/* It may have moved meanwhile; its next fault tells where to. */
	else if (!cgroup_of_process((int)tgid, &l->scratch, NULL) && l->scratch.id == id)
		leaves_add(l, &l->scratch, now);
}

struct leaf *leaf_find(struct leaves *l, uint64_t id, uint64_t now)
{
	struct leaf *leaf = find(l, id);

	if (leaf && now - leaf->read_ns >= LIMIT_NS)
		refresh(l, leaf, now);
	return leaf;
}

uint64_t leaf_limit(const struct leaf *leaf)
{
	return leaf->limit;
}

uint64_t leaf_unused(const struct leaf *leaf)
{
	const char *name = leaf->v2 ? "memory.current" : "memory.usage_in_bytes";
	uint64_t least = UINT64_MAX, used, unused;
	char path[PATH_MAX + 32];

	for (uint32_t i = 0; i < leaf->levels; i++) {
		const struct level *l = &leaf->level[i];

		if (l->limit == UINT64_MAX)
			continue;
		snprintf(path, sizeof(path), "%.*s/%s", (int)l->length, leaf->path, name);
		used = (uint64_t)file_number(path, INT64_MAX);
		unused = l->limit > used ? l->limit - used : 0;
		least = unused < least ? unused : least;
	}
	return least;
}

static uint64_t left(const struct leaf *leaf)
{
	uint64_t out = leaf->counted + leaf->asked, gone = leaf->used - leaf->before;

	out = out > gone ? out - gone : 0;
	return leaf->room > out ? leaf->room - out : 0;
}

static void read_used(struct leaves *l, struct leaf *leaf)
{
	struct ebb_leaf value;

	if (!bpf_map_lookup_elem(l->map, &leaf->id, &value) && value.used > leaf->used)
		leaf->used = value.used;
}

uint32_t leaf_take(struct leaves *l, struct leaf *leaf, uint32_t wanted)
{
	if (left(leaf) < wanted)
		read_used(l, leaf);
	return left(leaf) < wanted ? (uint32_t)left(leaf) : wanted;
}

static void refresh_stats(struct leaf *leaf)
{
	const char *key = leaf->v2 ? "\nfile_writeback " : "\ntotal_writeback ", *at;
	char text[4096];
	ssize_t n = pread(leaf->stat_fd, text, sizeof(text) - 1, 0);

	if (n < 0) {
		log_debug("%s/memory.stat: %m", leaf->path);
		return;
	}
	text[n] = '\0';
	/* Anonymous pages included, whatever the name says. */
	at = strstr(text, key);
	leaf->writeback = at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/*
 * Reclaims in the cgroup at @level what @need bytes more would exceed its limit by.  Where a user
 * has just lowered the limit, that can be gigabytes: the programs reclaim them, not this thread.
 */
static bool reclaim(const struct leaf *leaf, const struct level *level, uint64_t need)
{
	char path[PATH_MAX + 16], text[32];
	_cleanup_close_ int fd = -1;
	uint64_t used, over;
	int n;

	if (level->limit == UINT64_MAX)
		return true;
	snprintf(path, sizeof(path), "%.*s/memory.current", (int)level->length, leaf->path);
	used = (uint64_t)file_number(path, 0);
	if (used + need <= level->limit)
		return true;
	over = used + need - level->limit;
	if (over > RECLAIM_TIMES * need)
		return false;
	n = snprintf(text, sizeof(text), "%llu", (unsigned long long)over);
	snprintf(path, sizeof(path), "%.*s/memory.reclaim", (int)level->length, leaf->path);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, n) == n)
		return true;
	snprintf(path, sizeof(path), "%.*s/memory.current", (int)level->length, leaf->path);
	return (uint64_t)file_number(path, 0) + need <= level->limit;
}

/*
 * A page that is read ahead keeps its place in swap until the program uses it.  If there is no
 * place for another page, the charge of this one can reclaim nothing, and invokes the OOM killer.
 */
static bool swap_has_room(const struct leaf *leaf, uint64_t need)
{
	uint64_t spare = SPARE_SWAP;
	struct sysinfo s;
	char dir[PATH_MAX];

	if (!sysinfo(&s)) {
		if (spare > (uint64_t)s.totalswap * s.mem_unit / SPARE_SHARE)
			spare = (uint64_t)s.totalswap * s.mem_unit / SPARE_SHARE;
		if ((uint64_t)s.freeswap * s.mem_unit < spare + need)
			return false;
	}
	for (uint32_t i = 0; i < leaf->levels; i++) {
		const struct level *l = &leaf->level[i];

		if (l->swap_limit == UINT64_MAX)
			continue;
		snprintf(dir, sizeof(dir), "%.*s", (int)l->length, leaf->path);
		if (cgroup_swap_usage(dir, leaf->v2) + need > l->swap_limit)
			return false;
	}
	return true;
}

/*
 * Over memory.high a charge would throttle this thread, and at memory.max it can invoke the OOM
 * killer although pages under writeback will be free soon: reclaims before the charge, and returns
 * false if that fails.  Version 1 has no such file; there the charge reclaims.
 */
bool leaf_make_room(struct leaf *leaf, uint32_t pages)
{
	uint64_t need = (uint64_t)pages << EBB_PAGE_SHIFT;
	bool room = swap_has_room(leaf, need);

	if (!room || leaf->limit == UINT64_MAX)
		return room;
	if (leaf->writeback > leaf->limit / WRITEBACK_SHARE)
		refresh_stats(leaf);
	if (leaf->writeback > leaf->limit / WRITEBACK_SHARE)
		return false;
	for (uint32_t i = 0; leaf->v2 && room && i < leaf->levels; i++)
		room = reclaim(leaf, &leaf->level[i], need);
	return room;
}

void leaf_settle(struct leaf *leaf, uint32_t asked)
{
	leaf->asked += asked;
	leaf->unflushed += asked;
	/* Between two ticks the inactive list can run dry at the pace of a prefetch. */
	if (leaf->limit == UINT64_MAX ||
	    leaf->unflushed < (leaf->limit >> EBB_PAGE_SHIFT) / FLUSH_SHARE)
		return;
	leaf->unflushed = 0;
	refresh_stats(leaf);
}

void leaves_sweep_begin(struct leaves *l)
{
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (struct leaf *leaf = l->bucket[i]; leaf; leaf = leaf->next)
			leaf->swept = 0;
}

void leaves_sweep_page(struct leaves *l, uint32_t tgid)
{
	const struct process *p = process_of(l, tgid);
	struct leaf *leaf = p->tgid == tgid ? find(l, p->leaf) : NULL;

	if (leaf)
		leaf->swept++;
}

void leaves_sweep_end(struct leaves *l, uint64_t now)
{
	drop(l, now > UNUSED_NS ? now - UNUSED_NS : 0);
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (struct leaf *leaf = l->bucket[i]; leaf; leaf = leaf->next) {
			/* After the count: a page used meanwhile counts until the next sweep. */
			read_used(l, leaf);
			leaf->before = leaf->used;
			leaf->counted = leaf->swept;
			leaf->asked = 0;
		}
}
