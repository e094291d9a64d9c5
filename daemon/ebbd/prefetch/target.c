// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <ebb/page.h>
#include "target.h"

#define PM_PRESENT (1ULL << 63)
#define PM_SWAPPED (1ULL << 62)
#define PM_SWAP_TYPE 31   /* needs CAP_SYS_ADMIN at open() */
#define MAX_PAGES 1024   /* pagemap entries one read may cover */
#define MAX_RANGES 64

int target_open(struct target *t, uint32_t tgid, uint32_t exec)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/pagemap", tgid);
	*t = (struct target){ .tgid = tgid, .exec = exec, .pidfd = -1, .pagemap = -1,
			       .type = UINT32_MAX };
	t->pidfd = (int)syscall(SYS_pidfd_open, tgid, 0);
	if (t->pidfd >= 0)
		t->pagemap = open(path, O_RDONLY | O_CLOEXEC);
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
	t->pidfd = t->pagemap = -1;
}

bool process_gone(uint32_t tgid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u", tgid);
	return access(path, F_OK) < 0;
}

bool target_gone(const struct target *t)
{
	struct pollfd p = { .fd = t->pidfd, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

bool target_current(const struct target *t)
{
	uint64_t entry;

	/* The descriptor belongs to the memory, not to the process: it reads nothing afterwards. */
	return pread(t->pagemap, &entry, sizeof(entry), 0) == sizeof(entry);
}

void target_learn(struct target *t, uint64_t first, uint64_t end, uint64_t now)
{
	struct target_span *to = t->span;

	for (struct target_span *s = t->span; s < t->span + TARGET_SPANS; s++) {
		/* Its mapping has changed, or is the same. */
		if (s->first < end && first < s->end)
			s->seen_ns = 0;
		if (s->seen_ns < to->seen_ns)
			to = s;
	}
	*to = (struct target_span){ first, end, now };
}

static bool is_memory(const struct target *t, uint64_t vpn, uint64_t now)
{
	for (const struct target_span *s = t->span; s < t->span + TARGET_SPANS; s++)
		if (vpn >= s->first && vpn < s->end && s->seen_ns &&
		    now - s->seen_ns < TARGET_SPAN_NS)
			return true;
	return false;
}

uint32_t target_keep_memory(const struct target *t, uint64_t *vpn, uint32_t n, uint64_t now)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++)
		if (is_memory(t, vpn[i], now))
			vpn[kept++] = vpn[i];
	return kept;
}

/* Keeps page @vpn, by its @entry of the pagemap, as the next of @pages. */
static void keep(struct target_kept *k, uint64_t *pages, uint64_t vpn, uint64_t entry,
		 uint32_t held)
{
	if ((entry & (PM_PRESENT | PM_SWAPPED)) != PM_SWAPPED)
		return;
	if (held >> (entry & PM_SWAP_TYPE) & 1) {
		k->held_back++;
		return;
	}
	if (!k->kept)
		k->type = entry & PM_SWAP_TYPE;
	pages[k->kept++] = vpn;
}

struct target_kept target_keep_swapped(const struct target *t, uint64_t *vpn, uint32_t n,
				       uint32_t held)
{
	struct target_kept kept = { 0 };
	uint64_t entry[MAX_PAGES], low, high;
	ssize_t got;

	if (!n)
		return kept;
	low = vpn[0] < vpn[n - 1] ? vpn[0] : vpn[n - 1];
	high = vpn[0] < vpn[n - 1] ? vpn[n - 1] : vpn[0];
	/* One read over the gaps is cheaper than one per page, up to about 16 entries per page. */
	if (high - low < MAX_PAGES && high - low < 16ULL * n) {
		got = pread(t->pagemap, entry, (high - low + 1) * 8, (off_t)(low * 8));
		for (uint32_t i = 0; i < n; i++)
			if (got >= (ssize_t)((vpn[i] - low + 1) * 8))
				keep(&kept, vpn, vpn[i], entry[vpn[i] - low], held);
		return kept;
	}
	for (uint32_t i = 0; i < n; i++)
		if (pread(t->pagemap, entry, 8, (off_t)(vpn[i] * 8)) == 8)
			keep(&kept, vpn, vpn[i], entry[0], held);
	return kept;
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
		done = syscall(SYS_process_madvise, t->pidfd, range + first,
			       (size_t)(ranges - first), advice, 0);
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
