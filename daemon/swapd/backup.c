// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
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
/*
 * Transfers under way.  What a disk takes from one at a time is its latency's
 * affair: with 1.5 ms, 600 writes a second; with 16 at a time 15,000.
 */
#define DEPTH 16

struct transfer {
	struct iocb cb;
	struct iovec iov[MERGE];
	uint32_t job, count;  /* jobs from job on; none = free */
	uint32_t first, end;  /* pages */
};

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

/* Bytes of @slot that the file is to take or give; none for what moves no pages. */
static struct iovec slot_iov(const struct slot *slot)
{
	if (slot->kind == SLOT_WRITE)
		return (struct iovec){ slot->payload, slot->count * 4096ul };
	return (struct iovec){ slot->payload + slot->cursor * 4096ul, slot->run * 4096ul };
}

/* The pages that @slot's job is about. */
static void slot_range(const struct slot *slot, uint32_t *first, uint32_t *end)
{
	bool part = slot->kind == SLOT_READ || slot->kind == SLOT_FILL;

	*first = slot->first + (part ? slot->cursor : 0);
	*end = *first + (part ? slot->run : slot->count);
}

/* Whether its pages go to the file. */
static bool writes(const struct slot *slot)
{
	return slot->kind == SLOT_WRITE || (slot->kind == SLOT_FILL && slot->fetched);
}

/* One slot's transfer, waited for. */
static int do_io(struct backup *b, const struct slot *slot)
{
	struct iovec v = slot_iov(slot);
	uint32_t first, end;
	off_t at;

	slot_range(slot, &first, &end);
	at = (off_t)first * 4096;
	while (v.iov_len) {
		ssize_t done = writes(slot) ?
			pwrite(b->fd, v.iov_base, v.iov_len, at) :
			pread(b->fd, v.iov_base, v.iov_len, at);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done ? -errno : -EIO;
		at += done;
		v.iov_base = (char *)v.iov_base + done;
		v.iov_len -= (size_t)done;
	}
	return 0;
}

/* The slot of job number @job, which has been submitted. */
static struct slot *job_slot(struct backup *b, uint32_t job)
{
	return &b->slots->slot[b->jobs[job % SLOT_COUNT]];
}

/* Results are visible up to the first job that is not through. */
static void retire(struct backup *b)
{
	uint32_t completed = b->completed;

	while (completed != b->taken && b->through[completed % SLOT_COUNT])
		completed++;
	if (completed == b->completed)
		return;
	__atomic_store_n(&b->completed, completed, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&b->notify, __ATOMIC_SEQ_CST)) {
		uint64_t one = 1;

		__atomic_store_n(&b->notify, 0, __ATOMIC_SEQ_CST);
		if (write(b->done_fd, &one, sizeof(one)) < 0)
			return; /* full: the loop is going to wake anyway */
	}
}

/* Jobs @io is for are through with @result, or are done again one by one. */
static void end_transfer(struct backup *b, struct transfer *io, int result)
{
	for (uint32_t job = io->job; job != io->job + io->count; job++) {
		struct slot *slot = job_slot(b, job);

		slot->backup_result = result ? do_io(b, slot) : 0;
		b->through[job % SLOT_COUNT] = true;
	}
	io->count = 0;
	b->in_flight--;
}

/* The jobs from @io->job on that can be one transfer: the first, and a WRITE's neighbours. */
static void gather(struct backup *b, struct transfer *io, uint32_t available)
{
	struct slot *slot = job_slot(b, io->job);

	slot_range(slot, &io->first, &io->end);
	io->iov[0] = slot_iov(slot);
	io->count = 1;
	while (slot->kind == SLOT_WRITE && io->count < MERGE && io->count < available) {
		slot = job_slot(b, io->job + io->count);
		if (slot->kind != SLOT_WRITE || slot->first != io->end)
			break;
		io->iov[io->count++] = slot_iov(slot);
		io->end += slot->count;
	}
}

