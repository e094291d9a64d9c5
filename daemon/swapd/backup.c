// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backup.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/size.h"

#define MERGE 16 /* neighbouring writes that become one */
#define STACK (128u << 10)

/* For file systems without fallocate(2): writing is slower and as good. */
static int write_zeroes(int fd, uint64_t size)
{
	_cleanup_free_ char *zero = NULL;
	uint64_t done = 0;

	if (posix_memalign((void **)&zero, 4096, 1 << 20))
		return -ENOMEM;
	memset(zero, 0, 1 << 20);
	while (done < size) {
		uint64_t left = size - done;
		ssize_t n = pwrite(fd, zero, left < 1 << 20 ? left : 1 << 20, (off_t)done);

		if (n < 0)
			return -errno;
		done += (uint64_t)n;
	}
	return 0;
}

static int preallocate(int fd, const char *path, uint64_t size, struct error *e)
{
	struct statfs fs = { 0 };
	struct stat st;
	char want[16], have[16];
	uint64_t free_bytes;
	int r;

	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return fail(e, errno, "backup %s: %m", path);
	if (!S_ISREG(st.st_mode))
		return fail(e, EINVAL, "backup %s: not a regular file; name a file on a local disk",
			    path);
	free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize + (uint64_t)st.st_blocks * 512;
	r = free_bytes < size ? -ENOSPC : fallocate(fd, 0, 0, (off_t)size) < 0 ? -errno : 0;
	if (r == -EOPNOTSUPP || r == -ENOSYS)
		r = write_zeroes(fd, size);
	if (r == -ENOSPC || r == -EFBIG)
		return fail(e, r, "backup %s: %s are needed, its file system has %s; free some space or choose another disk with --backup",
			    path, size_format(size, want, sizeof(want)),
			    size_format(free_bytes, have, sizeof(have)));
	if (r)
		return fail(e, r, "backup %s: cannot preallocate %s: %s; choose another disk with --backup",
			    path, size_format(size, want, sizeof(want)), strerror(-r));
	if (fs.f_type == TMPFS_MAGIC)
		log_warn("backup %s: on tmpfs, whose pages may be swapped out to this very device; fit for tests only",
			 path);
	return 0;
}

int backup_open(struct backup *b, const char *path, uint64_t size, struct error *e)
{
	_cleanup_close_ int fd = -1;
	bool created = true;
	int r;

	if (strlen(path) >= sizeof(b->path))
		return fail(e, ENAMETOOLONG, "backup: path too long");
	fd = open(path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
	if (fd < 0 && errno == EEXIST) {
		created = false;
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (fd < 0)
		return fail(e, errno, "backup %s: %s; %s", path, strerror(errno),
			    errno == ENOENT ? "create its directory first" :
			    "choose a place for it with --backup");
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return fail(e, EBUSY, "backup %s: in use by another ebb-swapd; give each device a file of its own",
			    path);
	r = preallocate(fd, path, size, e);
	if (r) {
		if (created)
			unlink(path);
		return r;
	}
	strcpy(b->path, path);
	b->created = created;
	/* Page cache would be a second copy, taken from those who are short of memory. */
	b->direct = fcntl(fd, F_SETFL, O_DIRECT) == 0;
	if (!b->direct)
		log_warn("backup %s: no direct I/O here (%m), the page cache is used", path);
	b->fd = TAKE_FD(fd);
	return 0;
}

static int do_io(struct backup *b, struct slot **slot, int count)
{
	struct iovec iov[MERGE], *v = iov;
	bool write = slot[0]->kind == SLOT_WRITE;
	uint32_t skip = write ? 0 : slot[0]->cursor;
	off_t at = (off_t)(slot[0]->first + skip) * 4096;
	int n = count;

	for (int i = 0; i < count; i++)
		iov[i] = (struct iovec){ slot[i]->payload + skip * 4096ul,
					 (write ? slot[i]->count : slot[i]->run) * 4096ul };
	while (n) {
		ssize_t done = write ? pwritev(b->fd, v, n, at) : preadv(b->fd, v, n, at);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done ? -errno : -EIO;
		at += done;
		while (n && (size_t)done >= v->iov_len) {
			done -= (ssize_t)v->iov_len;
			v++;
			n--;
		}
		if (n) {
			v->iov_base = (char *)v->iov_base + done;
			v->iov_len -= (size_t)done;
		}
	}
	return 0;
}

/*
 * What was discarded is gone from the disk, too, but keeps its room there: a hole
 * would let the disk be full when the page is written again.
 */
static int clear(struct backup *b, const struct slot *slot)
{
	return fallocate(b->fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
			 (off_t)slot->first * 4096, (off_t)slot->count * 4096) < 0 ? -errno : 0;
}

/* The slot of job number @job, which has been submitted. */
static struct slot *job_slot(struct backup *b, uint32_t job)
{
	return &b->slots->slot[b->jobs[job % SLOT_COUNT]];
}

/* Does the oldest job, with those neighbours that fit into one transfer. */
static void do_jobs(struct backup *b, uint32_t available)
{
	struct slot *slot[MERGE];
	int n = 1, r;

	slot[0] = job_slot(b, b->completed);
	while (slot[0]->kind == SLOT_WRITE && n < MERGE && (uint32_t)n < available) {
		struct slot *s = job_slot(b, b->completed + (uint32_t)n);

		if (s->kind != SLOT_WRITE || s->first != slot[n - 1]->first + slot[n - 1]->count)
			break;
		slot[n++] = s;
	}
	if (slot[0]->kind == SLOT_DISCARD)
		r = clear(b, slot[0]);
	else if (slot[0]->kind == SLOT_ALONE)
		r = 0;
	else
		r = do_io(b, slot, n);
	for (int i = 0; i < n; i++)
		slot[i]->backup_result = r && n > 1 ? do_io(b, &slot[i], 1) : r;
	__atomic_store_n(&b->completed, b->completed + (uint32_t)n, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&b->notify, __ATOMIC_SEQ_CST)) {
		uint64_t one = 1;

		__atomic_store_n(&b->notify, 0, __ATOMIC_SEQ_CST);
		if (write(b->done_fd, &one, sizeof(one)) < 0)
			return; /* full: the loop is going to wake anyway */
	}
}

static void *backup_main(void *data)
{
	struct backup *b = data;

	prctl(PR_SET_NAME, "ebb-backup");
	for (;;) {
		uint32_t available, end = __atomic_load_n(&b->submitted, __ATOMIC_ACQUIRE);
		uint64_t n;

		available = end - b->completed;
		if (available) {
			do_jobs(b, available);
			continue;
		}
		if (__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE))
			return NULL;
		__atomic_store_n(&b->sleeping, 1, __ATOMIC_SEQ_CST);
		/* Work handed over before the flag was seen has woken nobody. */
		if (__atomic_load_n(&b->submitted, __ATOMIC_SEQ_CST) == b->completed &&
		    !__atomic_load_n(&b->stop, __ATOMIC_SEQ_CST) &&
		    read(b->wake_fd, &n, sizeof(n)) < 0 && errno != EINTR)
			return NULL;
		__atomic_store_n(&b->sleeping, 0, __ATOMIC_SEQ_CST);
	}
}

