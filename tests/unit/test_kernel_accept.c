// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor with kernel modules and connections, turn by turn, on an RDMA device that the test plays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "donord/donord.h"
#include "donord/loop.h"
#include "donord/status.h"
#include "fake_verbs.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/wire/hmac.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 70, MAPS = 20 };

static struct pool pool;
static struct loop *loop;
static struct key key;
static char run_dir[32], meminfo[48];

static void turn(void)
{
	assert_int_equal(loop_turn(loop, 0), 0);
}

/* Turns until @condition holds; tasks of the pool thread take their time. */
#define wait_until(condition) \
	do { \
		int turns = 0; \
		for (; !(condition) && turns < 60000; turns++) { \
			turn(); \
			usleep(1000); \
		} \
		assert_true(condition); \
	} while (0)

/* Slabs that are not locked: that would take root. */
static void make_slabs(enum lend_state state)
{
	assert_int_equal(mprotect(pool.memory, SLABS * SLAB, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < SLABS; i++)
		pool.slabs[i].state = (uint8_t)state;
	pool.in[LEND_ABSENT] = 0;
	pool.in[state] = SLABS;
}

static int with_donor(void **state)
{
	struct lending_options o = { .headroom = SLAB, .machine = run_dir,
				    .drain = 1000 * SECOND, .eviction.overdue = 1000 * SECOND };
	struct address a = { .text = "10.9.0.1:7070" };
	struct error e = { 0 };

	fake_reset();
	strcpy(run_dir, "/tmp/ebb-kernels-XXXXXX");
	assert_non_null(mkdtemp(run_dir));
	snprintf(meminfo, sizeof(meminfo), "%s/meminfo", run_dir);
	/* A machine without free memory: the donor makes no slabs of its own. */
	assert_int_equal(file_replace(meminfo, "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n"), 0);
	if (key_make(&key, "alice", &e) || loop_new(&loop, &pool, &o, &e) ||
	    pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e))
		fail_msg("%s", e.text);
	/* As loop_listen_kernels(), which needs TLS. */
	loop->sessions.keys = (struct keyring){ calloc(KEYRING_MAX, sizeof(key)), 1 };
	*loop->sessions.keys.keys = key;
	loop->kernels = calloc(1, sizeof(*loop->kernels));
	loop->kernels->env = (struct kernel_env){ .pool = &pool, .eviction = &loop->eviction,
						.follow = &loop->follow, .log = &loop->log };
	loop->kernels->keys = &loop->sessions.keys;
	loop->kernels->epoll_fd = loop->epoll_fd;
	loop->kernels->first_key = 1000;
	if (kernel_accept_open(loop->kernels, &a, &e) || loop_start(loop, &e))
		fail_msg("%s", e.text);
	timerfd_settime(loop->timer_fd, 0, &(struct itimerspec){ 0 }, NULL);
	return 0;
}

static int without_donor(void **state)
{
	loop_free(&loop);
	pool_free(&pool);
	unlink(meminfo);
	assert_int_equal(fake.objects, 0);
	return rmdir(run_dir);
}

static struct kernel_session *session_of(uint64_t number)
{
	for (int i = 0; i < KERNEL_SESSIONS; i++)
		if (loop->kernels->sessions[i] && loop->kernels->sessions[i]->number == number)
			return loop->kernels->sessions[i];
	return NULL;
}

/* The module of session @number sends @f. */
static void send_frame(uint64_t number, struct wire_frame f, const void *payload)
{
	struct kernel_session *s = session_of(number);
	static uint64_t sent[KERNEL_SESSIONS];
	uint8_t bytes[WIRE_RDMA_MESSAGE];
	uint32_t n = WIRE_HEADER + f.length;

	sent[number] = f.op == WIRE_HELLO ? 0 : sent[number];
	wire_build(bytes, &f);
	if (f.length)
		memcpy(bytes + WIRE_HEADER, payload, f.length);
	assert_int_equal(wire_mark(&s->secret, WIRE_AT_DONOR, sent[number]++, bytes, n, bytes + n),
			 0);
	fake_arrives(s->queue[0].id, bytes, n + WIRE_MARK);
}

