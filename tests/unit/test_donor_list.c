// SPDX-License-Identifier: GPL-2.0-or-later
/* Lists of donors: configured, from etcd, and after changes in etcd. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/control/control.h"
#include "lib/discovery/donor_list.h"
#include "lib/discovery/etcd.h"

#define SECOND 1000000000ull

static void by_hand(void **unused)
{
	struct donor_list l = { .n = 0 };
	struct error e = { 0 };

	assert_int_equal(donor_list_parse(&l, " a:1, b ,[::1]:9\t10.0.0.7:7071,unix:/run/x.sock", "list", &e), 0);
	assert_int_equal(l.n, 5);
	assert_string_equal(l.v[0].address, "a:1");
	assert_string_equal(l.v[1].address, "b:7070");
	assert_string_equal(l.v[2].address, "[::1]:9");
	assert_string_equal(l.v[4].address, "unix:/run/x.sock");
	donor_list_free(&l);
	assert_int_equal(donor_list_parse(&l, "", "list", &e), 0);
	assert_int_equal(l.n, 0);
}

static void malformed_and_twice(void **unused)
{
	static const struct { const char *text; int code; const char *word; } bad[] = {
		{ "a:1,a:1", -EEXIST, "twice" }, { "b,b:7070", -EEXIST, "b:7070" },
		{ "a:0", -EINVAL, "a:0" }, { "a:70000", -EINVAL, "a:70000" }, { ":1", -EINVAL, ":1" },
		{ "a:", -EINVAL, "a:" }, { "a:b", -EINVAL, "a:b" }, { "::1", -EINVAL, "::1" },
		{ "a/b:1", -EINVAL, "a/b:1" }, { "http://a:1", -EINVAL, "http" }, { "a\x01:1", -EINVAL, "" },
		{ "a\":1", -EINVAL, "" }, { "unix:x", -EINVAL, "unix:x" }, { "a:1,,b:x", -EINVAL, "b:x" },
	};
	char longest[400];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct donor_list l = { .n = 0 };
		struct error e = { 0 };

		assert_int_equal(donor_list_parse(&l, bad[i].text, "--donors", &e), bad[i].code);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, "--donors"));
		assert_non_null(strstr(e.text, bad[i].word));
		donor_list_free(&l);
	}
	for (size_t n = 100; n < sizeof(longest); n++) {
		struct donor_list l = { .n = 0 };

		memset(longest, 'a', n);
		longest[n] = '\0';
		/* With ":7070" and the NUL it fits up to there. */
		assert_int_equal(donor_list_parse(&l, longest, "x", NULL),
				 n + 6 <= DONOR_ADDRESS_MAX ? 0 : -EINVAL);
		donor_list_free(&l);
	}
}

static void too_many(void **unused)
{
	struct donor_list l = { .n = 0 };
	char one[32];

	for (int i = 0; i < DONOR_LIST_MAX; i++) {
		snprintf(one, sizeof(one), "d%d:1", i);
		assert_int_equal(donor_list_add(&l, one, "x", NULL), 0);
	}
	assert_int_equal(donor_list_add(&l, "one-more:1", "x", NULL), -E2BIG);
	donor_list_free(&l);
}

/* @values: "KEY=VALUE" below the prefix; ends with NULL. */
static int from(struct donor_list *l, const char *const *values)
{
	struct etcd_pair v[8] = { 0 };
	struct etcd_pairs p = { .v = v };
	int bad;

	for (; values[p.n]; p.n++) {
		const char *equals = strchr(values[p.n], '=');

		snprintf(v[p.n].key, ETCD_KEY_MAX, "/d/%.*s", (int)(equals - values[p.n]), values[p.n]);
		snprintf(v[p.n].value, ETCD_VALUE_MAX, "%s", equals + 1);
	}
	assert_int_equal(donor_list_from_pairs(l, &p, "/d/", &bad), 0);
	return bad;
}

static void from_etcd(void **unused)
{
	struct donor_entry d = { .slab = 1 << 26, .total = 1ull << 40 };
	char value[ETCD_VALUE_MAX], pair[ETCD_VALUE_MAX + 32];
	const char *const values[] = {
		pair, "b:2={\"address\":\"c:3\"}", "b:2=", "b:2=[]", "x y:1={\"address\":\"x y:1\"}",
		"b={\"address\":\"b\"}", "b:2={\"address\":\"b:2\",\"total\":-1}",
		"unix:/run/x.sock={\"address\":\"unix:/run/x.sock\"}", NULL
	};
	struct donor_list l;

	strcpy(d.address, "a:1");
	assert_non_null(donor_entry_value(&d, value, sizeof(value)));
	assert_string_equal(value, "{\"address\":\"a:1\",\"slab\":67108864,\"total\":1099511627776}");
	assert_null(donor_entry_value(&d, value, 10));
	donor_entry_value(&d, value, sizeof(value));
	snprintf(pair, sizeof(pair), "a:1=%s", value);
	assert_int_equal(from(&l, values), 7);
	assert_int_equal(l.n, 1);
	assert_string_equal(l.v[0].address, "a:1");
	assert_int_equal(l.v[0].slab, d.slab);
	assert_int_equal(l.v[0].total, d.total);
	donor_list_free(&l);
}

