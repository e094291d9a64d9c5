// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ebb/page.h>
#include "target.h"
#include "worker.h"

#define PM_PRESENT (1ULL << 63)
#define PM_SWAPPED (1ULL << 62)
#define PM_SWAP_TYPE 31   /* needs CAP_SYS_ADMIN at open() */
#define PM_SWAP_SLOT(entry) ((entry) >> 5 & ((1ULL << 50) - 1)) /* needs it, too */
#define MAX_PAGES 1024   /* pagemap entries one read may cover */
#define MAX_RANGES 64
#define SPANS_FIRST 4    /* TARGET_SPANS is a power of two times as many */

/* PROCMAP_QUERY of <linux/fs.h>, from Linux 6.11: the mapping with page .address. */
struct mapping_query {
	uint64_t size, flags, address;
	uint64_t start, end, vma_flags, page_size, offset;
	uint64_t inode;          /* 0 = no file */
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define MAPPING_QUERY _IOWR('f', 17, struct mapping_query)

static int open_proc(uint32_t tgid, uint64_t owner, const char *file)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/%s", tgid, file);
	worker_call_begin(tgid, owner);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (worker_call_returned())
		return fd;
	if (fd >= 0)
		close(fd);
	worker_quit();
}

int target_open(struct target *t, uint32_t tgid, uint32_t exec, uint64_t owner)
{
	*t = (struct target){ .tgid = tgid, .exec = exec, .owner = owner, .pidfd = -1,
			      .pagemap = -1, .maps = -1, .type = UINT32_MAX };
	return target_reopen(t);
}

int target_reopen(struct target *t)
{
	t->pidfd = (int)syscall(SYS_pidfd_open, t->tgid, 0);
	if (t->pidfd >= 0)
		t->pagemap = open_proc(t->tgid, t->owner, "pagemap");
	if (t->pagemap < 0) {
		target_close(t);
		return -ESRCH;
	}
	return 0;
}

void target_close(struct target *t)
{
	if (t->pidfd >= 0)
		close(t->pidfd);
	if (t->pagemap >= 0)
		close(t->pagemap);
	if (t->maps >= 0)
		close(t->maps);
	t->pidfd = t->pagemap = t->maps = -1;
}

void target_clear(struct target *t)
{
	target_close(t);
	free(t->span);
	t->span = NULL;
	t->spans = 0;
}

bool process_gone(uint32_t tgid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u", tgid);
	return access(path, F_OK) < 0;
}

ssize_t target_pagemap(const struct target *t, uint64_t vpn, uint64_t *entry, size_t n)
{
	ssize_t got;

	worker_call_begin(t->tgid, t->owner);
	got = pread(t->pagemap, entry, n * sizeof(*entry), (off_t)(vpn * sizeof(*entry)));
	worker_call_end();
	return got;
}

ssize_t target_madvise(const struct target *t, const struct iovec *range, size_t n, int advice)
{
	ssize_t done;

	worker_call_begin(t->tgid, t->owner);
	done = syscall(SYS_process_madvise, t->pidfd, range, n, advice, 0);
	worker_call_end();
	return done;
}

bool target_current(const struct target *t)
{
	uint64_t entry;

	/* The descriptor belongs to the memory, not to the process: it reads nothing afterwards. */
	return target_pagemap(t, 0, &entry, 1) == sizeof(entry);
}

/* Adds spans, unused; returns the first of them, or NULL if there are enough, or no memory. */
static struct target_span *add_spans(struct target *t)
{
	uint32_t had = t->spans, n = had ? 2 * had : SPANS_FIRST;
	struct target_span *more;

	if (n > TARGET_SPANS)
		return NULL;
	more = realloc(t->span, n * sizeof(*more));
	if (!more)
		return NULL;
	memset(more + had, 0, (n - had) * sizeof(*more));
	t->span = more;
	t->spans = n;
	return more + had;
}

