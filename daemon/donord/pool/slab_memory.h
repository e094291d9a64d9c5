/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory of one slab: locked, touched, all zeroes; and back to the machine.
 * Both may take long and may wait for memory, so neither is for the thread that
 * answers borrowers: two machines that lend to each other could then wait for
 * each other.
 */
#ifndef EBB_SLAB_MEMORY_H
#define EBB_SLAB_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Called now and then by the thread that makes memory: whether it is to stop. */
struct patience {
	bool (*over)(void *data); /* NULL = never */
	void *data;
};

/*
 * Shared memory is a memfd, sealed against shrinking and growing, so that a
 * borrower's access to it cannot fail.  HUGE takes huge pages where the machine
 * has some set aside (vm.nr_hugepages); programs cannot get them back, so a
 * donor that means to give memory back has no use for them.
 */
enum lend_memory { LEND_PRIVATE, LEND_SHARED, LEND_SHARED_HUGE };

/*
 * Address space for @size bytes, inaccessible, at an address for huge pages:
 * *@memory.  Returns what munmap(2) wants, *@reserved_size bytes, or NULL.
 */
void *slab_memory_reserve(uint64_t size, uint8_t **memory, size_t *reserved_size);

/*
 * Makes @size bytes at @at, which is reserved.  *@fd is the memfd, or -1.  0 or
 * -errno, -EINTR when the patience is over, and then the place is as it was.
 */
int slab_memory_make(uint8_t *at, uint64_t size, enum lend_memory kind, const struct patience *p,
		     int *fd);

/* Gives them back; @fd is closed.  What others have mapped of it stays theirs. */
void slab_memory_drop(uint8_t *at, uint64_t size, int fd);

#endif
