// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Whose a link is, where nothing can be connected to: tests/guest/cases/test_rdma.py has
 * an RDMA device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "lib/link/rdma_connect.h"

#include <cmocka.h>

static uint8_t memory[4096];
static const struct wire_join join = { .session = 1 };

/* Loopback is no RDMA device's. */
static struct sockaddr_storage nowhere(void)
{
	struct sockaddr_storage ss = { 0 };
	struct sockaddr_in *sa = (void *)&ss;

	sa->sin_family = AF_INET;
	sa->sin_port = htons(1);
	sa->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return ss;
}

static uint32_t state_of(struct rdma_link *l)
{
	return __atomic_load_n(&l->state, __ATOMIC_ACQUIRE);
}

static void wait_for(struct rdma_link *l, enum rdma_link_state state)
{
	const struct timespec moment = { .tv_nsec = 1000000 };

	for (int i = 0; i < 60000 && state_of(l) != state; i++)
		nanosleep(&moment, NULL);
	assert_int_equal(state_of(l), state);
}

static void refused_and_tried_again(void **state)
{
	struct sockaddr_storage place = nowhere();
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	struct rdma_links *ls = NULL;
	struct epoll_event ev;
	struct rdma_link *l;

	assert_int_equal(rdma_links_start(&ls, 3, 4, memory, sizeof(memory), epoll_fd, NULL), 0);
	l = rdma_link_at(ls, 2);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(rdma_link_want(ls, 2, &place, &join), 0);
		assert_int_equal(rdma_link_want(ls, 2, &place, &join), -EBUSY);
		assert_int_equal(epoll_wait(epoll_fd, &ev, 1, 60000), 1);
		assert_int_equal(ev.data.u64, RDMA_CHANNEL << 32 | 2);
		assert_int_equal(__atomic_exchange_n(&l->notice, 0, __ATOMIC_ACQ_REL), 1);
		assert_int_equal(state_of(l), RDMA_FAILED);
		assert_memory_equal(l->why, "RDMA: ", 6);
		rdma_link_close(ls, 2);
		assert_int_equal(state_of(l), RDMA_NONE);
		/* Edge-triggered: an unread event is reported once. */
		assert_int_equal(epoll_wait(epoll_fd, &ev, 1, 0), 0);
	}
	rdma_link_close(ls, 0);
	assert_int_equal(state_of(rdma_link_at(ls, 0)), RDMA_NONE);
	rdma_links_stop(&ls);
	assert_null(ls);
	rdma_links_stop(&ls);
	close(epoll_fd);
}

/* Closed at whatever moment of its connecting: it is there again in the end. */
static void cancelled(void **state)
{
	struct sockaddr_storage place = nowhere();
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	struct rdma_links *ls = NULL;

	assert_int_equal(rdma_links_start(&ls, 1, 4, memory, sizeof(memory), epoll_fd, NULL), 0);
	for (long i = 0; i < 50; i++) {
		const struct timespec wait = { .tv_nsec = i * 10000 };

		assert_int_equal(rdma_link_want(ls, 0, &place, &join), 0);
		nanosleep(&wait, NULL);
		rdma_link_close(ls, 0);
		wait_for(rdma_link_at(ls, 0), RDMA_NONE);
	}
	rdma_links_stop(&ls);
	close(epoll_fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused_and_tried_again),
		cmocka_unit_test(cancelled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
