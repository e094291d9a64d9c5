// SPDX-License-Identifier: GPL-2.0-or-later
/* The bare exchange: what the kernel's sockets can do, without a protocol. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "far_speed.h"
#include "lib/base/realtime.h"

struct exchange {
	uint32_t connections, out, in;
	int cpu; /* of the server; -1 = any */
	int clients[WORKERS_MOST], servers[WORKERS_MOST];
};

static void send_all(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t some = send(fd, p, n, MSG_NOSIGNAL);

		if (some < 0)
			give_up("send: %s", strerror(errno));
		p += some;
		n -= (size_t)some;
	}
}

/* Returns whether @n bytes came before the end of the connection. */
static int receive_all(int fd, uint8_t *p, size_t n)
{
	while (n) {
		ssize_t some = recv(fd, p, n, MSG_WAITALL);

		if (some < 0)
			give_up("recv: %s", strerror(errno));
		if (!some)
			return 0;
		p += some;
		n -= (size_t)some;
	}
	return 1;
}

static uint8_t *buffer_of(const struct exchange *x)
{
	uint8_t *p = calloc(1, x->out > x->in ? x->out : x->in);

	if (!p)
		give_up("out of memory");
	return p;
}

/* --- the server ------------------------------------------------------------------- */

struct serving {
	const struct exchange *x;
	int fd;
};

static void *serve_one(void *data)
{
	const struct serving *s = data;
	uint8_t *buffer = buffer_of(s->x);

	while (receive_all(s->fd, buffer, s->x->out))
		send_all(s->fd, buffer, s->x->in);
	free(buffer);
	return NULL;
}

static void serve_by_threads(const struct exchange *x)
{
	pthread_t threads[WORKERS_MOST];
	struct serving s[WORKERS_MOST];

	for (uint32_t i = 0; i < x->connections; i++) {
		s[i] = (struct serving){ x, x->servers[i] };
		if (pthread_create(&threads[i], NULL, serve_one, &s[i]))
			give_up("cannot start a thread");
	}
	for (uint32_t i = 0; i < x->connections; i++)
		pthread_join(threads[i], NULL);
}

static void serve_by_epoll(const struct exchange *x)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev[WORKERS_MOST];
	uint32_t left = x->connections;
	uint8_t *buffer = buffer_of(x);

	for (uint32_t i = 0; i < x->connections; i++) {
		ev[0] = (struct epoll_event){ .events = EPOLLIN, .data.fd = x->servers[i] };
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, x->servers[i], &ev[0]) < 0)
			give_up("epoll: %s", strerror(errno));
	}
	while (left) {
		int n = epoll_wait(epoll, ev, WORKERS_MOST, -1);

		for (int i = 0; i < n; i++) {
			if (receive_all(ev[i].data.fd, buffer, x->out)) {
				send_all(ev[i].data.fd, buffer, x->in);
				continue;
			}
			close(ev[i].data.fd);
			left--;
		}
	}
	free(buffer);
	close(epoll);
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	if (cpu >= 0)
		CPU_SET(cpu, &set);
	if (cpu >= 0 && sched_setaffinity(0, sizeof(set), &set) < 0)
		give_up("CPU %d: %s", cpu, strerror(errno));
}

static pid_t start_server(const struct exchange *x, const char *server)
{
	pid_t pid = fork();

	if (pid < 0)
		give_up("fork: %s", strerror(errno));
	for (uint32_t i = 0; i < x->connections; i++)
		close(pid ? x->servers[i] : x->clients[i]);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	run_on(x->cpu);
	/* As the donor has. */
	realtime_enter();
	if (!strcmp(server, "threads"))
		serve_by_threads(x);
	else
		serve_by_epoll(x);
	_exit(0);
}

/* --- connections and clients ------------------------------------------------------ */

static void connect_tcp(struct exchange *x)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(at);
	int on = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(listening, (struct sockaddr *)&at, length) < 0 || listen(listening, 64) < 0 ||
	    getsockname(listening, (struct sockaddr *)&at, &length) < 0)
		give_up("listen: %s", strerror(errno));
	for (uint32_t i = 0; i < x->connections; i++) {
		x->clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(x->clients[i], (struct sockaddr *)&at, length) < 0)
			give_up("connect: %s", strerror(errno));
		x->servers[i] = accept(listening, NULL, NULL);
		if (x->servers[i] < 0)
			give_up("accept: %s", strerror(errno));
		setsockopt(x->clients[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		setsockopt(x->servers[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	}
	close(listening);
}

static void connect_unix(struct exchange *x)
{
	for (uint32_t i = 0; i < x->connections; i++) {
		int pair[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
			give_up("socketpair: %s", strerror(errno));
		x->clients[i] = pair[0];
		x->servers[i] = pair[1];
	}
}

static void work(struct job *j)
{
	const struct exchange *x = j->data;
	uint8_t *buffer = buffer_of(x);
	int fd = x->clients[j->number];
	uint64_t n = 0;

	for (uint32_t i = 0; i < x->connections; i++)
		if (i != j->number)
			close(x->clients[i]);
	worker_begin(j->run);
	do {
		send_all(fd, buffer, x->out);
		if (!receive_all(fd, buffer, x->in))
			give_up("the server has ended");
		n++;
	} while (!worker_stops(j->run));
	worker_end(j, n);
	free(buffer);
}

struct timing measure_exchange(const char *family, const char *server, uint32_t workers,
			       uint32_t out, uint32_t in, int cpu, double seconds)
{
	struct exchange x = { .connections = workers, .out = out, .in = in, .cpu = cpu };
	struct timing t;
	pid_t pid;

	if (!strcmp(family, "tcp"))
		connect_tcp(&x);
	else
		connect_unix(&x);
	pid = start_server(&x, server);
	t = run_workers(PROCESSES, workers, seconds, work, &x);
	/* The server ends with its last connection. */
	for (uint32_t i = 0; i < workers; i++)
		close(x.clients[i]);
	waitpid(pid, NULL, 0);
	return t;
}
