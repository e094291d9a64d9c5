// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <linux/kernel-page-flags.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ebb/page.h>
#include "lib/base/files.h"
#include "window.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define THP "/sys/kernel/mm/transparent_hugepage"

/* Bits of a pagemap entry: Documentation/admin-guide/mm/pagemap.rst. */
#define PM_FRAME ((1ULL << 55) - 1)   /* or swap type and slot */
#define PM_SLOT_SHIFT 5
#define PM_EXCLUSIVE (1ULL << 56)
#define PM_UFFD_WP (1ULL << 57)
#define PM_FILE (1ULL << 61)
#define PM_SWAPPED (1ULL << 62)
#define PM_PRESENT (1ULL << 63)
#define PM_STATE (PM_EXCLUSIVE | PM_UFFD_WP | PM_FILE | PM_SWAPPED | PM_PRESENT)

int windows_open(struct windows *w, struct error *e)
{
	int64_t size = file_number(THP "/hpage_pmd_size", 0);

	*w = (struct windows){ -1, -1, -1, -1 };
	/* No length: only the advice is checked.  Kernels without huge pages reject it. */
	if (madvise((void *)(uintptr_t)EBB_PAGE, 0, MADV_COLLAPSE) || !size)
		return fail(e, ENOSYS, "the kernel has no MADV_COLLAPSE; it needs Linux 6.1 with "
			    "CONFIG_TRANSPARENT_HUGEPAGE");
	if (size != COLLAPSE_BYTES)
		return fail(e, ENOSYS, "huge pages have %lld bytes; ebb collapses only %llu",
			    (long long)size, COLLAPSE_BYTES);
	w->enabled = open(THP "/enabled", O_RDONLY | O_CLOEXEC);
	w->size = open(THP "/hugepages-2048kB/enabled", O_RDONLY | O_CLOEXEC);
	/* Without these, only free capacity below the limit counts. */
	w->flags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	w->cgroups = open("/proc/kpagecgroup", O_RDONLY | O_CLOEXEC);
	return 0;
}

void windows_close(struct windows *w)
{
	if (w->enabled >= 0)
		close(w->enabled);
	if (w->size >= 0)
		close(w->size);
	if (w->flags >= 0)
		close(w->flags);
	if (w->cgroups >= 0)
		close(w->cgroups);
	*w = (struct windows){ -1, -1, -1, -1 };
}

/* Returns whether the file @fd, a list of settings, has @word in brackets. */
static bool selects(int fd, const char *word)
{
	char text[64];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return strstr(text, word);
}

bool windows_allowed(const struct windows *w)
{
	if (w->size >= 0 && !selects(w->size, "[inherit]"))
		return !selects(w->size, "[never]");
	return w->enabled >= 0 && !selects(w->enabled, "[never]");
}

struct window window_look(const struct target *t, uint64_t vpn)
{
	uint64_t entry[COLLAPSE_PAGES], first;
	struct window w = { .private = true, .huge = true, .whole = true };
	ssize_t n = target_pagemap(t, vpn, entry, COLLAPSE_PAGES);

	if (n != sizeof(entry))
		return (struct window){ 0 };
	first = entry[0] & PM_FRAME;
	for (uint32_t i = 0; i < COLLAPSE_PAGES; i++) {
		uint64_t at = entry[i] & PM_FRAME, state = entry[i] & PM_STATE;
		bool present = state & PM_PRESENT;

		w.present += present;
		w.private &= state == (PM_PRESENT | PM_EXCLUSIVE);
		w.huge &= present && at == first + i;
		w.whole &= !present && state & PM_SWAPPED &&
			   at == first + ((uint64_t)i << PM_SLOT_SHIFT);
	}
	/* The root of a user namespace sees no page frames. */
	w.huge &= first && !(first & (COLLAPSE_PAGES - 1));
	for (uint32_t i = 0; i < WINDOW_FRAMES; i++) {
		uint64_t at = entry[i * (COLLAPSE_PAGES / WINDOW_FRAMES)];

		w.frame[i] = at & PM_PRESENT ? at & PM_FRAME : 0;
	}
	return w;
}

static ssize_t advise(const struct target *t, uint64_t vpn, uint64_t n, int advice)
{
	struct iovec range = { (void *)(uintptr_t)(vpn << EBB_PAGE_SHIFT), n << EBB_PAGE_SHIFT };

	return target_madvise(t, &range, 1, advice);
}

void window_collapse(const struct target *t, uint64_t vpn, uint32_t n)
{
	/* An error may concern one of the windows. */
	advise(t, vpn, (uint64_t)n << COLLAPSE_SHIFT, MADV_COLLAPSE);
}

uint32_t window_page_out(const struct target *t, uint64_t vpn)
{
	ssize_t done = advise(t, vpn, COLLAPSE_PAGES, MADV_PAGEOUT);

	return done > 0 ? (uint32_t)(done >> EBB_PAGE_SHIFT) : 0;
}

enum frame_state windows_frame(const struct windows *w, uint64_t frame, uint32_t pages,
			       uint64_t cgroup)
{
	uint64_t flags, charged, all = 1ULL << KPF_SWAPCACHE | 1ULL << KPF_ANON;

	/*
	 * A page that has been mapped stays anonymous until it is freed.  One that was prefetched
	 * and not used yet is in the swap cache and clean, too, but anonymous only once it is
	 * mapped; it takes the frames that others have left, and must not count as freeable.
	 */
	if (pages > 1)
		all |= 1ULL << KPF_THP;
	if (!frame ||
	    pread(w->cgroups, &charged, sizeof(charged), (off_t)(frame * 8)) != sizeof(charged) ||
	    charged != cgroup ||
	    pread(w->flags, &flags, sizeof(flags), (off_t)(frame * 8)) != sizeof(flags) ||
	    (flags & all) != all || flags >> KPF_MMAP & 1)
		return FRAME_OTHER;
	if (flags >> KPF_WRITEBACK & 1)
		return FRAME_OUTGOING;
	return flags >> KPF_DIRTY & 1 ? FRAME_OTHER : FRAME_FREEABLE;
}
