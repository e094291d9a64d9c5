// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alert.h"

/* Enough for a lost packet to be sent again twice: TCP first waits 200 ms. */
#define WAIT_NS 1000000000ull
/* Limit of reads per call: frames that a donor sends before its alert are discarded. */
#define READS 64

void alert_await(struct alert *a, struct link *l, uint64_t now)
{
	alert_end(a);
	epoll_ctl(l->env->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
	shutdown(l->fd, SHUT_WR);
	a->fd = l->fd;
	a->until = now + WAIT_NS;
	tls_move(&a->tls, &l->tls);
	l->fd = -1;
}

bool alert_came(struct alert *a, uint64_t now)
{
	char frames[4096];
	ssize_t n = 1;

	if (!tls_used(&a->tls))
		return false;
	for (int i = 0; i < READS && n > 0; i++)
		n = tls_io.receive(&a->tls, a->fd, &(struct msghdr){
			.msg_iov = &(struct iovec){ frames, sizeof(frames) }, .msg_iovlen = 1 });
	if (n > 0 || (n < 0 && errno == EAGAIN)) {
		if (now >= a->until)
			alert_end(a);
		return false;
	}
	n = n < 0 && errno == EBADMSG;
	alert_end(a);
	return n;
}

void alert_end(struct alert *a)
{
	if (tls_used(&a->tls))
		close(a->fd);
	tls_stop(&a->tls);
}