static void send_map(uint64_t number)
{
	uint8_t payload[WIRE_MAP_SIZE];

	wire_build_map(payload, WIRE_CLASS_SWAP);
	send_frame(number, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) },
		   payload);
}

/* Requests connection 0 of session @number, as a stranger or a borrower of release 0.1.0. */
static struct rdma_cm_id *request(uint64_t number)
{
	struct wire_proof_request q = { .queues = 1, .session = number };
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE];

	key_number(&key, q.key);
	wire_build_proof_request(bytes, &q);
	return fake_requests(bytes, sizeof(bytes));
}

/* As a borrower that has the key. */
static struct rdma_cm_id *request_with_key(uint64_t number)
{
	struct wire_proof_request q = { .queues = 1, .session = number };
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE];
	struct wire_hmac h;

	memcpy(h.key, key.bytes, sizeof(h.key));
	key_number(&key, q.key);
	wire_build_proof_request(bytes, &q);
	assert_int_equal(wire_prove_open(&h, bytes, 0, q.proof + WIRE_NONCE), 0);
	wire_build_proof_request(bytes, &q);
	return fake_requests(bytes, sizeof(bytes));
}

static void at_address(const struct rdma_cm_id *id, uint32_t address)
{
	struct sockaddr_in *peer = (struct sockaddr_in *)&id->route.addr.dst_sin;

	peer->sin_family = AF_INET;
	peer->sin_addr.s_addr = htonl(address);
}

/* Session @number of the borrower with @id sends HELLO with @flags. */
static void send_hello(uint64_t number, uint64_t id, uint32_t flags)
{
	struct wire_hello h = { .version = WIRE_VERSION, .slab_size = SLAB, .name = "kernel",
				.borrower = id, .flags = flags };
	uint8_t payload[WIRE_HELLO_SIZE];

	wire_build_hello(payload, &h);
	send_frame(number, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
		   payload);
}

static void greet(uint64_t number)
{
	send_hello(number, 0, 0);
	wait_until(session_of(number)->greeted);
}

/* Session @number of the borrower with @id, whose HELLO has @flags. */
static void hello(uint64_t number, uint64_t id, uint32_t flags)
{
	struct rdma_cm_id *cm = request(number);

	wait_until(session_of(number) && session_of(number)->queue[0].id == cm &&
		   session_of(number)->accepted);
	send_hello(number, id, flags);
}

static struct kernel_session *begin(uint64_t number)
{
	hello(number, 0, 0);
	wait_until(session_of(number)->greeted);
	return session_of(number);
}

/* A session that its borrower can resume, with one slab. */
static void begin_kept(uint64_t number, uint64_t id)
{
	hello(number, id, WIRE_KEEP);
	wait_until(session_of(number)->greeted);
	send_map(number);
	wait_until(pool_owned(&pool, &session_of(number)->borrower) == 1);
	wait_until(!session_of(number)->granting);
}

/* A connection that has sent HELLO; its other end in *@fd. */
static struct connection *connect_stream(int *fd)
{
	struct wire_frame f = { .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE };
	struct wire_hello h = { .version = WIRE_VERSION, .borrower = 1, .slab_size = SLAB, .name = "stream" };
	struct sockaddr_storage peer = { .ss_family = AF_UNSPEC };
	uint8_t bytes[WIRE_HEADER + WIRE_HELLO_SIZE];
	struct connection *c;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	c = connection_adopt(&loop->sessions, pair[1], &peer);
	assert_non_null(c);
	wire_build(bytes, &f);
	wire_build_hello(bytes + WIRE_HEADER, &h);
	assert_int_equal(send(pair[0], bytes, sizeof(bytes), 0), sizeof(bytes));
	wait_until(c->greeted);
	*fd = pair[0];
	return c;
}

