// SPDX-License-Identifier: GPL-2.0-or-later
/* The rate of page traffic: its sharing, bursts, and debts that outlast a connection. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "donord/session/rate.h"

#include <cmocka.h>

enum { PAYERS = 3 };
#define MIB (1ull << 20)
#define MS 1000000ull
#define RATE (100 * MIB) /* a second */
#define NOW (1000 * MS)

static struct payer payers[PAYERS];

static struct payer *join(const char *key, const char *address, uint16_t port)
{
	struct sockaddr_storage peer = { .ss_family = AF_INET };
	struct sockaddr_in *in = (struct sockaddr_in *)&peer;
	struct payer *p;

	in->sin_port = htons(port);
	assert_int_equal(inet_pton(AF_INET, address, &in->sin_addr), 1);
	p = payer_find(payers, PAYERS, key, &peer, NOW);
	p->users++;
	return p;
}

static int begin(void **state)
{
	memset(payers, 0, sizeof(payers));
	return 0;
}

/* All connections of a key, or without keys those of an address. */
static void shared(void **state)
{
	struct payer *a = join("", "10.0.0.1", 1), *b = join("", "10.0.0.2", 1);
	struct payer *k = join("key", "10.0.0.1", 1);
	char text[64];

	assert_true(a != b && a != k && b != k);
	assert_ptr_equal(join("", "10.0.0.1", 2), a);
	assert_ptr_equal(join("key", "10.0.0.9", 1), k);
	assert_string_equal(payer_text(a, text, sizeof(text)), "10.0.0.1");
	assert_string_equal(payer_text(k, text, sizeof(text)), "key");
}

static void bursts(void **state)
{
	struct payer *p = join("", "10.0.0.1", 1);
	uint64_t now = NOW;

	/* 10 MiB in a burst of 100 ms, and one request beyond. */
	for (int i = 0; i <= 10; i++) {
		assert_int_equal(payer_wait(p, RATE, now), 0);
		payer_charge(p, RATE, MIB, now);
	}
	assert_int_equal(payer_wait(p, RATE, now), 10 * MS);
	assert_int_equal(payer_wait(p, 0, now), 0);
	payer_hold(p, now);
	payer_hold(p, now + 4 * MS);
	assert_int_equal(payer_waited(p, now + 5 * MS), 5 * MS);
	now += 10 * MS;
	assert_int_equal(payer_wait(p, RATE, now), 0);
	payer_charge(p, RATE, MIB, now);
	assert_int_equal(payer_waited(p, now + 5 * MS), 10 * MS);
	/* Idle time is not saved up beyond a burst. */
	now += 10000 * MS;
	for (int i = 0; i <= 10; i++)
		payer_charge(p, RATE, MIB, now);
	assert_int_equal(payer_wait(p, RATE, now), 10 * MS);
}

/* Reconnecting pays no debt. */
static void debts(void **state)
{
	struct payer *p = join("key", "10.0.0.1", 1), *other;

	payer_charge(p, RATE, 100 * MIB, NOW);
	payer_hold(p, NOW);
	payer_leave(p, NOW + 3 * MS);
	assert_int_equal(payer_waited(p, NOW + 9 * MS), 3 * MS);
	other = join("other", "10.0.0.1", 1);
	assert_ptr_not_equal(other, p);
	assert_ptr_equal(join("key", "10.0.0.2", 1), p);
	assert_int_equal(payer_wait(p, RATE, NOW), 900 * MS);
	/* The one that owes least makes room. */
	payer_leave(p, NOW);
	payer_leave(other, NOW);
	join("third", "10.0.0.1", 1);
	assert_ptr_equal(join("fourth", "10.0.0.1", 1), other);
	assert_int_equal(payer_wait(other, RATE, NOW), 0);
	assert_ptr_equal(join("key", "10.0.0.1", 1), p);
}

/* A connection that ends while its request is held leaves none that waits. */
static void leaving(void **state)
{
	struct payer *p = join("key", "10.0.0.1", 1);

	assert_ptr_equal(join("key", "10.0.0.1", 2), p);
	payer_hold(p, NOW);
	payer_leave(p, NOW + 3 * MS);
	assert_int_equal(payer_waited(p, NOW + 9 * MS), 3 * MS);
	/* The request of the other one does. */
	payer_hold(p, NOW + 9 * MS);
	assert_int_equal(payer_waited(p, NOW + 11 * MS), 5 * MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(shared, begin),
		cmocka_unit_test_setup(bursts, begin),
		cmocka_unit_test_setup(debts, begin),
		cmocka_unit_test_setup(leaving, begin),
	};

	return cmocka_run_group_tests_name("rate", tests, NULL, NULL);
}
