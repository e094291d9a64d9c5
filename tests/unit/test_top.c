// SPDX-License-Identifier: GPL-2.0-or-later
/* What `top` makes of two snapshots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/live/snapshot.h"
#include "ebbctl/live/top_model.h"
#include "ebbctl/live/top_screen.h"
#include "ebbctl/live/top_view.h"
#include "ebbctl/verbs/verbs.h"
#include "lib/base/text.h"
#include "lib/control/control.h"

static const struct top_wish usual = { "misses", TOP_USUAL, "" };

static struct json_object *parse(const char *text)
{
	struct json_object *o = json_tokener_parse(text);

	assert_non_null(o);
	return o;
}

/* A cgroup called @name with so many misses; of them all in bucket @bucket. */
static struct json_object *cgroup(const char *name, int misses, int bucket)
{
	struct json_object *o = parse("{\"policy\":\"leap\",\"hits\":0,\"late\":0,\"wasted\":0,"
				      "\"swapped_in\":0,\"swapped_out\":0,\"memory\":4096}");
	struct json_object *h = json_object_new_array();

	for (int i = 0; i < 32; i++)
		json_object_array_add(h, json_object_new_int(i == bucket ? misses : 0));
	json_add_text(o, "path", name);
	json_add_text(o, "name", name);
	json_add_int(o, "misses", misses);
	json_object_object_add(o, "miss_ns_log2", h);
	return o;
}

static struct json_object *snapshot(int64_t seconds, struct json_object *a, struct json_object *b)
{
	struct json_object *o = parse("{\"ebbd\":null,\"devices\":[],\"donors\":[],\"cgroups\":[]}");

	json_add_int(o, "time_ns", seconds * 1000000000);
	if (a)
		json_object_array_add(json_member(o, "cgroups"), a);
	if (b)
		json_object_array_add(json_member(o, "cgroups"), b);
	return o;
}

static struct json_object *row(struct json_object *frame, const char *list, size_t i)
{
	return json_object_array_get_idx(json_member(frame, list), i);
}

static double number(struct json_object *row, const char *key)
{
	return json_double(row, key, -1);
}

static void sources_that_back_off(void **unused)
{
	struct json_object *x = cgroup("/x", 1, 1), *y = cgroup("/y", 1, 1), *b, *f;
	struct json_object *without;

	json_object_object_add(x, "sources", parse(
		"[{\"source\":\"streams\",\"state\":\"backs off\"},"
		"{\"source\":\"replay\",\"state\":\"gains\"},"
		"{\"source\":\"near\",\"state\":\"backs off\"}]"));
	json_object_object_add(y, "sources", parse("[{\"source\":\"near\",\"state\":\"gains\"}]"));
	b = snapshot(1, x, y);
	f = top_frame(NULL, b, &usual);
	for (size_t i = 0; i < 2; i++) {
		without = json_member(row(f, "cgroups", i), "without");
		if (!strcmp(json_text(row(f, "cgroups", i), "name", ""), "/x"))
			assert_string_equal(json_object_get_string(without), "streams, near");
		else
			assert_null(without);
	}
	json_object_put(f);
	json_object_put(b);
}

static void rates_and_ratios(void **unused)
{
	struct json_object *was = cgroup("/x", 100, 10), *is = cgroup("/x", 110, 10), *a, *b, *f, *r;

	json_add_int(was, "hits", 1000);
	json_add_int(is, "hits", 1080);
	json_add_int(is, "late", 10);
	json_add_int(is, "wasted", 30);
	json_add_int(is, "swapped_in", 7);
	json_add_int(is, "swapped_out", 1);
	json_object_object_add(was, "pressure", parse("{\"some_us\":500000,\"full_us\":0}"));
	json_object_object_add(is, "pressure", parse("{\"some_us\":1500000,\"full_us\":200000}"));
	a = snapshot(10, was, NULL);
	b = snapshot(12, is, NULL);
	f = top_frame(a, b, &usual);
	r = row(f, "cgroups", 0);
	assert_float_equal(number(f, "seconds"), 2, 1e-9);
	assert_float_equal(number(r, "misses_s"), 5, 1e-9);
	assert_float_equal(number(r, "hits_s"), 40, 1e-9);
	assert_float_equal(number(r, "late_s"), 5, 1e-9);
	assert_float_equal(number(r, "wasted_s"), 15, 1e-9);
	assert_float_equal(number(r, "in_s"), 3.5, 1e-9);
	assert_float_equal(number(r, "out_s"), 0.5, 1e-9);
	assert_float_equal(number(r, "coverage"), 0.9, 1e-9);
	assert_float_equal(number(r, "accuracy"), 0.75, 1e-9);
	assert_float_equal(number(r, "lateness"), 10.0 / 90, 1e-6);
	assert_float_equal(number(r, "some"), 0.5, 1e-9);
	assert_float_equal(number(r, "full"), 0.1, 1e-9);
	assert_float_equal(number(r, "memory"), 4096, 0);
	/* Only what came since is looked at: 10 in 2^10..2^11. */
	assert_in_range((int)number(r, "miss_p50_ns"), 1024 + 500, 1024 + 530);
	json_object_put(f);
	json_object_put(a);
	json_object_put(b);
}

