// SPDX-License-Identifier: GPL-2.0-or-later
/* Messages between workers, and how long they and messages to donors take. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { FDS = 1024 };
/* From .sent_ns on. */
#define HEAD 24u

struct counts *counts;
uint64_t delay_ns;

/* Of each worker of this process. */
struct inbox {
	pthread_mutex_t lock;
	pthread_cond_t came;
	struct message *first, **last;
};

static struct {
	uint32_t workers;
	bool threads;
	pthread_barrier_t *all;
	int fd[WORKERS_MOST][WORKERS_MOST]; /* [i][j]: i's end to j */
	pthread_mutex_t sends[WORKERS_MOST];
	struct inbox inbox[WORKERS_MOST];
	/* Of a process.  The receiver never sends: two that wait for each other would not end. */
	struct inbox requests;
	pthread_t receiver, server;
	int end[2];
} mesh;

/* --- time ------------------------------------------------------------------------- */

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void wait_until(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	if (delay_ns && now_ns() < ns)
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* libebbfar's calls come here: the program's symbols precede those of libc. */
static uint64_t sent_at[FDS];
static int8_t is_tcp[FDS]; /* 1 = yes, -1 = no */

static bool to_donor(int fd)
{
	socklen_t size = sizeof(int);
	int domain = 0;

	if (fd >= FDS)
		give_up("too many files");
	if (!is_tcp[fd]) {
		getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
		is_tcp[fd] = domain == AF_INET ? 1 : -1;
	}
	return is_tcp[fd] > 0;
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_sendmsg, fd, m, flags);

	if (n > 0 && to_donor(fd)) {
		__atomic_store_n(&sent_at[fd], now_ns(), __ATOMIC_RELAXED);
		count(&counts->far_bytes, (uint64_t)n);
	}
	return n;
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_recvmsg, fd, m, flags);

	if (n > 0 && to_donor(fd)) {
		count(&counts->far_bytes, (uint64_t)n);
		wait_until(__atomic_load_n(&sent_at[fd], __ATOMIC_RELAXED) + delay_ns);
	}
	return n;
}

/* --- sockets ---------------------------------------------------------------------- */

