// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
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

#include <ebb/page.h>
#include "backup.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/size.h"
#include "lib/base/small_thread.h"

#define MERGE 32 /* neighbouring writes merged into one */
#define STACK (128u << 10)
/*
 * Transfers in flight.  One at a time is limited by the disk's latency: 600 writes a second at 1.5
 * ms, but 20,000 with 32 at a time.
 */
#define DEPTH 32 /* of each lane */
/* Bytes of writes in flight, for which an arriving read waits: enough for 1 GB/s at 8 ms. */
#define WRITING (8u << 20)
/* One write in this many wakes the thread; the disk has the others to do until then. */
#define WAKE_EVERY 8
/* Interval of checks for writes that end after the last one that wakes. */
#define LOOK_MS 1

/* Events for which the thread sleeps. */
enum { AWAKE, SLEEPS_IDLE, SLEEPS_BUSY /* for the end of a transfer, and for reads */ };

struct disk_io {
	struct iocb cb;
	struct iovec iov[MERGE];
	struct backup_lane *lane;
	uint32_t job, count;  /* jobs from job on; none = free */
	bool wakes;           /* its end signals wake_fd */
	uint32_t first, end;  /* pages */
};

/* SIGTERM and SIGINT are blocked while ebb-swapd starts. */
static bool is_to_end(void)
{
	sigset_t pending;

	return !sigpending(&pending) &&
	       (sigismember(&pending, SIGTERM) > 0 || sigismember(&pending, SIGINT) > 0);
}

