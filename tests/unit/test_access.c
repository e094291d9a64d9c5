// SPDX-License-Identifier: GPL-2.0-or-later
/* A donor with keys, and borrowers at the other ends of socket pairs, turn by turn. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donord/donord.h"
#include "donord/loop.h"
#include "lib/base/clock.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 8 };
#define DONOR "10.0.0.7:7070"

struct world {
	struct pool pool;
	struct loop *l;
	struct tls_context *tls[2]; /* of the borrowers "spark" and "flink" */
	struct key derived;         /* of spark's for DONOR, not among the donor's at first */
	char directory[64], files[2][96], derived_file[96];
	uint32_t version;           /* of the protocol, that borrowers speak */
};

static struct world w;

static void make_key(int i, const char *name)
{
	struct key k;

	snprintf(w.files[i], sizeof(w.files[i]), "%s/%s.key", w.directory, name);
	assert_int_equal(key_make(&k, name, NULL), 0);
	assert_int_equal(key_save(&k, w.files[i], NULL), 0);
	assert_int_equal(tls_borrower(&w.tls[i], &k, NULL), 0);
	if (!i)
		assert_int_equal(key_derive(&w.derived, &k, DONOR), 0);
}

static int with_donor(void **state)
{
	struct lending_options o = { .sessions = { .quota = 3 * SLAB, .peer_connections = 3,
						  .key_connections = 5, .keep = 30000000000 } };
	struct error e = { 0 };

	w = (struct world){ .directory = "/tmp/ebb-access-XXXXXX", .version = WIRE_VERSION };
	assert_non_null(mkdtemp(w.directory));
	setenv("EBB_RUN_DIR", w.directory, 1);
	make_key(0, "spark");
	make_key(1, "flink");
	snprintf(w.derived_file, sizeof(w.derived_file), "%s/derived.key", w.directory);
	o.keys = (struct option_list){ { w.files[0], w.files[1] }, 2 };
	if (loop_new(&w.l, &w.pool, &o, &e) ||
	    pool_init(&w.pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e))
		fail_msg("%s", e.text);
	/* Not locked: that would take root. */
	assert_int_equal(mprotect(w.pool.memory, SLABS * SLAB, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < SLABS; i++)
		w.pool.slabs[i].state = LEND_CLEAN;
	w.pool.in[LEND_ABSENT] = 0;
	w.pool.in[LEND_CLEAN] = SLABS;
	return 0;
}

static int without_donor(void **state)
{
	loop_free(&w.l);
	pool_free(&w.pool);
	for (int i = 0; i < 2; i++) {
		tls_context_free(&w.tls[i]);
		unlink(w.files[i]);
	}
	unlink(w.derived_file);
	return rmdir(w.directory);
}

static void turn(void)
{
	for (int i = 0; i < 4; i++)
		assert_int_equal(loop_turn(w.l, 0), 0);
}

/* --- a borrower's end ------------------------------------------------------------- */

struct end {
	struct connection *c; /* the donor's */
	int fd;
	struct tls tls;
	struct stream_rx rx;
	struct stream_tx tx;
	struct session_guard in, out;
	uint8_t key[SESSION_KEY];
	uint64_t session;
	struct wire_frame last; /* that came */
	int came;
	uint8_t payload[WIRE_PAGE];
};

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct end *b = data;

	assert_true(wire_payload(f) <= sizeof(b->payload));
	*payload = b->payload;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct end *b = data;

	b->last = *f;
	b->came++;
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = arrived, .finished = finished };

static void end_open(struct end *b)
{
	struct sockaddr_storage peer = { .ss_family = AF_INET };
	int fd[2];

	memset(b, 0, sizeof(*b));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	assert_int_equal(stream_rx_init(&b->rx, WIRE_AT_BORROWER), 0);
	assert_int_equal(stream_tx_init(&b->tx, 16), 0);
	assert_int_equal(session_guard_init(&b->in), 0);
	assert_int_equal(session_guard_init(&b->out), 0);
	b->fd = fd[0];
	b->c = connection_adopt(&w.l->sessions, fd[1], &peer);
	assert_non_null(b->c);
}

static void end_close(struct end *b)
{
	tls_stop(&b->tls);
	stream_rx_free(&b->rx);
	stream_tx_free(&b->tx);
	session_guard_free(&b->in);
	session_guard_free(&b->out);
	close(b->fd);
	turn();
}

