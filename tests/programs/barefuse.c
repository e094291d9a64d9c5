// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The smallest FUSE file there can be: barefuse DIR MIB [LOG] serves DIR/swap from locked
 * memory until it is umounted, and writes a line to LOG for each read.  What a device of ours is
 * measured against.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define MOST (128u << 10)
#define BEFORE_PAGES (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
#define FOR_EVER (1u << 30)

struct bare {
	int fd, log;
	uint64_t size;
	char *memory;
};

static void answer(const struct bare *b, uint64_t unique, int error, const void *data, size_t size)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + size), .error = error,
				       .unique = unique };
	struct iovec iov[2] = { { &out, sizeof(out) }, { (void *)data, size } };

	if (writev(b->fd, iov, size ? 2 : 1) < 0 && errno != ENOENT)
		perror("barefuse: writev");
}

static struct fuse_attr attributes(const struct bare *b, uint64_t ino)
{
	return (struct fuse_attr){
		.ino = ino,
		.size = ino == FUSE_ROOT_ID ? 0 : b->size,
		.mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0700 : S_IFREG | 0600,
		.nlink = 1,
		.blksize = PAGE,
	};
}

static void rare(const struct bare *b, const struct fuse_in_header *in, const void *arg)
{
	const struct fuse_init_in *init = arg;
	struct fuse_entry_out entry = { .nodeid = 2, .entry_valid = FOR_EVER,
					.attr_valid = FOR_EVER, .attr = attributes(b, 2) };
	struct fuse_attr_out attr = { .attr_valid = FOR_EVER, .attr = attributes(b, in->nodeid) };
	struct fuse_open_out open_out = { .open_flags = FOPEN_DIRECT_IO |
							FOPEN_PARALLEL_DIRECT_WRITES };

	switch (in->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out out = {
			.major = FUSE_KERNEL_VERSION,
			.minor = FUSE_KERNEL_MINOR_VERSION,
			.flags = init->flags & (FUSE_ASYNC_READ | FUSE_ASYNC_DIO |
						FUSE_MAX_PAGES | FUSE_BIG_WRITES),
			.max_background = 512,
			.congestion_threshold = 384,
			.max_write = MOST,
			.max_pages = MOST / PAGE,
			.time_gran = 1,
		};

		answer(b, in->unique, 0, &out, sizeof(out));
		break;
	}
	case FUSE_LOOKUP:
		answer(b, in->unique, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		answer(b, in->unique, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer(b, in->unique, 0, &open_out, sizeof(open_out));
		break;
	case FUSE_RELEASE:
		answer(b, in->unique, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		break;
	default:
		answer(b, in->unique, -ENOSYS, NULL, 0);
	}
}

static void serve(const struct bare *b, char *request)
{
	const struct fuse_in_header *in = (void *)request;
	const void *arg = in + 1;
	const struct fuse_read_in *rd = arg;
	const struct fuse_write_in *wr = arg;

	while (read(b->fd, request, BEFORE_PAGES + MOST) >= 0 || errno == EINTR ||
	       errno == ENOENT) {
		if (in->opcode == FUSE_READ) {
			if (b->log >= 0)
				dprintf(b->log, "%llu %u\n", (unsigned long long)rd->offset, rd->size);
			answer(b, in->unique, 0, b->memory + rd->offset, rd->size);
		} else if (in->opcode == FUSE_WRITE) {
			struct fuse_write_out out = { .size = wr->size };

			memcpy(b->memory + wr->offset, wr + 1, wr->size);
			answer(b, in->unique, 0, &out, sizeof(out));
		} else {
			rare(b, in, arg);
		}
	}
}

int main(int argc, char **argv)
{
	struct sched_param fifo = { .sched_priority = 1 };
	struct bare b = { .log = -1, .size = argc >= 3 ? strtoull(argv[2], NULL, 10) << 20 : 0 };
	char options[80], *room;

	if (!b.size) {
		fputs("usage: barefuse DIR MIB [LOG]\n", stderr);
		return 2;
	}
	if (argc > 3)
		b.log = open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	b.memory = mmap(NULL, b.size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	room = mmap(NULL, PAGE + MOST, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	b.fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", b.fd);
	if (b.memory == MAP_FAILED || room == MAP_FAILED || mlockall(MCL_CURRENT) < 0 || b.fd < 0 ||
	    mount("barefuse", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) < 0) {
		perror("barefuse");
		return 1;
	}
	/* As ebb-swapd runs. */
	if (sched_setscheduler(0, SCHED_FIFO, &fifo) < 0)
		perror("barefuse: SCHED_FIFO");
	/* So that pages land on a page boundary. */
	serve(&b, room + PAGE - BEFORE_PAGES);
	return 0;
}
