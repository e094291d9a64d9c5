// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "frontend.h"
#include "fuse.h"
#include "lib/base/cleanup.h"
#include "swapd/page/shared.h"

#define ROOT_INO FUSE_ROOT_ID
#define FILE_INO 2
#define FOR_EVER (1u << 30) /* seconds that attributes stay valid: they never change */
/*
 * Direct asynchronous I/O counts as background I/O.  A loop device has 128
 * requests in flight, each of which may come in pieces.
 */
#define MAX_BACKGROUND 512
#define CONGESTION 384
/* Those requests, and those of repair; further ones wait in the kernel. */
#define SLOTS (128 + SLOTS_RESERVED + 32)
/* Length of a WRITE's header and arguments, which precede the pages. */
#define BEFORE_PAGES (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
_Static_assert(BEFORE_PAGES == 80 && BEFORE_PAGES < EBB_PAGE, "pages land on a page boundary");

static void send_iov(struct frontend_host *h, const struct iovec *iov, int n)
{
	/*
	 * ENOENT: the request was aborted meanwhile and needs no answer; or a
	 * predecessor answered it before its death.
	 */
	if (writev(h->fd, iov, n) < 0 && errno != ENOENT)
		count_add(&h->count->fuse_errors, 1);
}

static void answer(struct frontend_host *h, uint64_t unique, const void *data, size_t size)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + size), .unique = unique };
	struct iovec iov[2] = { { &out, sizeof(out) }, { (void *)data, size } };

	send_iov(h, iov, size ? 2 : 1);
}

static void answer_error(struct frontend_host *h, uint64_t unique, int error)
{
	struct fuse_out_header out = { .len = sizeof(out), .error = error, .unique = unique };
	struct iovec iov = { &out, sizeof(out) };

	send_iov(h, &iov, 1);
}

static void answer_read(struct frontend_host *h, struct slot *slot)
{
	struct fuse_out_header *out = (void *)(slot->payload - sizeof(*out));
	size_t size = slot->count * (size_t)EBB_PAGE;
	struct iovec iov[2] = { { out, sizeof(*out) }, { (void *)slot->source, size } };

	*out = (struct fuse_out_header){ .len = (uint32_t)(sizeof(*out) + size),
					 .unique = slot->unique };
	if (slot->source) {
		send_iov(h, iov, 2);
		return;
	}
	iov[0].iov_len += size;
	send_iov(h, iov, 1);
}

static void answer_write(struct frontend_host *h, struct slot *slot)
{
	struct {
		struct fuse_out_header header;
		struct fuse_write_out write;
	} out = {
		.header = { .len = sizeof(out), .unique = slot->unique },
		.write = { .size = slot->count * EBB_PAGE },
	};
	struct iovec iov = { &out, sizeof(out) };

	send_iov(h, &iov, 1);
}

/* receive() reports the end of the connection. */
static enum slot_after fuse_answer(void *host, struct slot *slot, int error)
{
	struct frontend_host *h = host;

	if (error || slot->kind == SLOT_DISCARD)
		answer_error(h, slot->unique, error);
	else if (slot->kind == SLOT_READ)
		answer_read(h, slot);
	else
		answer_write(h, slot);
	return SLOT_DONE;
}

static struct fuse_attr attributes(const struct frontend_host *h, uint64_t ino)
{
	bool file = ino == FILE_INO;

	return (struct fuse_attr){
		.ino = ino,
		.size = file ? (uint64_t)h->pages * EBB_PAGE : 0,
		.blocks = file ? (uint64_t)h->pages * (EBB_PAGE / 512) : 0,
		.mode = file ? S_IFREG | 0600 : S_IFDIR | 0700,
		.nlink = file ? 1 : 2,
		.blksize = EBB_PAGE,
	};
}

static void do_init(struct frontend_host *h, const struct fuse_in_header *in, const void *arg)
{
	const struct fuse_init_in *init = arg;
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = FUSE_KERNEL_MINOR_VERSION,
		.flags = init->flags & (FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_MAX_PAGES |
					FUSE_BIG_WRITES),
		.max_background = MAX_BACKGROUND,
		.congestion_threshold = CONGESTION,
		.max_write = SLOT_BYTES,
		/* Memory that is not aligned is in one page more than it fills. */
		.max_pages = SLOT_PAGES + 1,
		.time_gran = 1,
	};

	if (init->major != FUSE_KERNEL_VERSION) {
		answer_error(h, in->unique, -EPROTO);
		return;
	}
	answer(h, in->unique, &out, sizeof(out));
	h->initialised = true;
}

