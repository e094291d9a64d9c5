// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "recording_file.h"

static int cannot_write(const char *file, struct error *e)
{
	return fail(e, errno, "%s: cannot write: %m; pass a file in an existing directory", file);
}

static int remove_old(const char *file, struct error *e)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	if (lstat(file, &st) < 0)
		return errno == ENOENT ? 0 : cannot_write(file, e);
	/* To open a device can have effects. */
	if (!S_ISREG(st.st_mode))
		return fail(e, EINVAL, "%s: not a regular file; pass another", file);
	fd = open(file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return cannot_write(file, e);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return fail_exit(e, EXIT_REFUSED, EBUSY, "%s: another recording writes it; pass another file",
				 file);
	if (unlink(file) < 0)
		return fail(e, errno, "%s: cannot replace: %m; remove it first", file);
	return 0;
}

/*
 * A trace has addresses of other users' programs: only root may read it.  The owner of an old file
 * could, or could have it open or linked elsewhere; ebbd may not change owners.
 */
int recording_file(const char *file, int *out, struct error *e)
{
	_cleanup_close_ int fd = -1;
	int ret = remove_old(file, e);

	if (ret)
		return ret;
	fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return cannot_write(file, e);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return fail_exit(e, EXIT_REFUSED, EBUSY, "%s: another program locked it; pass another file",
				 file);
	*out = TAKE_FD(fd);
	return 0;
}
