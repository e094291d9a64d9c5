// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A borrower counts each connection on which data was altered, in either direction, in whatever
 * order it learns that the connection has ended.
 */
#include <errno.h>
#include <openssl/ssl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "swapd/page/page_map.h"
#include "swapd/process/failover.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 2, SLAB_PAGES = 256 };
#define SECOND 1000000000ull

static struct world {
	struct swapd s;
	struct shared shared;
	struct slab slabs[SLABS];
	struct donor *d;
	struct key key;
	struct keyring ring;
	struct tls_context *context; /* the donor's */
	struct tls tls;              /* the donor's */
	int fd;                      /* the donor's; -1 = closed */
	struct stream_rx rx;
	struct stream_tx tx;
	int came;
} w;

static int map(struct link *l, struct mapping *m)
{
	return 0;
}

static const struct transport transport_fake = { .name = "fake", .map = map };

/* Connects both ends by TLS, as the handshakes of swapd and donord leave them. */
static void connect_both(void)
{
	struct link *l = &w.d->link;
	int fd[2], a = 1, b = 1;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	w.fd = fd[1];
	l->fd = fd[0];
	assert_int_equal(tls_start(&l->tls, w.s.donors.env.tls, l->fd), 0);
	assert_int_equal(tls_start(&w.tls, w.context, w.fd), 0);
	for (int round = 0; round < 4 && (a || b); round++) {
		a = a ? tls_handshake(&l->tls) : 0;
		b = b ? tls_handshake(&w.tls) : 0;
	}
	assert_int_equal(a, 0);
	assert_int_equal(b, 0);
	l->rx.io = l->tx.io = &tls_io;
	l->rx.channel = l->tx.channel = &l->tls;
	w.rx.io = w.tx.io = &tls_io;
	w.rx.channel = w.tx.channel = &w.tls;
	donor_set_state(w.d, DONOR_UP, now_ns());
	w.d->ping_at = UINT64_MAX;
}

static int begin(void **state)
{
	struct donor_record *r = &w.shared.donors[0];
	struct swapd *s = &w.s;
	struct error e = { 0 };

	memset(&w, 0, sizeof(w));
	*s = (struct swapd){
		.options = { .name = "unit", .slab = SLAB_PAGES * PAGE, .deadline = SECOND / 2 },
		.frontend = &fuse_frontend, .shared = &w.shared, .count = &w.shared.counters,
		.replicas = { .wanted = 1, .choices = 2, .seed = 1 },
		.engine = { .backlog_most = SLOT_COUNT - fuse_frontend.slots, .backup.fd = -1 },
		.donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
	};
	wiring_events(s);
	slab_init(&s->engine.table, w.slabs, SLABS, SLAB_PAGES);
	s->engine.map = page_map_new(SLABS * SLAB_PAGES, SLAB_PAGES, false);
	assert_non_null(s->engine.map);
	assert_int_equal(slots_init(&s->engine.slots, SLOT_COUNT, &e), 0);
	s->engine.backup.slots = &s->engine.slots;
	w.ring = (struct keyring){ .keys = &w.key, .count = 1 };
	assert_int_equal(key_make(&w.key, "spark", &e), 0);
	assert_int_equal(tls_donor(&w.context, &w.ring, &e), 0);
	assert_int_equal(tls_borrower(&s->donors.env.tls, &w.key, &e), 0);
	assert_int_equal(address_parse("127.0.0.1:1", "donor", &r->address, &e), 0);
	r->at = r->address;
	r->used = true;
	assert_int_equal(donors_prepare(&s->donors), 0);
	donors_take_over(&s->donors, now_ns());
	w.d = &s->donors.donor[0];
	w.d->link.transport = &transport_fake;
	w.d->grace = 30 * SECOND;
	w.d->copies = 1;
	assert_int_equal(stream_rx_init(&w.rx, WIRE_AT_DONOR), 0);
	assert_int_equal(stream_tx_init(&w.tx, 4), 0);
	connect_both();
	return 0;
}

static int end(void **state)
{
	struct swapd *s = &w.s;

	tls_stop(&w.tls);
	if (w.fd >= 0)
		close(w.fd);
	stream_rx_free(&w.rx);
	stream_tx_free(&w.tx);
	donors_free(&s->donors);
	tls_context_free(&s->donors.env.tls);
	tls_context_free(&w.context);
	slots_free(&s->engine.slots);
	page_map_free(&s->engine.map);
	close(s->donors.env.epoll_fd);
	return 0;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	w.came++;
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = arrived, .finished = finished };

/* Receives at @to what came from @from, and sends it there again, the last byte altered. */
static void alter(int from, int to)
{
	uint8_t bytes[1024];
	ssize_t n = recv(to, bytes, sizeof(bytes), 0);

	assert_true(n > 0 && n < (ssize_t)sizeof(bytes));
	bytes[n - 1] ^= 1;
	assert_int_equal(send(from, bytes, (size_t)n, 0), n);
}

/* Data on its way to the donor is altered. */
static void alter_sent(void)
{
	donor_ping(w.d, now_ns());
	donors_flush(&w.s.donors);
	alter(w.d->link.fd, w.fd);
}

/* The donor finds it: it sends an alert and disconnects. */
static void send_alert(void)
{
	assert_int_equal(stream_receive(&w.rx, w.fd, 4096, &ops, NULL), -EBADMSG);
	assert_int_equal(w.came, 0);
	tls_stop(&w.tls);
	close(w.fd);
	w.fd = -1;
}