void target_learn(struct target *t, const struct ebb_memory *m)
{
	struct target_span *to = NULL, *added;

	for (struct target_span *s = t->span; s < t->span + t->spans; s++) {
		/* Its mapping has changed, or is the same. */
		if (s->first < m->end && m->first < s->end)
			s->seen_ns = 0;
		if (!to || s->seen_ns < to->seen_ns)
			to = s;
	}
	if (!to || (to->seen_ns && to->seen_ns + TARGET_SPAN_NS > m->time_ns)) {
		added = add_spans(t);
		to = added ? added : to;
	}
	if (to)
		*to = (struct target_span){ m->first, m->end, m->time_ns, m->file, m->index };
}

/* Returns the span with page @vpn, or NULL.  @last, the result for another page, may have it. */
static const struct target_span *span_at(const struct target *t, uint64_t vpn,
					 const struct target_span *last)
{
	if (last && vpn >= last->first && vpn < last->end)
		return last;
	for (const struct target_span *s = t->span; s < t->span + t->spans; s++)
		if (vpn >= s->first && vpn < s->end && s->seen_ns)
			return s;
	return NULL;
}

uint32_t target_keep_memory(const struct target *t, uint64_t *vpn, uint32_t n, uint64_t now)
{
	const struct target_span *span = NULL;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		span = span_at(t, vpn[i], span);
		if (span && now - span->seen_ns < TARGET_SPAN_NS)
			vpn[kept++] = vpn[i];
	}
	return kept;
}

#define UNKNOWN 0xfe

/* Pages that may be in swap, by the pagemap. */
struct found {
	const struct target_span *span; /* of the previous page, or NULL */
	uint64_t *vpn;
	uint32_t n;
	uint64_t slot[EBB_BATCH_MAX]; /* in their swap */
	uint8_t type[EBB_BATCH_MAX]; /* of their swap, or UNKNOWN: of shared memory */
};

/* Takes page @vpn, by its @entry of the pagemap, as the next one. */
static void take(struct found *f, const struct target *t, uint64_t vpn, uint64_t entry,
		 struct shared_pages *shared)
{
	const struct target_span *span = span_at(t, vpn, f->span);

	f->span = span;
	if (span && !span->file)
		span = NULL;
	if (entry & PM_PRESENT || !(entry & PM_SWAPPED) == !span)
		return;
	if (span)
		shared_pages_add(shared, span->file, span->index + vpn - span->first);
	f->slot[f->n] = PM_SWAP_SLOT(entry);
	f->type[f->n] = span ? UNKNOWN : entry & PM_SWAP_TYPE;
	f->vpn[f->n++] = vpn;
}

/* Keeps of the pages @f those that are on a device and not held back. */
static struct target_kept keep(const struct found *f, const struct ebb_look *answer, uint32_t held,
			       const struct zswap_slots *zswap)
{
	struct target_kept k = { 0 };
	uint32_t answered = 0;

	for (uint32_t i = 0; i < f->n; i++) {
		bool shared = f->type[i] == UNKNOWN;
		uint32_t type = shared ? answer->type[answered] : f->type[i];
		uint64_t slot = shared ? answer->slot[answered] : f->slot[i];

		answered += shared;

		if (type == EBB_LOOK_NOT_SWAPPED)
			continue;
		if (held >> type & 1) {
			k.held_back++;
			continue;
		}
		if (zswap_holds(zswap, type, slot)) {
			k.zswapped++;
			continue;
		}
		if (!k.kept)
			k.type = type;
		k.shared |= (uint64_t)shared << k.kept;
		f->vpn[k.kept++] = f->vpn[i];
	}
	return k;
}

struct target_kept target_keep_swapped(const struct target *t, uint64_t *vpn, uint32_t n,
				       uint32_t held, const struct zswap_slots *zswap,
				       struct shared_pages *shared)
{
	uint64_t entry[MAX_PAGES], low, high;
	struct found f = { .vpn = vpn };
	ssize_t got;

