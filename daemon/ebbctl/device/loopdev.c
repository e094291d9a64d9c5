// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <ebb/page.h>
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "loopdev.h"

/*
 * Most requests in flight, on all queues, and KiB of one.  Reclaim of a cgroup (v2) does not wait
 * for pages in flight: if all pages of a small cgroup are, the OOM killer acts although swap is
 * free.  A product of 8 MiB keeps cgroups of 8 MiB alive while a donor stalls (6.12).  Its price,
 * compared with 128 requests of 1280 KiB, at half of the memory, policy auto, tcp (6.18, cgroup v1,
 * where reclaim waits; medians of 5): jq takes 1.15x, sqlite3 1.04x, numpy 0.91x.  32 of 256 KiB
 * take 1.49x, 1.05x and 0.86x.  Random reads have one page each and need many requests.  Write-back
 * throttling is no bound: after some 100 ms without reads it admits 96 requests of a loop device,
 * and one at a time if reads take longer than its target.
 */
#define REQUESTS 64u
#define REQUEST_KIB "128"

#define LOOP_PREFIX "/dev/loop"

/* Another program may take the free device first. */
#define ATTEMPTS 16

static int configure(int loop, int file, const char *path, struct error *e)
{
	struct loop_config config = {
		.fd = file,
		.block_size = EBB_PAGE,
		.info.lo_flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_AUTOCLEAR,
	};
	struct loop_info64 info;

	snprintf((char *)config.info.lo_file_name, LO_NAME_SIZE, "%s", path);
	if (ioctl(loop, LOOP_CONFIGURE, &config) < 0)
		return -errno;
	if (ioctl(loop, LOOP_GET_STATUS64, &info) == 0 && (info.lo_flags & LO_FLAGS_DIRECT_IO))
		return 0;
	ioctl(loop, LOOP_CLR_FD, 0);
	return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
			 "%s: no direct I/O on its loop device; use a file system that supports it", path);
}

int loop_attach(const char *file, char *block, size_t size, struct error *e)
{
	_cleanup_close_ int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	_cleanup_close_ int backing = open(file, O_RDWR | O_DIRECT | O_CLOEXEC);
	int r = -EBUSY;

	if (control < 0)
		return fail_exit(e, EXIT_UNSUPPORTED, errno, "/dev/loop-control: %s; run \"modprobe loop\"",
				 strerror(errno));
	if (backing < 0)
		return fail(e, errno, "%s: cannot open: %s", file, strerror(errno));
	for (int i = 0; i < ATTEMPTS && r == -EBUSY; i++) {
		_cleanup_close_ int loop = -1;
		int number = ioctl(control, LOOP_CTL_GET_FREE);

		if (number < 0)
			return fail(e, errno, "/dev/loop-control: no free loop device: %s",
				    strerror(errno));
		snprintf(block, size, LOOP_PREFIX "%d", number);
		loop = open(block, O_RDWR | O_CLOEXEC);
		if (loop < 0)
			return fail(e, errno, "%s: cannot open: %s", block, strerror(errno));
		r = configure(loop, backing, file, e);
		if (!r)
			return TAKE_FD(loop);
	}
	return fail(e, r, "%s: cannot attach %s: %s", block, file, strerror(-r));
}

int loop_keep(const char *block, bool keep)
{
	_cleanup_close_ int loop = -1;
	struct loop_info64 info;

	if (strncmp(block, LOOP_PREFIX, strlen(LOOP_PREFIX)))
		return 0;
	loop = open(block, O_RDWR | O_CLOEXEC);
	if (loop < 0 || ioctl(loop, LOOP_GET_STATUS64, &info) < 0)
		return -errno;
	info.lo_flags = keep ? info.lo_flags & ~(uint32_t)LO_FLAGS_AUTOCLEAR :
			       info.lo_flags | LO_FLAGS_AUTOCLEAR;
	return ioctl(loop, LOOP_SET_STATUS64, &info) < 0 ? -errno : 0;
}

int block_discard(const char *block)
{
	_cleanup_close_ int fd = open(block, O_RDWR | O_CLOEXEC);
	uint64_t range[2] = { 0 };

	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &range[1]) < 0)
		return -errno;
	return ioctl(fd, BLKDISCARD, range) < 0 ? -errno : 0;
}

int loop_detach(const char *block)
{
	_cleanup_close_ int loop = open(block, O_RDONLY | O_CLOEXEC);

	if (loop < 0)
		return errno == ENOENT || errno == ENXIO ? 0 : -errno;
	return ioctl(loop, LOOP_CLR_FD, 0) < 0 && errno != ENXIO ? -errno : 0;
}

/*
 * Returns whether @block is attached to a file below @dir.  sysfs follows the mount,
 * which may be detached lazily, while the name given at the start stays.
 */
static bool is_backed_by(const char *block, const char *sysfs, const char *dir)
{
	_cleanup_close_ int loop = -1;
	size_t len = strlen(dir);
	struct loop_info64 info;
	char file[PATH_MAX];

	if (file_read(sysfs, file, sizeof(file)) <= 0)
		return false;
	if (!strncmp(file, dir, len) && file[len] == '/')
		return true;
	loop = open(block, O_RDONLY | O_CLOEXEC);
	if (loop < 0 || ioctl(loop, LOOP_GET_STATUS64, &info) < 0)
		return false;
	/* The field truncates the name. */
	return len < LO_NAME_SIZE - 2 && !strncmp((char *)info.lo_file_name, dir, len) &&
	       info.lo_file_name[len] == '/';
}

int loop_find(const char *dir, char *block, size_t size)
{
	glob_t found;
	int r = -ENOENT;

	if (glob("/sys/block/loop*/loop/backing_file", 0, NULL, &found))
		return -ENOENT;
	for (size_t i = 0; i < found.gl_pathc && r; i++) {
		char name[32], path[64];

		if (sscanf(found.gl_pathv[i], "/sys/block/%31[^/]", name) != 1)
			continue;
		snprintf(path, sizeof(path), "/dev/%s", name);
		if (is_backed_by(path, found.gl_pathv[i], dir)) {
			snprintf(block, size, "%s", path);
			r = 0;
		}
	}
	globfree(&found);
	return r;
}

int block_number(const char *block, uint32_t *major, uint32_t *minor)
{
	struct stat st;

	if (stat(block, &st) < 0)
		return -errno;
	if (!S_ISBLK(st.st_mode))
		return -ENOTBLK;
	*major = major(st.st_rdev);
	*minor = minor(st.st_rdev);
	return 0;
}

int block_queue_set(const char *block, const char *attribute, const char *value)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "/sys/block/%.64s/queue/%.32s", strrchr(block, '/') + 1,
		 attribute);
	return file_write(path, value);
}

void block_no_throttling(const char *block)
{
	/* Absent and not needed without CONFIG_BLK_WBT. */
	block_queue_set(block, "wbt_lat_usec", "0");
}

static unsigned int queues_of(const char *block)
{
	char pattern[64];
	unsigned int n;
	glob_t found;

	snprintf(pattern, sizeof(pattern), "/sys/block/%.32s/mq/*", strrchr(block, '/') + 1);
	if (glob(pattern, 0, NULL, &found))
		return 1;
	n = found.gl_pathc;
	globfree(&found);
	return n;
}

int block_bound_requests(const char *block)
{
	char text[16];
	int r;

	snprintf(text, sizeof(text), "%u", REQUESTS / queues_of(block));
	r = block_queue_set(block, "nr_requests", text);
	return r ? r : block_queue_set(block, "max_sectors_kb", REQUEST_KIB);
}