/*
 * A borrower that pipelines MAPs leaves every second turn's loans to borrowers of the other kind.
 */
static void connections_and_modules_alternate(void **state)
{
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	uint8_t bytes[MAPS * (WIRE_HEADER + WIRE_MAP_SIZE)];
	struct kernel_session *k = begin(1);
	int fd;
	struct connection *c = connect_stream(&fd);

	for (uint32_t i = 0; i < MAPS; i++) {
		wire_build(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE), &f);
		wire_build_map(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE) + WIRE_HEADER,
			       WIRE_CLASS_SWAP);
	}
	/* A turn lends one of them. */
	make_slabs(LEND_DIRTY);
	assert_int_equal(send(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	turn();
	assert_int_equal(pool_owned(&pool, &c->borrower), 1);
	for (int i = 0; i < 3; i++)
		send_map(1);
	for (int i = 0; pool_owned(&pool, &k->borrower) < 3 && i < 100; i++)
		turn();
	assert_int_equal(pool_owned(&pool, &k->borrower), 3);
	assert_in_range(pool_owned(&pool, &c->borrower), 2, MAPS - 4);
	wait_until(pool_owned(&pool, &c->borrower) == MAPS);
	close(fd);
}

/* Modules that pipeline MAPs get slabs in turns. */
static void modules_take_turns(void **state)
{
	struct kernel_session *a = begin(1), *b = begin(2);

	make_slabs(LEND_DIRTY);
	for (uint32_t i = 0; i < KERNEL_MESSAGES; i++) {
		send_map(1);
		send_map(2);
	}
	while (pool_owned(&pool, &a->borrower) + pool_owned(&pool, &b->borrower) <
	       2 * KERNEL_MESSAGES) {
		uint32_t has_a, has_b;

		turn();
		has_a = pool_owned(&pool, &a->borrower);
		has_b = pool_owned(&pool, &b->borrower);
		assert_in_range(has_a, has_b > 2 ? has_b - 2 : 0, has_b + 2);
	}
}

/* All borrowers that there can be reconnect at once, each with all its connections. */
static void backlogs(void **state)
{
	struct address a = { .text = "10.9.0.1:7070" };
	struct rdma_host host = { 0 };
	struct rdma_place *place;
	struct donor_log log;
	struct error e = { 0 };

	assert_int_equal(fake.backlog, KERNEL_SESSIONS * WIRE_RDMA_QUEUES);
	without_donor(state);
	fake_reset();
	assert_int_equal(pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e), 0);
	donor_log_init(&log);
	assert_int_equal(rdma_place_open(&place, &pool, &log, &host, &a, &e), 0);
	assert_int_equal(fake.backlog, CONNECTIONS);
	rdma_place_close(&place);
	pool_free(&pool);
	assert_int_equal(fake.objects, 0);
}

