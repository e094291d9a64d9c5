// SPDX-License-Identifier: GPL-2.0-or-later
/* The thread that connects links, on RDMA devices and to donors that the test plays. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

#include "fake_verbs.h"
#include "lib/base/clock.h"
#include "lib/link/rdma_connect.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define SECOND 1000000000ull
/* After which the loop of this test gives up on a link, and pauses before it tries again. */
#define GIVE_UP (SECOND / 4)
#define PAUSE (SECOND / 50)

/* Ports of donors. */
enum { SILENT = 1, UNREACHABLE, AT_LAST_DEVICE };

enum { SILENT_DONORS = 3, HERE = 10 };

static uint8_t memory[4096];
static const struct wire_join join = { .session = 1 };
static struct ibv_context devices[HERE];
static struct ibv_context *list[HERE + 1];

struct ibv_context **rdma_get_devices(int *count)
{
	return list;
}

void rdma_free_devices(struct ibv_context **devices_of)
{
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms)
{
	switch (ntohs(((struct sockaddr_in *)to)->sin_port)) {
	case UNREACHABLE:
		errno = ENODEV;
		return -1;
	case AT_LAST_DEVICE:
		id->verbs = &devices[HERE - 1];
		fake_happens(id, RDMA_CM_EVENT_ADDR_RESOLVED, NULL, 0);
	}
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int ms)
{
	fake_happens(id, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, 0);
	return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t length)
{
	return 0;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	fake_happens(id, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	return 0;
}

static struct sockaddr_storage donor(uint16_t port)
{
	struct sockaddr_storage ss = { 0 };
	struct sockaddr_in *sa = (void *)&ss;

	sa->sin_family = AF_INET;
	sa->sin_port = htons(port);
	return ss;
}

static uint32_t state_of(struct rdma_links *ls, int i)
{
	return __atomic_load_n(&rdma_link_at(ls, i)->state, __ATOMIC_ACQUIRE);
}

static void wait_for(struct rdma_links *ls, int i, enum rdma_link_state state)
{
	const struct timespec moment = { .tv_nsec = 1000000 };

	for (int n = 0; n < 60000 && state_of(ls, i) != state; n++)
		nanosleep(&moment, NULL);
	assert_int_equal(state_of(ls, i), state);
}

/* A link as the loop treats it: connected again after a pause, given up after a while. */
static void drive(struct rdma_links *ls, int i, uint16_t port, uint64_t *since)
{
	struct sockaddr_storage place = donor(port);
	uint64_t now = now_ns();

	switch (state_of(ls, i)) {
	case RDMA_NONE:
		if (now - *since >= PAUSE && !rdma_link_want(ls, i, &place, &join))
			*since = now;
		break;
	case RDMA_WANTED:
		if (now - *since < GIVE_UP)
			break;
		rdma_link_close(ls, i);
		*since = now;
	}
}

/* Donors that do not answer, tried again and again, leave another donor its turns. */
static void silent_donors_block_no_other(void **state)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	uint64_t since[SILENT_DONORS + 1] = { 0 }, until;
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	struct rdma_links *ls = NULL;

	fake_reset();
	list[0] = NULL;
	assert_int_equal(rdma_links_start(&ls, SILENT_DONORS + 1, 4, memory, sizeof(memory),
					  epoll_fd, NULL), 0);
	for (int times = 0; times < 3; times++) {
		until = now_ns() + 60 * SECOND;
		while (state_of(ls, SILENT_DONORS) != RDMA_FAILED && now_ns() < until) {
			for (int i = 0; i < SILENT_DONORS; i++)
				drive(ls, i, SILENT, &since[i]);
			drive(ls, SILENT_DONORS, UNREACHABLE, &since[SILENT_DONORS]);
			nanosleep(&moment, NULL);
		}
		assert_int_equal(state_of(ls, SILENT_DONORS), RDMA_FAILED);
		rdma_link_close(ls, SILENT_DONORS);
	}
	rdma_links_stop(&ls);
	assert_int_equal(fake.objects, 0);
	close(epoll_fd);
}

/* A machine has more RDMA devices than it uses. */
static void the_last_of_many_devices(void **state)
{
	struct sockaddr_storage place = donor(AT_LAST_DEVICE);
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	struct rdma_links *ls = NULL;

	fake_reset();
	for (int i = 0; i < HERE; i++) {
		devices[i] = fake.context;
		list[i] = &devices[i];
	}
	assert_int_equal(rdma_links_start(&ls, 1, 4, memory, sizeof(memory), epoll_fd, NULL), 0);
	assert_int_equal(rdma_link_want(ls, 0, &place, &join), 0);
	wait_for(ls, 0, RDMA_READY);
	rdma_links_stop(&ls);
	assert_int_equal(fake.objects, 0);
	close(epoll_fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(silent_donors_block_no_other),
		cmocka_unit_test(the_last_of_many_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