/* A histogram that had many short misses shows the few long ones since. */
static void quantiles_are_of_the_interval(void **unused)
{
	struct json_object *was = cgroup("/x", 100000, 5), *is = cgroup("/x", 100000, 5), *a, *b, *f;

	json_object_array_put_idx(json_member(is, "miss_ns_log2"), 20, json_object_new_int(3));
	a = snapshot(1, was, NULL);
	b = snapshot(2, is, NULL);
	f = top_frame(a, b, &usual);
	assert_true(number(row(f, "cgroups", 0), "miss_p50_ns") >= 1 << 20);
	json_object_put(f);
	json_object_put(a);
	json_object_put(b);
}

static void what_is_not_known_is_null(void **unused)
{
	static const char *const keys[] = { "misses_s", "hits_s", "coverage", "accuracy", "lateness",
					    "miss_p50_ns", "miss_p99_ns", "some", "full" };
	struct json_object *a = snapshot(1, cgroup("/x", 50, 3), NULL);
	struct json_object *b = snapshot(2, cgroup("/x", 40, 3), cgroup("/new", 9, 3)), *f;

	for (int without = 0; without < 2; without++) {
		f = top_frame(without ? NULL : a, b, &usual);
		/* Counters reset, or a first sample. */
		for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
			if (without || (strcmp(keys[i], "hits_s") && strcmp(keys[i], "lateness")))
				assert_null(json_member(row(f, "cgroups", 0), keys[i]));
			assert_null(json_member(row(f, "cgroups", 1), keys[i]));
		}
		json_object_put(f);
	}
	assert_null(json_member(b, "ebbd"));
	json_object_put(a);
	json_object_put(b);
}

static const char *name_at(struct json_object *frame, size_t i)
{
	return json_text(row(frame, "cgroups", i), "name", "");
}

static void sorting_and_filtering(void **unused)
{
	struct json_object *a = snapshot(1, cgroup("/a", 0, 4), cgroup("/b/x", 0, 9));
	struct json_object *b = snapshot(2, cgroup("/a", 5, 4), cgroup("/b/x", 9, 9)), *f;
	struct top_wish w = usual;

	json_object_array_add(json_member(b, "cgroups"), cgroup("/c", 1, 1));
	f = top_frame(a, b, &w);
	assert_string_equal(name_at(f, 0), "/b/x");
	assert_string_equal(name_at(f, 1), "/a");
	assert_string_equal(name_at(f, 2), "/c");
	json_object_put(f);
	w.order = TOP_REVERSED;
	f = top_frame(a, b, &w);
	assert_string_equal(name_at(f, 0), "/a");
	/* Its rate is not known: last all the same. */
	assert_string_equal(name_at(f, 2), "/c");
	json_object_put(f);
	w = (struct top_wish){ "name", TOP_USUAL, "" };
	f = top_frame(a, b, &w);
	assert_string_equal(name_at(f, 0), "/a");
	assert_string_equal(name_at(f, 2), "/c");
	json_object_put(f);
	w.filter = "/x";
	f = top_frame(a, b, &w);
	assert_int_equal(json_object_array_length(json_member(f, "cgroups")), 1);
	assert_string_equal(name_at(f, 0), "/b/x");
	json_object_put(f);
	json_object_put(a);
	json_object_put(b);
}

static void every_sort_has_a_successor(void **unused)
{
	const char *name = "misses", *all = TOP_SORTS;
	int n = 1;

	for (const char *c = all; *c; c++)
		n += *c == '|';
	for (int i = 0; i < n; i++) {
		assert_non_null(strstr(all, name));
		name = top_next_sort(name);
	}
	assert_string_equal(name, "misses");
}

