// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/files.h"
#include "swapd.h"
#include "watchdog.h"

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

#define CONNECTIONS "/sys/fs/fuse/connections"

enum watchdog_verdict watchdog_judge(struct watchdog_state *w, const struct watchdog_sight *now,
				     uint64_t tick_ns, uint64_t limit_ns)
{
	bool answers_move = now->received == now->completed ||
			    now->completed != w->last.completed;

	w->answers_ns = answers_move ? 0 : w->answers_ns + tick_ns;
	w->loop_ns = now->beats != w->last.beats ? 0 : w->loop_ns + tick_ns;
	w->last = *now;
	return w->answers_ns >= limit_ns ? WATCHDOG_STUCK :
	       w->loop_ns >= limit_ns ? WATCHDOG_STOPPED : WATCHDOG_MOVES;
}

static int open_control(uint32_t connection, const char *file, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), CONNECTIONS "/%u/%s", connection, file);
	return open(path, flags | O_CLOEXEC);
}

/*
 * Whether the kernel has requests for the server that stopped.  The file can be
 * read once an open: the next one is made in advance, so that this one needs no
 * memory.  In doubt there are: a swap device that stands is always asked.
 */
static bool requests_wait(int *waiting_fd, uint32_t connection)
{
	char text[24] = "";
	ssize_t n = *waiting_fd < 0 ? -1 : read(*waiting_fd, text, sizeof(text) - 1);

	if (*waiting_fd >= 0)
		close(*waiting_fd);
	*waiting_fd = open_control(connection, "waiting", O_RDONLY);
	return n <= 0 || strtoull(text, NULL, 10) > 0;
}

/* Nothing in the loop allocates: the machine may be waiting for us. */
static void watch(struct swapd *s, int server, uint32_t connection, int waiting_fd, int abort_fd)
{
	uint64_t limit_ns = s->options.watchdog;
	uint64_t tick_ns = limit_ns / 10 < 1000000000ull ? limit_ns / 10 : 1000000000ull;
	const struct counters *c = &s->shared->counters;
	struct watchdog_state w = { 0 };
	struct pollfd p = { .fd = server, .events = POLLIN };

	/* Readable: the server is gone, or does not want us any more. */
	while (poll(&p, 1, (int)(tick_ns / 1000000) + 1) == 0) {
		struct watchdog_sight now = {
			.completed = count_get(&c->completed),
			.received = count_get(&c->received),
			.beats = count_get(&s->shared->beats),
		};
		enum watchdog_verdict v = watchdog_judge(&w, &now, tick_ns, limit_ns);

		if (v == WATCHDOG_MOVES ||
		    (v == WATCHDOG_STOPPED && !requests_wait(&waiting_fd, connection)))
			continue;
		__atomic_store_n(&s->shared->aborted, 1, __ATOMIC_RELAXED);
		if (write(abort_fd, "1", 1) == 1)
			log_event(EVENT_DEVICE_ABORTED, LOG_LVL_ERR,
				  "watchdog: no answer for too long, device aborted");
		return;
	}
}

static void watchdog_main(struct swapd *s, int server)
{
	uint32_t connection;
	int waiting_fd, abort_fd;
	int r;

	prctl(PR_SET_NAME, "ebb-watchdog");
	prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	if (read(server, &connection, sizeof(connection)) != sizeof(connection))
		_exit(0);
	waiting_fd = open_control(connection, "waiting", O_RDONLY);
	abort_fd = open_control(connection, "abort", O_WRONLY);
	r = waiting_fd < 0 || abort_fd < 0 || mlockall(MCL_CURRENT | MCL_FUTURE) < 0 ? errno : 0;
	if (write(server, &r, sizeof(r)) != sizeof(r) || r)
		_exit(1);
	watch(s, server, connection, waiting_fd, abort_fd);
	_exit(0);
}

int watchdog_fork(struct swapd *s, struct error *e)
{
	int pair[2], pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return fail(e, errno, "watchdog: socketpair: %m");
	pid = fork();
	if (pid < 0) {
		int r = errno;

		close(pair[0]);
		close(pair[1]);
		return fail(e, r, "watchdog: fork: %s", strerror(r));
	}
	if (!pid) {
		/* Only stderr and our end: nobody shall wait for us to close the others. */
		dup2(pair[1], 3);
		close_range(4, ~0u, 0);
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		watchdog_main(s, 3);
	}
	close(pair[1]);
	s->watchdog_pid = pid;
	s->watchdog_fd = pair[0];
	return 0;
}

/* fusectl is where a connection can be aborted; systemd mounts it, others do not. */
static int mount_fusectl(uint32_t connection)
{
	char path[64];

	snprintf(path, sizeof(path), CONNECTIONS "/%u", connection);
	if (access(path, F_OK) == 0)
		return 0;
	if (mount("fusectl", CONNECTIONS, "fusectl", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return -errno;
	return access(path, F_OK) == 0 ? 0 : -errno;
}

void watchdog_arm(struct swapd *s)
{
	struct pollfd p = { .fd = s->watchdog_fd, .events = POLLIN };
	int r = mount_fusectl(s->connection), answer = EPIPE;

	if (r)
		log_warn("watchdog: " CONNECTIONS ": %s; a hung device cannot be aborted",
			 strerror(-r));
	if (write(s->watchdog_fd, &s->connection, sizeof(s->connection)) !=
		    sizeof(s->connection) ||
	    poll(&p, 1, 5000) <= 0 ||
	    read(s->watchdog_fd, &answer, sizeof(answer)) != sizeof(answer) || answer)
		log_warn("watchdog: %s; a hung device is not aborted by itself", strerror(answer));
	else
		s->watchdog_works = true;
}

void watchdog_stop(struct swapd *s)
{
	if (s->watchdog_pid <= 0)
		return;
	close(s->watchdog_fd);
	waitpid(s->watchdog_pid, NULL, 0);
	s->watchdog_pid = 0;
}