static void do_lookup(struct frontend_host *h, const struct fuse_in_header *in, const void *arg)
{
	struct fuse_entry_out out = {
		.nodeid = FILE_INO,
		.entry_valid = FOR_EVER,
		.attr_valid = FOR_EVER,
		.attr = attributes(h, FILE_INO),
	};

	/* A name includes its NUL. */
	if (in->nodeid != ROOT_INO || in->len != sizeof(*in) + sizeof(FUSE_FILE_NAME) ||
	    memcmp(arg, FUSE_FILE_NAME, sizeof(FUSE_FILE_NAME)))
		answer_error(h, in->unique, -ENOENT);
	else
		answer(h, in->unique, &out, sizeof(out));
}

static void count_open(struct frontend_host *h, int n)
{
	__atomic_store_n(&h->shared->opened, h->shared->opened + (uint32_t)n, __ATOMIC_RELAXED);
}

static void do_open(struct frontend_host *h, const struct fuse_in_header *in)
{
	struct fuse_open_out out = {
		.open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES,
	};

	if (in->nodeid != FILE_INO) {
		answer_error(h, in->unique, -EISDIR);
		return;
	}
	count_open(h, 1);
	answer(h, in->unique, &out, sizeof(out));
}

static void do_readdir(struct frontend_host *h, const struct fuse_in_header *in, const void *arg)
{
	static const struct { const char *name; uint64_t ino; uint32_t type; } names[] = {
		{ ".", ROOT_INO, S_IFDIR >> 12 },
		{ "..", ROOT_INO, S_IFDIR >> 12 },
		{ FUSE_FILE_NAME, FILE_INO, S_IFREG >> 12 },
	};
	const struct fuse_read_in *rd = arg;
	char buf[256] = { 0 };
	size_t used = 0;

	for (uint64_t i = rd->offset; i < sizeof(names) / sizeof(*names); i++) {
		struct fuse_dirent *d = (void *)(buf + used);
		size_t len = strlen(names[i].name);
		size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + len);

		if (used + size > sizeof(buf) || used + size > rd->size)
			break;
		d->ino = names[i].ino;
		d->off = i + 1;
		d->namelen = (uint32_t)len;
		d->type = names[i].type;
		memcpy(d->name, names[i].name, len);
		used += size;
	}
	answer(h, in->unique, buf, used);
}

static void do_statfs(struct frontend_host *h, const struct fuse_in_header *in)
{
	struct fuse_statfs_out out = {
		.st = { .blocks = h->pages, .bsize = EBB_PAGE, .frsize = EBB_PAGE, .namelen = 255,
			.files = 1 },
	};

	answer(h, in->unique, &out, sizeof(out));
}

/* Starts a READ or WRITE; returns false when @slot is no longer needed. */
static bool do_transfer(struct frontend_host *h, struct slot *slot, const struct fuse_in_header *in,
			uint64_t offset, uint32_t size)
{
	uint64_t end = (uint64_t)h->pages * EBB_PAGE;
	bool write = in->opcode == FUSE_WRITE;
	int error = 0;

	if (in->nodeid != FILE_INO)
		error = -EISDIR;
	else if (offset % EBB_PAGE || size % EBB_PAGE || size > SLOT_BYTES)
		error = -EINVAL; /* needs the loop device to have sectors of a page */
	else if (write && (offset > end || size > end - offset))
		error = -EFBIG;
	if (error || !size || offset >= end) {
		answer_error(h, in->unique, error);
		return false;
	}
	frontend_start(h, slot, write ? SLOT_WRITE : SLOT_READ, in->unique, offset / EBB_PAGE,
		       (size < end - offset ? size : end - offset) / EBB_PAGE);
	return true;
}

/* loop turns a discard into a hole; both modes read as zeroes afterwards. */
static bool do_fallocate(struct frontend_host *h, struct slot *slot,
			 const struct fuse_in_header *in, const struct fuse_fallocate_in *fa)
{
	uint64_t size = (uint64_t)h->pages * EBB_PAGE, end = fa->offset + fa->length;
	uint64_t first = fa->offset / EBB_PAGE;
	int error = 0;

	if (in->nodeid != FILE_INO)
		error = -EISDIR;
	else if (fa->mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) &&
		 fa->mode != (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE))
		error = -EOPNOTSUPP;
	else if (fa->offset % EBB_PAGE || fa->length % EBB_PAGE || end < fa->offset)
		error = -EINVAL;
	if (end > size)
		end = size;
	if (error || first >= end / EBB_PAGE) {
		answer_error(h, in->unique, error);
		return false;
	}
	frontend_start(h, slot, SLOT_DISCARD, in->unique, first, end / EBB_PAGE - first);
	return true;
}

