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
#include "lib/base/lock.h"
#include "lib/link/rdma_connect.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define SECOND 1000000000ull
/* After which the loop of this test gives up on a link, and pauses before it tries again. */
#define GIVE_UP (SECOND / 4)
#define PAUSE (SECOND / 50)

/* Ports of donors. */
enum { SILENT = 1, UNREACHABLE, AT_LAST_DEVICE, AT_FIRST_DEVICE };

enum { SILENT_DONORS = 3, HERE = 10 };

static uint8_t memory[4096];
static const struct wire_join join = { .session = 1 };
static struct ibv_context devices[HERE];
static int lists[HERE];      /* lists that have the device */
static bool removed[HERE], closed[HERE];
static int here;            /* devices that there are or were */
/* The connecting thread and the test's change them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* As librdmacm: closes the context of a removed device that no list has. */
static void sync_devices(void)
{
	for (int i = 0; i < here; i++)
		closed[i] |= removed[i] && !lists[i];
}

struct ibv_context **rdma_get_devices(int *count)
{
	struct ibv_context **list = fake_new((HERE + 1) * sizeof(*list));
	int n = 0;
	HOLD(&lock);

	sync_devices();
	for (int i = 0; i < here; i++)
		if (!removed[i]) {
			lists[i]++;
			list[n++] = &devices[i];
		}
	return list;
}

void rdma_free_devices(struct ibv_context **list)
{
	HOLD(&lock);

	for (struct ibv_context **at = list; *at; at++)
		lists[*at - devices]--;
	sync_devices();
	fake_free(list);
}

/* A machine with @n devices. */
static void begin(int n)
{
	fake_reset();
	here = n;
	memset(lists, 0, sizeof(lists));
	memset(removed, 0, sizeof(removed));
	memset(closed, 0, sizeof(closed));
	for (int i = 0; i < n; i++)
		devices[i] = fake.context;
}

/* All devices are removed; another one is added, at the address of a closed one if there is one. */
static int replace_devices(void)
{
	int at = 0;
	HOLD(&lock);

	for (int i = 0; i < here; i++)
		removed[i] = true;
	sync_devices();
	while (at < here && !closed[at])
		at++;
	assert_true(at < HERE);
	removed[at] = closed[at] = false;
	devices[at] = fake.context;
	here += at == here;
	return at;
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
		return 0;
	case AT_FIRST_DEVICE:
		pthread_mutex_lock(&lock);
		for (int i = 0; i < here; i++)
			if (!removed[i])
				id->verbs = &devices[i];
		pthread_mutex_unlock(&lock);
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

	begin(0);
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

	begin(HERE);
	assert_int_equal(rdma_links_start(&ls, 1, 4, memory, sizeof(memory), epoll_fd, NULL), 0);
	assert_int_equal(rdma_link_want(ls, 0, &place, &join), 0);
	wait_for(ls, 0, RDMA_READY);
	rdma_links_stop(&ls);
	assert_int_equal(fake.objects, 0);
	close(epoll_fd);
}

/* Connects link @i at the device there is; returns the key of the memory there. */
static uint32_t connect_there(struct rdma_links *ls, int i)
{
	struct sockaddr_storage place = donor(AT_FIRST_DEVICE);

	assert_int_equal(rdma_link_want(ls, i, &place, &join), 0);
	wait_for(ls, i, RDMA_READY);
	return rdma_link_at(ls, i)->lkey;
}

static void disconnect(struct rdma_links *ls, int i)
{
	rdma_link_close(ls, i);
	wait_for(ls, i, RDMA_NONE);
}

/* A device that is removed and returns is another one, also if its context is where one was. */
static void a_device_returns(void **state)
{
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC), old;
	struct rdma_links *ls = NULL;
	uint32_t key, last = 0;

	begin(1);
	assert_int_equal(rdma_links_start(&ls, 2, 4, memory, sizeof(memory), epoll_fd, NULL), 0);
	assert_int_equal(fake.registered, 1);
	/* More often than the links have room for devices. */
	for (int i = 0; i < 40; i++) {
		replace_devices();
		key = connect_there(ls, 0);
		/* The key of the first memory is 1. */
		assert_true(key > 1 && key != last);
		assert_int_equal(fake.registered, 1);
		disconnect(ls, 0);
		last = key;
	}
	/* While a link uses it, it stays. */
	connect_there(ls, 0);
	old = (int)(rdma_link_at(ls, 0)->id->verbs - devices);
	assert_int_not_equal(replace_devices(), old);
	connect_there(ls, 1);
	assert_int_equal(fake.registered, 2);
	assert_false(closed[old]);
	disconnect(ls, 0);
	disconnect(ls, 1);
	rdma_links_stop(&ls);
	assert_int_equal(fake.objects, 0);
	for (int i = 0; i < here; i++)
		assert_int_equal(lists[i], 0);
	close(epoll_fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(silent_donors_block_no_other),
		cmocka_unit_test(the_last_of_many_devices),
		cmocka_unit_test(a_device_returns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