static bool hung_up(const struct end *b)
{
	char byte;
	ssize_t n = recv(b->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

	return n == 0 || (n < 0 && errno != EAGAIN);
}

/* Sends a request; the status of its reply, or -errno when there is none. */
static int ask(struct end *b, struct wire_frame f, const void *payload)
{
	int r, before = b->came;

	assert_int_equal(stream_push(&b->tx, &f, payload, 0), 0);
	r = stream_flush(&b->tx, b->fd, NULL, NULL);
	if (r < 0)
		return r;
	turn();
	r = stream_receive(&b->rx, b->fd, 1 << 20, &ops, b);
	if (r < 0)
		return r;
	assert_int_equal(b->came, before + 1);
	assert_int_equal(b->last.op, f.op);
	return b->last.status;
}

enum { SPARK, FLINK, DERIVED };

static void shake_hands(struct end *b, int key)
{
	int r;

	end_open(b);
	assert_int_equal(key == DERIVED ? tls_start_derived(&b->tls, w.tls[SPARK], b->fd, DONOR) :
					  tls_start(&b->tls, w.tls[key], b->fd), 0);
	while ((r = tls_handshake(&b->tls)) == 1)
		turn();
	assert_int_equal(r, 0);
	b->rx.io = b->tx.io = &tls_io;
	b->rx.channel = b->tx.channel = &b->tls;
}

/* A control connection of the borrower @number. */
static void greet_with(struct end *b, int key, uint64_t number, uint32_t flags)
{
	struct wire_hello h = { .version = w.version, .borrower = number, .slab_size = SLAB,
				.name = "unit", .flags = flags };
	struct wire_donor told;
	uint8_t payload[WIRE_HELLO_SIZE];

	shake_hands(b, key);
	wire_build_hello(payload, &h);
	assert_int_equal(ask(b, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
			     payload), WIRE_OK);
	assert_int_equal(wire_parse_donor(b->payload, b->last.length, &told), 0);
	assert_true(told.session != 0);
	b->session = told.session;
	assert_int_equal(tls_export(&b->tls, SESSION_LABEL, b->key, sizeof(b->key)), 0);
}

/* Returns whether the donor closes the connection of a borrower that it has no place for. */
static bool greet_in_vain(struct end *b, int key, uint64_t number, uint32_t flags)
{
	const struct wire_hello h = { .version = w.version, .borrower = number, .slab_size = SLAB,
				      .name = "unit", .flags = flags };
	uint8_t payload[WIRE_HELLO_SIZE];

	shake_hands(b, key);
	wire_build_hello(payload, &h);
	return ask(b, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
		   payload) < 0;
}

static void greet(struct end *b, int key, uint64_t number)
{
	greet_with(b, key, number, 0);
}

static int map(struct end *b)
{
	uint8_t payload[WIRE_MAP_SIZE];

	wire_build_map(payload, WIRE_CLASS_SWAP);
	return ask(b, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) }, payload);
}

/* What @control lets its data connection @number say at first. */
static struct wire_join ticket(const struct end *control, uint32_t number)
{
	struct wire_join j = { .session = control->session, .number = number };

	assert_int_equal(session_sign(control->key, &j), 0);
	return j;
}

static int say_join(struct end *b, const struct wire_join *j)
{
	uint8_t payload[WIRE_JOIN_SIZE];

	wire_build_join(payload, j);
	return ask(b, (struct wire_frame){ .op = WIRE_JOIN, .length = sizeof(payload) }, payload);
}

static void join(struct end *b, const struct end *control, uint32_t number)
{
	struct wire_join j = ticket(control, number);

	end_open(b);
	assert_int_equal(say_join(b, &j), WIRE_OK);
	assert_int_equal(session_guard_start(&b->out, SESSION_SENDS, control->key, &j,
					     WIRE_REQUEST, w.version), 0);
	assert_int_equal(session_guard_start(&b->in, SESSION_RECEIVES, control->key, &j,
					     WIRE_REPLY, w.version), 0);
	b->tx.guard = &b->out.guard;
	b->rx.guard = &b->in.guard;
}

/* READ or WRITE of the first page of the slab that @loan tells of. */
static struct wire_frame page_of(enum wire_op op, const struct wire_frame *loan)
{
	return (struct wire_frame){ .op = op, .slab = loan->slab, .generation = loan->generation,
				    .length = WIRE_PAGE };
}

