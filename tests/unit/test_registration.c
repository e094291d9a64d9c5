// SPDX-License-Identifier: GPL-2.0-or-later
/* The registration of a donor, in an etcd that the test plays. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/lock.h"
#include "lib/discovery/registration.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>
#undef fail

static struct {
	pthread_mutex_t lock;
	int64_t leases, holder; /* last lease given; lease of the key, 0 = none, -1 = absent */
	int64_t rival;          /* lease that gets the key before the next claim; 0 = none */
	int alive, finds, revoked; /* calls */
	int proposals;          /* calls that etcd writes to the disks of all its members */
	bool silent;            /* calls last until .over, whatever interrupts them */
	bool interrupted, over;
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void pause_ms(int ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000l };

	nanosleep(&t, NULL);
}

int etcd_open(struct etcd **out, const struct etcd_config *c, struct error *e)
{
	*out = (struct etcd *)&fake;
	return 0;
}

void etcd_close(struct etcd **p)
{
	*p = NULL;
}

void etcd_interrupt(struct etcd *t)
{
	HOLD(&fake.lock);

	fake.interrupted = true;
}

int etcd_grant(struct etcd *t, uint32_t ttl_s, int64_t *lease, struct error *e)
{
	HOLD(&fake.lock);

	fake.proposals++;
	*lease = ++fake.leases;
	return 0;
}

static bool is_silent(void)
{
	HOLD(&fake.lock);

	return fake.silent && !fake.over;
}

int etcd_keep_alive(struct etcd *t, int64_t lease, struct error *e)
{
	while (is_silent())
		pause_ms(10);
	HOLD(&fake.lock);

	fake.alive++;
	return 0;
}

int etcd_revoke(struct etcd *t, int64_t lease, struct error *e)
{
	HOLD(&fake.lock);

	fake.proposals++;
	fake.revoked++;
	if (fake.holder == lease)
		fake.holder = -1;
	return 0;
}

int etcd_claim(struct etcd *t, const char *key, const char *value, int64_t lease, struct error *e)
{
	HOLD(&fake.lock);

	fake.proposals++;
	if (fake.rival) {
		fake.holder = fake.rival;
		fake.rival = 0;
	}
	if (fake.holder == -1)
		fake.holder = lease;
	return fake.holder == lease ? 0 : fail(e, EEXIST, "etcd: %s is registered", key);
}

int etcd_find(struct etcd *t, const char *key, int64_t lease, struct error *e)
{
	HOLD(&fake.lock);

	fake.finds++;
	if (fake.holder == -1)
		return -ENOENT;
	return lease && fake.holder == lease ? 0 : fail(e, EEXIST, "etcd: %s is registered", key);
}

static int64_t key_holder(void)
{
	HOLD(&fake.lock);

	return fake.holder;
}

/* @holder: lease of the key, as in fake. */
static struct registration *start(int64_t holder)
{
	const struct donor_entry donor = { .address = "10.0.0.7:7070" };
	struct registration *r = NULL;
	struct error e = { 0 };
	struct etcd_config c;

	fake.leases = fake.alive = fake.finds = fake.revoked = fake.proposals = 0;
	fake.rival = 0;
	fake.holder = holder;
	fake.silent = fake.interrupted = fake.over = false;
	etcd_config_defaults(&c);
	assert_int_equal(registration_start(&r, &c, &donor, &e), 0);
	return r;
}

/* Lets rounds pass until the state is @state and the key's lease is @lease. */
static void expect(struct registration *r, enum registration_state state, int64_t lease)
{
	char cause[256];

	for (int i = 0; i < 3000; i++) {
		registration_return(r);
		pause_ms(1);
		if (registration_state(r, cause, sizeof(cause)) == state && key_holder() == lease)
			return;
	}
	assert_int_equal(registration_state(r, cause, sizeof(cause)), state);
	assert_int_equal(key_holder(), lease);
}

/* Lets @n rounds pass that change nothing; returns the number of proposals in them. */
static int proposals_in_rounds(struct registration *r, int n)
{
	int before, until;

	pthread_mutex_lock(&fake.lock);
	before = fake.proposals;
	until = fake.finds + n;
	pthread_mutex_unlock(&fake.lock);
	for (int i = 0; i < 3000; i++) {
		registration_return(r);
		pause_ms(1);
		HOLD(&fake.lock);

		if (fake.finds >= until)
			return fake.proposals - before;
	}
	return -1;
}

