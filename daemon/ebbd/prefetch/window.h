/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An aligned window of 2 MiB of a process, collapsed into a huge page by MADV_COLLAPSE (6.1,
 * 7d8faaf15545).
 *
 * The kernel rejects windows of mappings with MADV_NOHUGEPAGE, of processes that disabled
 * transparent huge pages, and with pages that are pinned or write-protected by userfaultfd.  It
 * ignores transparent_hugepage/enabled; windows_allowed() does not.
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

/* What the machine tells about page frames and huge pages; descriptors are -1 if absent. */
struct windows {
	int enabled;      /* transparent_hugepage/enabled */
	int flags, cgroups; /* /proc/kpageflags, /proc/kpagecgroup */
};

/* Returns -ENOSYS, with the cause, where no window can be collapsed. */
int windows_open(struct windows *w, struct error *e);
void windows_close(struct windows *w);
/* Returns whether the administrator allows transparent huge pages now. */
bool windows_allowed(const struct windows *w);

#define WINDOW_FRAMES 8 /* page frames that stand for those of a window, at equal distances */

/* A window by its pagemap, at one time. */
struct window {
	uint32_t present;     /* pages mapped */
	bool private;         /* all present, anonymous, and mapped by this process alone */
	bool huge;            /* present in 512 aligned page frames in sequence */
	bool whole;           /* in 512 swap slots in sequence */
	uint64_t frame[WINDOW_FRAMES]; /* 0 = not present */
};

/* @vpn: its first page. */
struct window window_look(const struct target *t, uint64_t vpn);

/*
 * Gives @n windows from page @vpn on to the kernel, in one call; whether they are huge pages then,
 * window_look() tells.
 *
 * For each, the kernel holds the process's mmap_lock for writing while it copies 2 MiB.  The memory
 * has the same content before and after, for every process, whatever the program does meanwhile:
 *  - It unmaps, remaps, protects or forks: that takes the lock too, so it comes before or after a
 *    window, for each of which the kernel looks up the mapping again.  Of a page shared since, the
 *    process gets its own copy, as with its next write.
 *  - It exits: the call holds a reference to the memory, which is freed after it.
 *  - It locks the memory: huge pages are locked like small ones; window_page_out() skips them.
 *  - It uses userfaultfd: the kernel rejects windows with write-protected pages, and with missing
 *    ones in a registered mapping; of others no event is due.
 *  - A device or a process pins a page: the kernel sees the reference and rejects the window.
 */
void window_collapse(const struct target *t, uint64_t vpn, uint32_t n);
/* Pages out the window @vpn; returns the number of pages. */
uint32_t window_page_out(const struct target *t, uint64_t vpn);

/* A page frame that a page left: what is in it now. */
enum frame_state {
	FRAME_OTHER,      /* not what the cgroup paged out */
	FRAME_OUTGOING,   /* being written */
	FRAME_FREEABLE,   /* written, not mapped and still charged: reclaim takes it first */
};

/* @cgroup: id of the memory cgroup. */
enum frame_state windows_frame(const struct windows *w, uint64_t frame, uint64_t cgroup);

#endif
