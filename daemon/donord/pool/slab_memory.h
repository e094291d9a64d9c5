/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory of one slab: locked, touched and zeroed.  Making and dropping it may wait for memory,
 * so the thread that answers borrowers does neither: two machines that lend to each other could
 * deadlock.
 */
#ifndef EBB_SLAB_MEMORY_H
#define EBB_SLAB_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Called between pieces by the thread that makes memory: whether to stop. */
struct patience {
	bool (*over)(void *data); /* NULL = never */
	void *data;
};

/*
 * Shared memory is a memfd, sealed against shrinking and growing, so that a borrower's access
 * cannot fail.  HUGE prefers reserved huge pages (vm.nr_hugepages), which other programs cannot
 * use: not for donors that return memory to the machine.
 */
enum lend_memory { LEND_PRIVATE, LEND_SHARED, LEND_SHARED_HUGE };

/*
 * Reserves inaccessible address space for @size bytes; *@memory is aligned to huge pages.  Returns
 * the mapping of *@reserved_size bytes for munmap(2), or NULL.
 */
void *slab_memory_reserve(uint64_t size, uint8_t **memory, size_t *reserved_size);

/*
 * Makes @size bytes at @at, which is reserved.  *@fd is the memfd, or -1.  Returns 0 or -errno,
 * -EINTR when the patience is over; on failure the place is as before.
 */
int slab_memory_make(uint8_t *at, uint64_t size, enum lend_memory kind, const struct patience *p,
		     int *fd);

/* Drops the memory and closes @fd.  Other processes' mappings stay. */
void slab_memory_drop(uint8_t *at, uint64_t size, int fd);

#endif