/* While nothing changes, etcd has nothing to write, whichever lease has the key. */
static void nothing_is_proposed_while_nothing_changes(void **unused)
{
	struct registration *r = start(-1);

	expect(r, REGISTRATION_THERE, 1);
	assert_int_equal(proposals_in_rounds(r, 100), 0);
	assert_in_range(fake.alive, 100, 1000);
	assert_int_equal(fake.proposals, 2); /* the lease and the key */
	pthread_mutex_lock(&fake.lock);
	fake.holder = 0;
	pthread_mutex_unlock(&fake.lock);
	expect(r, REGISTRATION_TRYING, 0);
	assert_int_equal(proposals_in_rounds(r, 100), 0);
	registration_stop(&r);
}

/* The key is another donor's, or that of this one before its restart. */
static void no_lease_is_granted_for_a_key_that_is_there(void **unused)
{
	static const int64_t holders[] = { 0, 77 };

	for (size_t i = 0; i < sizeof(holders) / sizeof(holders[0]); i++) {
		struct registration *r = start(holders[i]);

		expect(r, REGISTRATION_TRYING, holders[i]);
		assert_int_equal(proposals_in_rounds(r, 100), 0);
		pthread_mutex_lock(&fake.lock);
		fake.holder = -1;
		pthread_mutex_unlock(&fake.lock);
		expect(r, REGISTRATION_THERE, 1);
		registration_stop(&r);
	}
}

/* Another donor puts the key between this one's read and its claim. */
static void a_race_for_the_key_is_decided_by_the_claim(void **unused)
{
	struct registration *r = start(-1);

	fake.rival = 77;
	expect(r, REGISTRATION_TRYING, 77);
	pthread_mutex_lock(&fake.lock);
	assert_int_equal(fake.revoked, 1);
	fake.holder = -1;
	pthread_mutex_unlock(&fake.lock);
	expect(r, REGISTRATION_THERE, 2);
	registration_stop(&r);
}

/* Something deletes the key while the lease lives. */
static void a_deleted_key_is_put_again(void **unused)
{
	struct registration *r = start(-1);

	expect(r, REGISTRATION_THERE, 1);
	pthread_mutex_lock(&fake.lock);
	fake.holder = -1;
	pthread_mutex_unlock(&fake.lock);
	expect(r, REGISTRATION_THERE, 1);
	registration_stop(&r);
	assert_int_equal(fake.holder, -1);
	assert_int_equal(fake.revoked, 1);
	assert_int_equal(fake.leases, 1);
	assert_false(fake.interrupted);
}

/* Something overwrites the key, without a lease or with another one. */
static void an_overwritten_key_is_reported(void **unused)
{
	struct registration *r = start(-1);
	char cause[256];

	expect(r, REGISTRATION_THERE, 1);
	pthread_mutex_lock(&fake.lock);
	fake.holder = 0;
	pthread_mutex_unlock(&fake.lock);
	expect(r, REGISTRATION_TRYING, 0);
	assert_int_equal(registration_state(r, cause, sizeof(cause)), REGISTRATION_TRYING);
	assert_non_null(strstr(cause, "10.0.0.7:7070 is registered"));
	pthread_mutex_lock(&fake.lock);
	fake.holder = -1;
	pthread_mutex_unlock(&fake.lock);
	expect(r, REGISTRATION_THERE, 1);
	registration_stop(&r);
}

/* The donor ends although a call does not. */
static void a_silent_server_delays_the_end_by_seconds(void **unused)
{
	static struct registration *kept; /* by its thread: no leak */
	struct registration *r = kept = start(-1);
	uint64_t began;

	expect(r, REGISTRATION_THERE, 1);
	pthread_mutex_lock(&fake.lock);
	fake.silent = true;
	pthread_mutex_unlock(&fake.lock);
	registration_return(r);
	pause_ms(100);
	began = now_ns();
	registration_stop(&r);
	assert_null(r);
	assert_non_null(kept);
	assert_true(fake.interrupted);
	assert_true(now_ns() - began <
		    (REGISTRATION_STOP_MS + THREAD_END_MS + 2000) * 1000000ull);
	pthread_mutex_lock(&fake.lock);
	fake.over = true;
	pthread_mutex_unlock(&fake.lock);
	pause_ms(100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_proposed_while_nothing_changes),
		cmocka_unit_test(no_lease_is_granted_for_a_key_that_is_there),
		cmocka_unit_test(a_race_for_the_key_is_decided_by_the_claim),
		cmocka_unit_test(a_deleted_key_is_put_again),
		cmocka_unit_test(an_overwritten_key_is_reported),
		cmocka_unit_test(a_silent_server_delays_the_end_by_seconds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
