// SPDX-License-Identifier: GPL-2.0-or-later
/* A donor that is known by a name, whose meaning changes; donors are sockets here. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/wire/tcp.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define MS 1000000ull
#define NAME "localhost:7"

static struct swapd s;
static struct shared shared;
static struct slab slab;

/* The name's addresses, and the fake name server. */
static struct address meaning[RESOLVER_PLACES];
static int meanings;
static uint32_t asked;
static sem_t tell;

static int look_up(const char *text, struct address *found, int most)
{
	__atomic_add_fetch(&asked, 1, __ATOMIC_RELEASE);
	assert_string_equal(text, NAME);
	while (sem_wait(&tell) < 0)
		;
	assert_true(meanings <= most);
	memcpy(found, meaning, sizeof(meaning));
	return meanings;
}

/* A donor's socket; one that does not listen refuses. */
static int make_place(struct address *a, bool listens)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_int_equal(tcp_parse("127.0.0.1:0", "test", a, NULL), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a->sa, a->len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a->sa, &a->len), 0);
	assert_true(!listens || listen(fd, 4) == 0);
	return fd;
}

static void begin(void)
{
	struct error e = { 0 };

	asked = 0;
	sem_init(&tell, 0, 0);
	s = (struct swapd){
		.options = { .name = "unit", .slab = 1 << 20, .deadline = 500 * MS },
		.shared = &shared,
		.count = &shared.counters,
		.frontend = &fuse_frontend,
		.replicas.wanted = 1,
		.replicas.choices = 2,
		.replicas.seed = 5,
		.engine.backup = { .fd = -1 },
		.donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
		.donors.resolver.look_up = look_up,
	};
	wiring_events(&s);
	slab_init(&s.engine.table, &slab, 1, 256);
	assert_int_equal(resolver_start(&s.donors.resolver, MAX_DONORS, &e), 0);
	assert_int_equal(donor_new(&s.donors, NAME, &e), 0);
	assert_true(s.donors.donor[0].place_count >= 1);
}

static void end(void)
{
	resolver_stop(&s.donors.resolver);
	donors_free(&s.donors);
	close(s.donors.env.epoll_fd);
	sem_destroy(&tell);
}

/* Ticks and events, as the loop has them, until @fd has a connection, or @ms are over. */
static bool called(int fd, uint64_t ms)
{
	uint64_t until = now_ns() + ms * MS;
	struct donor *d = &s.donors.donor[0];

	while (now_ns() < until) {
		struct pollfd p = { .fd = d->link.fd, .events = POLLIN | POLLOUT };
		int accepted;

		donors_tick(&s.donors, now_ns());
		p.fd = d->link.fd;
		if (d->link.fd >= 0 && poll(&p, 1, 10) > 0)
			donor_event(d, (uint32_t)p.revents);
		else
			usleep(2000);
		accepted = accept(fd, NULL, NULL);
		if (accepted >= 0) {
			close(accepted);
			return true;
		}
	}
	return false;
}

static void a_name_that_moves(void **state)
{
	struct address dead, second, third;
	int dead_fd = make_place(&dead, false), fd = make_place(&second, true);
	int third_fd = make_place(&third, true);
	struct donor *d = &s.donors.donor[0];

	begin();
	/* As it was when the device was made. */
	d->places[0] = dead;
	d->place_count = 1;
	meaning[0] = dead;
	meaning[1] = second;
	meanings = 2;
	donor_enter(d, now_ns());
	/* The donor is down and the name server slow: nothing waits for it. */
	assert_false(called(fd, 600));
	for (int i = 0; i < 60000 && !__atomic_load_n(&asked, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	assert_int_equal(__atomic_load_n(&asked, __ATOMIC_ACQUIRE), 1);
	/* It has two addresses now; the first is tried first. */
	sem_post(&tell);
	assert_true(called(fd, 60000));
	assert_int_equal(d->link.at.len, second.len);
	assert_true(address_same(&d->link.at, &second));
	assert_int_equal(d->place_count, 2);
	/* It was up, and is lost: the name means a third machine. */
	d->state = DONOR_UP;
	meaning[0] = third;
	meanings = 1;
	donor_lose(d, "killed");
	sem_post(&tell);
	assert_true(called(third_fd, 60000));
	assert_int_equal(__atomic_load_n(&asked, __ATOMIC_ACQUIRE), 2);
	assert_string_equal(d->address.text, NAME);
	end();
	close(dead_fd);
	close(fd);
	close(third_fd);
}

/* Without a key, and while no name server answers, it is looked for where it was. */
static void a_name_that_leads_astray(void **state)
{
	struct address here;
	int fd = make_place(&here, true);
	struct donor *d = &s.donors.donor[0];

	begin();
	d->places[0] = here;
	d->place_count = 1;
	donor_enter(d, now_ns());
	assert_true(called(fd, 60000));
	d->state = DONOR_UP;
	assert_int_equal(tcp_parse("10.1.2.3:7070", "test", &meaning[0], NULL), 0);
	meanings = 1;
	donor_lose(d, "killed");
	sem_post(&tell);
	assert_true(called(fd, 60000));
	assert_true(address_same(&d->link.at, &here));
	d->state = DONOR_UP;
	donor_lose(d, "killed");
	assert_true(called(fd, 60000));
	assert_int_equal(__atomic_load_n(&asked, __ATOMIC_ACQUIRE), 2);
	end();
	close(fd);
}

static void what_is_a_name(void **state)
{
	struct address found[4];

	assert_true(address_is_name("donor3"));
	assert_true(address_is_name("donor3.example:7070"));
	assert_false(address_is_name("127.0.0.1:7070"));
	assert_false(address_is_name("[::1]:7070"));
	assert_false(address_is_name("unix:/run/ebb/donor.sock"));
	assert_int_equal(address_resolve("127.0.0.1:7071", found, 4), 1);
	assert_string_equal(found[0].text, "127.0.0.1:7071");
	assert_int_equal(address_resolve(":", found, 4), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_a_name),
		cmocka_unit_test(a_name_that_moves),
		cmocka_unit_test(a_name_that_leads_astray),
	};

	return cmocka_run_group_tests_name("resolver", tests, NULL, NULL);
}
