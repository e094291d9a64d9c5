/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What is checked: a file or block device by direct I/O, or memory that is swapped. */
#ifndef EBB_TESTS_TARGET_H
#define EBB_TESTS_TARGET_H

#include <stdbool.h>
#include <stdint.h>

struct target {
	int fd;
	bool block;   /* a block device */
	char *memory; /* NULL: by fd */
	uint32_t pages;
};

/* Opens @path, of which whole pages are used.  0 or -errno. */
int target_open(struct target *t, const char *path);

/*
 * Private memory of @pages pages; what the process has so far is locked first, so that
 * only this memory is swapped.  0 or -errno.
 */
int target_map(struct target *t, uint32_t pages);

/* Whether two threads may use one page at a time. */
static inline bool target_shared(const struct target *t)
{
	return !t->memory;
}

/* The number of whole pages moved, from the first on, or -errno when there is none. */
int target_read(const struct target *t, void *to, uint32_t page, uint32_t count);
int target_write(const struct target *t, const void *from, uint32_t page, uint32_t count);

/* Afterwards the pages are zeroes.  0 or -errno; -EOPNOTSUPP where there is no such thing. */
int target_discard(const struct target *t, uint32_t page, uint32_t count);

#endif