static const uint8_t page[WIRE_PAGE] = { 1, 2, 3 };

/* --- tests ------------------------------------------------------------------------- */

static void each_on_its_connection(void **state)
{
	struct end control, data;
	struct wire_frame loan;

	greet(&control, 0, 7);
	assert_string_equal(control.c->access.tls.name, "spark");
	assert_int_equal(map(&control), WIRE_OK);
	loan = control.last;
	join(&data, &control, 0);
	assert_int_equal(ask(&data, page_of(WIRE_WRITE, &loan), page), WIRE_OK);
	assert_int_equal(ask(&data, page_of(WIRE_READ, &loan), NULL), WIRE_OK);
	assert_memory_equal(data.payload, page, sizeof(page));
	assert_int_equal(control.c->reads, 1);
	assert_int_equal(control.c->writes, 1);
	/* What is not served there is refused, and does no harm. */
	assert_int_equal(ask(&control, page_of(WIRE_READ, &loan), NULL), WIRE_NOT_HERE);
	assert_int_equal(ask(&control, page_of(WIRE_WRITE, &loan), page), WIRE_NOT_HERE);
	assert_int_equal(map(&data), WIRE_NOT_HERE);
	assert_int_equal(ask(&data, (struct wire_frame){ .op = WIRE_UNMAP, .slab = loan.slab,
			     .generation = loan.generation }, NULL), WIRE_NOT_HERE);
	assert_int_equal(ask(&data, (struct wire_frame){ .op = WIRE_PING }, NULL), WIRE_NOT_HERE);
	assert_int_equal(ask(&control, (struct wire_frame){ .op = WIRE_PING }, NULL), WIRE_OK);
	assert_int_equal(ask(&data, page_of(WIRE_READ, &loan), NULL), WIRE_OK);
	end_close(&data);
	end_close(&control);
}

static void no_number_twice(void **state)
{
	struct end control, data, other;
	struct wire_join j;

	greet(&control, 0, 7);
	join(&data, &control, 5);
	j = ticket(&control, 5);
	end_open(&other);
	assert_int_equal(say_join(&other, &j), WIRE_NO_SESSION);
	end_close(&other);
	/* Not even when the connection that had it has ended. */
	end_close(&data);
	end_open(&other);
	assert_int_equal(say_join(&other, &j), WIRE_NO_SESSION);
	end_close(&other);
	join(&data, &control, 6);
	end_close(&data);
	end_close(&control);
}

static void a_guess_uses_no_number_up(void **state)
{
	struct end control, data, other;
	struct wire_join j;

	greet(&control, 0, 7);
	for (int bit = 0; bit < 256; bit += 37) {
		j = ticket(&control, 1);
		j.mac[bit / 8] ^= 1 << bit % 8;
		end_open(&other);
		assert_int_equal(say_join(&other, &j), WIRE_BAD_MAC);
		end_close(&other);
	}
	j = ticket(&control, 1);
	j.session ^= 1;
	end_open(&other);
	assert_int_equal(say_join(&other, &j), WIRE_NO_SESSION);
	end_close(&other);
	join(&data, &control, 1);
	end_close(&data);
	end_close(&control);
}

static void another_ones_session_is_no_way_in(void **state)
{
	struct end control, other, data;
	struct wire_frame loan;
	struct wire_join j;

	greet(&control, 0, 7);
	greet(&other, 1, 8);
	assert_int_equal(map(&control), WIRE_OK);
	loan = control.last;
	/* With its own key for the other's session. */
	j = (struct wire_join){ .session = control.session, .number = 0 };
	assert_int_equal(session_sign(other.key, &j), 0);
	end_open(&data);
	assert_int_equal(say_join(&data, &j), WIRE_BAD_MAC);
	end_close(&data);
	/* In its own, it has its own slabs only. */
	join(&data, &other, 0);
	assert_int_equal(ask(&data, page_of(WIRE_READ, &loan), NULL), WIRE_NO_SLAB);
	assert_int_equal(ask(&data, page_of(WIRE_WRITE, &loan), page), WIRE_NO_SLAB);
	end_close(&data);
	end_close(&other);
	end_close(&control);
}