static bool merge(struct donor_list *l, const char *now_there, uint64_t at)
{
	struct donor_list fresh = { .n = 0 };
	bool changed;

	assert_int_equal(donor_list_parse(&fresh, now_there, "x", NULL), 0);
	changed = donor_list_merge(l, &fresh, at, 6 * SECOND);
	assert_null(fresh.v);
	return changed;
}

static void expect(const struct donor_list *l, const char *addresses)
{
	struct donor_list want = { .n = 0 };

	assert_int_equal(donor_list_parse(&want, addresses, "x", NULL), 0);
	assert_true(donor_list_same(l, &want));
	donor_list_free(&want);
}

static void joining_and_leaving(void **unused)
{
	struct donor_list l = { .n = 0 };

	assert_true(merge(&l, "a:1,b:1", 1 * SECOND));
	assert_false(merge(&l, "b:1,a:1", 2 * SECOND));
	assert_true(merge(&l, "a:1,b:1,c:1", 3 * SECOND));
	/* A missing donor stays listed for a while, and is unchanged if it registers again. */
	assert_false(merge(&l, "a:1,b:1", 10 * SECOND));
	assert_true(donor_list_find(&l, "c:1")->missed);
	assert_false(merge(&l, "a:1,b:1,c:1", 15 * SECOND));
	assert_false(merge(&l, "a:1,b:1", 20 * SECOND));
	assert_false(merge(&l, "a:1,b:1", 25 * SECOND));
	expect(&l, "a:1,b:1,c:1");
	assert_true(merge(&l, "a:1,b:1", 26 * SECOND));
	expect(&l, "a:1,b:1");
	/* One leaves as another comes. */
	assert_true(merge(&l, "a:1,d:1", 30 * SECOND));
	expect(&l, "a:1,b:1,d:1");
	assert_true(merge(&l, "a:1,d:1", 40 * SECOND));
	expect(&l, "a:1,d:1");
	/* An etcd without any donor has lost its data. */
	assert_false(merge(&l, "", 50 * SECOND));
	assert_false(merge(&l, "", 500 * SECOND));
	assert_true(donor_list_frozen(&l));
	expect(&l, "a:1,d:1");
	donor_list_free(&l);
}

static void many_missing_at_once_stay_listed(void **unused)
{
	struct donor_list l = { .n = 0 };

	assert_false(donor_list_frozen(&l));
	assert_true(merge(&l, "a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1", 0));
	/* A fifth leaves within the grace: no more than is usual. */
	assert_false(merge(&l, "a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1", 1 * SECOND));
	assert_false(donor_list_frozen(&l));
	/* A third one before they are removed: none is, for as long as they are missing. */
	assert_false(merge(&l, "a:1,b:1,c:1,d:1,e:1,f:1,g:1", 5 * SECOND));
	assert_true(donor_list_frozen(&l));
	assert_int_equal(donor_list_missing(&l), 3);
	assert_false(merge(&l, "a:1", 7 * SECOND));
	assert_false(merge(&l, "a:1", 5000 * SECOND));
	assert_int_equal(l.n, 10);
	assert_int_equal(donor_list_missing(&l), 9);
	/* New donors are listed meanwhile. */
	assert_true(merge(&l, "a:1,k:1", 5001 * SECOND));
	assert_int_equal(l.n, 11);
	/* Once most are registered again, the others are removed. */
	assert_true(merge(&l, "a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,k:1", 5002 * SECOND));
	assert_false(donor_list_frozen(&l));
	expect(&l, "a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,k:1");
	donor_list_free(&l);
	/* One of two: a machine that is off. */
	assert_true(merge(&l, "a:1,b:1", 0));
	assert_false(merge(&l, "a:1", 1 * SECOND));
	assert_false(donor_list_frozen(&l));
	assert_true(merge(&l, "a:1", 7 * SECOND));
	donor_list_free(&l);
}

/* Donors with ever new addresses, as in containers. */
static void a_frozen_list_does_not_grow_for_ever(void **unused)
{
	struct donor_list l = { .n = 0 };

	for (uint64_t round = 0; round < 8; round++) {
		struct donor_list fresh = { .n = 0 };
		char one[32];

		for (int i = 0; i < DONOR_LIST_MAX / 2; i++) {
			snprintf(one, sizeof(one), "r%d-%d:1", (int)round, i);
			assert_int_equal(donor_list_add(&fresh, one, "x", NULL), 0);
		}
		donor_list_merge(&l, &fresh, (round + 1) * 10 * SECOND, 6 * SECOND);
		assert_true(l.n <= 2 * DONOR_LIST_MAX);
		assert_non_null(donor_list_find(&l, one));
	}
	donor_list_free(&l);
}