static void write_all(int fd, const void *bytes, size_t size)
{
	const uint8_t *p = bytes;

	while (size) {
		ssize_t n = send(fd, p, size, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			give_up("a worker has ended: %s", strerror(errno));
		p += n > 0 ? n : 0;
		size -= n > 0 ? (size_t)n : 0;
	}
}

/* Returns whether all came before the end. */
static bool read_all(int fd, void *bytes, size_t size)
{
	uint8_t *p = bytes;

	while (size) {
		ssize_t n = recv(fd, p, size, 0);

		if (!n || (n < 0 && errno != EINTR))
			return false;
		p += n > 0 ? n : 0;
		size -= n > 0 ? (size_t)n : 0;
	}
	return true;
}

static void put_in(struct inbox *in, struct message *m)
{
	pthread_mutex_lock(&in->lock);
	m->next = NULL;
	*in->last = m;
	in->last = &m->next;
	pthread_cond_broadcast(&in->came);
	pthread_mutex_unlock(&in->lock);
}

static struct message *message_new(uint32_t size)
{
	struct message *m = aligned_alloc(16, (sizeof(*m) + size + 15) & ~(size_t)15);

	if (!m)
		give_up("out of memory");
	return m;
}

static void send_to(struct worker *w, uint32_t to, uint32_t kind, const void *bytes, uint32_t size,
		    uint32_t objects)
{
	struct message head = { .sent_ns = now_ns(), .from = w->rank, .kind = kind, .size = size,
				.objects = objects };

	if (mesh.threads || to == w->rank) {
		struct message *m = message_new(size);

		*m = head;
		memcpy(m->bytes, bytes, size);
		put_in(&mesh.inbox[to], m);
		return;
	}
	count(&counts->messages, 1);
	count(&counts->message_bytes, HEAD + size);
	pthread_mutex_lock(&mesh.sends[to]);
	write_all(mesh.fd[w->rank][to], &head.sent_ns, HEAD);
	write_all(mesh.fd[w->rank][to], bytes, size);
	pthread_mutex_unlock(&mesh.sends[to]);
}

/* --- receiving -------------------------------------------------------------------- */

static void receive(struct worker *w, int fd)
{
	struct message head = { 0 }, *m;

	if (!read_all(fd, &head.sent_ns, HEAD))
		give_up("a worker has ended");
	m = message_new(head.size);
	*m = head;
	if (!read_all(fd, m->bytes, m->size))
		give_up("a worker has ended");
	wait_until(m->sent_ns + delay_ns / 2);
	if (m->kind == KIND_REPLY || m->kind >= KIND_PROGRAM)
		put_in(&mesh.inbox[w->rank], m);
	else
		put_in(&mesh.requests, m);
}

static void *receiver(void *data)
{
	struct worker *w = data;
	struct pollfd p[WORKERS_MOST + 1];
	uint32_t n = 0;

	for (uint32_t i = 0; i < mesh.workers; i++)
		if (i != w->rank)
			p[n++] = (struct pollfd){ mesh.fd[w->rank][i], POLLIN, 0 };
	p[n] = (struct pollfd){ mesh.end[0], POLLIN, 0 };
	for (;;) {
		if (poll(p, n + 1, -1) < 0 && errno != EINTR)
			give_up("poll: %s", strerror(errno));
		for (uint32_t i = 0; i < n; i++)
			if (p[i].revents & POLLIN)
				receive(w, p[i].fd);
		if (p[n].revents)
			return NULL;
	}
}

/* Returns the next message, of @kind if that is not ANY. */
enum { ANY = ~0u };

static struct message *take(struct inbox *in, uint32_t kind)
{
	struct message **at, *m;

	pthread_mutex_lock(&in->lock);
	for (;;) {
		for (at = &in->first; *at && kind != ANY && (*at)->kind != kind; at = &(*at)->next)
			;
		if (*at)
			break;
		pthread_cond_wait(&in->came, &in->lock);
	}
	m = *at;
	*at = m->next;
	if (!m->next)
		in->last = at;
	pthread_mutex_unlock(&in->lock);
	return m;
}

static void *server(void *data)
{
	struct worker *w = data;
	struct message *m;

	while ((m = take(&mesh.requests, ANY))->kind != KIND_REPLY) {
		w->share->handle(w, m);
		free(m);
	}
	free(m);
	return NULL;
}

/* --- the interface ---------------------------------------------------------------- */

static void inbox_new(struct inbox *in)
{
	pthread_mutex_init(&in->lock, NULL);
	pthread_cond_init(&in->came, NULL);
	in->last = &in->first;
}

void mesh_new(uint32_t workers, bool threads)
{
	pthread_barrierattr_t shared;

	counts = shared_memory(sizeof(*counts));
	mesh.all = shared_memory(sizeof(*mesh.all));
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(mesh.all, &shared, workers);
	mesh.workers = workers;
	mesh.threads = threads;
	inbox_new(&mesh.requests);
	for (uint32_t i = 0; i < workers; i++) {
		pthread_mutex_init(&mesh.sends[i], NULL);
		inbox_new(&mesh.inbox[i]);
		for (uint32_t j = 0; j < i && !threads; j++) {
			int pair[2];

			if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
				give_up("socketpair: %s", strerror(errno));
			mesh.fd[i][j] = pair[0];
			mesh.fd[j][i] = pair[1];
		}
	}
}

void mesh_join(struct worker *w)
{
	if (mesh.threads)
		return;
	/* The ends of others: their exit would not be noticed. */
	for (uint32_t i = 0; i < mesh.workers; i++)
		for (uint32_t j = 0; j < mesh.workers; j++)
			if (i != j && i != w->rank)
				close(mesh.fd[i][j]);
	if (pipe(mesh.end) || pthread_create(&mesh.receiver, NULL, receiver, w) ||
	    pthread_create(&mesh.server, NULL, server, w))
		give_up("cannot start a thread");
}

void mesh_leave(struct worker *w)
{
	struct message *last;

	if (mesh.threads)
		return;
	/* Nothing more comes. */
	barrier();
	close(mesh.end[1]);
	pthread_join(mesh.receiver, NULL);
	last = message_new(0);
	*last = (struct message){ .kind = KIND_REPLY };
	put_in(&mesh.requests, last);
	pthread_join(mesh.server, NULL);
	barrier();
}

void tell(struct worker *w, uint32_t to, uint32_t kind, const void *bytes, uint32_t size,
	  uint32_t objects)
{
	send_to(w, to, kind, bytes, size, objects);
}

struct message *hear(struct worker *w, uint32_t kind)
{
	return take(&mesh.inbox[w->rank], kind);
}

struct message *call(struct worker *w, uint32_t to, uint32_t kind, const void *bytes, uint32_t size)
{
	struct message *reply = NULL;

	for (uint32_t i = 0; i < mesh.workers; i++)
		if (to >> i & 1)
			send_to(w, i, kind, bytes, size, 0);
	for (uint32_t left = to; left; left &= left - 1) {
		free(reply);
		reply = hear(w, KIND_REPLY);
	}
	count(&counts->calls, 1);
	return reply;
}

void answer(struct worker *w, const struct message *request, const void *bytes, uint32_t size)
{
	send_to(w, request->from, KIND_REPLY, bytes, size, 0);
}

void barrier(void)
{
	pthread_barrier_wait(mesh.all);
}
