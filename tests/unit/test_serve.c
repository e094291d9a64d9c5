// SPDX-License-Identifier: GPL-2.0-or-later
/* The event loop, with a kernel that never stops asking. */
#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "swapd/commands.h"
#include "swapd/page/page_map.h"
#include "swapd/serve.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { PAGES = 256 };

static struct swapd s;
static struct shared shared;
static struct slab slab;
static uint32_t ended;

/* /dev/fuse: there is always a READ of page 0, which was never written. */
ssize_t read(int fd, void *buf, size_t size)
{
	struct fuse_in_header in = { .len = sizeof(in) + sizeof(struct fuse_read_in),
				     .opcode = FUSE_READ, .unique = 2, .nodeid = 2 };
	struct fuse_read_in rd = { .size = PAGE };

	if (fd != s.host.fd)
		return syscall(SYS_read, fd, buf, size);
	if (__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
		errno = ENODEV;
		return -1;
	}
	memcpy(buf, &in, sizeof(in));
	memcpy((char *)buf + sizeof(in), &rd, sizeof(rd));
	return in.len;
}

ssize_t writev(int fd, const struct iovec *iov, int n)
{
	return fd == s.host.fd ? (ssize_t)iov[0].iov_len : syscall(SYS_writev, fd, iov, n);
}

static void *serve(void *data)
{
	serve_run(&s);
	return NULL;
}

/* Donors have their deadlines and the watchdog its beats, however much is asked. */
static void requests_without_end(void **state)
{
	struct error e = { 0 };
	uint64_t beats, more;
	pthread_t thread;

	s = (struct swapd){
		.options = { .name = "unit", .slab = PAGES * PAGE, .mount = "/",
			     .repair_rate = 1 << 20 },
		.shared = &shared, .count = &shared.counters, .replicas.wanted = 1,
		.engine.backup = { .fd = -1 }, .frontend = &fuse_frontend, .host = { .fd = eventfd(1, EFD_CLOEXEC) },
	};
	wiring_events(&s);
	slab_init(&s.engine.table, &slab, 1, PAGES);
	s.engine.map = page_map_new(PAGES, PAGES, 2, false);
	assert_non_null(s.engine.map);
	wiring_frontend(&s);
	assert_int_equal(slots_init(&s.engine.slots, &e), 0);
	assert_int_equal(orders_open(&s.orders, &e), 0);
	assert_int_equal(serve_init(&s, &e), 0);
	assert_int_equal(pthread_create(&thread, NULL, serve, NULL), 0);
	sleep(1);
	beats = more = count_get(&shared.beats);
	for (int i = 0; i < 6000 && (more <= beats + 10 || count_get(&shared.counters.completed) <= 100); i++) {
		usleep(10000);
		more = count_get(&shared.beats);
	}
	__atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_true(shared.counters.completed > 100);
	assert_int_equal(shared.counters.completed, shared.counters.received);
	assert_true(more > beats + 10);
	serve_free(&s);
	orders_close(&s.orders);
	close(s.host.fd);
	slots_free(&s.engine.slots);
	page_map_free(&s.engine.map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_without_end),
	};

	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