static void data_ends_with_control(void **state)
{
	struct end control, data, other;
	struct wire_frame loan;
	struct wire_join j;

	greet(&control, 0, 7);
	assert_int_equal(map(&control), WIRE_OK);
	loan = control.last;
	join(&data, &control, 0);
	j = ticket(&control, 1);
	end_close(&control);
	assert_int_equal(data.c->fd, -1);
	assert_true(ask(&data, page_of(WIRE_WRITE, &loan), page) < 0);
	end_close(&data);
	end_open(&other);
	assert_int_equal(say_join(&other, &j), WIRE_NO_SESSION);
	end_close(&other);
	assert_int_equal(w.pool.in[LEND_LENT], 0);
}

static void each_on_its_connection_in_version_3(void **state)
{
	w.version = 3;
	each_on_its_connection(state);
}

static void data_connection(struct end *control, struct end *data, struct wire_frame *loan)
{
	greet(control, 0, 7);
	assert_int_equal(map(control), WIRE_OK);
	*loan = control->last;
	join(data, control, 0);
	assert_int_equal(ask(data, page_of(WIRE_WRITE, loan), page), WIRE_OK);
}

/* Sends a WRITE whose MACs are what @data has made of them; the donor hangs up. */
static void send_wrong(struct end *data, const struct wire_frame *loan)
{
	struct wire_frame f = page_of(WIRE_WRITE, loan);

	assert_int_equal(stream_push(&data->tx, &f, page, 0), 0);
	assert_int_equal(stream_flush(&data->tx, data->fd, NULL, NULL), 0);
	turn();
	assert_int_equal(data->c->fd, -1);
}

/* The WRITE is not acknowledged; the final frame of the donor tells why. */
static void takes_the_final_frame(struct end *data)
{
	int came = data->came;

	stream_receive(&data->rx, data->fd, 1 << 20, &ops, data);
	assert_int_equal(data->came, came + 1);
	assert_int_equal(data->last.op, WIRE_JOIN);
	assert_int_equal(data->last.direction, WIRE_REPLY);
	assert_int_equal(data->last.status, WIRE_ALTERED);
	assert_int_equal(stream_receive(&data->rx, data->fd, 1 << 20, &ops, data), -ECONNRESET);
	assert_int_equal(data->came, came + 1);
}

static void a_frame_of_anybody_elses_ends_it(void **state)
{
	struct end control, data;
	struct wire_frame loan;

	data_connection(&control, &data, &loan);
	data.out.frames--;
	send_wrong(&data, &loan);
	takes_the_final_frame(&data);
	assert_true(control.c->fd >= 0);
	end_close(&data);
	end_close(&control);
}

static void an_altered_payload_ends_it(void **state)
{
	struct end control, data;
	struct wire_frame loan;

	data_connection(&control, &data, &loan);
	data.out.payloads--;
	send_wrong(&data, &loan);
	takes_the_final_frame(&data);
	assert_true(control.c->fd >= 0);
	/* The loan is still there. */
	join(&data, &control, 1);
	assert_int_equal(ask(&data, page_of(WIRE_READ, &loan), NULL), WIRE_OK);
	end_close(&data);
	end_close(&control);
}

enum { READS = 100 };

/* The borrower reads pages and takes no reply, then sends two WRITEs, the first one altered. */
static void alter_behind_reads(struct end *data, const struct wire_frame *loan)
{
	struct wire_frame f = page_of(WIRE_READ, loan);

	for (int i = 0; i < READS; i++) {
		assert_int_equal(stream_push(&data->tx, &f, NULL, 0), 0);
		assert_int_equal(stream_flush(&data->tx, data->fd, NULL, NULL), 0);
		turn();
	}
	assert_true(data->c->tx.count > 0);
	f = page_of(WIRE_WRITE, loan);
	data->out.payloads--;
	for (int i = 0; i < 2; i++)
		assert_int_equal(stream_push(&data->tx, &f, page, 0), 0);
	assert_int_equal(stream_flush(&data->tx, data->fd, NULL, NULL), 0);
	turn();
}

/* The final frame comes behind replies that the borrower has not taken yet. */
static void the_final_frame_waits_for_its_turn(void **state)
{
	struct end control, data;
	struct wire_frame loan;
	int came;

	data_connection(&control, &data, &loan);
	came = data.came;
	alter_behind_reads(&data, &loan);
	connection_event(data.c, EPOLLIN);
	while (stream_receive(&data.rx, data.fd, 1 << 20, &ops, &data) >= 0)
		turn();
	assert_int_equal(data.came, came + READS + 1);
	assert_int_equal(data.last.op, WIRE_JOIN);
	assert_int_equal(data.last.status, WIRE_ALTERED);
	assert_int_equal(data.c->fd, -1);
	assert_true(control.c->fd >= 0);
	assert_int_equal(w.pool.slabs[loan.slab].pins, 0);
	end_close(&data);
	end_close(&control);
}

