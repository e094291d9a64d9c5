// SPDX-License-Identifier: GPL-2.0-or-later
/* The shm transport: a borrower's donor/ and engine.c with a donor in this process. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donord/loop.h"
#include "lending.h"
#include "lib/wire/local.h"
#include "swapd/request/engine.h"
#include "swapd/page/bits.h"
#include "swapd/page/page_map.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 4, SLAB_PAGES = SLAB / PAGE };

static char directory[64];

static int with_directory(void **state)
{
	strcpy(directory, "/tmp/ebb-transport-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int without_directory(void **state)
{
	return rmdir(directory);
}

static void parse(struct address *a, const char *name)
{
	char text[128];

	snprintf(text, sizeof(text), "unix:%s/%s", directory, name);
	assert_int_equal(address_parse(text, "test", a, NULL), 0);
	assert_true(address_is_local(a));
}

/* --- a borrower --------------------------------------------------------------- */

struct client {
	struct swapd s;
	struct shared shared;
	struct slab slabs[SLABS];
	int kernel; /* where answers to FUSE requests come out */
};

static void borrower_init(struct client *b)
{
	struct error e = { 0 };
	int fd[2], size = 2 * SLOT_BYTES;

	memset(b, 0, sizeof(*b));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
	setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	b->kernel = fd[1];
	b->s = (struct swapd){
		.options = { .name = "unit", .slab = SLAB, .deadline = 500000000 },
		.shared = &b->shared,
		.count = &b->shared.counters,
		.frontend = &fuse_frontend,
		.host = { .fd = fd[0] },
		.donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
		.replicas.wanted = 1,
		.replicas.choices = 2,
		.engine.backlog_most = SLOT_COUNT - fuse_frontend.slots,
		.replicas.seed = 5,
	};
	wiring_events(&b->s);
	slab_init(&b->s.engine.table, b->slabs, SLABS, SLAB_PAGES);
	b->s.engine.map = page_map_new(SLABS * SLAB_PAGES, SLAB_PAGES, true);
	assert_non_null(b->s.engine.map);
	wiring_frontend(&b->s);
	assert_int_equal(slots_init(&b->s.engine.slots, SLOT_COUNT, &e), 0);
	b->s.engine.backup.slots = &b->s.engine.slots;
}

static void borrower_free(struct client *b)
{
	donors_free(&b->s.donors);
	slots_free(&b->s.engine.slots);
	page_map_free(&b->s.engine.map);
	close(b->s.donors.env.epoll_fd);
	close(b->s.host.fd);
	close(b->kernel);
}

/* What the event loop does, until slab @index is no longer being asked for. */
static void settle(struct client *b, uint32_t index)
{
	struct donor *d = &b->s.donors.donor[0];

	for (int i = 0; i < 600 && slab_state(&b->slabs[index]) == SLAB_MAPPING; i++) {
		struct pollfd p = { .fd = d->link.fd, .events = POLLIN };

		donors_flush(&b->s.donors);
		if (poll(&p, 1, 100) > 0)
			donor_event(d, (uint32_t)p.revents);
	}
	while (engine_run(&b->s.engine))
		;
}

/* Starts a request; @data is what a WRITE brings. */
static void request(struct client *b, enum slot_kind kind, uint32_t first, uint32_t count,
		    const void *data)
{
	struct slot *slot = slot_get(&b->s.engine.slots);

	slot->kind = kind;
	slot->unique = first + 1;
	slot->first = first;
	slot->count = count;
	if (data)
		memcpy(slot->payload, data, count * PAGE);
	engine_start(&b->s.engine, slot);
	while (engine_run(&b->s.engine))
		;
}