static void devices_and_donors(void **unused)
{
	static const char device[] =
		"{\"name\":\"ebb0\",\"state\":\"on\",\"used\":10,\"size\":20,\"stats\":{\"requests\":%d,"
		"\"pages_read_donor\":%d,\"waiting\":2},\"server\":{\"live\":5,\"mapped\":6,"
		"\"copies\":{\"missing\":1},\"backup\":{\"backlog\":3,\"backlog_most\":4},"
		"\"donors\":[{\"state\":\"up\"},{\"state\":\"down\"}]}}";
	struct json_object *a = snapshot(1, NULL, NULL), *b = snapshot(5, NULL, NULL), *f, *r;
	char text[1024];

	snprintf(text, sizeof(text), device, 100, 1000);
	json_object_array_add(json_member(a, "devices"), parse(text));
	snprintf(text, sizeof(text), device, 140, 1008);
	json_object_array_add(json_member(b, "devices"), parse(text));
	json_object_array_add(json_member(b, "devices"), parse("{\"name\":\"dead\",\"state\":\"DEAD\","
							       "\"server\":null,\"stats\":null}"));
	json_object_array_add(json_member(b, "donors"), parse("{\"address\":\"h:1\",\"device\":\"ebb0\","
				"\"state\":\"up\",\"leaving\":\"draining\",\"slabs\":2}"));
	f = top_frame(a, b, &usual);
	r = row(f, "devices", 0);
	assert_float_equal(number(r, "io_s"), 10, 1e-9);
	assert_float_equal(number(r, "read_s"), 2, 1e-9);
	assert_string_equal(json_text(r, "donors", ""), "1/2");
	assert_string_equal(json_text(r, "queue", ""), "3/4");
	assert_int_equal(json_int(r, "missing", 0), 1);
	r = row(f, "devices", 1);
	assert_null(json_member(r, "io_s"));
	assert_null(json_member(r, "queue"));
	assert_string_equal(json_text(row(f, "donors", 0), "state", ""), "up, draining");
	json_object_put(f);
	json_object_put(a);
	json_object_put(b);
}

static long looked_up; /* members of JSON objects */

json_bool __real_json_object_object_get_ex(const struct json_object *o, const char *key,
					   struct json_object **value);

json_bool __wrap_json_object_object_get_ex(const struct json_object *o, const char *key,
					   struct json_object **value)
{
	looked_up++;
	return __real_json_object_object_get_ex(o, key, value);
}

/* Returns @n cgroups, the last first if @step is -1, with @misses and their number misses. */
static struct json_object *many(int64_t seconds, int n, int step, int misses)
{
	struct json_object *o = snapshot(seconds, NULL, NULL);
	char name[16];

	for (int i = step > 0 ? 0 : n - 1; i >= 0 && i < n; i += step) {
		snprintf(name, sizeof(name), "/%d", i);
		json_object_array_add(json_member(o, "cgroups"), cgroup(name, misses + i, 3));
	}
	return o;
}

/* Also if none is at its former place in the list. */
static void cost_grows_with_the_number_of_cgroups(void **unused)
{
	const struct top_wish by_name = { "name", TOP_USUAL, "" };
	long of[2];

	for (int turn = 0; turn < 2; turn++) {
		int n = 100 << 2 * turn;
		struct json_object *a = many(1, n, 1, 0), *b = many(2, n, -1, 7), *f;

		looked_up = 0;
		f = top_frame(a, b, &by_name);
		of[turn] = looked_up;
		assert_int_equal(json_object_array_length(json_member(f, "cgroups")), n);
		for (int i = 0; i < n; i++)
			assert_float_equal(number(row(f, "cgroups", i), "misses_s"), 7, 1e-9);
		json_object_put(f);
		json_object_put(a);
		json_object_put(b);
	}
	/* Sorting costs a little more than four times as much. */
	assert_true(of[1] < 6 * of[0]);
}

/* --- the live view ------------------------------------------------------------ */

static int drawn, slices;

int __wrap_snapshot_take(struct json_object **out, struct error *e)
{
	*out = snapshot(1, cgroup("/x", 1, 1), NULL);
	return 0;
}

int __wrap_top_screen_open(struct top_screen **out, struct error *e) { return 0; }
void __wrap_top_screen_close(struct top_screen **p) {}

void __wrap_top_screen_draw(struct top_screen *s, const char *text, int *first, const char *bottom)
{
	drawn++;
}

/* A key after two slices, a resize after four. */
int __wrap_top_screen_key(struct top_screen *s, int timeout_ms)
{
	static const int keys[] = { TOP_KEY_NONE, TOP_KEY_NONE, 's', TOP_KEY_NONE, TOP_KEY_NONE,
				    TOP_KEY_RESIZED, TOP_KEY_NONE, TOP_KEY_NONE, 'q' };

	return keys[slices++];
}