/* The loop makes and destroys no queue pair: a real device takes milliseconds for each. */
static void queue_pairs_are_the_pool_threads(void **state)
{
	struct rdma_cm_id *id;

	make_slabs(LEND_CLEAN);
	begin(1);
	assert_int_not_equal(fake.makes, pthread_self());
	send_map(1);
	wait_until(pool.in[LEND_LENT] == 1 && !pool.slabs[0].granting);
	id = session_of(1)->queue[0].id;
	fake_happens(id, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	wait_until(!session_of(1));
	assert_int_equal(pool.in[LEND_LENT], 0);
	wait_until(!loop->kernels->ended);
	assert_int_not_equal(fake.destroys, pthread_self());
	/* The listener is left. */
	assert_int_equal(fake.objects, 1);
}

/* A session that ends while its queue pair is being made; one whose queue pair cannot be made. */
static void sessions_that_do_not_begin(void **state)
{
	struct rdma_cm_id *id = request(1);

	while (!session_of(1))
		turn();
	fake_happens(id, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	wait_until(!session_of(1));
	wait_until(!loop->kernels->ended);
	fake.queue_error = ENOMEM;
	request(2);
	wait_until(fake.rejected == 1);
	assert_null(session_of(2));
	wait_until(!loop->kernels->ended);
	assert_int_equal(fake.objects, 1);
}

/*
 * Strangers that know a key's number: few have a session at a time, and each gives way to the next.
 */
static void many_strangers(void **state)
{
	enum { STRANGERS = 60 };
	uint32_t sessions = 0;

	for (uint64_t n = 1; n <= STRANGERS; n++)
		request(n);
	for (int i = 0; i < STRANGERS; i++)
		turn();
	assert_int_equal(fake.taken, STRANGERS);
	for (int i = 0; i < KERNEL_SESSIONS; i++)
		sessions += loop->kernels->sessions[i] != NULL;
	assert_int_equal(sessions, 8);
	begin(STRANGERS + 1);
	wait_until(!loop->kernels->ended);
}

/*
 * A borrower's session survives any number of requests from strangers, each of another address,
 * before its first frame; it gets a slot when they have taken all.
 */
static void strangers_of_many_addresses(void **state)
{
	enum { STRANGERS = 10000 };
	const struct kernel_session *borrower;
	uint32_t taken = 0;

	at_address(request_with_key(1), 1);
	turn();
	borrower = session_of(1);
	assert_non_null(borrower);
	for (uint32_t i = 0; i < STRANGERS; i++) {
		at_address(request(1000 + i), 0x0a000000 + i);
		turn();
		assert_ptr_equal(session_of(1), borrower);
	}
	for (int i = 0; i < KERNEL_SESSIONS; i++)
		taken += loop->kernels->sessions[i] != NULL;
	assert_int_equal(taken, KERNEL_SESSIONS);
	wait_until(borrower->accepted);
	greet(1);
	at_address(request_with_key(2), 2);
	turn();
	wait_until(session_of(2) && session_of(2)->accepted);
	greet(2);
	wait_until(!loop->kernels->ended);
}

/* A borrower of release 0.1.0, which claims no key, gets in by trying again. */
static void an_old_borrower_beside_strangers(void **state)
{
	enum { TRIES = 50, BETWEEN = 8 };
	uint64_t number = 1;

	for (uint32_t i = 0; i < 1000; i++) {
		at_address(request(1000000 + i), 0x0b000000 + i);
		turn();
	}
	/* A try fails with a probability of 1 - (1 - 1 / 64)^8 = 12 %, or by a slow pool thread. */
	for (; number <= TRIES; number++) {
		wait_until(!loop->kernels->ended);
		at_address(request(number), 1);
		for (uint32_t i = 0; i < BETWEEN; i++) {
			uint32_t stranger = 1000 * (uint32_t)number + i;

			turn();
			at_address(request(stranger), 0x0a000000 + stranger);
		}
		wait_until(fake.taken == fake.put);
		wait_until(!session_of(number) || session_of(number)->accepted);
		if (session_of(number))
			break;
	}
	assert_in_range(number, 1, TRIES);
	greet(number);
	wait_until(!loop->kernels->ended);
}

/* A recorded request has no precedence, and its sender none over those that have. */
static void a_replayed_request(void **state)
{
	struct rdma_cm_id *id = request_with_key(1);

	wait_until(session_of(1) && session_of(1)->accepted);
	assert_true(session_of(1)->claims);
	fake_happens(id, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	wait_until(!session_of(1));
	request_with_key(1);
	wait_until(session_of(1) && session_of(1)->accepted);
	assert_false(session_of(1)->claims);
	wait_until(!loop->kernels->ended);
}

/* An event of a session that another replaced in this turn is not that one's. */
static void a_place_used_again(void **state)
{
	uint8_t bytes[WIRE_HEADER + WIRE_MARK] = { 0 };

	for (uint64_t n = 1; n <= 8; n++) {
		request(n);
		wait_until(session_of(n) && session_of(n)->accepted);
	}
	request(9);
	for (uint64_t n = 1; n <= 8; n++)
		fake_arrives(session_of(n)->queue[0].id, bytes, sizeof(bytes));
	turn();
	for (uint64_t n = 1; n <= 8; n++)
		assert_null(session_of(n));
	assert_non_null(session_of(9));
	wait_until(session_of(9)->accepted);
	wait_until(!loop->kernels->ended);
}

/* The answer to a connection request waits for the pool thread, its frames for all connections. */
static void two_connections(void **state)
{
	struct wire_hello h = { .version = WIRE_VERSION, .slab_size = SLAB, .name = "kernel" };
	struct wire_proof_request q = { .queues = 2, .session = 1 };
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE], payload[WIRE_HELLO_SIZE];
	struct kernel_session *s;

	key_number(&key, q.key);
	wire_build_proof_request(bytes, &q);
	fake_requests(bytes, sizeof(bytes));
	/* Before connection 0 is accepted no other can prove anything. */
	q.queue = 1;
	wire_build_proof_request(bytes, &q);
	fake_requests(bytes, sizeof(bytes));
	wait_until(fake.rejected == 1);
	s = session_of(1);
	assert_non_null(s);
	wait_until(s->accepted == 1);
	/* Nor can it without the session's secret. */
	fake_requests(bytes, sizeof(bytes));
	wait_until(fake.rejected == 2);
	assert_int_equal(wire_prove_join(&s->secret, bytes, 0, q.proof), 0);
	wire_build_proof_request(bytes, &q);
	fake_requests(bytes, sizeof(bytes));
	wait_until(s->accepted == 3);
	wire_build_hello(payload, &h);
	send_frame(1, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) }, payload);
	wait_until(s->greeted);
}