/* A borrower that does not take it is not waited for, nor one that has disconnected. */
static void the_final_frame_is_not_taken(void **state)
{
	struct end control, data;
	struct wire_frame loan;

	data_connection(&control, &data, &loan);
	alter_behind_reads(&data, &loan);
	assert_true(data.c->fd >= 0);
	connections_tick(&w.l->sessions, now_ns() + 11000000000);
	assert_int_equal(data.c->fd, -1);
	assert_int_equal(w.pool.slabs[loan.slab].pins, 0);
	end_close(&data);
	join(&data, &control, 1);
	alter_behind_reads(&data, &loan);
	end_close(&data);
	assert_int_equal(data.c->fd, -1);
	assert_int_equal(w.pool.slabs[loan.slab].pins, 0);
	end_close(&control);
}

/* Has @b send the frames of its queue; they reach the donor at once, the last byte altered. */
static void send_altered(struct end *b)
{
	uint8_t bytes[4 * WIRE_PAGE];
	int pair[2], fd;
	ssize_t n;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	/* TLS names the descriptor, so that it stays and its socket changes. */
	fd = dup(b->fd);
	assert_int_equal(dup2(pair[0], b->fd), b->fd);
	while (b->tx.count) {
		/* One frame a record. */
		b->tx.budget = 1;
		assert_true(stream_flush(&b->tx, b->fd, NULL, NULL) >= 0);
	}
	n = recv(pair[1], bytes, sizeof(bytes), 0);
	assert_true(n > 2 * (ssize_t)WIRE_HEADER && n < (ssize_t)sizeof(bytes));
	bytes[n - 1] ^= 1;
	assert_int_equal(send(fd, bytes, (size_t)n, 0), n);
	assert_int_equal(dup2(fd, b->fd), b->fd);
	close(fd);
	close(pair[0]);
	close(pair[1]);
	turn();
}

/* The donor tells the borrower, which counts. */
static void the_second_of_two_records_is_altered(void **state)
{
	struct wire_frame ping = { .op = WIRE_PING };
	struct end control;
	int r, came;

	greet(&control, 0, 7);
	came = control.came;
	for (int i = 0; i < 2; i++)
		assert_int_equal(stream_push(&control.tx, &ping, NULL, 0), 0);
	send_altered(&control);
	assert_int_equal(control.c->fd, -1);
	r = stream_receive(&control.rx, control.fd, 1 << 20, &ops, &control);
	assert_int_equal(r, -EBADMSG);
	assert_true(control.came <= came + 1);
	end_close(&control);
}

static void the_second_of_two_pages_is_altered(void **state)
{
	struct end control, data;
	struct wire_frame loan, f;
	int came;

	data_connection(&control, &data, &loan);
	f = page_of(WIRE_WRITE, &loan);
	for (int i = 0; i < 2; i++)
		assert_int_equal(stream_push(&data.tx, &f, page, 0), 0);
	came = data.came;
	send_altered(&data);
	assert_int_equal(data.c->fd, -1);
	assert_int_equal(stream_receive(&data.rx, data.fd, 1 << 20, &ops, &data), 0);
	assert_int_equal(data.came, came + 2);
	assert_int_equal(data.last.op, WIRE_JOIN);
	assert_int_equal(data.last.status, WIRE_ALTERED);
	end_close(&data);
	end_close(&control);
}

/* Version 3 has no such final frame. */
static void version_3_ends_in_silence(void **state)
{
	struct end control, data;
	struct wire_frame loan;

	w.version = 3;
	data_connection(&control, &data, &loan);
	data.out.frames--;
	send_wrong(&data, &loan);
	assert_int_equal(stream_receive(&data.rx, data.fd, 1 << 20, &ops, &data), -ECONNRESET);
	assert_int_equal(data.last.op, WIRE_WRITE);
	end_close(&data);
	end_close(&control);
}

static void replies_do_not_come_by_data(void **state)
{
	struct wire_frame f = { .op = WIRE_EVICT, .direction = WIRE_REPLY };
	struct end control, data;

	greet(&control, 0, 7);
	join(&data, &control, 0);
	assert_int_equal(ask(&data, f, NULL), -ECONNRESET);
	end_close(&data);
	end_close(&control);
}

