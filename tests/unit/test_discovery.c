// SPDX-License-Identifier: GPL-2.0-or-later
/* A borrower's list of donors, from an etcd that the test plays. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/json.h"
#include "lib/base/lock.h"
#include "lib/discovery/discovery.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>
#undef fail

enum { DONORS = 10 };

static struct {
	pthread_mutex_t lock;
	int64_t revision, asked; /* of the store; the last one that was asked for */
	int donors;              /* first ones that are there */
	bool other;              /* one more pair, which is not a donor's */
	int reads, looks;
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER };

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
}

int etcd_changed(struct etcd *t, const char *prefix, int64_t revision, struct etcd_pairs *out,
		 struct error *e)
{
	HOLD(&fake.lock);

	fake.asked = revision;
	fake.looks++;
	*out = (struct etcd_pairs){ .count = fake.donors + fake.other, .revision = fake.revision,
				    .found = revision < fake.revision };
	return 0;
}

int etcd_range(struct etcd *t, const char *prefix, struct etcd_pairs *out, struct error *e)
{
	HOLD(&fake.lock);

	fake.reads++;
	*out = (struct etcd_pairs){ .v = calloc(DONORS, sizeof(*out->v)), .n = fake.donors,
				    .found = fake.donors + fake.other,
				    .count = fake.donors + fake.other, .revision = fake.revision };
	for (int i = 0; i < out->n; i++) {
		snprintf(out->v[i].key, sizeof(out->v[i].key), "%s10.0.0.%d:7070", prefix, i);
		snprintf(out->v[i].value, sizeof(out->v[i].value),
			 "{\"address\":\"10.0.0.%d:7070\"}", i);
	}
	return 0;
}

static void set(int donors, bool other)
{
	HOLD(&fake.lock);

	fake.revision++;
	fake.donors = donors;
	fake.other = other;
}

static struct donors_config config(void)
{
	struct donors_config c;
	struct error e = { 0 };

	donors_config_defaults(&c);
	assert_int_equal(etcd_config_add(&c.etcd, "http://127.0.0.1:2379", "test", &e), 0);
	return c;
}

/* Lets rounds pass that begin after this call. */
static void turn(struct discovery *d)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	int before, now;

	pthread_mutex_lock(&fake.lock);
	before = now = fake.reads + fake.looks;
	pthread_mutex_unlock(&fake.lock);
	for (int i = 0; i < 10000 && now < before + 3; i++) {
		discovery_refresh(d);
		nanosleep(&moment, NULL);
		pthread_mutex_lock(&fake.lock);
		now = fake.reads + fake.looks;
		pthread_mutex_unlock(&fake.lock);
	}
	assert_true(now >= before + 3);
}

static void expect(struct discovery *d, int known, int missing, bool frozen)
{
	struct json_object *o;

	turn(d);
	o = discovery_summary(d);
	assert_int_equal(json_int(o, "known", -1), known);
	assert_int_equal(json_int(o, "missing", -1), missing);
	assert_int_equal(json_object_get_boolean(json_member(o, "frozen")), frozen);
	json_object_put(o);
}

static struct discovery *start(int donors)
{
	struct donors_config c = config();
	struct discovery *d = NULL;
	struct error e = { 0 };

	fake.revision = 1;
	set(donors, false);
	assert_int_equal(discovery_start(&d, &c, &e), 0);
	expect(d, donors, 0, false);
	return d;
}

static void reload(struct discovery *d)
{
	struct donors_config c = config();
	struct error e = { 0 };

	assert_int_equal(discovery_configure(d, &c, &e), 0);
}

/* A reload accepts what etcd has; if that is nothing, not what it has some time later. */
static void a_reload_while_etcd_is_empty_accepts_nothing(void **unused)
{
	struct discovery *d = start(DONORS);

	set(0, false);
	expect(d, DONORS, DONORS, true);
	reload(d);
	expect(d, DONORS, DONORS, true);
	/* They register again, one after the other. */
	set(1, false);
	expect(d, DONORS, DONORS - 1, true);
	set(DONORS, false);
	expect(d, DONORS, 0, false);
	discovery_stop(&d);
}

static void a_reload_accepts_the_list(void **unused)
{
	struct discovery *d = start(DONORS);

	set(3, false);
	expect(d, DONORS, DONORS - 3, true);
	reload(d);
	expect(d, 3, 0, false);
	discovery_stop(&d);
}

/* A pair that is no donor's is read once, not in each round. */
static void invalid_pairs_are_read_once(void **unused)
{
	struct discovery *d = start(DONORS);
	int reads;

	/* In place of a donor's: the number of pairs does not tell. */
	set(DONORS - 1, true);
	expect(d, DONORS, 1, false);
	set(DONORS, true);
	expect(d, DONORS, 0, false);
	reads = fake.reads;
	expect(d, DONORS, 0, false);
	assert_int_equal(fake.reads, reads);
	assert_int_equal(fake.asked, fake.revision);
	discovery_stop(&d);
}

static int in_a_directory(void **unused)
{
	static char directory[] = "/tmp/ebb-test-discovery-XXXXXX";

	if (!mkdtemp(directory))
		return -1;
	*unused = directory;
	return setenv("EBB_RUN_DIR", directory, 1);
}

static int remove_directory(void **directory)
{
	return rmdir(*directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reload_while_etcd_is_empty_accepts_nothing),
		cmocka_unit_test(a_reload_accepts_the_list),
		cmocka_unit_test(invalid_pairs_are_read_once),
	};

	return cmocka_run_group_tests(tests, in_a_directory, remove_directory);
}