static void donor_finds_altered(void)
{
	alter_sent();
	send_alert();
}

static void assert_counted(void)
{
	assert_int_equal(w.d->altered, 1);
	assert_true(donor_is_away(w.d));
	assert_int_equal(w.d->absences, 1);
	assert_string_equal(w.d->why, "its control connection was altered between borrower and donor");
}

static void the_second_reply_of_two(void **state)
{
	struct wire_frame f = { .op = WIRE_UNBACKED, .direction = WIRE_REPLY };

	for (int i = 0; i < 2; i++) {
		assert_int_equal(stream_push(&w.tx, &f, NULL, 0), 0);
		assert_int_equal(stream_flush(&w.tx, w.fd, NULL, NULL), 0);
	}
	alter(w.fd, w.d->link.fd);
	donor_event(w.d, EPOLLIN);
	assert_counted();
}

static void an_alert_before_a_request(void **state)
{
	donor_finds_altered();
	donor_ping(w.d, now_ns());
	donors_flush(&w.s.donors);
	assert_counted();
}

static void an_alert_behind_the_end_of_a_data_connection(void **state)
{
	donor_finds_altered();
	donor_link_lost(w.d, LOSS_PASSING, "data connection closed");
	assert_counted();
}

/* Data was altered, and the end of a data connection arrives before the alert. */
static void lose_data_connection_first(void)
{
	uint64_t before = w.d->altered;

	alter_sent();
	donor_link_lost(w.d, LOSS_PASSING, "data connection closed");
	assert_true(donor_is_away(w.d));
	assert_int_equal(w.d->altered, before);
}

static void an_alert_after_the_end_of_a_data_connection(void **state)
{
	uint64_t now = now_ns();

	lose_data_connection_first();
	w.d->retry_at = UINT64_MAX;
	donors_tick(&w.s.donors, now);
	assert_int_equal(w.d->altered, 0);
	send_alert();
	for (int i = 0; i < 3; i++)
		donors_tick(&w.s.donors, now + SECOND / 10);
	assert_int_equal(w.d->altered, 1);
	assert_true(donor_is_away(w.d));
	assert_int_equal(w.d->absences, 1);
}

/* It counts even after the session was resumed, which it does not disturb; the third one does. */
static void alerts_after_a_reconnection(void **state)
{
	for (uint32_t i = 1; i <= ALTERATIONS_MOST; i++) {
		struct tls old;
		int fd;

		lose_data_connection_first();
		tls_move(&old, &w.tls);
		fd = w.fd;
		stream_rx_reset(&w.rx);
		stream_tx_reset(&w.tx, NULL, NULL);
		connect_both();
		w.d->resume = RESUME_NOTHING;
		w.rx.channel = &old;
		assert_int_equal(stream_receive(&w.rx, fd, 4096, &ops, NULL), -EBADMSG);
		tls_stop(&old);
		close(fd);
		donors_tick(&w.s.donors, now_ns());
		assert_int_equal(w.d->altered, i);
		assert_int_equal(w.d->absences, i);
		assert_int_equal(w.d->state, DONOR_UP);
		/* Without a backup its slabs migrate first. */
		assert_int_equal(w.d->leaving, i < ALTERATIONS_MOST ? 0 : DONOR_SUSPECT);
		stream_rx_reset(&w.rx);
		w.rx.io = &tls_io;
		w.rx.channel = &w.tls;
	}
}

static void an_alert_is_not_awaited_for_ever(void **state)
{
	uint64_t now = now_ns();

	lose_data_connection_first();
	w.d->retry_at = UINT64_MAX;
	donors_tick(&w.s.donors, now + 2 * SECOND);
	send_alert();
	donors_tick(&w.s.donors, now + 2 * SECOND);
	assert_int_equal(w.d->altered, 0);
}

/* The donor learns at once that the borrower has given the connection up. */
static void the_donor_does_not_wait(void **state)
{
	donor_link_lost(w.d, LOSS_PASSING, "data connection closed");
	assert_int_equal(stream_receive(&w.rx, w.fd, 4096, &ops, NULL), -ECONNRESET);
	assert_int_equal(w.came, 0);
}

static void an_end_is_no_alteration(void **state)
{
	close(w.fd);
	w.fd = -1;
	donor_ping(w.d, now_ns());
	donors_flush(&w.s.donors);
	assert_int_equal(w.d->altered, 0);
	assert_true(donor_is_away(w.d));
	assert_int_equal(w.d->absences, 1);
}

static void a_lost_data_connection_is_no_alteration(void **state)
{
	donor_link_lost(w.d, LOSS_PASSING, "data connection closed");
	assert_int_equal(w.d->altered, 0);
	assert_true(donor_is_away(w.d));
	assert_string_equal(w.d->why, "data connection closed");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		TEST(the_second_reply_of_two),
		TEST(an_alert_before_a_request),
		TEST(an_alert_behind_the_end_of_a_data_connection),
		TEST(an_alert_after_the_end_of_a_data_connection),
		TEST(alerts_after_a_reconnection),
		TEST(an_alert_is_not_awaited_for_ever),
		TEST(the_donor_does_not_wait),
		TEST(an_end_is_no_alteration),
		TEST(a_lost_data_connection_is_no_alteration),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests_name("altered", tests, NULL, NULL);
}