static void nothing_is_asked_before_the_data_connection(void **state)
{
	struct end control, data;
	struct wire_frame loan;

	greet(&control, 0, 7);
	assert_int_equal(map(&control), WIRE_OK);
	loan = control.last;
	w.pool.slabs[loan.slab].asked = LEND_TO_ASK;
	w.l->eviction.to_ask = true;
	turn();
	assert_int_equal(control.c->borrower.evicts, 0);
	join(&data, &control, 0);
	turn();
	assert_int_equal(control.c->borrower.evicts, 1);
	assert_int_equal(stream_receive(&control.rx, control.fd, 1 << 20, &ops, &control), 0);
	assert_int_equal(control.last.op, WIRE_EVICT);
	assert_int_equal(control.last.slab, loan.slab);
	end_close(&data);
	end_close(&control);
}

static void a_quota_is_the_keys(void **state)
{
	struct end first, second, other;

	greet(&first, 0, 7);
	greet(&second, 0, 8);
	greet(&other, 1, 9);
	assert_int_equal(map(&first), WIRE_OK);
	assert_int_equal(map(&second), WIRE_OK);
	assert_int_equal(map(&first), WIRE_OK);
	assert_int_equal(map(&second), WIRE_OVER_QUOTA);
	assert_int_equal(map(&first), WIRE_OVER_QUOTA);
	for (int i = 0; i < 3; i++)
		assert_int_equal(map(&other), WIRE_OK);
	assert_int_equal(map(&other), WIRE_OVER_QUOTA);
	end_close(&first);
	assert_int_equal(map(&second), WIRE_OK);
	end_close(&second);
	end_close(&other);
}

static void only_ones_own_connection_is_replaced(void **state)
{
	struct end first, second, other;

	greet(&first, 0, 7);
	/* The number is no secret; without the key it is worth nothing. */
	greet(&other, 1, 7);
	assert_true(first.c->fd >= 0);
	greet(&second, 0, 7);
	assert_int_equal(first.c->fd, -1);
	assert_true(other.c->fd >= 0);
	end_close(&first);
	end_close(&second);
	end_close(&other);
}

static void before_a_greeting(void **state)
{
	struct end b;

	/* TLS, and then pages, or a JOIN. */
	shake_hands(&b, 0);
	assert_true(ask(&b, (struct wire_frame){ .op = WIRE_READ, .length = WIRE_PAGE }, NULL) < 0);
	end_close(&b);
	shake_hands(&b, 0);
	assert_int_equal(say_join(&b, &(struct wire_join){ .session = 1 }), WIRE_NOT_HERE);
	end_close(&b);
	/* No TLS. */
	end_open(&b);
	assert_true(ask(&b, (struct wire_frame){ .op = WIRE_READ, .length = WIRE_PAGE }, NULL) < 0);
	end_close(&b);
	end_open(&b);
	assert_int_equal(ask(&b, (struct wire_frame){ .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE },
			     page), WIRE_NO_KEY);
	end_close(&b);
}

static void hung_up_on_in_the_midst(void **state)
{
	struct end b;

	for (int rounds = 0; rounds < 4; rounds++) {
		end_open(&b);
		assert_int_equal(tls_start(&b.tls, w.tls[0], b.fd), 0);
		for (int i = 0; i < rounds; i++) {
			tls_handshake(&b.tls);
			if (i < rounds - 1)
				turn();
		}
		end_close(&b);
		assert_int_equal(b.c->fd, -1);
	}
}

/* Places are limited by key; by address only until a key is known. */
static void places_are_the_keys(void **state)
{
	struct end spark[4], flink, data, silent[5];
	struct wire_join j;

	/* More than may come from one address, which they all have. */
	for (uint64_t i = 0; i < 4; i++)
		greet(&spark[i], 0, i + 1);
	join(&data, &spark[0], 0);
	greet(&flink, 1, 9);
	for (int i = 0; i < 4; i++)
		assert_true(spark[i].c->greeted);
	/* Five are enough for one key: neither a session more nor a data connection. */
	assert_true(greet_in_vain(&silent[0], SPARK, 5, 0));
	j = ticket(&spark[1], 0);
	end_open(&silent[1]);
	assert_int_equal(say_join(&silent[1], &j), WIRE_NO_SESSION);
	/* Three connections without JOIN: the donor closes the oldest. */
	end_close(&silent[0]);
	end_close(&silent[1]);
	for (int i = 0; i < 5; i++) {
		end_open(&silent[i]);
		turn();
	}
	for (int i = 0; i < 5; i++)
		assert_int_equal(hung_up(&silent[i]), i < 2);
	/* With one less there is a place. */
	end_close(&spark[3]);
	greet(&spark[3], 0, 7);
	assert_int_equal(map(&spark[3]), WIRE_OK);
	for (int i = 0; i < 5; i++)
		end_close(&silent[i]);
	end_close(&data);
	for (int i = 0; i < 4; i++)
		end_close(&spark[i]);
	end_close(&flink);
}