static bool overlaps(const struct backup *b, const struct transfer *io)
{
	for (int i = 0; i < DEPTH; i++) {
		const struct transfer *other = &b->transfers[i];

		if (other != io && other->count && other->first < io->end && io->first < other->end)
			return true;
	}
	return false;
}

/* What is gathered in @io goes to the disk; without asynchronous I/O it is done here. */
static void begin_transfer(struct backup *b, struct transfer *io)
{
	const struct slot *slot = job_slot(b, io->job);
	struct iocb *cb = &io->cb;

	b->in_flight++;
	if (slot->kind == SLOT_ALONE) {
		end_transfer(b, io, 0);
		return;
	}
	if (writes(slot))
		io_prep_pwritev(cb, b->fd, io->iov, (int)io->count, (long long)io->first * 4096);
	else
		io_prep_preadv(cb, b->fd, io->iov, (int)io->count, (long long)io->first * 4096);
	cb->data = io;
	if (!b->aio || io_submit(b->aio, 1, &cb) != 1)
		end_transfer(b, io, -EAGAIN);
}

static struct transfer *free_transfer(struct backup *b)
{
	for (int i = 0; i < DEPTH; i++)
		if (!b->transfers[i].count)
			return &b->transfers[i];
	return NULL;
}

/* Begins what may be begun: jobs that overlap one under way, and all behind them, wait. */
static void begin_jobs(struct backup *b)
{
	uint32_t end = __atomic_load_n(&b->submitted, __ATOMIC_ACQUIRE);
	struct transfer *io;

	while (b->taken != end && (io = free_transfer(b))) {
		io->job = b->taken;
		gather(b, io, end - b->taken);
		if (overlaps(b, io)) {
			io->count = 0;
			return;
		}
		for (uint32_t i = 0; i < io->count; i++)
			b->through[b->taken++ % SLOT_COUNT] = false;
		begin_transfer(b, io);
	}
}

static void await_transfers(struct backup *b)
{
	struct io_event events[DEPTH];
	int n = io_getevents(b->aio, 1, DEPTH, events, NULL);

	for (int i = 0; i < n; i++) {
		struct transfer *io = events[i].data;

		end_transfer(b, io, events[i].res == (io->end - io->first) * 4096ul ? 0 : -EIO);
	}
}

static void *backup_main(void *data)
{
	struct backup *b = data;
	uint64_t n;

	prctl(PR_SET_NAME, "ebb-backup");
	for (;;) {
		begin_jobs(b);
		if (b->in_flight)
			await_transfers(b);
		retire(b);
		if (b->in_flight || b->taken != __atomic_load_n(&b->submitted, __ATOMIC_ACQUIRE))
			continue;
		if (__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE))
			return NULL;
		__atomic_store_n(&b->sleeping, 1, __ATOMIC_SEQ_CST);
		/* Work handed over before the flag was seen has woken nobody. */
		if (__atomic_load_n(&b->submitted, __ATOMIC_SEQ_CST) == b->taken &&
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
	b->transfers = calloc(DEPTH, sizeof(*b->transfers));
	if (!b->transfers)
		return fail(e, ENOMEM, "backup: out of memory");
	/* fs.aio-max-nr may be used up: then one at a time. */
	if (io_setup(DEPTH, &b->aio) < 0)
		b->aio = NULL;
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
	if (b->aio)
		io_destroy(b->aio);
	b->aio = NULL;
	free(b->transfers);
	b->transfers = NULL;
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

bool backup_holds(const struct backup *b, uint32_t first, uint32_t count)
{
	for (uint32_t job = b->reaped; job != b->submitted; job++) {
		const struct slot *slot = &b->slots->slot[b->jobs[job % SLOT_COUNT]];

		if (slot->kind == SLOT_WRITE && slot->first < first + count &&
		    first < slot->first + slot->count)
			return true;
	}
	return false;
}

bool backup_notify(struct backup *b)
{
	__atomic_store_n(&b->notify, 1, __ATOMIC_SEQ_CST);
	return b->reaped != __atomic_load_n(&b->completed, __ATOMIC_SEQ_CST);
}