int backup_start(struct backup *b, struct slots *slots, struct error *e)
{
	pthread_attr_t attr;
	int r;

	b->slots = slots;
	b->wake_fd = eventfd(0, EFD_CLOEXEC);
	b->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->wake_fd < 0 || b->done_fd < 0)
		return fail(e, errno, "backup: eventfd: %m");
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	r = pthread_create(&b->thread, &attr, backup_main, b);
	pthread_attr_destroy(&attr);
	if (r)
		return fail(e, r, "backup thread: %s", strerror(r));
	b->running = true;
	return 0;
}

void backup_close(struct backup *b)
{
	uint64_t one = 1;

	if (b->running) {
		__atomic_store_n(&b->stop, 1, __ATOMIC_SEQ_CST);
		if (write(b->wake_fd, &one, sizeof(one)) == sizeof(one))
			pthread_join(b->thread, NULL);
		b->running = false;
	}
	if (b->fd >= 0)
		close(b->fd);
	b->fd = -1;
	if (b->created)
		unlink(b->path);
	b->created = false;
}

void backup_submit(struct backup *b, struct slot *slot)
{
	slot->backing = true;
	b->jobs[b->submitted % SLOT_COUNT] = (uint16_t)slot_index(b->slots, slot);
	__atomic_store_n(&b->submitted, b->submitted + 1, __ATOMIC_SEQ_CST);
}

void backup_kick(struct backup *b, uint32_t jobs)
{
	uint64_t one = 1;

	if (backup_queued(b) < jobs ||
	    !__atomic_exchange_n(&b->sleeping, 0, __ATOMIC_SEQ_CST))
		return;
	if (write(b->wake_fd, &one, sizeof(one)) < 0)
		return; /* full: it is about to wake */
}

struct slot *backup_reap(struct backup *b)
{
	struct slot *slot;

	if (b->reaped == __atomic_load_n(&b->completed, __ATOMIC_ACQUIRE))
		return NULL;
	slot = job_slot(b, b->reaped++);
	slot->backing = false;
	return slot;
}

bool backup_notify(struct backup *b)
{
	__atomic_store_n(&b->notify, 1, __ATOMIC_SEQ_CST);
	return b->reaped != __atomic_load_n(&b->completed, __ATOMIC_SEQ_CST);
}