	if (!n)
		return (struct target_kept){ 0 };
	shared_pages_begin(shared);
	low = vpn[0] < vpn[n - 1] ? vpn[0] : vpn[n - 1];
	high = vpn[0] < vpn[n - 1] ? vpn[n - 1] : vpn[0];
	/* One read over the gaps is cheaper than one per page, up to about 16 entries per page. */
	if (high - low < MAX_PAGES && high - low < 16ULL * n) {
		got = target_pagemap(t, low, entry, high - low + 1);
		for (uint32_t i = 0; i < n; i++)
			if (got >= (ssize_t)((vpn[i] - low + 1) * 8))
				take(&f, t, vpn[i], entry[vpn[i] - low], shared);
	} else {
		for (uint32_t i = 0; i < n; i++)
			if (target_pagemap(t, vpn[i], entry, 1) == 8)
				take(&f, t, vpn[i], entry[0], shared);
	}
	return keep(&f, shared_pages_answer(shared), held, zswap);
}

/* Pages @first to @end - 1: of anonymous memory, or not. */
struct looked_at {
	uint64_t first, end;
	bool anonymous;
};

static struct looked_at look(struct target *t, uint64_t vpn)
{
	struct mapping_query q = { .size = sizeof(q), .address = vpn << EBB_PAGE_SHIFT };
	int r;

	if (t->maps < 0)
		t->maps = open_proc(t->tgid, t->owner, "maps");
	if (t->maps < 0)
		return (struct looked_at){ vpn, vpn + 1, false };
	worker_call_begin(t->tgid, t->owner);
	r = ioctl(t->maps, MAPPING_QUERY, &q);
	worker_call_end();
	if (r < 0 && errno == ENOTTY)
		return (struct looked_at){ 0, UINT64_MAX, true };
	if (r < 0)
		return (struct looked_at){ vpn, vpn + 1, false };
	return (struct looked_at){ q.start >> EBB_PAGE_SHIFT, q.end >> EBB_PAGE_SHIFT, !q.inode };
}

uint32_t target_drop_files(struct target *t, uint64_t *vpn, struct target_kept *k)
{
	struct looked_at at = { 0, 0, false };
	uint32_t had = k->kept, kept = 0;
	uint64_t shared = 0, is_shared;

	for (uint32_t i = 0; i < had; i++) {
		is_shared = k->shared >> i & 1;
		if (!is_shared && (vpn[i] < at.first || vpn[i] >= at.end))
			at = look(t, vpn[i]);
		if (!is_shared && !at.anonymous)
			continue;
		shared |= is_shared << kept;
		vpn[kept++] = vpn[i];
	}
	k->kept = kept;
	k->shared = shared;
	return had - kept;
}

int target_advise(const struct target *t, const uint64_t *vpn, uint32_t n, int advice)
{
	struct iovec range[MAX_RANGES];
	uint32_t ranges = 0, taken = 0;
	ssize_t done;

	for (uint32_t i = 0; i < n && ranges < MAX_RANGES; i++) {
		uintptr_t at = (uintptr_t)vpn[i] << EBB_PAGE_SHIFT;

		if (ranges &&
		    at == (uintptr_t)range[ranges - 1].iov_base + range[ranges - 1].iov_len)
			range[ranges - 1].iov_len += EBB_PAGE;
		else if (ranges && at + EBB_PAGE == (uintptr_t)range[ranges - 1].iov_base) {
			range[ranges - 1].iov_base = (void *)at;
			range[ranges - 1].iov_len += EBB_PAGE;
		} else
			range[ranges++] = (struct iovec){ (void *)at, EBB_PAGE };
	}
	for (uint32_t first = 0; first < ranges;) {
		done = target_madvise(t, range + first, ranges - first, advice);
		if (done < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (done < 0 && errno != ENOMEM)
			return taken ? (int)taken : -errno;
		if (done < 0)
			done = 0;
		taken += (uint32_t)(done >> EBB_PAGE_SHIFT);
		while (first < ranges && done >= (ssize_t)range[first].iov_len)
			done -= (ssize_t)range[first++].iov_len;
		/* A short return means a hole in the range: continue behind it. */
		if (first < ranges)
			first++;
	}
	return (int)taken;
}