/* A MAP that waits for a slab is answered as any other. */
static void held_maps(void **state)
{
	struct wire_frame reply;
	uint32_t n;

	begin(1);
	begin(2);
	/* A turn lends one of them. */
	make_slabs(LEND_DIRTY);
	send_map(1);
	send_map(2);
	wait_until(pool.in[LEND_LENT] == 2);
	for (uint64_t i = 1; i <= 2; i++) {
		do {
			const uint8_t *sent = fake_sent(session_of(i)->queue[0].id, &n);

			turn();
			assert_int_equal(wire_parse(sent, n, WIRE_AT_BORROWER, &reply), 1);
		} while (reply.op == WIRE_HELLO);
		assert_int_equal(reply.op, WIRE_MAP);
		assert_int_equal(reply.status, WIRE_OK);
	}
}

/* Borrowers of different machines do not evict each other's sessions before these prove a key. */
static void a_rack_reconnects(void **state)
{
	enum { RACK = 40 };
	int accepted = 0;

	for (uint64_t i = 1; i <= RACK; i++)
		at_address(request(i), 0x0a090000 + (uint32_t)i);
	for (int i = 0; i < RACK; i++)
		turn();
	assert_int_equal(fake.taken, RACK);
	for (uint64_t i = 1; i <= RACK; i++)
		accepted += session_of(i) != NULL;
	assert_int_equal(accepted, RACK);
}

/* A session that announces more connections than its key may have does not get the first one. */
static void too_many_connections(void **state)
{
	struct wire_hello h = { .version = WIRE_VERSION, .slab_size = SLAB, .name = "kernel" };
	struct wire_proof_request q = { .queues = 16, .session = 1 };
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE], payload[WIRE_HELLO_SIZE];

	loop->kernels->key_connections = 2;
	key_number(&key, q.key);
	wire_build_proof_request(bytes, &q);
	fake_requests(bytes, sizeof(bytes));
	wait_until(session_of(1) && session_of(1)->accepted == 1);
	wire_build_hello(payload, &h);
	send_frame(1, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) }, payload);
	wait_until(!session_of(1) || session_of(1)->proven);
	assert_null(session_of(1));
}

