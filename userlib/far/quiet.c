// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "quiet.h"

struct quiet {
	sigset_t pipe, before;
	bool pending; /* one came before: it is the program's */
};

static void begin(struct quiet *q)
{
	sigset_t pending;

	sigemptyset(&pending);
	sigpending(&pending);
	q->pending = sigismember(&pending, SIGPIPE) == 1;
	sigemptyset(&q->pipe);
	sigaddset(&q->pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &q->pipe, &q->before);
}

/* Leaves errno as it is. */
static void end(const struct quiet *q)
{
	const struct timespec at_once = { 0 };
	int error = errno, r;

	do
		r = q->pending ? 0 : sigtimedwait(&q->pipe, NULL, &at_once);
	while (r < 0 && errno == EINTR);
	pthread_sigmask(SIG_SETMASK, &q->before, NULL);
	errno = error;
}

/* To answer a record, OpenSSL may write. */
static ssize_t receive(void *channel, int fd, struct msghdr *m)
{
	struct quiet q;
	ssize_t n;

	begin(&q);
	n = tls_io.receive(channel, fd, m);
	end(&q);
	return n;
}

static ssize_t send_quietly(void *channel, int fd, struct msghdr *m)
{
	struct quiet q;
	ssize_t n;

	begin(&q);
	n = tls_io.send(channel, fd, m);
	end(&q);
	return n;
}

static bool pending(void *channel)
{
	return tls_io.pending(channel);
}

const struct stream_io quiet_io = { receive, send_quietly, pending };

int quiet_handshake(struct tls *t)
{
	struct quiet q;
	int r;

	begin(&q);
	r = tls_handshake(t);
	end(&q);
	return r;
}
