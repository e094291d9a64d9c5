// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "files.h"

ssize_t file_read(const char *path, char *buf, size_t size)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t n = 1;

	*buf = '\0';
	if (fd < 0)
		return -errno;
	while (len < size - 1 && n) {
		n = read(fd, buf + len, size - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			*buf = '\0';
			return -errno;
		}
		len += n;
	}
	buf[len] = '\0';
	return len;
}

static int write_all(int fd, const char *text)
{
	size_t len = strlen(text);
	ssize_t n = write(fd, text, len);

	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -ENOSPC;
}

int file_write(const char *path, const char *text)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : write_all(fd, text);
}

/* @mode is set regardless of the umask; 0: default mode. */
static int replace(const char *path, const char *text, mode_t mode)
{
	char staging[PATH_MAX];
	_cleanup_close_ int fd = -1;
	int r;

	/* Two concurrent writers use different staging files. */
	if ((size_t)snprintf(staging, sizeof(staging), "%s.new.%d", path, (int)getpid()) >=
	    sizeof(staging))
		return -ENAMETOOLONG;
	/* In a directory of another user the name may be a link to a file of ours. */
	unlink(staging);
	fd = open(staging, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	r = write_all(fd, text);
	if (!r && mode && fchmod(fd, mode) < 0)
		r = -errno;
	if (!r && rename(staging, path) < 0)
		r = -errno;
	if (r)
		unlink(staging);
	return r;
}

int file_replace(const char *path, const char *text)
{
	return replace(path, text, 0);
}

int file_publish(const char *path, const char *text)
{
	return replace(path, text, 0644);
}

int64_t file_number(const char *path, int64_t fallback)
{
	char text[64], *end;
	int64_t v;

	if (file_read(path, text, sizeof(text)) <= 0)
		return fallback;
	v = strtoll(text, &end, 10);
	return end == text ? fallback : v;
}

int file_make_dirs(const char *path, mode_t mode)
{
	char part[PATH_MAX];

	if ((size_t)snprintf(part, sizeof(part), "%s", path) >= sizeof(part))
		return -ENAMETOOLONG;
	for (char *p = part + 1;; p++) {
		char c = *p;

		if (c && c != '/')
			continue;
		*p = '\0';
		if (mkdir(part, mode) < 0 && errno != EEXIST)
			return -errno;
		if (!c)
			return 0;
		*p = c;
	}
}