static void screen_is_drawn_after_a_change_alone(void **unused)
{
	char *argv[] = { NULL };
	void *options = malloc(command_top.options_size);
	struct error e = { 0 };

	assert_non_null(options);
	memcpy(options, command_top.defaults, command_top.options_size);
	assert_int_equal(command_top.run(0, argv, options, &e), 0);
	free(options);
	assert_int_equal(slices, 9);
	/* The first snapshot, the key, the resize. */
	assert_int_equal(drawn, 3);
}

/* Returns whether the view of @snapshot, of cgroups whose name has @filter, says @words. */
static bool view_says(struct json_object *snapshot, const char *filter, const char *words)
{
	struct top_wish w = { "name", TOP_USUAL, filter };
	struct json_object *f = top_frame(NULL, snapshot, &w);
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	bool said;

	top_write(out, f, TOP_CGROUPS, TOP_PLAIN);
	fclose(out);
	said = strstr(text, words);
	free(text);
	json_object_put(f);
	return said;
}

static void why_no_cgroup_is_shown(void **unused)
{
	struct json_object *s = snapshot(1, cgroup("/a", 1, 1), NULL);

	json_object_object_add(s, "ebbd", parse("{}"));
	assert_true(view_says(s, "/b", "no cgroup with a policy matches the filter"));
	json_object_array_del_idx(json_member(s, "cgroups"), 0, 1);
	assert_true(view_says(s, "", "no cgroup has a policy; "));
	assert_true(view_says(s, "/b", "no cgroup has a policy; "));
	json_object_object_del(s, "ebbd");
	assert_true(view_says(s, "", "cgroups unknown: ebbd does not answer"));
	json_object_put(s);
}

/* Names are other people's: they are shown, and nothing else happens. */
static void names_do_not_steer_the_terminal(void **unused)
{
	static const struct column columns[] = { { "name", "CGROUP", COLUMN_TEXT }, { NULL } };
	struct json_object *b = snapshot(1, cgroup("/evil\033[2J\001\nname", 1, 1), NULL);
	struct json_object *f = top_frame(NULL, b, &usual);
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	top_write(out, f, TOP_CGROUPS, TOP_PLAIN);
	fclose(out);
	assert_null(strchr(text, 033));
	assert_null(strchr(text, TOP_HEAD));
	assert_non_null(strstr(text, "/evil?[2J?"));
	free(text);
	/* Nor in other verbs' tables, where letters of any language are welcome. */
	json_add_text(row(f, "cgroups", 0), "name", "/\033[2J\r\177\302\233m\302\240\303\274");
	out = open_memstream(&text, &len);
	output_table_to(out, json_member(f, "cgroups"), columns, "none");
	fclose(out);
	assert_non_null(strstr(text, "/?[2J????m\302\240\303\274\n"));
	free(text);
	/* In JSON they are escaped. */
	out = open_memstream(&text, &len);
	output_json(out, json_member(f, "cgroups"), JSON_C_TO_STRING_PRETTY);
	fclose(out);
	assert_non_null(strstr(text, "\"/\\u001b[2J\\r\\u007f\\u009bm\302\240\303\274\""));
	free(text);
	json_object_put(f);
	json_object_put(b);
}

static void pressure(void **unused)
{
	uint64_t some = 0, full = 0;

	assert_int_equal(pressure_parse("some avg10=0.00 avg60=1.00 avg300=0.10 total=12345\n"
					"full avg10=0.00 avg60=0.00 avg300=0.00 total=678\n",
					&some, &full), 0);
	assert_int_equal(some, 12345);
	assert_int_equal(full, 678);
	assert_true(pressure_parse("", &some, &full) < 0);
	assert_true(pressure_parse("some avg10=0.00\nfull total=1\n", &some, &full) < 0);
	assert_true(pressure_parse("some total=\nfull total=1\n", &some, &full) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sources_that_back_off),
		cmocka_unit_test(rates_and_ratios),
		cmocka_unit_test(quantiles_are_of_the_interval),
		cmocka_unit_test(what_is_not_known_is_null),
		cmocka_unit_test(sorting_and_filtering),
		cmocka_unit_test(every_sort_has_a_successor),
		cmocka_unit_test(devices_and_donors),
		cmocka_unit_test(cost_grows_with_the_number_of_cgroups),
		cmocka_unit_test(screen_is_drawn_after_a_change_alone),
		cmocka_unit_test(why_no_cgroup_is_shown),
		cmocka_unit_test(names_do_not_steer_the_terminal),
		cmocka_unit_test(pressure),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