/* Returns whether all arguments of @in's opcode have arrived. */
static bool complete(const struct fuse_in_header *in, size_t got)
{
	size_t args = 0;

	switch (in->opcode) {
	case FUSE_INIT:
		args = offsetof(struct fuse_init_in, flags) + sizeof(uint32_t);
		break;
	case FUSE_READ:
	case FUSE_READDIR:
		args = sizeof(struct fuse_read_in);
		break;
	case FUSE_FALLOCATE:
		args = sizeof(struct fuse_fallocate_in);
		break;
	case FUSE_WRITE:
		args = sizeof(struct fuse_write_in);
		if (got >= sizeof(*in) + args)
			args += ((const struct fuse_write_in *)(in + 1))->size;
		break;
	}
	return in->len == got && got >= sizeof(*in) + args;
}

/* Returns true when a transfer has taken @slot. */
static bool handle(struct frontend_host *h, struct slot *slot, size_t got)
{
	const struct fuse_in_header in =
		*(const struct fuse_in_header *)(slot->payload - BEFORE_PAGES);
	const void *arg = slot->payload - BEFORE_PAGES + sizeof(in);
	const struct fuse_read_in *rd = arg;
	const struct fuse_write_in *wr = arg;

	if (!complete((const void *)(slot->payload - BEFORE_PAGES), got)) {
		answer_error(h, in.unique, -EIO);
		return false;
	}
	switch (in.opcode) {
	case FUSE_READ:
		return do_transfer(h, slot, &in, rd->offset, rd->size);
	case FUSE_WRITE:
		return do_transfer(h, slot, &in, wr->offset, wr->size);
	case FUSE_FALLOCATE:
		return do_fallocate(h, slot, &in, arg);
	case FUSE_INIT:
		do_init(h, &in, arg);
		break;
	case FUSE_LOOKUP:
		do_lookup(h, &in, arg);
		break;
	case FUSE_GETATTR: {
		struct fuse_attr_out out = { .attr_valid = FOR_EVER,
					     .attr = attributes(h, in.nodeid) };

		answer(h, in.unique, &out, sizeof(out));
		break;
	}
	case FUSE_OPEN:
		do_open(h, &in);
		break;
	case FUSE_RELEASE:
		count_open(h, -1);
		answer_error(h, in.unique, 0);
		break;
	case FUSE_OPENDIR: {
		struct fuse_open_out out = { 0 };

		answer(h, in.unique, &out, sizeof(out));
		break;
	}
	case FUSE_READDIR:
		do_readdir(h, &in, arg);
		break;
	case FUSE_RELEASEDIR:
	case FUSE_DESTROY:
		answer_error(h, in.unique, 0);
		break;
	case FUSE_STATFS:
		do_statfs(h, &in);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		break; /* these have no answer */
	default:
		/*
		 * Includes FLUSH and FSYNC, which the kernel then omits and reports as done: an
		 * answered write is as safe as it gets.
		 */
		answer_error(h, in.unique, -ENOSYS);
	}
	return false;
}

/* Marks the header as empty until the kernel writes it: request numbers are never 0. */
static void expect(struct slot *slot)
{
	((struct fuse_in_header *)(slot->payload - BEFORE_PAGES))->unique = 0;
	shared_order();
	slot->kind = SLOT_READING;
	shared_order();
}

/* Handles the request that a predecessor was reading, if it arrived. */
static int fuse_take_over(struct frontend_host *h, struct slot *slot)
{
	const struct fuse_in_header *in;

	h->initialised = true;
	if (!slot)
		return 0;
	in = (const void *)(slot->payload - BEFORE_PAGES);
	if (!in->unique || !handle(h, slot, in->len))
		h->put(h->engine, slot);
	return 0;
}

static int fuse_receive(struct frontend_host *h, int most)
{
	int n = 0;

	while (n < most) {
		struct slot *slot = h->get(h->engine);
		ssize_t got;

		if (!slot)
			return n;
		expect(slot);
		got = read(h->fd, slot->payload - BEFORE_PAGES, BEFORE_PAGES + SLOT_BYTES);
		if (got < 0) {
			int r = errno;

			h->put(h->engine, slot);
			/* ENOENT: the request was withdrawn while being read. */
			if (r == EINTR || r == ENOENT)
				continue;
			return r == EAGAIN ? n : -ENODEV;
		}
		n++;
		if (!handle(h, slot, (size_t)got))
			h->put(h->engine, slot);
	}
	return n;
}