/* The answer that came to the kernel: its error, and its data in @data. */
static int answered(struct client *b, uint32_t first, void *data, size_t size)
{
	static uint8_t buf[SLOT_BYTES + 64];
	struct fuse_out_header out;
	ssize_t n = recv(b->kernel, buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	memcpy(&out, buf, sizeof(out));
	assert_int_equal(out.len, n);
	assert_int_equal(out.unique, first + 1);
	if (data && !out.error) {
		assert_int_equal(n, sizeof(out) + size);
		memcpy(data, buf + sizeof(out), size);
	}
	return out.error;
}

/* The backup thread that is not there has done all its jobs. */
static void back_up(struct client *b, int result)
{
	struct backup_lane *lanes[] = { &b->s.engine.backup.queue, &b->s.engine.backup.reads };
	struct slot *slot;

	for (int l = 0; l < 2; l++)
		while (lanes[l]->completed != lanes[l]->submitted)
			b->s.engine.slots.slot[lanes[l]->jobs[lanes[l]->completed++ % SLOT_COUNT]]
				.backup_result = result;
	while ((slot = backup_reap(&b->s.engine.backup)))
		engine_backed(&b->s.engine, slot);
	while (engine_run(&b->s.engine))
		;
}

/* --- a donor in a thread -------------------------------------------------------- */

struct lending {
	struct pool pool;
	struct loop *lender;
	struct address address;
	pthread_t thread;
};

static void *lending_main(void *data)
{
	struct lending *l = data;

	loop_run(l->lender);
	return NULL;
}

/* At a second address, too, unless that is NULL. */
static void lending_start(struct lending *l, struct address *second)
{
	struct lending_options options = { 0 };
	struct error e = { 0 };

	memset(l, 0, sizeof(*l));
	parse(&l->address, "donor");
	setenv("EBB_RUN_DIR", directory, 1);
	assert_int_equal(pool_init(&l->pool, SLABS * SLAB, SLAB, LEND_SHARED, &e), 0);
	assert_int_equal(loop_new(&l->lender, &l->pool, &options, &e), 0);
	assert_int_equal(loop_listen(l->lender, &l->address, &e), 0);
	assert_true(!second || loop_listen(l->lender, second, &e) == 0);
	assert_int_equal(loop_start(l->lender, &e), 0);
	assert_int_equal(pthread_create(&l->thread, NULL, lending_main, l), 0);
}

static void lending_stop(struct lending *l)
{
	struct timespec at_once = { 0 };
	sigset_t set;

	kill(getpid(), SIGTERM); /* blocked everywhere: it only makes a signalfd readable */
	pthread_join(l->thread, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigtimedwait(&set, NULL, &at_once);
	loop_free(&l->lender);
	pool_free(&l->pool);
}

static void add_donor(struct swapd *s, const char *text)
{
	struct error e = { 0 };
	int i = donor_new(&s->donors, text, &e);

	assert_true(i >= 0);
	assert_int_equal(donor_join(&s->donors.donor[i], &e), 0);
}

/* --- tests ------------------------------------------------------------------------ */

static void pages_through_shared_memory(void **state)
{
	static struct client b;
	static uint8_t data[8 * PAGE], got[8 * PAGE];
	struct lending l;

	lending_start(&l, NULL);
	borrower_init(&b);
	add_donor(&b.s, l.address.text);
	assert_string_equal(b.s.donors.donor[0].link.transport->name, "shm");
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 31 >> 5);

	/* The first write of a slab waits for the slab, and for nothing else. */
	request(&b, SLOT_WRITE, 3, 8, data);
	assert_int_equal(answered(&b, 3, NULL, 0), -EAGAIN);
	settle(&b, 0);
	assert_int_equal(slab_state(&b.slabs[0]), SLAB_MAPPED);
	assert_int_equal(answered(&b, 3, NULL, 0), 0);
	assert_memory_equal(b.slabs[0].copy[0].mapping.memory + 3 * PAGE, data, sizeof(data));
	/* It is the donor's memory. */
	assert_memory_equal(l.pool.memory + b.slabs[0].copy[0].mapping.remote * (size_t)SLAB +
				    3 * PAGE,
			    data, sizeof(data));
	request(&b, SLOT_WRITE, 40, 1, data);
	assert_int_equal(answered(&b, 40, NULL, 0), 0);

	request(&b, SLOT_READ, 3, 8, NULL);
	assert_int_equal(answered(&b, 3, got, sizeof(got)), 0);
	assert_memory_equal(got, data, sizeof(data));
	/* Part of it was never written: pieces from two places. */
	memset(got, 1, sizeof(got));
	request(&b, SLOT_READ, 7, 8, NULL);
	assert_int_equal(answered(&b, 7, got, sizeof(got)), 0);
	assert_memory_equal(got, data + 4 * PAGE, 4 * PAGE);
	for (size_t i = 4 * PAGE; i < sizeof(got); i++)
		assert_int_equal(got[i], 0);
	assert_int_equal(b.s.count->read_donor, 12);
	assert_int_equal(b.s.count->written_donor, 9);
	assert_int_equal(b.s.engine.slots.active_count, 0);
	back_up(&b, 0);
	assert_int_equal(b.s.engine.slots.free_count, SLOT_COUNT);

	/* The donor goes, orderly or not: what it held comes from the backup. */
	lending_stop(&l);
	donor_event(&b.s.donors.donor[0], EPOLLIN | EPOLLHUP);
	assert_int_equal(b.s.donors.donor[0].state, DONOR_DOWN);
	assert_int_equal(slab_state(&b.slabs[0]), SLAB_LOST);
	assert_null(b.slabs[0].copy[0].mapping.memory);
	request(&b, SLOT_READ, 3, 1, NULL);
	assert_int_equal(answered(&b, 3, NULL, 0), -EAGAIN);
	assert_int_equal(b.s.engine.need_backup, 1);
	back_up(&b, 0);
	assert_int_equal(answered(&b, 3, NULL, 0), 0);
	assert_int_equal(b.s.count->read_backup, 1);
	/* What is discarded is of no interest to the backup any more, nor it to us. */
	request(&b, SLOT_DISCARD, 3, 8, NULL);
	assert_int_equal(answered(&b, 3, NULL, 0), 0);
	assert_int_equal(backup_queued(&b.s.engine.backup), 0);
	assert_int_equal(b.s.engine.slots.free_count, SLOT_COUNT);
	request(&b, SLOT_READ, 3, 1, NULL);
	assert_int_equal(answered(&b, 3, got, PAGE), 0);
	for (size_t i = 0; i < PAGE; i++)
		assert_int_equal(got[i], 0);
	borrower_free(&b);
}

/* One donor at two addresses: the second is refused, and nothing of the first is lost. */
static void one_donor_at_two_addresses(void **state)
{
	static struct client b;
	static uint8_t page[PAGE] = { 1 };
	struct lending l;
	struct error e = { 0 };
	struct address second;
	struct donor *d;

	parse(&second, "second");
	lending_start(&l, &second);
	borrower_init(&b);
	add_donor(&b.s, l.address.text);
	request(&b, SLOT_WRITE, 0, 1, page);
	settle(&b, 0);
	assert_int_equal(answered(&b, 0, NULL, 0), 0);
	assert_int_equal(donor_new(&b.s.donors, second.text, &e), 1);
	assert_int_equal(donor_join(&b.s.donors.donor[1], &e), -EACCES);
	assert_non_null(strstr(e.text, l.address.text));
	assert_non_null(strstr(e.text, second.text));
	assert_non_null(strstr(e.text, "the same donor as"));
	assert_int_equal(b.s.donors.donor[0].state, DONOR_UP);
	request(&b, SLOT_WRITE, 1, 1, page);
	assert_int_equal(answered(&b, 1, NULL, 0), 0);
	/* It has not even been disturbed: the donor answers there. */
	b.s.donors.donor[0].ping_at = 0;
	donors_tick(&b.s.donors, now_ns());
	for (int i = 0; i < 600 && b.s.donors.donor[0].pinged; i++) {
		struct pollfd p = { .fd = b.s.donors.donor[0].link.fd, .events = POLLIN };

		donors_flush(&b.s.donors);
		if (poll(&p, 1, 100) > 0)
			donor_event(&b.s.donors.donor[0], (uint32_t)p.revents);
	}
	assert_int_equal(b.s.donors.donor[0].state, DONOR_UP);
	assert_int_equal(b.s.donors.donor[0].pinged, 0);
	/* When the first is lost, the second will do. */
	donor_lose(&b.s.donors.donor[0], "killed");
	b.s.donors.donor[0].retry_at = UINT64_MAX;
	d = &b.s.donors.donor[1];
	d->retry_at = 0;
	for (int i = 0; i < 3000 && d->state != DONOR_UP; i++) {
		struct pollfd p = { .events = POLLIN };

		donors_tick(&b.s.donors, now_ns());
		donors_flush(&b.s.donors);
		p.fd = d->link.fd;
		if (poll(&p, 1, 20) >= 0 && d->link.fd >= 0)
			donor_event(d, (uint32_t)p.revents | EPOLLOUT);
	}
	assert_int_equal(d->state, DONOR_UP);
	back_up(&b, 0);
	borrower_free(&b);
	lending_stop(&l);
}

static void a_full_donor_leaves_the_backup(void **state)
{
	static struct client b;
	static uint8_t page[PAGE] = { 1 };
	struct lending l;
	uint32_t slab, generation;

	lending_start(&l, NULL);
	for (int i = 0; i < SLABS; i++)
		assert_int_equal(lend(&l.pool, OWNER, &slab, &generation), WIRE_OK);
	borrower_init(&b);
	add_donor(&b.s, l.address.text);
	request(&b, SLOT_WRITE, 0, 1, page);
	settle(&b, 0);
	/* It has nowhere to go but the backup. */
	assert_int_equal(answered(&b, 0, NULL, 0), -EAGAIN);
	back_up(&b, 0);
	assert_int_equal(answered(&b, 0, NULL, 0), 0);
	assert_int_equal(b.s.count->written_backup_only, 1);
	borrower_free(&b);
	lending_stop(&l);
}

/* --- donors that hand over what is no slab ------------------------------------------ */

enum gift { GIFT_NONE, GIFT_UNSEALED, GIFT_SMALL, GIFT_PIPE, GIFT_MANY };

struct liar {
	int listen_fd;
	enum gift gift;
};

/*
 * In a thread, where an assertion would end the program without a report: returns false if the
 * borrower has closed the connection.
 */
static bool send_reply(int fd, struct wire_frame f, const void *payload, int gift, int times)
{
	uint8_t bytes[WIRE_HEADER + WIRE_DONOR_SIZE];
	char control[CMSG_SPACE(8 * sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct iovec iov = { bytes, WIRE_HEADER + f.length };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	f.direction = WIRE_REPLY;
	wire_build(bytes, &f);
	if (payload)
		memcpy(bytes + WIRE_HEADER, payload, f.length);
	if (gift >= 0) {
		struct cmsghdr *c = (void *)control;

		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(times * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(times * sizeof(int));
		for (int i = 0; i < times; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &gift, sizeof(int));
	}
	return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)iov.iov_len;
}

/* Reads the payload of @f; its thread as that of send_reply(). */
static bool receive_rest(int fd, const struct wire_frame *f, void *payload)
{
	return !f->length || recv(fd, payload, f->length, MSG_WAITALL) == (ssize_t)f->length;
}

static int make_gift(enum gift gift)
{
	int fd[2] = { -1, -1 };

	switch (gift) {
	case GIFT_NONE:
		break;
	case GIFT_PIPE:
		assert_int_equal(pipe(fd), 0);
		close(fd[1]);
		break;
	case GIFT_UNSEALED:
	case GIFT_SMALL:
	case GIFT_MANY:
		fd[0] = memfd_create("gift", MFD_ALLOW_SEALING);
		assert_int_equal(ftruncate(fd[0], gift == GIFT_SMALL ? PAGE : SLAB), 0);
		if (gift != GIFT_UNSEALED)
			fcntl(fd[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
		break;
	}
	return fd[0];
}

static void *liar_main(void *data)
{
	struct liar *l = data;
	struct wire_donor told = { .version = WIRE_VERSION, .slab_size = SLAB, .total = 4 * SLAB,
				   .free = 4 * SLAB };
	uint8_t bytes[WIRE_HEADER + WIRE_HELLO_SIZE], donor[WIRE_DONOR_SIZE];
	struct pollfd p = { .fd = l->listen_fd, .events = POLLIN };
	struct wire_frame f;
	int fd, gift;

	if (poll(&p, 1, 60000) <= 0)
		return NULL;
	fd = accept(l->listen_fd, NULL, NULL);
	wire_build_donor(donor, &told);
	while (recv(fd, bytes, WIRE_HEADER, MSG_WAITALL) == WIRE_HEADER &&
	       wire_parse(bytes, WIRE_HEADER, WIRE_AT_DONOR, &f) == 1 &&
	       receive_rest(fd, &f, bytes)) {
		if (f.op != WIRE_MAP) {
			f.length = WIRE_DONOR_SIZE;
			if (!send_reply(fd, f, donor, -1, 0))
				break;
			continue;
		}
		f.length = 0;
		f.generation = 1;
		gift = make_gift(l->gift);
		send_reply(fd, f, NULL, gift, l->gift == GIFT_MANY ? 6 : 1);
		if (gift >= 0)
			close(gift);
	}
	close(fd);
	return NULL;
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void a_gift_that_is_no_slab(void **state)
{
	static struct client b;
	static uint8_t page[PAGE] = { 1 };

	for (enum gift gift = GIFT_NONE; gift <= GIFT_MANY; gift++) {
		struct error e = { 0 };
		struct liar l = { .gift = gift };
		struct address a;
		pthread_t thread;
		int before = open_fds();

		parse(&a, "liar");
		l.listen_fd = local_listen(&a, &e);
		assert_true(l.listen_fd >= 0);
		assert_int_equal(pthread_create(&thread, NULL, liar_main, &l), 0);
		borrower_init(&b);
		add_donor(&b.s, a.text);
		request(&b, SLOT_WRITE, 0, 1, page);
		settle(&b, 0);
		assert_int_equal(slab_state(&b.slabs[0]), SLAB_LOST);
		assert_int_equal(b.s.donors.donor[0].state, DONOR_DOWN);
		assert_string_equal(b.s.donors.donor[0].why, "it broke the protocol");
		assert_null(b.slabs[0].copy[0].mapping.memory);
		pthread_join(thread, NULL);
		borrower_free(&b);
		close(l.listen_fd);
		unlink(local_path(&a));
		assert_int_equal(open_fds(), before);
	}
}

/* --- a donor that answers what it has not got --------------------------------------- */

struct hasty {
	int listen_fd, fd;
	struct wire_frame asked; /* the WRITE whose header it has read, and no more */
};

static void *hasty_main(void *data)
{
	struct hasty *h = data;
	struct wire_donor told = { .version = WIRE_VERSION, .slab_size = SLAB, .total = 4 * SLAB,
				   .free = 4 * SLAB };
	uint8_t bytes[WIRE_HEADER + WIRE_HELLO_SIZE], donor[WIRE_DONOR_SIZE];
	struct wire_frame f;

	h->fd = accept(h->listen_fd, NULL, NULL);
	wire_build_donor(donor, &told);
	while (recv(h->fd, bytes, WIRE_HEADER, MSG_WAITALL) == WIRE_HEADER &&
	       wire_parse(bytes, WIRE_HEADER, WIRE_AT_DONOR, &f) == 1 && f.op != WIRE_WRITE &&
	       receive_rest(h->fd, &f, bytes)) {
		f.generation = 1;
		f.length = f.op == WIRE_MAP ? 0 : WIRE_DONOR_SIZE;
		if (!send_reply(h->fd, f, f.length ? donor : NULL, -1, 0))
			break;
	}
	h->asked = f;
	return NULL;
}

/* Buffers are small: a WRITE does not fit. */
static void hasty_listen(struct hasty *h, char *text, size_t size)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	int bytes = 4096;

	h->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(h->listen_fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	assert_int_equal(bind(h->listen_fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(h->listen_fd, 1), 0);
	assert_int_equal(getsockname(h->listen_fd, (struct sockaddr *)&sa, &len), 0);
	snprintf(text, size, "127.0.0.1:%d", ntohs(sa.sin_port));
}

/* The rest of what it was asked leaves, and it reads it. */
static void hasty_read(struct hasty *h, struct client *b)
{
	static uint8_t data[SLOT_BYTES];
	size_t got = 0;

	while (got < h->asked.length) {
		struct pollfd p = { .fd = h->fd, .events = POLLIN };

		donor_event(&b->s.donors.donor[0], EPOLLOUT);
		assert_true(poll(&p, 1, 60000) > 0);
		got += (size_t)recv(h->fd, data, sizeof(data), 0);
	}
}

/*
 * The slot of an answered WRITE is reused: unsent bytes of it would be sent then,
 * with another page in it, before sealing or after opening.
 */
static void an_answer_to_what_has_not_left(void **state)
{
	static struct client b;
	static uint8_t data[SLOT_BYTES];
	struct donor *d = &b.s.donors.donor[0];
	int bytes = 4096;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 31 >> 5);
	for (int early = 0; early < 2; early++) {
		struct pollfd p = { .events = POLLIN };
		uint8_t reply[WIRE_HEADER];
		struct hasty h = { .fd = -1 };
		pthread_t thread;
		char text[64];

		hasty_listen(&h, text, sizeof(text));
		assert_int_equal(pthread_create(&thread, NULL, hasty_main, &h), 0);
		borrower_init(&b);
		add_donor(&b.s, text);
		assert_string_equal(d->link.transport->name, "tcp");
		setsockopt(d->link.fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
		request(&b, SLOT_WRITE, 0, SLOT_PAGES, data);
		settle(&b, 0);
		donors_flush(&b.s.donors);
		pthread_join(thread, NULL);
		assert_int_equal(h.asked.op, WIRE_WRITE);
		assert_int_equal(d->link.tx.count, 1);
		if (!early)
			hasty_read(&h, &b);
		h.asked.direction = WIRE_REPLY;
		wire_build(reply, &h.asked);
		assert_int_equal(send(h.fd, reply, sizeof(reply), MSG_NOSIGNAL), sizeof(reply));
		p.fd = d->link.fd;
		assert_true(poll(&p, 1, 60000) > 0);
		donor_event(d, EPOLLIN);
		while (engine_run(&b.s.engine))
			;
		if (early) {
			assert_int_equal(d->state, DONOR_DOWN);
			assert_string_equal(d->why, "it broke the protocol");
			assert_int_equal(answered(&b, 0, NULL, 0), -EAGAIN);
			back_up(&b, 0);
		}
		assert_int_equal(answered(&b, 0, NULL, 0), 0);
		assert_int_equal(b.s.count->written_donor, early ? 0 : SLOT_PAGES);
		back_up(&b, 0);
		borrower_free(&b);
		close(h.fd);
		close(h.listen_fd);
	}
}

static void sockets_and_their_places(void **state)
{
	struct error e = { 0 };
	struct address a;
	char text[200] = "unix:/";
	int fd, pair[2];

	assert_int_equal(address_parse("unix:relative", "donor", &a, &e), -EINVAL);
	assert_non_null(strstr(e.text, "unix:/run/ebb/donor.sock"));
	memset(text + 6, 'x', 130);
	assert_int_equal(address_parse(text, "donor", &a, &e), -EINVAL);
	assert_int_equal(address_parse("unix:", "donor", &a, &e), -EINVAL);

	assert_int_equal(address_parse("rdma:127.0.0.1:7071", "donor", &a, &e), 0);
	assert_true(address_is_rdma(&a) && !address_is_local(&a));
	assert_string_equal(a.text, "rdma:127.0.0.1:7071");
	assert_int_equal(address_check("rdma:donor3", "donor", text, sizeof(text), &e), 0);
	assert_string_equal(text, "rdma:donor3:7070");
	assert_true(address_is_name(text) && !address_is_name("rdma:127.0.0.1:7071"));
	assert_int_equal(address_check("rdma:donor3", "donor", text, 12, &e), -EINVAL);
	assert_int_equal(address_parse("rdma:unix:/x", "donor", &a, &e), -EINVAL);

	e = (struct error){ 0 };
	parse(&a, "socket");
	fd = address_listen(&a, ADDRESS_LOOPBACK, &e);
	assert_true(fd >= 0);
	assert_int_equal(address_listen(&a, ADDRESS_LOOPBACK, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, "another path"));
	/* A socket left by a killed donor is replaced. */
	close(fd);
	fd = address_listen(&a, ADDRESS_LOOPBACK, &e);
	assert_true(fd >= 0);
	close(fd);
	unlink(local_path(&a));
	/* A file that is no socket is somebody's. */
	fd = open(local_path(&a), O_CREAT | O_WRONLY, 0600);
	assert_int_equal(address_listen(&a, ADDRESS_LOOPBACK, &e), -EADDRINUSE);
	close(fd);
	assert_int_equal(access(local_path(&a), F_OK), 0);
	unlink(local_path(&a));

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_true(local_peer_trusted(pair[0]));
	close(pair[0]);
	close(pair[1]);
}

/* --- descriptors in a stream ---------------------------------------------------------- */

struct arrival {
	struct stream_rx *rx;
	int fds[8];
	uint32_t count;
};

static int order_arrived(void *data, const struct wire_frame *f, void **payload)
{
	return 0;
}

static int order_finished(void *data, const struct wire_frame *f)
{
	struct arrival *o = data;

	o->fds[o->count++] = f->op == WIRE_MAP ? stream_take_fd(o->rx) : -1;
	return 0;
}

static void pair_for_descriptors(struct stream_rx *rx, struct stream_tx *tx, int fd[static 2])
{
	assert_int_equal(stream_rx_init(rx, WIRE_AT_BORROWER), 0);
	rx->takes_fds = true;
	assert_int_equal(stream_tx_init(tx, 8), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
}

static void descriptors_come_with_their_frames(void **state)
{
	static const struct stream_rx_ops ops = {
		.arrived = order_arrived, .finished = order_finished,
	};
	struct wire_frame map = { .op = WIRE_MAP, .direction = WIRE_REPLY };
	struct wire_frame unmap = { .op = WIRE_UNMAP, .direction = WIRE_REPLY };
	struct stream_rx rx;
	struct stream_tx tx;
	struct arrival o = { .rx = &rx };
	int fd[2], sent[2];

	pair_for_descriptors(&rx, &tx, fd);
	for (int i = 0; i < 2; i++) {
		sent[i] = memfd_create("x", 0);
		assert_int_equal(ftruncate(sent[i], 100 + i), 0);
		stream_push(&tx, &unmap, NULL, 0);
		stream_push_fd(&tx, &map, sent[i], 0);
		stream_push(&tx, &unmap, NULL, 0);
	}
	assert_int_equal(stream_flush(&tx, fd[1], NULL, NULL), 0);
	assert_int_equal(stream_receive(&rx, fd[0], 1 << 20, &ops, &o), 0);
	assert_int_equal(o.count, 6);
	for (int i = 0; i < 2; i++) {
		int got = o.fds[3 * i + 1];

		assert_int_equal(lseek(got, 0, SEEK_END), 100 + i);
		assert_true(fcntl(got, F_GETFD) & FD_CLOEXEC);
		assert_int_equal(o.fds[3 * i], -1);
		close(got);
		close(sent[i]);
	}
	/* An unclaimed descriptor is closed with the connection. */
	sent[0] = memfd_create("x", 0);
	stream_push_fd(&tx, &unmap, sent[0], 0);
	assert_int_equal(stream_flush(&tx, fd[1], NULL, NULL), 0);
	assert_int_equal(stream_receive(&rx, fd[0], 1 << 20, &ops, &o), 0);
	assert_int_equal(rx.fd_count, 1);
	sent[1] = rx.fds[0];
	stream_rx_reset(&rx);
	assert_int_equal(fcntl(sent[1], F_GETFD), -1);
	close(sent[0]);
	close(fd[0]);
	close(fd[1]);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

/* A descriptor that this process cannot have is known by its frame, and is no other frame's. */
static void a_descriptor_too_many(void **state)
{
	static const struct stream_rx_ops ops = {
		.arrived = order_arrived, .finished = order_finished,
	};
	struct wire_frame map = { .op = WIRE_MAP, .direction = WIRE_REPLY };
	struct rlimit old, few;
	struct stream_rx rx;
	struct stream_tx tx;
	struct arrival o = { .rx = &rx };
	int fd[2], sent[2];

	pair_for_descriptors(&rx, &tx, fd);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	for (int i = 0; i < 2; i++) {
		few = old;
		sent[i] = memfd_create("x", 0);
		assert_int_equal(ftruncate(sent[i], 100 + i), 0);
		stream_push_fd(&tx, &map, sent[i], 0);
		assert_int_equal(stream_flush(&tx, fd[1], NULL, NULL), 0);
		/* The lowest that is free is the first that is not allowed. */
		few.rlim_cur = (rlim_t)dup(sent[i]);
		close((int)few.rlim_cur);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, i ? &old : &few), 0);
		assert_int_equal(stream_receive(&rx, fd[0], 1 << 20, &ops, &o), 0);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
		close(sent[i]);
	}
	assert_int_equal(o.count, 2);
	assert_int_equal(o.fds[0], -EMFILE);
	assert_int_equal(lseek(o.fds[1], 0, SEEK_END), 101);
	assert_int_equal(stream_take_fd(&rx), -ENODATA);
	close(o.fds[1]);
	close(fd[0]);
	close(fd[1]);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_through_shared_memory),
		cmocka_unit_test(one_donor_at_two_addresses),
		cmocka_unit_test(a_full_donor_leaves_the_backup),
		cmocka_unit_test(a_gift_that_is_no_slab),
		cmocka_unit_test(an_answer_to_what_has_not_left),
		cmocka_unit_test(sockets_and_their_places),
		cmocka_unit_test(descriptors_come_with_their_frames),
		cmocka_unit_test(a_descriptor_too_many),
	};

	return cmocka_run_group_tests(tests, with_directory, without_directory);
}