static void disconnected(uint64_t number)
{
	fake_happens(session_of(number)->queue[0].id, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	wait_until(!session_of(number));
}

/* The status of the reply to the HELLO of session @number. */
static enum wire_status answer(uint64_t number)
{
	struct kernel_session *s = session_of(number);
	struct wire_frame reply;
	uint32_t n;

	wait_until(fake_sends(s->queue[0].id) == 1);
	assert_int_equal(wire_parse(fake_sent(s->queue[0].id, &n), WIRE_HEADER, WIRE_AT_BORROWER,
				    &reply), 1);
	return (enum wire_status)reply.status;
}

/* A session's slabs stay for the grace period, and no longer. */
static void a_grace_period(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	disconnected(1);
	wait_until(loop->kernels->kept->state == KERNEL_ENDED);
	/* Nothing can reach them meanwhile. */
	assert_null(loop->kernels->ended);
	assert_int_equal(pool.in[LEND_LENT], 1);
	assert_int_equal(fake.registered, 2);
	kernel_accept_wait(loop->kernels, now_ns() + 999 * SECOND);
	assert_int_equal(pool.in[LEND_LENT], 1);
	kernel_accept_wait(loop->kernels, now_ns() + 1001 * SECOND);
	assert_int_equal(pool.in[LEND_LENT], 0);
	wait_until(!loop->kernels->ended);
	assert_int_equal(fake.registered, 0);
	/* Too late. */
	hello(2, 7, WIRE_KEEP | WIRE_RESUME);
	assert_int_equal(answer(2), WIRE_NO_SESSION);
}

/* An ending donor waits less long. */
static void the_donor_ends_meanwhile(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	disconnected(1);
	loop_drain(loop, LOOP_END);
	kernel_accept_wait(loop->kernels, now_ns() + 2 * SECOND);
	assert_int_equal(pool.in[LEND_LENT], 1);
	kernel_accept_wait(loop->kernels, now_ns() + 4 * SECOND);
	assert_int_equal(pool.in[LEND_LENT], 0);
}

/* What a session without KEEP had is lent again, as is that of one that said BYE. */
static void sessions_that_are_not_kept(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin(1);
	send_map(1);
	wait_until(pool.in[LEND_LENT] == 1);
	disconnected(1);
	assert_null(loop->kernels->kept);
	begin_kept(2, 7);
	send_frame(2, (struct wire_frame){ .op = WIRE_BYE }, NULL);
	wait_until(!session_of(2)->keeps);
	disconnected(2);
	assert_null(loop->kernels->kept);
	/* One that breaks the protocol. */
	begin_kept(3, 7);
	send_frame(3, (struct wire_frame){ .op = WIRE_PING }, NULL);
	session_of(3)->received++;
	wait_until(!session_of(3));
	assert_null(loop->kernels->kept);
	wait_until(!pool.in[LEND_LENT]);
}

/* The donor need not have noticed that the old connections failed. */
static void a_session_is_resumed(void **state)
{
	struct kernel_session *old;

	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	old = session_of(1);
	hello(2, 7, WIRE_KEEP | WIRE_RESUME);
	wait_until(session_of(2)->resumes || session_of(2)->greeted);
	assert_null(session_of(1));
	/* The answer waits until the old queue pairs are destroyed. */
	while (fake_sends(session_of(2)->queue[0].id) == 0) {
		assert_false(session_of(2)->greeted);
		turn();
	}
	assert_int_equal(answer(2), WIRE_OK);
	assert_int_equal(old->state, KERNEL_ENDED);
	assert_int_equal(pool_owned(&pool, &session_of(2)->borrower), 1);
	/* Its borrower does not confirm the loan. */
	send_frame(2, (struct wire_frame){ .op = WIRE_RELEASE }, NULL);
	wait_until(!pool.in[LEND_LENT]);
	wait_until(!loop->kernels->ended);
}

/* A resumption that fails on its way leaves the loans for the next. */
static void a_resumption_fails(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	hello(2, 7, WIRE_KEEP | WIRE_RESUME);
	wait_until(session_of(2)->resumes || session_of(2)->greeted);
	disconnected(2);
	assert_int_equal(pool.in[LEND_LENT], 1);
	hello(3, 7, WIRE_KEEP | WIRE_RESUME);
	assert_int_equal(answer(3), WIRE_OK);
	/* After the answer as well, which the borrower may not have got. */
	disconnected(3);
	assert_int_equal(pool.in[LEND_LENT], 1);
	hello(4, 7, WIRE_KEEP | WIRE_RESUME);
	assert_int_equal(answer(4), WIRE_OK);
	assert_int_equal(pool_owned(&pool, &session_of(4)->borrower), 1);
}

/* Its borrower begins another before the donor notices that the first one's connections failed. */
static void two_resumptions(void **state)
{
	struct kernel_session *second, *third;

	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	request(2);
	request(3);
	wait_until(session_of(2) && session_of(2)->accepted);
	wait_until(session_of(3) && session_of(3)->accepted);
	second = session_of(2);
	third = session_of(3);
	third->keeps = true;
	second->resumes = loop->kernels->env.find(second, 7);
	assert_non_null(second->resumes);
	assert_null(session_of(1));
	third->resumes = loop->kernels->env.find(third, 7);
	assert_non_null(third->resumes);
	assert_null(second->resumes);
	wait_until(!session_of(2));
	disconnected(3);
	assert_non_null(loop->kernels->kept);
	assert_int_equal(pool.in[LEND_LENT], 1);
}

/* The number of a borrower is no proof: only a key of the same name is. */
static void another_key_resumes_nothing(void **state)
{
	struct error e = { 0 };
	struct key other;

	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	assert_int_equal(key_make(&other, "bob", &e), 0);
	loop->sessions.keys.keys[loop->sessions.keys.count++] = other;
	key = other;
	hello(2, 7, WIRE_KEEP | WIRE_RESUME);
	assert_int_equal(answer(2), WIRE_NO_SESSION);
	assert_non_null(session_of(1));
	assert_int_equal(pool_owned(&pool, &session_of(1)->borrower), 1);
}

/* Its key is removed in the grace period: so are its loans. */
static void a_key_is_removed_meanwhile(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	disconnected(1);
	loop->sessions.keys.count = 0;
	kernel_accept_keys(loop->kernels);
	assert_null(loop->kernels->kept);
	assert_int_equal(pool.in[LEND_LENT], 0);
}

static uint32_t kept(void)
{
	uint32_t n = 0;

	for (const struct kernel_session *s = loop->kernels->kept; s; s = s->next)
		n++;
	return n;
}

static enum wire_status resume_by(uint64_t number, uint64_t id)
{
	hello(number, id, WIRE_KEEP | WIRE_RESUME);
	return answer(number);
}

/* A key that fills the list of kept sessions loses its own when another key needs a place. */
static void one_key_fills_the_list(void **state)
{
	struct error e = { 0 };
	struct key alice = key;

	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	for (uint64_t id = 1; id <= KERNEL_SESSIONS + 1; id++) {
		begin_kept(1, id);
		disconnected(1);
	}
	assert_int_equal(kept(), KERNEL_SESSIONS);
	assert_int_equal(key_make(&key, "bob", &e), 0);
	loop->sessions.keys.keys[loop->sessions.keys.count++] = key;
	begin_kept(1, 7);
	disconnected(1);
	assert_int_equal(kept(), KERNEL_SESSIONS);
	assert_int_equal(resume_by(1, 7), WIRE_OK);
	key = alice;
	assert_int_equal(resume_by(2, 1), WIRE_OK);
	/* The latest one made place. */
	assert_int_equal(resume_by(3, KERNEL_SESSIONS), WIRE_NO_SESSION);
}

/* A resumption that fails does not exceed the list either. */
static void the_list_has_an_end(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(2, 100);
	for (uint64_t id = 1; id <= KERNEL_SESSIONS; id++) {
		begin_kept(1, id);
		disconnected(1);
	}
	hello(3, 100, WIRE_KEEP | WIRE_RESUME);
	wait_until(session_of(3)->resumes || session_of(3)->greeted);
	disconnected(3);
	assert_int_equal(kept(), KERNEL_SESSIONS);
	wait_until(!loop->kernels->ended);
	assert_int_equal(pool.in[LEND_LENT], KERNEL_SESSIONS);
}

static void assert_shown(void)
{
	static struct donor_status s;

	loop_status(loop, &s);
	assert_int_equal(s.borrower_count, 1);
	assert_int_equal(s.borrowers[0].slabs, 1);
	assert_string_equal(s.borrowers[0].name, "kernel");
}

/* Lent slabs have a borrower in the status, also while it is away or comes back. */
static void a_kept_session_is_shown(void **state)
{
	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	begin_kept(1, 7);
	assert_shown();
	disconnected(1);
	assert_shown();
	hello(2, 7, WIRE_KEEP | WIRE_RESUME);
	while (!session_of(2)->greeted) {
		assert_shown();
		turn();
	}
	assert_shown();
}

/* Kept sessions count as connections of their key. */
static void too_many_kept(void **state)
{
	enum { MOST = 3 };

	make_slabs(LEND_CLEAN);
	loop->kernels->env.keep = 1000 * SECOND;
	loop->kernels->key_connections = MOST;
	for (uint64_t id = 1; id <= MOST; id++) {
		begin_kept(1, id);
		disconnected(1);
	}
	hello(1, MOST + 1, WIRE_KEEP);
	wait_until(!session_of(1) || session_of(1)->proven);
	assert_null(session_of(1));
	assert_int_equal(resume_by(1, MOST), WIRE_OK);
}

/*
 * A module whose HELLO is refused, and whose machine then fails, does not keep its place: the donor
 * probes it, like the others, when places or memory run short.
 */
static void a_module_without_handshake_is_probed(void **state)
{
	hello(1, 7, WIRE_KEEP | WIRE_RESUME);
	wait_until(session_of(1)->proven);
	assert_false(session_of(1)->greeted);
	assert_int_equal(session_of(1)->leaving, 0);
	pool.refused = true;
	kernel_accept_turn(loop->kernels);
	assert_int_equal(session_of(1)->leaving, 1u << KERNEL_ASKED);
	wait_until(!session_of(1)->leaving);
}

/* The listener's device: sessions end by events of their own. */
static void a_listener_without_device_is_reported(void **state)
{
	uint32_t lines;

	begin(1);
	lines = loop->log.notes.put;
	fake_happens(loop->kernels->listener, RDMA_CM_EVENT_DEVICE_REMOVAL, NULL, 0);
	wait_until(loop->log.notes.put != lines);
	assert_non_null(session_of(1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(backlogs, with_donor),
		cmocka_unit_test_setup_teardown(queue_pairs_are_the_pool_threads, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(sessions_that_do_not_begin, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(many_strangers, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(strangers_of_many_addresses, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_old_borrower_beside_strangers, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_replayed_request, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_place_used_again, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(two_connections, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(held_maps, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_rack_reconnects, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(too_many_connections, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_grace_period, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(the_donor_ends_meanwhile, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(sessions_that_are_not_kept, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_session_is_resumed, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_resumption_fails, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(two_resumptions, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(another_key_resumes_nothing, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_key_is_removed_meanwhile, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(one_key_fills_the_list, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(the_list_has_an_end, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_kept_session_is_shown, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(too_many_kept, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(connections_and_modules_alternate, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(modules_take_turns, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_module_without_handshake_is_probed, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_listener_without_device_is_reported, with_donor,
						without_donor),
	};

	log_setup("kernels", LOG_LVL_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