/* A borrower with its data connection, and a loan. */
static void begin_session(struct end *control, struct end *data, uint64_t number)
{
	greet_with(control, SPARK, number, WIRE_KEEP);
	assert_int_equal(map(control), WIRE_OK);
	join(data, control, 0);
}

/* It resumes the session with @loan. */
static void resume_session(struct end *control, struct end *data, uint64_t number,
			   struct wire_frame loan)
{
	greet_with(control, SPARK, number, WIRE_KEEP | WIRE_RESUME);
	assert_int_equal(ask(control, (struct wire_frame){ .op = WIRE_REMAP, .slab = loan.slab,
			     .generation = loan.generation }, NULL), WIRE_OK);
	join(data, control, 0);
}

/* A session keeps its places while its borrower is away, or has not been missed yet. */
static void a_place_to_return_to(void **state)
{
	struct end control, data, again[2], again_data, other, more;
	struct wire_frame loan;

	/* The key has five places: two for each of these, and one. */
	begin_session(&control, &data, 1);
	loan = control.last;
	greet_with(&other, SPARK, 2, WIRE_KEEP);
	join(&more, &other, 0);
	greet(&again[1], SPARK, 3);
	/* The donor does not know yet that the connection is broken. */
	resume_session(&again[0], &again_data, 1, loan);
	assert_true(hung_up(&control));
	end_close(&control);
	end_close(&data);
	end_close(&again_data);
	end_close(&again[0]);
	end_close(&again[1]);
	/* Away, it has its two places, which no other session gets. */
	greet(&again[1], SPARK, 3);
	assert_true(greet_in_vain(&again[0], SPARK, 4, 0));
	end_close(&again[0]);
	resume_session(&control, &data, 1, loan);
	end_close(&data);
	end_close(&control);
	end_close(&more);
	end_close(&other);
	end_close(&again[1]);
}

/* When all places are taken, borrowers that are away still find theirs. */
static void a_donor_that_is_full(void **state)
{
	enum { SESSIONS = CONNECTIONS - CONNECTIONS_SPARE };
	static struct end all[SESSIONS], late, control, strangers[CONNECTIONS_SPARE];
	struct wire_frame loan;
	int r;

	w.l->sessions.options.key_connections = 0;
	w.l->sessions.options.peer_connections = 0;
	greet_with(&all[0], SPARK, 1, WIRE_KEEP);
	assert_int_equal(map(&all[0]), WIRE_OK);
	loan = all[0].last;
	for (int i = 1; i < SESSIONS; i++)
		greet_with(&all[i], FLINK, (uint64_t)i + 1, WIRE_KEEP);
	assert_true(greet_in_vain(&late, SPARK, 1000, 0));
	end_close(&late);
	for (int i = 0; i < CONNECTIONS_SPARE; i++)
		end_open(&strangers[i]);
	end_close(&all[0]);
	assert_true(all[0].c->kept_until != 0);
	assert_true(greet_in_vain(&late, SPARK, 1000, 0));
	end_close(&late);
	greet_with(&control, SPARK, 1, WIRE_KEEP | WIRE_RESUME);
	r = ask(&control, (struct wire_frame){ .op = WIRE_REMAP, .slab = loan.slab,
		.generation = loan.generation }, NULL);
	assert_int_equal(r, WIRE_OK);
	end_close(&control);
	for (int i = 0; i < CONNECTIONS_SPARE; i++)
		end_close(&strangers[i]);
	for (int i = 1; i < SESSIONS; i++)
		end_close(&all[i]);
}

