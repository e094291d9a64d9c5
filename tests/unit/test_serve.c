// SPDX-License-Identifier: GPL-2.0-or-later
/* The event loop: with a kernel that never stops asking, and with ready requests. */
#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/base/paths.h"
#include "swapd/control/commands.h"
#include "swapd/control/control.h"
#include "swapd/page/page_map.h"
#include "swapd/serve.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { PAGES = 256 };

static struct swapd s;
static struct shared shared;
static struct slab slab;
static uint32_t ended, large_answers;

enum { LARGE = 32 };

/* /dev/fuse: there is always a READ of one page or of LARGE, which were never written. */
ssize_t read(int fd, void *buf, size_t size)
{
	struct fuse_in_header in = { .len = sizeof(in) + sizeof(struct fuse_read_in),
				     .opcode = FUSE_READ, .unique = 2, .nodeid = 2 };
	static uint32_t turn;
	struct fuse_read_in rd = { .size = turn++ % 2 ? LARGE * PAGE : PAGE };

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
	if (fd != s.host.fd)
		return syscall(SYS_writev, fd, iov, n);
	if (iov[0].iov_len > LARGE * PAGE)
		__atomic_fetch_add(&large_answers, 1, __ATOMIC_RELAXED);
	return (ssize_t)iov[0].iov_len;
}

static uint32_t timed_polls;

int poll(struct pollfd *p, nfds_t n, int ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000l };

	__atomic_fetch_add(&timed_polls, ms > 0, __ATOMIC_RELAXED);
	return (int)syscall(SYS_ppoll, p, n, ms < 0 ? NULL : &t, NULL, 0);
}

/* A server of one slab; its frontend's descriptor is readable if @events is 1. */
static void make_server(const struct frontend *frontend, unsigned int events)
{
	struct error e = { 0 };

	s = (struct swapd){
		.options = { .name = "unit",
			     .slab = PAGES * PAGE,
			     .mount = "/",
			     .repair_rate = 1 << 20 },
		.shared = &shared,
		.count = &shared.counters,
		.replicas.wanted = 1,
		.engine.backup = { .fd = -1 },
		.frontend = frontend,
		.host = { .fd = eventfd(events, EFD_CLOEXEC) },
		.wake_fd = -1,
	};
	wiring_events(&s);
	slab_init(&s.engine.table, &slab, 1, PAGES);
	s.engine.map = page_map_new(PAGES, PAGES, false);
	assert_non_null(s.engine.map);
	wiring_frontend(&s);
	assert_int_equal(slots_init(&s.engine.slots, SLOT_COUNT, &e), 0);
	assert_int_equal(commands_open(&s.commands, &e), 0);
	assert_int_equal(serve_init(&s, &e), 0);
}

static void free_server(void)
{
	serve_free(&s);
	commands_close(&s.commands);
	close(s.host.fd);
	slots_free(&s.engine.slots);
	page_map_free(&s.engine.map);
}

static void *serve(void *data)
{
	serve_run(&s);
	return NULL;
}

/* Donors have their deadlines and the watchdog its beats, however much is asked. */
static void requests_without_end(void **state)
{
	uint64_t beats, more;
	pthread_t thread;

	make_server(&fuse_frontend, 1);
	assert_int_equal(pthread_create(&thread, NULL, serve, NULL), 0);
	sleep(1);
	beats = more = count_get(&shared.beats);
	for (int i = 0;
	     i < 6000 && (more <= beats + 10 || count_get(&shared.counters.completed) <= 100 ||
			  __atomic_load_n(&large_answers, __ATOMIC_RELAXED) <= 100);
	     i++) {
		usleep(10000);
		more = count_get(&shared.beats);
	}
	__atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_true(shared.counters.completed > 100);
	/* Small reads come without end, too: large ones wait for them, and have their turn. */
	assert_true(large_answers > 100);
	assert_true(shared.counters.large_held > 100);
	assert_true(shared.counters.received - shared.counters.completed < SLOT_COUNT);
	assert_true(more > beats + 10);
	free_server();
}

/* --- a frontend with one request ---------------------------------------------------- */

static int result = 1;

static int frontend_fd(const struct frontend_host *h)
{
	return h->fd;
}

static int receive(struct frontend_host *h, int most)
{
	return -ENODEV;
}

/* Ends the device. */
static enum slot_after answer(void *host, struct slot *slot, int error)
{
	struct frontend_host *h = host;

