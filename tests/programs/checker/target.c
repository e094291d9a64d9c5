// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../walk.h"
#include "stamp.h"
#include "target.h"

int target_open(struct target *t, const char *path)
{
	struct stat st;
	off_t size;

	*t = (struct target){ .fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC) };
	if (t->fd < 0 || fstat(t->fd, &st) < 0)
		return -errno;
	t->block = S_ISBLK(st.st_mode);
	size = lseek(t->fd, 0, SEEK_END);
	if (size < PAGE || size / PAGE > STAMP_PAGES)
		return -ERANGE;
	t->pages = (uint32_t)(size / PAGE);
	return 0;
}

int target_map(struct target *t, uint32_t pages)
{
	void *m;

	*t = (struct target){ .fd = -1, .pages = pages };
	/*
	 * Pages of this program on the device under test would test it, too, and hide what they
	 * find.
	 */
	if (mlockall(MCL_CURRENT) < 0)
		return -errno;
	m = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		 -1, 0);
	if (m == MAP_FAILED)
		return -errno;
	madvise(m, (size_t)pages * PAGE, MADV_NOHUGEPAGE);
	t->memory = m;
	return 0;
}

static size_t bytes(uint32_t pages)
{
	return (size_t)pages * PAGE;
}

int target_read(const struct target *t, void *to, uint32_t page, uint32_t count)
{
	ssize_t n;

	if (t->memory) {
		memcpy(to, t->memory + bytes(page), bytes(count));
		return (int)count;
	}
	n = pread(t->fd, to, bytes(count), (off_t)bytes(page));
	return n < 0 ? -errno : n < PAGE ? -EIO : (int)(n / PAGE);
}

int target_write(const struct target *t, const void *from, uint32_t page, uint32_t count)
{
	ssize_t n;

	if (t->memory) {
		memcpy(t->memory + bytes(page), from, bytes(count));
		return (int)count;
	}
	n = pwrite(t->fd, from, bytes(count), (off_t)bytes(page));
	return n < 0 ? -errno : n < PAGE ? -EIO : (int)(n / PAGE);
}

int target_discard(const struct target *t, uint32_t page, uint32_t count)
{
	uint64_t range[] = { bytes(page), bytes(count) };
	int r;

	if (t->memory)
		r = madvise(t->memory + bytes(page), bytes(count), MADV_DONTNEED);
	else if (t->block)
		r = ioctl(t->fd, BLKDISCARD, range);
	else
		r = fallocate(t->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)range[0],
			      (off_t)range[1]);
	return r < 0 ? errno == ENOSYS ? -EOPNOTSUPP : -errno : 0;
}
