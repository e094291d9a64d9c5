// SPDX-License-Identifier: GPL-2.0-or-later
/* A donor's loop, turn by turn: its sessions, its start and end, what it does meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "donor_world.h"
#include "donord/status.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/wire/tcp.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* Somebody set the clock back, between its being read and its being waited for. */
static bool set_back;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long r = syscall(SYS_clock_gettime, clock, t);

	if (!r && set_back && clock == CLOCK_REALTIME)
		t->tv_sec = 0;
	return (int)r;
}

static void kept_for_a_successor(void **state)
{
	struct donor *d = *state;
	struct peer a, b, c;
	struct wire_frame f;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	connect_peer(d, &b, 2, 1);
	/* It dies with a question unanswered. */
	loop_drain(d->l, LOOP_STAY);
	settle(d);
	assert_int_equal(take(&a, WIRE_EVICT).slab, a.loans[0].slab);
	assert_int_equal(take(&b, WIRE_EVICT).slab, b.loans[0].slab);
	loop_undrain(d->l);
	settle(d);
	close(a.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 4);
	assert_int_equal(say(d, &b, WIRE_REMAP, a.loans[0]), WIRE_NO_SLAB);

	/* Another borrower has nothing to resume. */
	assert_int_equal(greet_as(d, &c, 3, WIRE_KEEP | WIRE_RESUME), WIRE_NO_SESSION);
	close(c.fd);
	assert_int_equal(greet_as(d, &c, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	turn(d->l);
	for (int i = 0; i < 3; i++) {
		f = take(&c, WIRE_EVICT);
		assert_int_equal(f.slab, a.loans[i].slab);
		answer(d, &c, f, WIRE_NO_ROOM);
	}
	assert_int_equal(say(d, &c, WIRE_REMAP, a.loans[1]), WIRE_OK);
	a.loans[2].generation++;
	assert_int_equal(say(d, &c, WIRE_REMAP, a.loans[2]), WIRE_STALE);
	assert_int_equal(say(d, &c, WIRE_RELEASE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(d->pool.in[LEND_LENT], 2);
	assert_int_equal(map(d, &c), WIRE_OK);
	assert_int_equal(say(d, &c, WIRE_RELEASE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(d->pool.in[LEND_LENT], 3);

	/* No borrower reconnects. */
	close(c.fd);
	turn(d->l);
	connections_tick(&d->l->sessions, now_ns() + 29 * SECOND);
	assert_int_equal(d->pool.in[LEND_LENT], 3);
	connections_tick(&d->l->sessions, now_ns() + 31 * SECOND);
	assert_int_equal(d->pool.in[LEND_LENT], 1);

	/* After BYE no borrower may resume the session. */
	assert_int_equal(greet_as(d, &c, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(map(d, &c), WIRE_OK);
	assert_int_equal(say(d, &c, WIRE_BYE, (struct wire_loan){ 0 }), WIRE_OK);
	close(c.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 1);
	close(b.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
}

/* A peer without a handshake keeps its place for five seconds. */
static void silent_peers_have_five_seconds(void **state)
{
	struct sockaddr_storage nobody = { .ss_family = AF_UNSPEC };
	struct donor *d = *state;
	struct peer a, silent = { 0 };
	uint64_t now;
	int fd[2];

	connect_peer(d, &a, 1, 1);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	silent.fd = fd[0];
	assert_non_null(connection_adopt(&d->l->sessions, fd[1], &nobody));
	turn(d->l);
	now = now_ns();
	connections_tick(&d->l->sessions, now + 4 * SECOND);
	assert_false(hung_up(&silent));
	connections_tick(&d->l->sessions, now + 6 * SECOND);
	assert_true(hung_up(&silent));
	/* A borrower may say nothing for as long as it likes. */
	assert_int_equal(map(d, &a), WIRE_OK);
	close(silent.fd);
	close(a.fd);
}

/* A network that is down while replies are on their way costs no slab within the grace period. */
static void a_borrower_that_takes_no_replies(void **state)
{
	struct donor *d = *state;
	struct wire_frame f = { .op = WIRE_READ, .length = 16 * WIRE_PAGE };
	struct peer a, b;

	d->l->sessions.options.keep = 30 * SECOND;
	for (int keeps = 1; keeps >= 0; keeps--) {
		assert_int_equal(greet_as(d, &a, 1, keeps ? WIRE_KEEP : 0), WIRE_OK);
		assert_int_equal(map(d, &a), WIRE_OK);
		f.slab = a.loans[0].slab;
		f.generation = a.loans[0].generation;
		for (int i = 0; i < 20; i++)
			send_frame(d, &a, f, NULL);
		assert_true(a.c->tx.count > 0);
		connections_tick(&d->l->sessions, now_ns() + 9 * SECOND);
		assert_true(a.c->fd >= 0);
		connections_tick(&d->l->sessions, now_ns() + 11 * SECOND);
		assert_int_equal(a.c->fd, -1);
		assert_int_equal(d->pool.in[LEND_LENT], keeps);
		close(a.fd);
		if (!keeps)
			break;
		assert_int_equal(greet_as(d, &b, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
		assert_int_equal(say(d, &b, WIRE_REMAP, a.loans[0]), WIRE_OK);
		assert_int_equal(say(d, &b, WIRE_UNMAP, a.loans[0]), WIRE_OK);
		close(b.fd);
		turn(d->l);
	}
}

/* The loan may end while a page is on its way to it, whose rest does not reach the slab. */
static void a_write_under_way(void **state)
{
	struct donor *d = *state;
	struct wire_frame f = { .op = WIRE_WRITE, .length = WIRE_PAGE };
	uint8_t page[WIRE_PAGE];
	struct peer a;
	uint8_t *at;

	memset(page, 0xab, sizeof(page));
	connect_peer(d, &a, 1, 1);
	f.slab = a.loans[0].slab;
	f.generation = a.loans[0].generation;
	at = d->pool.memory + f.slab * SLAB;
	send_frame(d, &a, f, NULL);
	assert_int_equal(send(a.fd, page, 1000, 0), 1000);
	turn(d->l);
	assert_int_equal(at[0], 0xab);
	pool_revoke(&d->pool, f.slab, now_ns());
	for (int i = 0; i < 10; i++)
		turn(d->l);
	assert_int_equal(d->pool.in[LEND_DIRTY], 0);
	assert_int_equal(send(a.fd, page + 1000, WIRE_PAGE - 1000, 0), WIRE_PAGE - 1000);
	turn(d->l);
	assert_int_equal(take(&a, WIRE_WRITE).status, WIRE_STALE);
	for (int i = 0; i < SLAB; i++)
		assert_int_equal(at[i], 0);
	/* The next access is told. */
	f.op = WIRE_READ;
	send_frame(d, &a, f, NULL);
	assert_int_equal(take(&a, WIRE_READ).status, WIRE_STALE);
	close(a.fd);
}

/* Another one is made in its place before the next second, unless the machine is to have it. */
static void what_was_handed_over(void **state)
{
	struct donor *d = *state;
	const uint32_t *in = d->pool.in;

	for (int drains = 0; drains < 2; drains++) {
		struct wire_frame f = { .op = WIRE_UNMAP };
		struct peer a;

		connect_peer(d, &a, 1, 1);
		f.slab = a.loans[0].slab;
		f.generation = a.loans[0].generation;
		pool_hand_over(&d->pool, f.slab);
		if (drains)
			loop_drain(d->l, LOOP_STAY);
		settle(d);
		send_frame(d, &a, f, NULL);
		for (int i = 0; i < 60000 && in[LEND_DIRTY] + in[LEND_COMING] + in[LEND_GOING];
		     i++) {
			turn(d->l);
			usleep(1000);
		}
		assert_int_equal(in[LEND_CLEAN], drains ? 0 : SLABS);
		assert_int_equal(in[LEND_ABSENT], drains ? SLABS : 0);
		close(a.fd);
		turn(d->l);
	}
}

static void drained(void **state)
{
	struct donor *d = *state;
	struct wire_donor told;
	struct wire_frame f;
	struct peer a;

	connect_peer(d, &a, 1, 2);
	loop_drain(d->l, LOOP_END);
	settle(d);
	for (int i = 0; i < 2; i++) {
		f = take(&a, WIRE_EVICT);
		answer(d, &a, f, WIRE_OK);
	}
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_PING }, NULL);
	take(&a, WIRE_PING);
	assert_int_equal(wire_parse_donor(a.payload, WIRE_DONOR_SIZE, &told), 0);
	assert_int_equal(told.flags, WIRE_DRAINING);
	assert_int_equal(told.free, 0);
	assert_int_equal(map(d, &a), WIRE_NO_SPACE);
	for (int i = 0; i < 2; i++) {
		uint8_t bytes[WIRE_HEADER];

		f = (struct wire_frame){ .op = WIRE_UNMAP, .slab = a.loans[i].slab,
					 .generation = a.loans[i].generation };
		wire_build(bytes, &f);
		assert_int_equal(loop_turn(d->l, 0), 0);
		assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	}
	for (int i = 0; i < 5; i++)
		if (loop_turn(d->l, 0) == 1)
			break;
	assert_int_equal(loop_turn(d->l, 0), 1);
	close(a.fd);
}

static void put(const struct donor *d, const char *file, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", d->run_dir, file);
	*strrchr(path, '/') = '\0';
	assert_int_equal(file_make_dirs(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/%s", d->run_dir, file);
	assert_int_equal(file_replace(path, text), 0);
}

#define STATISTICS "cgroup/a/memory.stat"

static int in_a_limited_cgroup(void **state)
{
	make_machine(&the_donor);
	put(&the_donor, "self/cgroup", "0::/a\n");
	put(&the_donor, "cgroup/cgroup.controllers", "memory\n");
	put(&the_donor, "cgroup/a/memory.max", "1000000\n");
	put(&the_donor, "cgroup/a/memory.current", "700000\n");
	put(&the_donor, STATISTICS, "anon 1\nactive_file 0\ninactive_file 0\n");
	return start_donor(state, (struct lending_options){ 0 });
}

static int out_of_a_limited_cgroup(void **state)
{
	static const char *const files[] = {
		STATISTICS, "cgroup/a/memory.max", "cgroup/a/memory.current", "cgroup/a",
		"cgroup/cgroup.controllers", "cgroup", "self/cgroup", "self",
	};
	char path[128];

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "%s/%s", the_donor.run_dir, files[i]);
		assert_int_equal(remove(path), 0);
	}
	return without_donor(state);
}

/* The kernel takes long to sum up a cgroup's statistics: borrowers do not wait for it. */
static void slow_statistics(void **state)
{
	static const char text[] = "anon 1\nactive_file 100000\ninactive_file 0\n";
	struct donor *d = *state;
	char path[128];
	struct peer a;
	int fd;

	/* It samples once a second only. */
	d->l->follow.no_emergency = true;
	connect_peer(d, &a, 1, 0);
	assert_int_equal(d->l->follow.sample.own, 300000);
	snprintf(path, sizeof(path), "%s/" STATISTICS, d->run_dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	alarm(60); /* instead of for ever */
	for (int i = 0; i < 3; i++) {
		loop_tick(d->l, now_ns());
		send_frame(d, &a, (struct wire_frame){ .op = WIRE_PING }, NULL);
		take(&a, WIRE_PING);
	}
	assert_int_equal(d->l->follow.sample.own, 300000);
	/* Then they count. */
	fd = open(path, O_WRONLY);
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	settle(d);
	assert_int_equal(d->l->follow.sample.own, 400000);
#ifndef __SANITIZE_ADDRESS__ /* it reports the stack of a cancelled thread */
	/* The donor's end does not wait for a sample, either. */
	loop_tick(d->l, now_ns());
#endif
	alarm(0);
	close(a.fd);
}

/* SIGTERM before all memory is there does not wait for it. */
static void told_to_end_at_once(void **state)
{
	struct lending_options o = { 0 };
	struct timespec at_once = { 0 };
	struct pool pool = { 0 };
	struct loop *l = NULL;
	struct error e = { 0 };
	sigset_t set;

	assert_int_equal(loop_new(&l, &pool, &o, &e), 0);
	assert_int_equal(pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e), 0);
	raise(SIGTERM);
	assert_int_equal(loop_start(l, &e), -EINTR);
	assert_int_equal(e.code, 0);
	assert_int_equal(pool.in[LEND_CLEAN], 0);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	assert_int_equal(sigtimedwait(&set, NULL, &at_once), SIGTERM);
	loop_free(&l);
	pool_free(&pool);
}

/*
 * Borrowers that reconnect all at once wait for no retransmitted SYN (1 s) while the loop is busy.
 */
static void a_reconnect_herd(void **state)
{
	enum { HERD = 300, DEADLINE_MS = 60000 };
	struct donor *d = *state;
	struct pollfd p[HERD];
	struct error e = { 0 };
	struct address a;
	int turns = 0;

	if (address_parse("127.0.0.1:0", "listen", &a, &e) || loop_listen(d->l, &a, &e))
		fail_msg("%s", e.text);
	for (int i = 0; i < HERD; i++)
		p[i] = (struct pollfd){ .fd = tcp_connect(&d->l->places.a[0]), .events = POLLOUT };
	for (int i = 0; i < HERD; i++) {
		assert_int_equal(poll(&p[i], 1, DEADLINE_MS), 1);
		assert_int_equal(p[i].revents, POLLOUT);
	}
	/* Connections beyond the limit replace older ones without a handshake. */
	for (int i = 0; i < HERD; i++)
		p[i].events = POLLIN;
	do {
		assert_int_equal(loop_turn(d->l, 0), 0);
		turns++;
	} while (poll(p, HERD, 0) < HERD - CONNECTIONS);
	assert_in_range(turns, HERD / CONNECTION_ACCEPTS, HERD / CONNECTION_ACCEPTS + 2);
	for (int i = 0; i < HERD; i++)
		close(p[i].fd);
}

/* Locks that this thread has taken so far, and has now; wakes of the loop by one that had any. */
static __thread int locks, held;
static int woken_with_a_lock;

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	locks++;
	held++;
	return __real_pthread_mutex_lock(m);
}

int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	held--;
	return __real_pthread_mutex_unlock(m);
}

int __real_eventfd_write(int fd, eventfd_t value);
int __wrap_eventfd_write(int fd, eventfd_t value);
int __wrap_eventfd_write(int fd, eventfd_t value)
{
	if (held)
		__atomic_add_fetch(&woken_with_a_lock, 1, __ATOMIC_RELAXED);
	return __real_eventfd_write(fd, value);
}

static void *ask(void *answer)
{
	control_call(ebb_donor_socket(), control_request("status"), 10000, answer, NULL);
	return NULL;
}

/* It is not told that the loop does not answer, nor kept for hours. */
static void who_asks_while_the_clock_is_set(void **state)
{
	struct json_object *answer = NULL;
	struct donor *d = *state;
	pthread_t thread;

	set_back = true;
	assert_int_equal(pthread_create(&thread, NULL, ask, &answer), 0);
	usleep(100000);
	for (int i = 0; i < 60000 && pthread_tryjoin_np(thread, NULL); i++) {
		turn(d->l);
		usleep(1000);
	}
	set_back = false;
	assert_non_null(answer);
	assert_int_equal(json_int(answer, "total", -1), SLABS * SLAB);
	json_object_put(answer);
}

/* Each borrower's slabs are counted for it, and those of others are not. */
static void slabs_in_the_status(void **state)
{
	static const uint32_t slabs[] = { 1, 0, 2 };
	static struct donor_status s;
	struct donor *d = *state;
	struct peer a, b, none;

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &none, 2, 0);
	connect_peer(d, &b, 3, 2);
	pool_back(&d->pool, a.loans[0].slab, true);
	pool_asked(&d->pool, b.loans[1].slab, LEND_REFUSED, d->l->now);
	for (int again = 0; again < 2; again++) {
		loop_status(d->l, &s);
		assert_int_equal(s.borrower_count, 3);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(s.borrowers[i].slabs, slabs[i]);
			assert_int_equal(s.borrowers[i].asked_back, i == 2);
			assert_int_equal(s.borrowers[i].refused, i == 2);
		}
		assert_int_equal(s.backed, 1);
		assert_int_equal(s.asked_back, 1);
		assert_int_equal(s.refused, 1);
	}
	/* A slab of a borrower that is not listed. */
	b.c->is_far = true;
	loop_status(d->l, &s);
	assert_int_equal(s.borrower_count, 2);
	assert_int_equal(s.borrowers[0].slabs + s.borrowers[1].slabs, 1);
	assert_int_equal(s.refused, 0);
	b.c->is_far = false;
	close(a.fd);
	close(b.fd);
	close(none.fd);
}

/* The loop waits for no thread of lower priority: it takes no lock without a request. */
static void no_lock_without_a_request(void **state)
{
	struct json_object *answer = NULL;
	struct donor *d = *state;
	pthread_t thread;

	locks = 0;
	eventfd_write(d->l->wake_fd, 1);
	turn(d->l);
	assert_int_equal(locks, 0);
	woken_with_a_lock = 0;
	assert_int_equal(pthread_create(&thread, NULL, ask, &answer), 0);
	while (pthread_tryjoin_np(thread, NULL)) {
		turn(d->l);
		usleep(1000);
	}
	assert_non_null(answer);
	json_object_put(answer);
	assert_true(locks);
	assert_int_equal(woken_with_a_lock, 0);
}

/* The status counts slabs that are not lent again. */
static void withdrawn_in_the_status(void **state)
{
	struct json_object *answer = NULL;
	struct donor *d = *state;
	pthread_t thread;
	struct peer a;

	connect_peer(d, &a, 1, 1);
	assert_int_equal(pool_return(&d->pool, &a.c->borrower, a.loans[0]), WIRE_OK);
	pool_withdraw(&d->pool, a.loans[0].slab);
	assert_int_equal(pthread_create(&thread, NULL, ask, &answer), 0);
	while (pthread_tryjoin_np(thread, NULL)) {
		turn(d->l);
		usleep(1000);
	}
	assert_int_equal(json_int(json_member(answer, "slabs"), "withdrawn", -1), 1);
	assert_int_equal(json_int(json_member(answer, "slabs"), "clean", -1), SLABS - 1);
	json_object_put(answer);
	close(a.fd);
}

static size_t allocated(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

/* They are of the memory that the donor could lend. */
static void idle_connections_take_little(void **state)
{
	enum { PEERS = 32 };
	struct donor *d = *state;
	struct peer p[PEERS];
	size_t before = allocated();

	for (int i = 0; i < PEERS; i++)
		connect_peer(d, &p[i], (uint64_t)i + 1, 0);
	/* The allocator of a sanitizer counts nothing. */
	assert_true(allocated() - before <= PEERS * (size_t)(64 << 10));
	for (int i = 0; i < PEERS; i++)
		close(p[i].fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(kept_for_a_successor, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_write_under_way, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(what_was_handed_over, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(drained, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(who_asks_while_the_clock_is_set, with_donor,
						without_donor),
		cmocka_unit_test(told_to_end_at_once),
		cmocka_unit_test_setup_teardown(a_reconnect_herd, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(slow_statistics, in_a_limited_cgroup,
						out_of_a_limited_cgroup),
		cmocka_unit_test_setup_teardown(slabs_in_the_status, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(no_lock_without_a_request, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(withdrawn_in_the_status, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(idle_connections_take_little, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(silent_peers_have_five_seconds, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_borrower_that_takes_no_replies, with_donor,
						without_donor),
	};

	log_setup("loop", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
