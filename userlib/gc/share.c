// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <ebb/page.h>
#include <ebb/share.h>
#include "share.h"

_Static_assert(sizeof(struct ebb_arrivals) == EBB_PAGE, "map_shared()");

#define SOCKET_PATH "/run/ebb/control.sock"
#define ANSWER_MS 200
#define ANSWER_BYTES 4096
#define PATH_BYTES 256

/* ebbd's answer, one line of JSON. */
struct answer {
	char map[PATH_BYTES];		/* pinned BPF array of 64-bit counters, mappable */
	char arrivals[PATH_BYTES];	/* pinned array of struct ebb_arrivals; "": none */
	unsigned int slot, slots;
};

/* Reads the number after "key":; returns false if there is none. */
static int number_of(const char *text, const char *key, unsigned int *value)
{
	char quoted[32];
	const char *p;

	snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	p = strstr(text, quoted);
	return p && sscanf(p + strlen(quoted), " %u", value) == 1;
}

/* Reads the string after "key":; returns false if there is none or it is too long. */
static int path_of(const char *text, const char *key, char path[PATH_BYTES])
{
	char quoted[32];
	const char *p;
	size_t n = 0;

	snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	p = strstr(text, quoted);
	p = p ? strchr(p + strlen(quoted), '"') : NULL;
	if (!p)
		return 0;
	/* JSON may escape a slash. */
	for (p++; *p && *p != '"' && n < PATH_BYTES - 1; p++)
		if (*p != '\\')
			path[n++] = *p;
	path[n] = '\0';
	return *p == '"';
}

static int answer_parse(const char *text, struct answer *a)
{
	if (!path_of(text, "map", a->map) || !number_of(text, "slot", &a->slot) ||
	    !number_of(text, "slots", &a->slots) || a->slot >= a->slots)
		return -EPROTO;
	if (!path_of(text, "arrivals", a->arrivals))
		a->arrivals[0] = '\0';
	return 0;
}

static int ask(struct answer *a)
{
	struct timeval patience = { 0, ANSWER_MS * 1000 };
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = SOCKET_PATH };
	char text[ANSWER_BYTES];
	ssize_t n;
	size_t got = 0;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r = -EPROTO;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	/* Earlier versions of ebbd need the pid; this one knows it from the socket. */
	n = snprintf(text, sizeof(text), "{\"verb\":\"epoch.share\",\"pid\":%d}\n", (int)getpid());
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    send(fd, text, (size_t)n, MSG_NOSIGNAL) != n) {
		r = -errno;
		goto out;
	}
	while (got < sizeof(text) - 1) {
		n = recv(fd, text + got, sizeof(text) - 1 - got, 0);
		if (n <= 0)
			break;
		got += (size_t)n;
		if (memchr(text, '\n', got))
			break;
	}
	text[got] = '\0';
	if (strstr(text, "\"ok\":true") || strstr(text, "\"ok\": true"))
		r = answer_parse(text, a);
out:
	close(fd);
	return r;
}

/*
 * BPF_OBJ_GET of <linux/bpf.h>; returns a descriptor or -errno.  The kernel refuses to map a map
 * that was opened read-only.
 */
static int object_get(const char *path)
{
	struct {
		uint64_t pathname;
		uint32_t bpf_fd, file_flags;
	} attr = { .pathname = (uint64_t)(uintptr_t)path };
	long fd = syscall(SYS_bpf, 7 /* BPF_OBJ_GET */, &attr, sizeof(attr));

	return fd < 0 ? -errno : (int)fd;
}

/* Maps a pinned map for reading; NULL on failure. */
static void *map_shared(const char *path, size_t bytes, size_t offset)
{
	int fd = object_get(path);
	void *map;

	if (fd < 0)
		return NULL;
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
	close(fd);
	return map == MAP_FAILED ? NULL : map;
}

void share_open(struct share *s)
{
	sigset_t all, old;
	struct answer a;
	int r;

	*s = (struct share){ 0 };
	/* Calls with a time-out are not restarted after a signal handler. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = ask(&a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return;
	s->epochs_bytes = (a.slots * sizeof(uint64_t) + EBB_PAGE - 1) / EBB_PAGE * EBB_PAGE;
	s->epochs = map_shared(a.map, s->epochs_bytes, 0);
	if (s->epochs)
		s->epoch = (const uint64_t *)s->epochs + a.slot;
	/* Map only this process's page, not the faults of others. */
	if (a.arrivals[0])
		s->arrivals = map_shared(a.arrivals, sizeof(*s->arrivals),
					 a.slot * sizeof(*s->arrivals));
}

void share_close(struct share *s)
{
	if (s->epochs)
		munmap(s->epochs, s->epochs_bytes);
	if (s->arrivals)
		munmap((void *)s->arrivals, sizeof(*s->arrivals));
	*s = (struct share){ 0 };
}