/* Removing the last key closes all sessions and refuses new ones. */
static void the_last_key_is_taken_away(void **state)
{
	struct end spark, flink, late;
	int r;

	greet(&spark, 0, 1);
	greet(&flink, 1, 2);
	assert_int_equal(map(&spark), WIRE_OK);
	assert_int_equal(map(&flink), WIRE_OK);
	assert_int_equal(unlink(w.files[0]), 0);
	raise(SIGHUP);
	turn();
	assert_int_equal(w.l->sessions.keys.count, 1);
	assert_int_equal(w.pool.in[LEND_LENT], 1);
	assert_int_equal(map(&flink), WIRE_OK);
	/* An empty key file counts as removed. */
	assert_int_equal(truncate(w.files[1], 0), 0);
	raise(SIGHUP);
	turn();
	assert_int_equal(w.l->sessions.keys.count, 0);
	assert_int_equal(w.pool.in[LEND_LENT], 0);
	end_open(&late);
	assert_int_equal(tls_start(&late.tls, w.tls[1], late.fd), 0);
	while ((r = tls_handshake(&late.tls)) == 1)
		turn();
	assert_int_equal(r, -EACCES);
	end_close(&late);
	end_close(&flink);
	end_close(&spark);
}

static void read_keys_again(void)
{
	raise(SIGHUP);
	turn();
}

/* Its loans wait for it to resume with the other key; without any of its name they end. */
static void one_of_two_keys_of_a_name_is_taken_away(void **state)
{
	struct end shared, flink, derived;
	struct wire_frame loan;

	greet_with(&shared, SPARK, 7, WIRE_KEEP);
	greet_with(&flink, FLINK, 8, WIRE_KEEP);
	assert_int_equal(map(&shared), WIRE_OK);
	loan = shared.last;
	assert_int_equal(map(&flink), WIRE_OK);
	assert_int_equal(key_save(&w.derived, w.derived_file, NULL), 0);
	w.l->options.keys.v[w.l->options.keys.n++] = w.derived_file;
	read_keys_again();
	assert_int_equal(map(&shared), WIRE_OK);
	assert_int_equal(unlink(w.files[SPARK]), 0);
	read_keys_again();
	assert_true(hung_up(&shared));
	assert_int_equal(w.pool.in[LEND_LENT], 3);
	/* Without a connection, more changes make no difference. */
	read_keys_again();
	assert_int_equal(w.pool.in[LEND_LENT], 3);
	greet_with(&derived, DERIVED, 7, WIRE_KEEP | WIRE_RESUME);
	assert_string_equal(derived.c->fingerprint, w.derived.fingerprint);
	assert_int_equal(ask(&derived, (struct wire_frame){ .op = WIRE_REMAP, .slab = loan.slab,
			     .generation = loan.generation }, NULL), WIRE_OK);
	assert_int_equal(ask(&derived, (struct wire_frame){ .op = WIRE_RELEASE }, NULL), WIRE_OK);
	assert_int_equal(w.pool.in[LEND_LENT], 2);
	assert_int_equal(unlink(w.derived_file), 0);
	read_keys_again();
	assert_true(hung_up(&derived));
	assert_int_equal(w.pool.in[LEND_LENT], 1);
	end_close(&shared);
	end_close(&flink);
	end_close(&derived);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, with_donor, without_donor)
		TEST(each_on_its_connection),
		TEST(no_number_twice),
		TEST(a_guess_uses_no_number_up),
		TEST(another_ones_session_is_no_way_in),
		TEST(data_ends_with_control),
		TEST(each_on_its_connection_in_version_3),
		TEST(a_frame_of_anybody_elses_ends_it),
		TEST(an_altered_payload_ends_it),
		TEST(the_final_frame_waits_for_its_turn),
		TEST(the_final_frame_is_not_taken),
		TEST(the_second_of_two_records_is_altered),
		TEST(the_second_of_two_pages_is_altered),
		TEST(version_3_ends_in_silence),
		TEST(replies_do_not_come_by_data),
		TEST(nothing_is_asked_before_the_data_connection),
		TEST(a_quota_is_the_keys),
		TEST(only_ones_own_connection_is_replaced),
		TEST(before_a_greeting),
		TEST(hung_up_on_in_the_midst),
		TEST(the_last_key_is_taken_away),
		TEST(one_of_two_keys_of_a_name_is_taken_away),
		TEST(places_are_the_keys),
		TEST(a_place_to_return_to),
		TEST(a_donor_that_is_full),
	};

	return cmocka_run_group_tests_name("access", tests, NULL, NULL);
}