/*
 * The connection's number is the minor of the mount's device.  stat(2) would send a request to this
 * process; mountinfo does not.
 */
static int find_connection(const char *dir, uint32_t *connection)
{
	_cleanup_file_ FILE *f = fopen("/proc/self/mountinfo", "re");
	char line[PATH_MAX + 512], where[PATH_MAX], real[PATH_MAX];
	unsigned int major, minor;
	int r = -ENOENT;

	if (!f || !realpath(dir, real))
		return -errno;
	/* The last mount listed is on top. */
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%*u %*u %u:%u %*s %4095s", &major, &minor, where) == 3 &&
		    !strcmp(where, real)) {
			*connection = minor;
			r = 0;
		}
	return r;
}

/* An aborted mount still exists, an unmounted one does not. */
static bool fuse_stopped(const struct frontend_host *h)
{
	uint32_t connection;

	return find_connection(h->mount, &connection) < 0 ||
	       connection != h->shared->connection;
}

static int check_mount_point(const char *dir, struct error *e)
{
	struct stat st;
	uint32_t connection;

	if (lstat(dir, &st) < 0)
		return fail(e, errno, "mount %s: %m; create the directory first", dir);
	if (!S_ISDIR(st.st_mode))
		return fail(e, ENOTDIR, "mount %s: not a directory; name an empty one with --mount", dir);
	if (find_connection(dir, &connection) == 0)
		return fail(e, EBUSY, "mount %s: something is mounted there; umount it or use another directory",
			    dir);
	return 0;
}

/* The connection lives as long as some process has it open. */
static int fuse_open(struct frontend_host *h, struct error *e)
{
	h->fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	return h->fd < 0 ? fail_exit(e, EXIT_UNSUPPORTED, errno, "/dev/fuse: %m; modprobe fuse") :
				0;
}

static int fuse_prepare(struct frontend_host *h, struct error *e)
{
	return 0;
}

/* Aborts the connection and removes the mount. */
static void fuse_end(struct frontend_host *h)
{
	if (h->fd >= 0)
		close(h->fd); /* aborts remaining requests */
	h->fd = -1;
	if (h->shared && h->shared->connection) {
		umount2(h->mount, MNT_DETACH | UMOUNT_NOFOLLOW);
		h->shared->connection = 0;
	}
}

/* Mounts at host.mount and answers the kernel's INIT; sets shared->connection. */
static int fuse_begin(struct frontend_host *h, struct error *e)
{
	const char *dir = h->mount;
	char options[64], source[64];
	struct pollfd p = { .events = POLLIN };
	int r;

	r = check_mount_point(dir, e);
	if (r)
		return r;
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%u", h->fd, SLOT_BYTES);
	snprintf(source, sizeof(source), "ebb-%s", h->device);
	if (mount(source, dir, "fuse", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME, options) < 0)
		return fail(e, errno, "mount %s: %m; root and the fuse file system are needed", dir);
	r = find_connection(dir, &h->shared->connection);
	if (r) {
		umount2(dir, MNT_DETACH | UMOUNT_NOFOLLOW);
		return fail(e, r, "mount %s: not found in /proc/self/mountinfo", dir);
	}
	p.fd = h->fd;
	while (!h->initialised && r >= 0)
		r = poll(&p, 1, 5000) <= 0 ? -ETIMEDOUT : fuse_receive(h, 1);
	if (!h->initialised) {
		fuse_end(h);
		return fail_exit(e, EXIT_UNSUPPORTED, r, "mount %s: the kernel did not initialise FUSE: %s",
				 dir, strerror(-r));
	}
	return 0;
}

static int fuse_fd(const struct frontend_host *h)
{
	return h->fd;
}

static int fuse_stop(struct frontend_host *h)
{
	if (umount2(h->mount, UMOUNT_NOFOLLOW) < 0)
		return -errno;
	__atomic_store_n(&h->shared->unmounted, 1, __ATOMIC_RELAXED);
	return 0;
}

static void fuse_where(const struct frontend_host *h, char *text, size_t size)
{
	snprintf(text, size, "%s/" FUSE_FILE_NAME, h->mount);
}

const struct frontend fuse_frontend = {
	.name = "fuse",
	.slots = SLOTS,
	.open = fuse_open,
	.prepare = fuse_prepare,
	.begin = fuse_begin,
	.take_over = fuse_take_over,
	.end = fuse_end,
	.fd = fuse_fd,
	.receive = fuse_receive,
	.answer = fuse_answer,
	.stop = fuse_stop,
	.stopped = fuse_stopped,
	.where = fuse_where,
};