/* For file systems without fallocate(2), slower but equivalent. */
static int write_zeroes(int fd, uint64_t size)
{
	_cleanup_free_ char *zero = NULL;
	uint64_t done = 0;

	if (posix_memalign((void **)&zero, EBB_PAGE, 1 << 20))
		return -ENOMEM;
	memset(zero, 0, 1 << 20);
	while (done < size) {
		uint64_t left = size - done;
		ssize_t n = pwrite(fd, zero, left < 1 << 20 ? left : 1 << 20, (off_t)done);

		if (is_to_end())
			return -EINTR;
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
	/* Page cache would be a second copy, on a machine that is short of memory. */
	b->direct = fcntl(fd, F_SETFL, O_DIRECT) == 0;
	if (!b->direct)
		log_warn("backup %s: no direct I/O (%m); using the page cache", path);
	b->fd = TAKE_FD(fd);
	b->shared_fd = -1;
	return 0;
}

/* Returns the part of @slot's payload that the file reads or writes; empty if none. */
static struct iovec slot_iov(const struct slot *slot)
{
	if (slot->kind == SLOT_WRITE)
		return (struct iovec){ slot->payload, (size_t)slot->count * EBB_PAGE };
	return (struct iovec){ slot->payload + (size_t)slot->cursor * EBB_PAGE,
			       (size_t)slot->run * EBB_PAGE };
}

/* Returns the pages of @slot's job. */
static void slot_range(const struct slot *slot, uint32_t *first, uint32_t *end)
{
	bool part = slot->kind == SLOT_READ || slot->kind == SLOT_RESYNC;

	*first = slot->first + (part ? slot->cursor : 0);
	*end = *first + (part ? slot->run : slot->count);
}

static bool writes(const struct slot *slot)
{
	return slot->kind == SLOT_WRITE || (slot->kind == SLOT_RESYNC && slot->fetched);
}

/* Transfers one slot synchronously. */
static int do_io(struct backup *b, const struct slot *slot)
{
	struct iovec v = slot_iov(slot);
	uint32_t first, end;
	off_t at;

	slot_range(slot, &first, &end);
	at = (off_t)first * EBB_PAGE;
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

/* Returns the slot of job number @job of @l, which has been submitted. */
static struct slot *job_slot(const struct backup *b, const struct backup_lane *l, uint32_t job)
{
	return &b->slots->slot[l->jobs[job % SLOT_COUNT]];
}

/* Publishes results up to the first unfinished job.  Returns true when there are new ones. */
static bool retire(struct backup_lane *l)
{
	uint32_t completed = l->completed;

	while (completed != l->taken && l->through[completed % SLOT_COUNT])
		completed++;
	if (completed == l->completed)
		return false;
	__atomic_store_n(&l->completed, completed, __ATOMIC_SEQ_CST);
	return true;
}

static void tell_loop(struct backup *b)
{
	uint64_t one = 1;

	if (!__atomic_load_n(&b->notify, __ATOMIC_SEQ_CST))
		return;
	__atomic_store_n(&b->notify, 0, __ATOMIC_SEQ_CST);
	if (write(b->done_fd, &one, sizeof(one)) < 0)
		return; /* full: the loop will wake anyway */
}

static uint64_t bytes_written(const struct backup *b, const struct disk_io *io)
{
	return writes(job_slot(b, io->lane, io->job)) ?
	       (io->end - io->first) * (uint64_t)EBB_PAGE : 0;
}

/* Ends the jobs of @io with @result, after an error by doing them again one by one. */
static void end_io(struct backup *b, struct disk_io *io, int result)
{
	for (uint32_t job = io->job; job != io->job + io->count; job++) {
		struct slot *slot = job_slot(b, io->lane, job);

		slot->backup_result = result ? do_io(b, slot) : 0;
		io->lane->through[job % SLOT_COUNT] = true;
	}
	b->writing -= bytes_written(b, io);
	b->wakers -= io->wakes;
	io->count = 0;
	b->in_flight--;
}

/* Gathers jobs from @io->job on for one transfer: the first, and a WRITE's neighbours. */
static void gather(struct backup *b, struct disk_io *io, uint32_t available)
{
	struct slot *slot = job_slot(b, io->lane, io->job);

	slot_range(slot, &io->first, &io->end);
	io->iov[0] = slot_iov(slot);
	io->count = 1;
	while (slot->kind == SLOT_WRITE && io->count < MERGE && io->count < available) {
		slot = job_slot(b, io->lane, io->job + io->count);
		if (slot->kind != SLOT_WRITE || slot->first != io->end)
			break;
		io->iov[io->count++] = slot_iov(slot);
		io->end += slot->count;
	}
}

static bool overlaps(const struct backup *b, const struct disk_io *io)
{
	for (int i = 0; i < 2 * DEPTH; i++) {
		const struct disk_io *other = &b->ios[i];

		if (other != io && other->count && other->first < io->end && io->first < other->end)
			return true;
	}
	return false;
}

/* Prepares the transfer @io for the disk; without asynchronous I/O does it here. */
static void begin_io(struct backup *b, struct disk_io *io)
{
	const struct slot *slot = job_slot(b, io->lane, io->job);
	struct iocb *cb = &io->cb;

	b->in_flight++;
	io->wakes = false;
	b->writing += bytes_written(b, io);
	if (slot->kind == SLOT_EXCLUSIVE) {
		end_io(b, io, 0);
		return;
	}
	if (writes(slot))
		io_prep_pwritev(cb, b->fd, io->iov, (int)io->count,
				(long long)io->first * EBB_PAGE);
	else
		io_prep_preadv(cb, b->fd, io->iov, (int)io->count, (long long)io->first * EBB_PAGE);
	cb->data = io;
	if (b->aio)
		b->ready[b->ready_count++] = cb;
	else
		end_io(b, io, -EAGAIN);
}

/*
 * Chooses whether the end of @io wakes the thread: each read does, some writes, and the last one
 * ready (@last) if no other would.
 */
static void choose_wake(struct backup *b, struct disk_io *io, bool last)
{
	if (io->lane != &b->reads && ++b->silent < WAKE_EVERY && !(last && !b->wakers))
		return;
	if (io->lane != &b->reads)
		b->silent = 0;
	io_set_eventfd(&io->cb, b->wake_fd);
	io->wakes = true;
	b->wakers++;
}

/*
 * Submits the begun transfers in one call, which notifies the disk once: in a virtual machine that
 * costs more than a page, as does a wake-up.
 */
static void submit_ready(struct backup *b)
{
	uint32_t done = 0;

	for (uint32_t i = 0; i < b->ready_count; i++)
		choose_wake(b, b->ready[i]->data, i + 1 == b->ready_count);
	while (done < b->ready_count) {
		int n = io_submit(b->aio, (long)(b->ready_count - done), b->ready + done);

		if (n > 0)
			done += (uint32_t)n;
		else
			end_io(b, b->ready[done++]->data, -EAGAIN);
	}
	b->ready_count = 0;
}

static struct disk_io *free_io(struct backup *b, const struct backup_lane *l)
{
	struct disk_io *of = b->ios + (l == &b->reads ? DEPTH : 0);

	for (int i = 0; i < DEPTH; i++)
		if (!of[i].count)
			return &of[i];
	return NULL;
}

/*
 * Begins the next jobs of @l as one transfer, unless they overlap one in flight: then they and all
 * behind them wait.
 */
static bool begin_next(struct backup *b, struct backup_lane *l)
{
	uint32_t end = __atomic_load_n(&l->submitted, __ATOMIC_ACQUIRE);
	struct disk_io *io = l->taken != end ? free_io(b, l) : NULL;

	if (!io)
		return false;
	io->lane = l;
	io->job = l->taken;
	gather(b, io, end - l->taken);
	if (overlaps(b, io) || (b->writing && b->writing + bytes_written(b, io) > WRITING)) {
		io->count = 0;
		return false;
	}
	for (uint32_t i = 0; i < io->count; i++)
		l->through[l->taken++ % SLOT_COUNT] = false;
	begin_io(b, io);
	return true;
}

/* Reads come first: without asynchronous I/O each write takes its time. */
static void begin_jobs(struct backup *b)
{
	while (begin_next(b, &b->reads) || begin_next(b, &b->queue))
		;
	submit_ready(b);
}

static void end_transfers(struct backup *b)
{
	struct timespec at_once = { 0 };
	struct io_event events[2 * DEPTH];
	int n = io_getevents(b->aio, 0, 2 * DEPTH, events, &at_once);

	for (int i = 0; i < n; i++) {
		struct disk_io *io = events[i].data;

		end_io(b, io,
			     events[i].res == (io->end - io->first) * (size_t)EBB_PAGE ? 0 : -EIO);
	}
}

static bool has_more(const struct backup_lane *l)
{
	return __atomic_load_n(&l->submitted, __ATOMIC_SEQ_CST) != l->taken;
}

/* Sleeps until a transfer has ended or a job may begin; returns -errno. */
static int sleep_a_while(struct backup *b)
{
	uint32_t how = b->in_flight ? SLEEPS_BUSY : SLEEPS_IDLE;
	struct pollfd wake = { .fd = b->wake_fd, .events = POLLIN };
	int r = 0;
	uint64_t n;

	__atomic_store_n(&b->sleeping, how, __ATOMIC_SEQ_CST);
	/* Work submitted before the flag was visible has not woken the thread. */
	if (!(has_more(&b->reads) && free_io(b, &b->reads)) &&
	    (b->in_flight ||
	     (!has_more(&b->queue) && !__atomic_load_n(&b->stop, __ATOMIC_SEQ_CST))) &&
	    (b->wakers || !b->in_flight || poll(&wake, 1, LOOK_MS) > 0) &&
	    read(b->wake_fd, &n, sizeof(n)) < 0 && errno != EINTR)
		r = -errno;
	__atomic_store_n(&b->sleeping, AWAKE, __ATOMIC_SEQ_CST);
	return r;
}

static void *backup_main(void *data)
{
	struct backup *b = data;

	prctl(PR_SET_NAME, "ebb-backup");
	for (;;) {
		bool news;

		begin_jobs(b);
		if (b->in_flight)
			end_transfers(b);
		news = retire(&b->queue);
		news = retire(&b->reads) || news;
		if (news) {
			tell_loop(b);
			continue;
		}
		if (!b->in_flight && !has_more(&b->queue) && !has_more(&b->reads) &&
		    __atomic_load_n(&b->stop, __ATOMIC_ACQUIRE))
			return NULL;
		if (sleep_a_while(b))
			return NULL;
	}
}

/* Opens the file again; if that fails (read-only file system), the shared descriptor is used. */
static void open_own(struct backup *b)
{
	int flags = O_RDWR | O_CLOEXEC | (b->direct ? O_DIRECT : 0);
	char path[32];
	int fd;

	/* The file may have been renamed or removed since. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", b->fd);
	fd = open(path, flags);
	if (fd < 0)
		return;
	b->shared_fd = b->fd;
	b->fd = fd;
}

int backup_claim(struct backup *b)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	if (b->shared_fd < 0)
		return 0;
	/* A file system without locks tells nothing: assume no I/O. */
	return fcntl(b->fd, F_OFD_SETLK, &whole) < 0 && (errno == EAGAIN || errno == EACCES) ?
		       -EAGAIN : 0;
}

int backup_start(struct backup *b, struct slots *slots, struct error *e)
{
	int r;

	open_own(b);
	b->slots = slots;
	b->wake_fd = eventfd(0, EFD_CLOEXEC);
	b->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->wake_fd < 0 || b->done_fd < 0)
		return fail(e, errno, "backup: eventfd: %m");
	b->ios = calloc(2 * DEPTH, sizeof(*b->ios));
	b->ready = calloc(2 * DEPTH, sizeof(struct iocb *));
	if (!b->ios || !b->ready)
		return fail(e, ENOMEM, "backup: out of memory");
	/* fs.aio-max-nr may be used up: transfer one at a time. */
	if (io_setup(2 * DEPTH, &b->aio) < 0)
		b->aio = NULL;
	r = small_thread_create(&b->thread, STACK, backup_main, b);
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
	free(b->ios);
	b->ios = NULL;
	free(b->ready);
	b->ready = NULL;
	if (b->fd >= 0)
		close(b->fd);
	if (b->shared_fd >= 0)
		close(b->shared_fd);
	b->fd = b->shared_fd = -1;
	if (b->created)
		unlink(b->path);
	b->created = false;
}

void backup_submit(struct backup *b, struct slot *slot)
{
	bool reads = slot->kind == SLOT_READ || (slot->kind == SLOT_RESYNC && !slot->fetched);
	struct backup_lane *l = reads ? &b->reads : &b->queue;

	slot->backing = true;
	b->fresh = b->fresh || reads;
	l->jobs[l->submitted % SLOT_COUNT] = (uint16_t)slot_index(b->slots, slot);
	__atomic_store_n(&l->submitted, l->submitted + 1, __ATOMIC_SEQ_CST);
}

void backup_kick(struct backup *b, uint32_t jobs)
{
	uint32_t asleep = __atomic_load_n(&b->sleeping, __ATOMIC_SEQ_CST);
	bool wanted = b->fresh || (asleep == SLEEPS_IDLE && backup_queued(b) >= jobs);
	uint64_t one = 1;

	/* A thread that is awake checks before it sleeps. */
	b->fresh = false;
	if (!wanted || !__atomic_exchange_n(&b->sleeping, AWAKE, __ATOMIC_SEQ_CST))
		return;
	if (write(b->wake_fd, &one, sizeof(one)) < 0)
		return; /* full: it will wake anyway */
}

struct slot *backup_reap(struct backup *b)
{
	struct backup_lane *lanes[] = { &b->reads, &b->queue };

	for (int i = 0; i < 2; i++) {
		struct backup_lane *l = lanes[i];
		struct slot *slot;

		if (l->reaped == __atomic_load_n(&l->completed, __ATOMIC_ACQUIRE))
			continue;
		slot = job_slot(b, l, l->reaped++);
		slot->backing = false;
		return slot;
	}
	return NULL;
}

bool backup_holds(const struct backup *b, uint32_t first, uint32_t count)
{
	for (uint32_t job = b->queue.reaped; job != b->queue.submitted; job++) {
		const struct slot *slot = job_slot(b, &b->queue, job);

		if (slot->kind == SLOT_WRITE && slot->first < first + count &&
		    first < slot->first + slot->count)
			return true;
	}
	return false;
}

/*
 * Returns the last slot queued for @page, or NULL.  Reduces *@same to the pages from it on with
 * that answer.
 */
static const struct slot *last_queued(const struct backup *b, uint32_t page, uint32_t *same)
{
	for (uint32_t job = b->queue.submitted; job != b->queue.reaped;) {
		const struct slot *slot = job_slot(b, &b->queue, --job);
		uint32_t first, end;

		if (!writes(slot))
			continue;
		slot_range(slot, &first, &end);
		if (first <= page && page < end) {
			*same = *same < end - page ? *same : end - page;
			return slot;
		}
		/* Pages from there on have another answer. */
		if (first > page && first - page < *same)
			*same = first - page;
	}
	return NULL;
}

bool backup_take_queued(const struct backup *b, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor;
	const struct slot *queued = last_queued(b, page, &slot->run);

	if (!queued)
		return false;
	memcpy(slot->payload + slot->cursor * (size_t)EBB_PAGE,
	       queued->payload + (page - queued->first) * (size_t)EBB_PAGE,
	       slot->run * (size_t)EBB_PAGE);
	return true;
}

bool backup_notify(struct backup *b)
{
	__atomic_store_n(&b->notify, 1, __ATOMIC_SEQ_CST);
	return b->queue.reaped != __atomic_load_n(&b->queue.completed, __ATOMIC_SEQ_CST) ||
	       b->reads.reaped != __atomic_load_n(&b->reads.completed, __ATOMIC_SEQ_CST);
}
