// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "slab_memory.h"

#define HUGE (2ull << 20)
/* Bounds how long mmap(2) and munmap(2) of other threads wait for this one. */
#define PIECE (16ull << 20)

#ifndef MADV_POPULATE_WRITE /* glibc 2.35; Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static void *map_nothing(void *at, uint64_t size, int flags)
{
	return mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1,
		    0);
}

void *slab_memory_reserve(uint64_t size, uint8_t **memory, size_t *reserved_size)
{
	void *m = map_nothing(NULL, size + HUGE, 0);

	if (m == MAP_FAILED)
		return NULL;
	*memory = (uint8_t *)(((uintptr_t)m + HUGE - 1) & ~(HUGE - 1));
	*reserved_size = size + HUGE;
	return m;
}

/* Maps nothing yet, locked: touched pages stay. */
static int map_private(uint8_t *at, uint64_t size)
{
	/* First: with mlockall(2), mprotect(2) would touch all of it at once. */
	return mlock2(at, size, MLOCK_ONFAULT) < 0 ||
	       mprotect(at, size, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
}

static int map_memfd(uint8_t *at, uint64_t size, unsigned int flags)
{
	int fd = memfd_create("ebb-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags), r;

	/* mmap(2) reserves the huge pages, or fails. */
	if (fd < 0 || ftruncate(fd, (off_t)size) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 ||
	    mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    mlock2(at, size, MLOCK_ONFAULT) < 0 ||
	    mprotect(at, size, PROT_READ | PROT_WRITE) < 0) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		return r;
	}
	return fd;
}

/* Allocates every page before the slab is lent. */
static int touch(uint8_t *at, uint64_t size, const struct patience *p)
{
	/* Huge pages halve the cost of copies between sockets and slabs. */
	madvise(at, size, MADV_HUGEPAGE);
	madvise(at, size, MADV_DONTDUMP);
	for (uint64_t done = 0; done < size; done += PIECE) {
		uint64_t n = size - done < PIECE ? size - done : PIECE;

		if (p->over && p->over(p->data))
			return -EINTR;
		while (madvise(at + done, n, MADV_POPULATE_WRITE) < 0)
			if (errno != EINTR && errno != EAGAIN)
				return -errno;
	}
	return 0;
}

static int make(uint8_t *at, uint64_t size, enum lend_memory kind, const struct patience *p,
		int *fd)
{
	int r;

	*fd = -1;
	if (kind == LEND_PRIVATE) {
		r = map_private(at, size);
	} else {
		r = *fd = map_memfd(at, size, kind == LEND_SHARED_HUGE ?
				    MFD_HUGETLB | MFD_HUGE_2MB : 0);
		r = r < 0 ? r : 0;
	}
	if (!r)
		r = touch(at, size, p);
	if (r)
		slab_memory_drop(at, size, *fd);
	return r;
}

int slab_memory_make(uint8_t *at, uint64_t size, enum lend_memory kind, const struct patience *p,
		     int *fd)
{
	if (kind == LEND_SHARED_HUGE && size % HUGE == 0 && !make(at, size, kind, p, fd))
		return 0;
	return make(at, size, kind == LEND_PRIVATE ? kind : LEND_SHARED, p, fd);
}

void slab_memory_drop(uint8_t *at, uint64_t size, int fd)
{
	for (uint64_t done = 0; done < size; done += PIECE) {
		uint64_t n = size - done < PIECE ? size - done : PIECE;

		map_nothing(at + done, n, MAP_FIXED);
	}
	if (fd >= 0)
		close(fd);
}
