// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/size.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static uint64_t size_of(const char *text)
{
	struct error e = { 0 };
	uint64_t v = 12345;

	assert_int_equal(size_parse(text, "x", &v, &e), 0);
	assert_int_equal(e.code, 0);
	return v;
}

static void sizes(void **state)
{
	assert_int_equal(size_of("0"), 0);
	assert_int_equal(size_of("4096"), 4096);
	assert_int_equal(size_of("4096B"), 4096);
	assert_int_equal(size_of("64K"), 65536);
	assert_int_equal(size_of("256M"), 256ULL << 20);
	assert_int_equal(size_of("256mib"), 256ULL << 20);
	assert_int_equal(size_of("256MB"), 256ULL << 20);
	assert_int_equal(size_of("1.5G"), 3ULL << 29);
	assert_int_equal(size_of("2T"), 2ULL << 40);
}

static void bad_sizes(void **state)
{
	static const char *const bad[] = {
		"", "M", "12Q", "-1", "+1", " 1", "1 M", "0x10", "inf", "nan", "1MM", "1iB", "1..5",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };
		uint64_t v = 77;

		assert_int_equal(size_parse(bad[i], "--mem", &v, &e), -EINVAL);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, "--mem"));
		assert_non_null(strstr(e.text, bad[i]));
		assert_int_equal(v, 77);
	}
}

static void lists_of_durations(void **state)
{
	static const char *const bad[] = { "", "0", "1m,", ",1m", "5m,1m", "1m,1m", "1m,x", "1,2,3,4" };
	uint64_t ns[3];
	uint32_t n = 3;

	assert_int_equal(durations_parse("1m,5m,30m", "--idle", ns, &n, NULL), 0);
	assert_int_equal(n, 3);
	assert_int_equal(ns[0], 60000000000ULL);
	assert_int_equal(ns[2], 1800000000000ULL);
	n = 3;
	assert_int_equal(durations_parse("2s", "--idle", ns, &n, NULL), 0);
	assert_int_equal(n, 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };

		n = 3;
		assert_int_equal(durations_parse(bad[i], "--idle", ns, &n, &e), -EINVAL);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, "--idle"));
	}
}

static uint32_t tenths_of(const char *text)
{
	struct error e = { 0 };
	uint32_t v = 12345;

	assert_int_equal(percent_parse(text, "x", 500, &v, &e), 0);
	assert_int_equal(e.code, 0);
	return v;
}

static void percentages(void **state)
{
	assert_int_equal(tenths_of("2%"), 20);
	assert_int_equal(tenths_of("2"), 20);
	assert_int_equal(tenths_of("2.5%"), 25);
	assert_int_equal(tenths_of("0.1"), 1);
	assert_int_equal(tenths_of("0.3%"), 3);
	assert_int_equal(tenths_of("50%"), 500);
	assert_int_equal(tenths_of("50.0%"), 500);
	assert_int_equal(tenths_of("0"), 0);
	assert_int_equal(tenths_of("off"), 0);
}

static void bad_percentages(void **state)
{
	static const char *const bad[] = {
		"", "%", "abc", "-1", "-1%", "+1", " 2", "2 %", "2%%", "2.55%", "0.01", "1e1", "0x2", "nan",
		"offf", "OFF", "50.1%", "51", "1e300", "99999999999999999999%",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };
		uint32_t v = 77;

		assert_true(percent_parse(bad[i], "slowdown", 500, &v, &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_int_equal(strncmp(e.text, "slowdown: '", 11), 0);
		assert_non_null(strstr(e.text, bad[i]));
		assert_int_equal(v, 77);
	}
}

static void too_large(void **state)
{
	struct error e = { 0 };
	uint64_t v = 77;

	assert_int_equal(size_of("9007199254740991"), 9007199254740991ULL);
	assert_int_equal(size_parse("8388608T", "x", &v, &e), -ERANGE);
	e.code = 0;
	assert_int_equal(size_parse("9223372036854775808", "x", &v, &e), -ERANGE);
	assert_int_equal(v, 77);
}

static void durations(void **state)
{
	static const struct { const char *text; uint64_t ns; } good[] = {
		{ "250ms", 250000000 }, { "2s", 2000000000 }, { "2", 2000000000 },
		{ "0.5", 500000000 }, { "1m", 60000000000 }, { "3us", 3000 }, { "1h", 3600000000000 },
	};
	static const char *const bad[] = { "", "s", "1x", "-1s", "1 s", "inf", "1e300h" };
	uint64_t v;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(duration_parse(good[i].text, "t", &v, NULL), 0);
		assert_int_equal(v, good[i].ns);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };

		assert_int_equal(duration_parse(bad[i], "--deadline", &v, &e), -EINVAL);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, "--deadline"));
	}
}

static void formats(void **state)
{
	char buf[16];

	assert_string_equal(size_format(0, buf, sizeof(buf)), "0 B");
	assert_string_equal(size_format(1023, buf, sizeof(buf)), "1023 B");
	assert_string_equal(size_format(1536, buf, sizeof(buf)), "1.5 KiB");
	assert_string_equal(size_format(256ULL << 20, buf, sizeof(buf)), "256 MiB");
	assert_string_equal(size_format(UINT64_MAX, buf, sizeof(buf)), "16384 PiB");
	assert_string_equal(duration_format(999, buf, sizeof(buf)), "999 ns");
	assert_string_equal(duration_format(12345, buf, sizeof(buf)), "12.3 us");
	assert_string_equal(duration_format(4000000, buf, sizeof(buf)), "4.0 ms");
	assert_string_equal(duration_format(1500000000, buf, sizeof(buf)), "1.5 s");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes), cmocka_unit_test(bad_sizes), cmocka_unit_test(too_large),
		cmocka_unit_test(percentages), cmocka_unit_test(bad_percentages),
		cmocka_unit_test(durations), cmocka_unit_test(lists_of_durations),
		cmocka_unit_test(formats),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
