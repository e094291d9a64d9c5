// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/paths.h"
#include "tcp.h"

/* Room for several of the largest requests in flight. */
#define SOCKET_BUFFER (4 << 20)
/*
 * Keepalive gives up on an unresponsive machine after five minutes: long, because a
 * donor then lends its slabs to others, and the machine may only have been suspended.
 */
#define KEEPALIVE_IDLE 60
#define KEEPALIVE_INTERVAL 20
#define KEEPALIVE_COUNT 12
#define GONE_MS (300 * 1000)

/* Splits "HOST[:PORT]" or "[HOST]:PORT"; -EINVAL when it is neither. */
static int split(const char *text, char *host, size_t size, char port[6])
{
	const char *end, *colon;
	long number = EBB_DONOR_PORT;

	if (*text == '[') {
		end = strchr(++text, ']');
		if (!end || (end[1] && end[1] != ':'))
			return -EINVAL;
		colon = end[1] ? end + 1 : NULL;
	} else {
		colon = strrchr(text, ':');
		/* A bare IPv6 address: the colon of the port is ambiguous. */
		if (colon && memchr(text, ':', colon - text))
			return -EINVAL;
		end = colon ? colon : text + strlen(text);
	}
	if (end == text || (size_t)(end - text) >= size)
		return -EINVAL;
	memcpy(host, text, end - text);
	host[end - text] = '\0';
	if (colon) {
		char *rest;

		number = strtol(colon + 1, &rest, 10);
		if (colon[1] < '0' || colon[1] > '9' || *rest || number > 65535)
			return -EINVAL;
	}
	snprintf(port, 6, "%hu", (unsigned short)number);
	return 0;
}

static int no_address(const char *what, const char *text, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, EINVAL,
			 "%s: \"%.128s\" is not an address; give HOST:PORT such as 127.0.0.1:%d, rdma:HOST:PORT or unix:/PATH",
			 what, text, EBB_DONOR_PORT);
}

int tcp_check(const char *text, const char *what, char *to, size_t size, struct error *e)
{
	char host[256], port[6];
	bool six;
	int n;

	if (split(text, host, sizeof(host), port) || !strcmp(port, "0"))
		return no_address(what, text, e);
	six = strchr(host, ':');
	if (strspn(host, six ? "0123456789abcdefABCDEF:.%" :
			       "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_") !=
	    strlen(host))
		return no_address(what, text, e);
	n = snprintf(to, size, six ? "[%s]:%s" : "%s:%s", host, port);
	return n < (int)size ? 0 : no_address(what, text, e);
}

/*
 * Stores the first @most addresses of @host in @found, all with @text; returns how many, or one of
 * EAI_*.
 */
static int look_up(const char *host, const char *port, const char *text, struct address *found,
		   int most)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	int r = getaddrinfo(host, port, &hints, &list), n = 0;

	if (r)
		return r;
	for (struct addrinfo *i = list; i && n < most; i = i->ai_next) {
		struct address *a = &found[n++];

		memset(a, 0, sizeof(*a));
		memcpy(&a->sa, i->ai_addr, i->ai_addrlen);
		a->len = i->ai_addrlen;
		strcpy(a->text, text);
	}
	freeaddrinfo(list);
	return n;
}
_Static_assert(EAI_AGAIN < 0 && EAI_NONAME < 0, "told from numbers of addresses");

int tcp_parse(const char *text, const char *what, struct address *a, struct error *e)
{
	char host[256], port[6];
	int r;

	if (split(text, host, sizeof(host), port) || strlen(text) >= sizeof(a->text))
		return no_address(what, text, e);
	r = look_up(host, port, text, a, 1);
	return r > 0 ? 0 :
	       fail(e, ENOENT, "%s: cannot resolve %s (%s); check its spelling, /etc/hosts and DNS",
		    what, host, gai_strerror(r));
}

int tcp_resolve(const char *text, struct address *found, int most)
{
	char host[256], port[6];
	int r;

	if (split(text, host, sizeof(host), port) || strlen(text) >= sizeof(found->text))
		return -EINVAL;
	r = look_up(host, port, text, found, most);
	return r > 0 ? r : -ENOENT;
}

bool tcp_is_name(const char *text)
{
	char host[256], port[6];
	struct in6_addr numeric;

	return !split(text, host, sizeof(host), port) && !strchr(host, ':') &&
	       inet_pton(AF_INET, host, &numeric) != 1;
}

bool tcp_is_loopback(const struct address *a)
{
	if (a->sa.ss_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr) >> 24 == 127;
	return a->sa.ss_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);
}

int tcp_listen(struct address *a, enum address_reach reach, struct error *e)
{
	_cleanup_close_ int fd = -1;
	int one = 1, r;

	if (reach == ADDRESS_LOOPBACK && !tcp_is_loopback(a))
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "listen %s: not a loopback address, authentication required; pass --keys FILE, made by \"ebbctl key derive\" at the borrower, or use 127.0.0.1",
				 a->text);
	fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(e, errno, "listen %s: %m", a->text);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* Before listen(): the handshake fixes the window scale. */
	tcp_tune(fd);
	if (bind(fd, (struct sockaddr *)&a->sa, a->len) < 0 || listen(fd, SOMAXCONN) < 0) {
		r = errno;
		return fail(e, r, "listen %s: %s; %s", a->text, strerror(r),
			    r == EADDRINUSE ? "stop the program that listens there, or use another port" :
			    "check --listen");
	}
	getsockname(fd, (struct sockaddr *)&a->sa, &a->len);
	return TAKE_FD(fd);
}

int tcp_connect(const struct address *a)
{
	_cleanup_close_ int fd = socket(a->sa.ss_family,
					SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	tcp_tune(fd);
	if (connect(fd, (const struct sockaddr *)&a->sa, a->len) < 0 && errno != EINPROGRESS)
		return -errno;
	return TAKE_FD(fd);
}

void tcp_tune(int fd)
{
	int one = 1, size = SOCKET_BUFFER;
	int idle = KEEPALIVE_IDLE, interval = KEEPALIVE_INTERVAL, count = KEEPALIVE_COUNT;
	unsigned int gone = GONE_MS;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone, sizeof(gone));
}