	__atomic_store_n(&result, error, __ATOMIC_RELEASE);
	assert_int_equal(eventfd_write(h->fd, 1), 0);
	return SLOT_DONE;
}

static bool stopped(const struct frontend_host *h)
{
	return true;
}

static sem_t stop_tried;

static int stop(struct frontend_host *h)
{
	sem_post(&stop_tried);
	return 0;
}

static const struct frontend frontend_fake = {
	.name = "fake", .fd = frontend_fd, .receive = receive, .answer = answer,
	.stop = stop, .stopped = stopped,
};

/* A donor that is up, with page 0 and a socket that takes nothing any more. */
static void make_donor(void)
{
	struct error e = { 0 };
	struct address a;
	struct donor *d;
	int pair[2];

	assert_int_equal(address_parse("127.0.0.1:1", "donor", &a, &e), 0);
	assert_int_equal(donors_reserve(&s.donors, 1, &e), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	close(pair[1]);
	d = &s.donors.donor[donor_make(&s.donors, &a)];
	d->state = DONOR_UP;
	d->link.fd = pair[0];
	d->copies = 1;
	assert_int_equal(slab_ask(&slab, d->index, 1), 0);
	slab_grant(&slab, 0, 0, 1, false);
	page_map_write(s.engine.map, &(struct page_write){ 0, 1, 0, NULL });
	page_map_stored(s.engine.map, 0, 0, 1);
}

/*
 * A ready request is submitted, and its donor is lost when the queue is flushed, right before the
 * loop sleeps: the request is ready again.  Without ticks no event would wake the loop.
 */
static void no_sleep_beside_ready_requests(void **state)
{
	const struct itimerspec never = { 0 };
	struct slot *slot;
	pthread_t thread;

	memset(&shared, 0, sizeof(shared));
	make_server(&frontend_fake, 0);
	assert_int_equal(timerfd_settime(s.timer_fd, 0, &never, NULL), 0);
	make_donor();
	slot = slot_get(&s.engine.slots);
	slot->kind = SLOT_READ;
	slot->count = 1;
	slot->wait = WAIT_READY;
	slot_activate(&s.engine.slots, slot);
	slot_append(&s.engine.slots, &s.engine.slots.ready, slot);
	assert_int_equal(pthread_create(&thread, NULL, serve, NULL), 0);
	for (int i = 0; i < 6000 && __atomic_load_n(&result, __ATOMIC_ACQUIRE) == 1; i++)
		usleep(10000);
	assert_int_equal(__atomic_load_n(&result, __ATOMIC_ACQUIRE), -EIO);
	pthread_join(thread, NULL);
	assert_int_equal(shared.counters.donor_losses, 1);
	donors_free(&s.donors);
	free_server();
}

/* Signals and log lines wake the control thread, which never looks for them. */
static void control_thread_waits_for_events(void **state)
{
	static struct device_control c;
	char dir[] = "/tmp/ebb-unit-XXXXXX";
	struct error e = { 0 };
	pthread_t thread;
	uint32_t timed;

	assert_non_null(mkdtemp(dir));
	setenv("EBB_RUN_DIR", dir, 1);
	memset(&shared, 0, sizeof(shared));
	make_server(&frontend_fake, 0);
	sem_init(&stop_tried, 0, 0);
	assert_int_equal(device_control_open(&c, &s, &e), 0);
	assert_int_equal(device_control_start(&c, &e), 0);
	timed = timed_polls;
	/* A predecessor's. */
	shared.stops++;
	device_control_go(&c);
	sem_wait(&stop_tried);
	while (__atomic_load_n(&shared.stops_tried, __ATOMIC_ACQUIRE) != shared.stops)
		usleep(1000);
	c.stopped = false;
	want_stop(&s);
	sem_wait(&stop_tried);
	note(&s.notes, LOG_LVL_INFO, "unit: a line");
	assert_int_equal(pthread_create(&thread, NULL, serve, NULL), 0);
	for (int i = 0; i < 6000 && !__atomic_load_n(&s.notes.taken, __ATOMIC_ACQUIRE); i++)
		usleep(10000);
	assert_int_equal(s.notes.taken, 1);
	assert_int_equal(timed_polls, timed);
	assert_int_equal(eventfd_write(s.host.fd, 1), 0);
	pthread_join(thread, NULL);
	device_control_close(&c);
	free_server();
	assert_int_equal(rmdir(ebb_device_dir()), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_without_end),
		cmocka_unit_test(no_sleep_beside_ready_requests),
		cmocka_unit_test(control_thread_waits_for_events),
	};

	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