static bool chosen(struct json_object *list, const char *address)
{
	for (size_t i = 0; i < json_object_array_length(list); i++)
		if (!strcmp(json_object_get_string(json_object_array_get_idx(list, i)), address))
			return true;
	return false;
}

static void choosing_among_many(void **unused)
{
	struct donor_list l = { .n = 0 };
	int load[64] = { 0 }, kept = 0, all = 0;
	char name[32];

	for (int i = 0; i < 63; i++) {
		snprintf(name, sizeof(name), "10.0.0.%d:7070", i);
		assert_int_equal(donor_list_add(&l, name, "x", NULL), 0);
	}
	for (int b = 0; b < 200; b++) {
		struct json_object *before, *after, *again;
		char who[32];

		snprintf(who, sizeof(who), "machine%d/ebb0", b);
		before = donor_list_choose(&l, who, 1 << 20, 16);
		again = donor_list_choose(&l, who, 1 << 20, 16);
		assert_int_equal(json_object_array_length(before), 16);
		assert_true(json_object_equal(before, again));
		l.n++;
		if (b == 0) {
			l.n--;
			assert_int_equal(donor_list_add(&l, "10.0.0.63:7070", "x", NULL), 0);
		}
		after = donor_list_choose(&l, who, 1 << 20, 16);
		for (int i = 0; i < 64; i++) {
			snprintf(name, sizeof(name), "10.0.0.%d:7070", i);
			all += chosen(before, name);
			kept += chosen(before, name) && chosen(after, name);
			load[i] += chosen(after, name);
		}
		l.n--;
		json_object_put(before);
		json_object_put(after);
		json_object_put(again);
	}
	/*
	 * A new donor takes the place of one in 64 times 16, here of about a quarter of a
	 * borrower's one.
	 */
	assert_in_range(all - kept, 200 * 16 / 64 / 2, 200 * 16 / 64 * 2);
	/* 50 borrowers each, give or take: binomial, sigma 6.1. */
	for (int i = 0; i < 64; i++)
		assert_in_range(load[i], 25, 75);
	donor_list_free(&l);

	/* Few enough: all of them, in their order. */
	assert_int_equal(donor_list_parse(&l, "b:1,a:1", "x", NULL), 0);
	struct json_object *few = donor_list_choose(&l, "x", 1 << 20, 16);

	assert_string_equal(json_object_to_json_string_ext(few, 0), "[\"b:1\",\"a:1\"]");
	json_object_put(few);
	/* Those whose slabs are too small are of no use. */
	l.v[0].slab = 1 << 19;
	l.v[1].slab = 1 << 20;
	few = donor_list_choose(&l, "x", 1 << 20, 16);
	assert_string_equal(json_object_to_json_string_ext(few, 0), "[\"a:1\"]");
	json_object_put(few);
	donor_list_free(&l);
}

static void urls(void **unused)
{
	static const struct { const char *url, *word; } bad[] = {
		{ "", "no URL" }, { "10.0.0.1", "https" }, { "10.0.0.1:2379", "" },
		{ "ftp://a:1", "HTTPS" }, { "file:///etc/passwd", "" }, { "gopher://127.0.0.1", "HTTPS" },
		{ "http://10.0.0.1:2379", "loopback" }, { "http://localhost.example:1", "loopback" },
		{ "http://127.0.0.1.example:1", "loopback" }, { "http://[::2]:1", "loopback" },
		{ "https://u:p@a:1", "user" }, { "https://a:1/v3", "host and port" },
		{ "https://a:1/?x=1", "host and port" }, { "https://a:99999", "" }, { "https://", "" },
		{ "https://a:1#x", "host and port" },
	};
	static const char *const good[] = {
		"http://127.0.0.1:2379", "http://127.3.2.1:1/", "http://[::1]:2379", "http://localhost:2379",
		"https://etcd1.example:2379", "https://10.0.0.1:2379,https://10.0.0.2:2379",
	};
	struct etcd_config c;
	struct error e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		etcd_config_defaults(&c);
		e = (struct error){ 0 };
		assert_true(etcd_config_add(&c, bad[i].url, "--etcd", &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, bad[i].word));
	}
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		etcd_config_defaults(&c);
		e = (struct error){ 0 };
		assert_int_equal(etcd_config_add(&c, good[i], "--etcd", &e), 0);
	}
	assert_int_equal(c.endpoints, 2);
	assert_string_equal(c.endpoint[1], "https://10.0.0.2:2379");
	for (int i = 2; i < ETCD_ENDPOINTS; i++)
		assert_int_equal(etcd_config_add(&c, "https://a:1", "--etcd", &e), 0);
	assert_int_equal(etcd_config_add(&c, "https://a:1", "--etcd", &e), -E2BIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(malformed_and_twice),
		cmocka_unit_test(too_many),
		cmocka_unit_test(from_etcd),
		cmocka_unit_test(joining_and_leaving),
		cmocka_unit_test(many_missing_at_once_stay_listed),
		cmocka_unit_test(a_frozen_list_does_not_grow_for_ever),
		cmocka_unit_test(choosing_among_many),
		cmocka_unit_test(urls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
