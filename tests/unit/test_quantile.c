// SPDX-License-Identifier: GPL-2.0-or-later
#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "ebbctl/call.h"
#include "lib/base/text.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static void quantiles(void **state)
{
	/* 90 of 2^10..2^11 ns, 10 of 2^20..2^21 */
	struct json_object *h = json_object_new_array();

	assert_int_equal(histogram_quantile(h, 0.5), 0);
	assert_int_equal(histogram_quantile(NULL, 0.5), 0);
	for (int i = 0; i < 32; i++)
		json_object_array_add(h, json_object_new_int(i == 10 ? 90 : i == 20 ? 10 : 0));
	assert_in_range(histogram_quantile(h, 0.01), 1024, 1100);
	assert_in_range(histogram_quantile(h, 0.5), 1024 + 550, 1024 + 600);
	assert_int_equal(histogram_quantile(h, 0.9), 2048);
	assert_in_range(histogram_quantile(h, 0.99), (1 << 20) + 900000, 2 << 20);
	assert_int_equal(histogram_quantile(h, 1), 2 << 20);
	json_object_put(h);
}

static void ratios(void **state)
{
	struct json_object *row = json_tokener_parse(
		"{\"misses\":10,\"hits\":70,\"late\":20,\"prefetched\":100,\"miss_ns\":5,\"late_ns\":6}");
	struct json_object *empty = json_tokener_parse("{\"misses\":0,\"prefetched\":0}");

	daemon_derive(row);
	assert_float_equal(json_double(row, "coverage", -1), 0.9, 1e-9);
	assert_float_equal(json_double(row, "accuracy", -1), 0.9, 1e-9);
	assert_int_equal(json_double(row, "lost_ns", -1), 11);
	daemon_derive(empty);
	/* Nothing counted is not "0 %". */
	assert_true(json_object_object_get_ex(empty, "coverage", NULL));
	assert_null(json_member(empty, "coverage"));
	assert_null(json_member(empty, "accuracy"));
	json_object_put(row);
	json_object_put(empty);
}

static void parameters(void **state)
{
	const char *const good[] = { "a=1", "b=0" };
	const char *const bad[] = { "a", "=1", "a=", "a=x", "a=-1", "a=1 " };
	struct json_object *o = json_object_new_object(), *params;

	assert_int_equal(daemon_add_params(o, good, 2, NULL), 0);
	params = json_member(o, "params");
	assert_int_equal(json_double(params, "a", -1), 1);
	assert_int_equal(json_double(params, "b", -1), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };

		assert_true(daemon_add_params(o, bad + i, 1, &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
	}
	json_object_put(o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quantiles), cmocka_unit_test(ratios), cmocka_unit_test(parameters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
