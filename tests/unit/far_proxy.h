/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A link between members and the donor of far_world.h: a thread that forwards one TCP connection,
 * loses bytes and cuts.  Includes cmocka.h.
 */
#ifndef EBB_TEST_FAR_PROXY_H
#define EBB_TEST_FAR_PROXY_H

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "far_library.h"
#include "lib/base/draw.h"
#include "lib/wire/address.h"

enum link {
	LINK_GOOD,
	LINK_LOSES_REPLIES,  /* the next ones, and is cut then */
	LINK_LOSES_REQUESTS,
	LINK_CUT,            /* now; it is good after that */
	LINK_DOWN,           /* as long as it is so: connections end at once */
	LINK_SILENT,         /* bytes wait */
	LINK_HELLO_ONLY,     /* each connection, also this one, ends after the first reply */
	LINK_HELLO_AND_SILENT, /* ... is silent */
	LINK_FLIPS,          /* a bit of some pieces, both ways */
};

struct proxy {
	int listens, member, donor; /* sockets; -1 = none */
	char at[32];
	pthread_t thread;
	enum link link;
	uint32_t cuts;
	uint32_t replies; /* pieces of them, on this connection */
	uint64_t seed;
	bool stop;
};

static struct proxy proxy;

static enum link link_state(void)
{
	return __atomic_load_n(&proxy.link, __ATOMIC_ACQUIRE);
}

static void set_link(enum link link)
{
	__atomic_store_n(&proxy.link, link, __ATOMIC_RELEASE);
}

/* Every other time by a reset. */
static void cut_link(void)
{
	const struct linger none = { .l_onoff = 1 };
	int *const fds[] = { &proxy.member, &proxy.donor };

	proxy.cuts += proxy.member >= 0;
	for (int i = 0; i < 2; i++) {
		if (*fds[i] >= 0 && proxy.cuts % 2)
			setsockopt(*fds[i], SOL_SOCKET, SO_LINGER, &none, sizeof(none));
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

/* Moves bytes on, or loses them; the link may be cut then. */
static void forward(int from, int to, enum link loses)
{
	static uint8_t bytes[65536];
	ssize_t n = recv(from, bytes, sizeof(bytes), 0), sent = 0, some = 1;

	if (n > 0 && link_state() == loses) {
		cut_link();
		set_link(LINK_GOOD);
		return;
	}
	/* A header's, mostly. */
	if (n > 0 && link_state() == LINK_FLIPS && !draw_below(&proxy.seed, 4))
		bytes[draw_below(&proxy.seed, n < 32 || !draw_below(&proxy.seed, 4) ? n : 32)] ^=
			(uint8_t)(1u << draw_below(&proxy.seed, 8));
	for (; sent < n && some > 0; sent += some)
		some = send(to, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
	if (n <= 0 || some <= 0)
		cut_link();
}

static bool is_past_hello(enum link link)
{
	return (link == LINK_HELLO_ONLY || link == LINK_HELLO_AND_SILENT) && proxy.replies;
}

static void accept_link(void)
{
	struct error e = { 0 };
	struct address a;

	cut_link();
	proxy.replies = 0;
	proxy.member = accept(proxy.listens, NULL, NULL);
	if (address_parse(world.tcp, "donor", &a, &e))
		return;
	proxy.donor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(proxy.donor, (const struct sockaddr *)&a.sa, a.len) < 0)
		cut_link();
}

static void *run_proxy(void *data)
{
	while (!__atomic_load_n(&proxy.stop, __ATOMIC_ACQUIRE)) {
		enum link link = link_state();
		struct pollfd p[] = { { proxy.listens, POLLIN, 0 }, { proxy.member, POLLIN, 0 },
				      { proxy.donor, POLLIN, 0 } };

		if (link == LINK_SILENT) {
			usleep(1000);
			continue;
		}
		if (link == LINK_CUT || link == LINK_DOWN ||
		    (link == LINK_HELLO_ONLY && is_past_hello(link)))
			cut_link();
		if (link == LINK_CUT)
			set_link(LINK_GOOD);
		if (poll(p, 3, 1) <= 0)
			continue;
		if (p[0].revents) {
			accept_link();
		} else if (is_past_hello(link)) {
			usleep(1000);
		} else if (p[1].revents) {
			forward(proxy.member, proxy.donor, LINK_LOSES_REQUESTS);
		} else if (p[2].revents) {
			forward(proxy.donor, proxy.member, LINK_LOSES_REPLIES);
			proxy.replies++;
		}
	}
	cut_link();
	return NULL;
}

static void start_proxy(void)
{
	struct error e = { 0 };
	struct address a;

	proxy = (struct proxy){ .member = -1, .donor = -1, .seed = 1 };
	assert_int_equal(address_parse("127.0.0.1:0", "test", &a, &e), 0);
	proxy.listens = address_listen(&a, ADDRESS_LOOPBACK, &e);
	assert_true(proxy.listens >= 0);
	snprintf(proxy.at, sizeof(proxy.at), "127.0.0.1:%u",
		 ntohs(((const struct sockaddr_in *)&a.sa)->sin_port));
	assert_int_equal(pthread_create(&proxy.thread, NULL, run_proxy, NULL), 0);
}

static void stop_proxy(void)
{
	__atomic_store_n(&proxy.stop, true, __ATOMIC_RELEASE);
	pthread_join(proxy.thread, NULL);
	close(proxy.listens);
}

/* Setup and teardown: members reach a donor through the proxy. */
static int by_proxy(void **state)
{
	int r = with_far_thread(state);

	start_proxy();
	at = proxy.at;
	return r;
}

static int end_by_proxy(void **state)
{
	stop_proxy();
	return end_far_donor(state);
}

#endif
