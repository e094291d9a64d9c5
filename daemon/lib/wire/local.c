// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "local.h"

#define SCHEME "unix:"

bool local_is(const char *text)
{
	return !strncmp(text, SCHEME, strlen(SCHEME));
}

int local_parse(const char *text, const char *what, struct address *a, struct error *e)
{
	struct sockaddr_un *sa = (void *)&a->sa;
	const char *path = text + strlen(SCHEME);

	if (*path != '/' || strlen(path) >= sizeof(sa->sun_path) ||
	    strlen(text) >= sizeof(a->text))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: \"%s\" is not an address; give unix: and an absolute path of at most %zu bytes, such as unix:/run/ebb/donor.sock",
				 what, text, sizeof(sa->sun_path) - 1);
	memset(a, 0, sizeof(*a));
	sa->sun_family = AF_UNIX;
	strcpy(sa->sun_path, path);
	a->len = sizeof(*sa);
	strcpy(a->text, text);
	return 0;
}

const char *local_path(const struct address *a)
{
	return ((const struct sockaddr_un *)&a->sa)->sun_path;
}

/* Removes the socket of a dead donor; -EADDRINUSE for a live one or another file. */
static int clear_place(const struct address *a)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	if (lstat(local_path(a), &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EADDRINUSE;
	fd = local_connect(a);
	if (fd != -ECONNREFUSED)
		return -EADDRINUSE;
	return unlink(local_path(a)) < 0 ? -errno : 0;
}

/* /run is empty after each boot. */
static int make_parent(const struct address *a)
{
	char directory[sizeof(((struct sockaddr_un *)0)->sun_path)];

	strcpy(directory, local_path(a));
	*strrchr(directory, '/') = '\0';
	return *directory ? file_make_dirs(directory, 0755) : 0;
}

int local_listen(const struct address *a, struct error *e)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t mask;
	int r;

	if (fd < 0)
		return fail(e, errno, "listen %s: %m", a->text);
	r = make_parent(a);
	if (!r)
		r = clear_place(a);
	if (!r) {
		mask = umask(0177);
		if (bind(fd, (const struct sockaddr *)&a->sa, a->len) < 0 ||
		    listen(fd, SOMAXCONN) < 0)
			r = -errno;
		umask(mask);
	}
	if (r)
		return fail(e, r, "listen %s: %s; %s", a->text, strerror(-r),
			    r == -EADDRINUSE ? "stop the program that listens there, or use another path" :
			    "check --listen");
	return TAKE_FD(fd);
}

int local_connect(const struct address *a)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)&a->sa, a->len) < 0)
		return -errno;
	return TAKE_FD(fd);
}

bool local_peer_trusted(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
	       (peer.uid == 0 || peer.uid == geteuid());
}
