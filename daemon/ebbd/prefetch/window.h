/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A window: an aligned range of 2 MiB of a process, which MADV_COLLAPSE (Linux 6.1, 7d8faaf15545)
 * makes a huge page.
 *
 * The kernel rejects windows with MADV_NOHUGEPAGE, in more than one mapping, of processes that
 * disabled transparent huge pages, and with pages that are pinned or write-protected by
 * userfaultfd.  It ignores the settings in /sys/kernel/mm/transparent_hugepage; windows_allowed()
 * does not.
 *
 * Only the pagemap is read: PAGEMAP_SCAN tells neither page frames nor whether another process maps
 * a page too.
 */
#ifndef EBB_WINDOW_H
#define EBB_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/collapse.h"
#include "target.h"

/* Descriptors of what the machine tells about page frames and huge pages; -1 if absent. */
struct windows {
	int enabled;        /* transparent_hugepage/enabled */
	int size;           /* transparent_hugepage/hugepages-2048kB/enabled (6.8) */
	int flags, cgroups; /* /proc/kpageflags, /proc/kpagecgroup */
};

/* Returns -ENOSYS, with the cause, where the kernel cannot collapse windows. */
int windows_open(struct windows *w, struct error *e);
void windows_close(struct windows *w);
/* Returns whether the settings allow huge pages of 2 MiB now: they are not "never". */
bool windows_allowed(const struct windows *w);

#define WINDOW_FRAMES 8 /* of its page frames, at equal distances, are noted */

/* A window by its pagemap, at one time. */
struct window {
	uint32_t present;     /* pages mapped */
	bool private;         /* all present, anonymous, and mapped by this process alone */
	bool huge;            /* all present, in one huge page or what looks like one */
	bool whole;           /* all swapped out, to 512 slots in sequence */
	uint64_t frame[WINDOW_FRAMES]; /* 0 = not present */
};

/* Reads the pagemap from page @vpn on, the window's first. */
struct window window_look(const struct target *t, uint64_t vpn);

/*
 * Has the kernel collapse the @n windows from page @vpn on, in one call; window_look() then tells
 * which are huge pages.
 *
 * May take long.  The kernel first has every CPU empty its batches of LRU pages.  For each window,
 * it allocates 2 MiB, for which it may compact the machine's memory, and charges them to the
 * process's cgroup, which may reclaim there; an allocation of this size invokes no OOM killer.  It
 * holds the mmap_lock for writing only while it copies.
 *
 * The memory has the same content before and after, for every process, whatever the program does
 * meanwhile:
 *  - It unmaps, remaps, protects or forks: that takes the lock too, so it comes before or after a
 *    window, for each of which the kernel looks up the mapping again.  Of a page shared since, the
 *    process gets its own copy, as with its next write.
 *  - It exits: the call holds a reference to the memory, which is freed after it.
 *  - It executes another program: that program's memory at these addresses is collapsed instead.
 *  - It locks the memory: huge pages are locked like small ones; window_page_out() skips them.
 *  - It uses userfaultfd: the kernel rejects windows with write-protected pages, and with missing
 *    ones in a registered mapping; of others no event is due.
 *  - A device or a process pins a page: the kernel sees the reference and rejects the window.
 */
void window_collapse(const struct target *t, uint64_t vpn, uint32_t n);
/* Pages out the window @vpn; returns the number of pages. */
uint32_t window_page_out(const struct target *t, uint64_t vpn);

/* What is now in a page frame from which ebbd paged out. */
enum frame_state {
	FRAME_OTHER,      /* free, in use, or another cgroup's */
	FRAME_OUTGOING,   /* being written */
	FRAME_FREEABLE,   /* written, unmapped and still charged: reclaim takes it first */
};

/*
 * @frame: of a small page, or the first one of a huge page, which has @pages.  @cgroup: id of the
 * memory cgroup.
 */
enum frame_state windows_frame(const struct windows *w, uint64_t frame, uint32_t pages,
			       uint64_t cgroup);

#endif
