// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "epoch.h"

#define SOCKET_PATH "/run/ebb/control.sock"
#define ANSWER_MS 200
#define ANSWER_BYTES 4096

/* ebbd's answer, one line of JSON that it wrote itself. */
struct answer {
	char map[256];		/* pinned BPF array of 64-bit counters, mappable */
	unsigned int slot, slots;
};

/* The number after "key":, or false. */
static int number_of(const char *text, const char *key, unsigned int *value)
{
	char quoted[32];
	const char *p;

	snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	p = strstr(text, quoted);
	return p && sscanf(p + strlen(quoted), " %u", value) == 1;
}

static int answer_parse(const char *text, struct answer *a)
{
	const char *p = strstr(text, "\"map\":");
	size_t n = 0;

	p = p ? strchr(p + 6, '"') : NULL;
	if (!p || !number_of(text, "slot", &a->slot) || !number_of(text, "slots", &a->slots) ||
	    a->slot >= a->slots)
		return -EPROTO;
	/* A solidus may be escaped. */
	for (p++; *p && *p != '"' && n < sizeof(a->map) - 1; p++)
		if (*p != '\\')
			a->map[n++] = *p;
	a->map[n] = '\0';
	return *p == '"' ? 0 : -EPROTO;
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
 * BPF_OBJ_GET of <linux/bpf.h>; a descriptor or -errno.  A map that is opened read-only cannot
 * be mapped: the kernel takes such a mapping for a private one.
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

static int map_shared(struct epoch *e, const struct answer *a)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t bytes = (a->slots * sizeof(uint64_t) + page - 1) / page * page;
	int fd = object_get(a->map);
	void *map;

	if (fd < 0)
		return fd;
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return -errno;
	e->map = map;
	e->map_bytes = bytes;
	e->shared = (const uint64_t *)map + a->slot;
	return 0;
}

void epoch_open(struct epoch *e)
{
	struct answer a;

	*e = (struct epoch){ .source = EBBGC_EPOCH_OWN };
	if (!ask(&a) && !map_shared(e, &a))
		e->source = EBBGC_EPOCH_EBBD;
}

void epoch_close(struct epoch *e)
{
	if (e->map)
		munmap(e->map, e->map_bytes);
	*e = (struct epoch){ .source = EBBGC_EPOCH_NONE };
}

void epoch_churn(struct epoch *e, uint64_t changed, uint64_t pages, unsigned int percent)
{
	uint64_t length = pages * percent / 100;

	e->churn += changed;
	if (!length || e->churn <= length)
		return;
	__atomic_fetch_add(&e->own, e->churn / length, __ATOMIC_RELAXED);
	e->churn %= length;
}
