// SPDX-License-Identifier: GPL-2.0-or-later
/* The exposition of a snapshot, and as much of HTTP as a scrape needs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ebbctl/live/exposition.h"
#include "ebbctl/live/http.h"

static char *expose(const char *json, enum exposition_format format)
{
	struct json_object *o = json_tokener_parse(json);
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	assert_non_null(o);
	exposition_write(f, o, format);
	fclose(f);
	json_object_put(o);
	return text;
}

static void has(const char *text, const char *part)
{
	if (!strstr(text, part))
		print_error("missing: %s\nin: %s\n", part, text);
	assert_non_null(strstr(text, part));
}

#define NOTHING "{\"ebbd\":null,\"cgroups\":[],\"devices\":[],\"donors\":[],\"lender\":null}"
#define CGROUP(name, more) \
	"{\"ebbd\":{\"version\":\"1\",\"abi\":2},\"cgroups\":[{\"name\":\"" name "\"," more "}]," \
	"\"devices\":[],\"donors\":[],\"lender\":null}"

static void without_a_daemon(void **unused)
{
	char *text = expose(NOTHING, EXPOSITION_OPENMETRICS);

	assert_string_equal(text, "# HELP ebb_up Whether ebbd answers.\n# TYPE ebb_up gauge\n"
				  "ebb_up 0\n# EOF\n");
	free(text);
}

static void two_formats(void **unused)
{
	char *text = expose(CGROUP("/x", "\"misses\":7"), EXPOSITION_OPENMETRICS);

	has(text, "# TYPE ebb_cgroup_misses counter\nebb_cgroup_misses_total{cgroup=\"/x\"} 7\n");
	has(text, "ebb_build_info{version=\"1\",abi=\"2\"} 1\n");
	assert_string_equal(text + strlen(text) - 6, "# EOF\n");
	free(text);
	text = expose(CGROUP("/x", "\"misses\":7"), EXPOSITION_PROMETHEUS);
	has(text, "# TYPE ebb_cgroup_misses_total counter\nebb_cgroup_misses_total{cgroup=\"/x\"} 7\n");
	assert_null(strstr(text, "# EOF"));
	free(text);
}

static void sources_of_requests(void **unused)
{
	char *text = expose("{\"ebbd\":{},\"cgroups\":[],\"devices\":[],\"donors\":[],\"sources\":["
			    "{\"name\":\"/x\",\"source\":\"near\",\"pages\":7,\"used\":3,"
			    "\"state\":\"backs off\",\"gain\":-0.25},"
			    "{\"name\":\"/y\",\"source\":\"streams\",\"pages\":9,"
			    "\"state\":\"gains\",\"gain\":null}]}", EXPOSITION_PROMETHEUS);

	has(text, "\nebb_cgroup_source_pages_total{cgroup=\"/x\",source=\"near\"} 7\n");
	has(text, "\nebb_cgroup_source_pages_total{cgroup=\"/y\",source=\"streams\"} 9\n");
	has(text, "\nebb_cgroup_source_used_pages_total{cgroup=\"/x\",source=\"near\"} 3\n");
	has(text, "\nebb_cgroup_source_backs_off{cgroup=\"/x\",source=\"near\"} 1\n");
	has(text, "\nebb_cgroup_source_backs_off{cgroup=\"/y\",source=\"streams\"} 0\n");
	has(text, "\nebb_cgroup_source_gain_ratio{cgroup=\"/x\",source=\"near\"} -0.25\n");
	assert_null(strstr(text, "gain_ratio{cgroup=\"/y\""));
	free(text);
}

static void labels_are_escaped(void **unused)
{
	char *text = expose(CGROUP("/a\\\\b\\\"c\\nd\\u00e9", "\"misses\":1"), EXPOSITION_PROMETHEUS);

	has(text, "cgroup=\"/a\\\\b\\\"c?d\303\251\"");
	free(text);
	/* No UTF-8: a lone continuation, a cut sequence, an overlong one, a surrogate. */
	text = expose(CGROUP("/\200.\303.\300\257.\355\240\200.\364\220\200\200", "\"misses\":1"),
		      EXPOSITION_PROMETHEUS);
	has(text, "cgroup=\"/?.?.??.???.????\"");
	free(text);
}

static void histograms_add_up(void **unused)
{
	char json[2048], *text;
	size_t len = (size_t)snprintf(json, sizeof(json), "\"miss_ns\":3000000000,\"miss_ns_log2\":[1");

	for (int i = 1; i < 32; i++)
		len += (size_t)snprintf(json + len, sizeof(json) - len, ",%d", i == 9 ? 10 : i == 20 ? 100 :
									      i == 31 ? 1000 : 0);
	snprintf(json + len, sizeof(json) - len, "]");
	{
		char whole[4096];

		snprintf(whole, sizeof(whole), "{\"ebbd\":{},\"cgroups\":[{\"name\":\"/x\",%s}]}", json);
		text = expose(whole, EXPOSITION_OPENMETRICS);
	}
	has(text, "# TYPE ebb_cgroup_miss_seconds histogram\n");
	/* 2^9 to 2^10 - 1 ns is below 1.024 us; so is what is below 2^9. */
	has(text, "ebb_cgroup_miss_seconds_bucket{cgroup=\"/x\",le=\"1.024e-06\"} 11\n");
	has(text, "ebb_cgroup_miss_seconds_bucket{cgroup=\"/x\",le=\"0.001048576\"} 11\n");
	has(text, "ebb_cgroup_miss_seconds_bucket{cgroup=\"/x\",le=\"0.002097152\"} 111\n");
	has(text, "ebb_cgroup_miss_seconds_bucket{cgroup=\"/x\",le=\"1.07374182\"} 111\n");
	has(text, "ebb_cgroup_miss_seconds_bucket{cgroup=\"/x\",le=\"+Inf\"} 1111\n");
	has(text, "ebb_cgroup_miss_seconds_sum{cgroup=\"/x\"} 3\n");
	has(text, "ebb_cgroup_miss_seconds_count{cgroup=\"/x\"} 1111\n");
	free(text);
}

static void absent_is_not_zero(void **unused)
{
	static const char json[] =
		"{\"ebbd\":null,\"cgroups\":[],\"lender\":null,\"donors\":[{\"device\":\"d\","
		"\"address\":\"h:1\",\"state\":\"down\",\"quarantined\":true,\"free\":5}],"
		"\"devices\":[{\"name\":\"d\",\"on\":true,\"server\":null,\"stats\":null},"
		"{\"name\":\"e\",\"on\":false,\"server\":{\"aborted\":false,\"backup\":{\"failing\":true},"
		"\"slabs\":{\"mapped\":3,\"lost\":1}},\"stats\":{\"requests\":9}}]}";
	char *text = expose(json, EXPOSITION_PROMETHEUS);

	has(text, "ebb_device_swap_on{device=\"d\"} 1\nebb_device_swap_on{device=\"e\"} 0\n");
	has(text, "ebb_device_up{device=\"d\"} 0\nebb_device_up{device=\"e\"} 1\n");
	has(text, "\nebb_device_aborted{device=\"e\"} 0\n");
	assert_null(strstr(text, "ebb_device_aborted{device=\"d\"}"));
	has(text, "ebb_device_backup_failing{device=\"e\"} 1\n");
	has(text, "ebb_device_slabs{device=\"e\",state=\"lost\"} 1\n");
	has(text, "ebb_device_requests_total{device=\"e\"} 9\n");
	has(text, "ebb_donor_up{device=\"d\",donor=\"h:1\"} 0\n");
	has(text, "ebb_donor_quarantined{device=\"d\",donor=\"h:1\"} 1\n");
	assert_null(strstr(text, "ebb_donor_total_bytes"));
	assert_null(strstr(text, "ebb_lender"));
	free(text);
}

static void far_memory_of_the_donor(void **unused)
{
	static const char json[] =
		"{\"ebbd\":null,\"cgroups\":[],\"devices\":[],\"donors\":[],\"lender\":{\"far\":{"
		"\"limit\":8192,\"used\":4096,\"fences\":3,\"recovered\":2,\"freed\":40,"
		"\"requests\":{\"read\":7,\"cas\":9},\"pools\":["
		"{\"name\":\"a\\\"b\",\"key\":\"spark\",\"bytes\":4096,\"extents\":5,\"live\":2},"
		"{\"name\":\"c\",\"bytes\":0,\"dead\":1,\"recovering\":1}]}}}";
	char *text = expose(json, EXPOSITION_OPENMETRICS);

	has(text, "\nebb_lender_far_limit_bytes 8192\n");
	has(text, "\nebb_lender_far_used_bytes 4096\n");
	has(text, "\nebb_lender_far_fences_total 3\n");
	has(text, "\nebb_lender_far_recovered_total 2\n");
	has(text, "\nebb_lender_far_freed_words_total 40\n");
	has(text, "# TYPE ebb_lender_far_requests counter\n"
		  "ebb_lender_far_requests_total{kind=\"read\"} 7\n"
		  "ebb_lender_far_requests_total{kind=\"cas\"} 9\n");
	has(text, "\nebb_lender_far_pool_bytes{pool=\"a\\\"b\",key=\"spark\"} 4096\n"
		  "ebb_lender_far_pool_bytes{pool=\"c\",key=\"\"} 0\n");
	has(text, "\nebb_lender_far_pool_extents{pool=\"a\\\"b\",key=\"spark\"} 5\n");
	has(text, "\nebb_lender_far_pool_members{pool=\"a\\\"b\",key=\"spark\"} 2\n");
	has(text, "\nebb_lender_far_pool_dead_members{pool=\"c\",key=\"\"} 1\n");
	has(text, "\nebb_lender_far_pool_recovering_members{pool=\"c\",key=\"\"} 1\n");
	free(text);
}

static void names_are_unique_and_proper(void **unused)
{
	for (const struct metric *a = metrics; a->name; a++) {
		size_t len = strlen(a->name);

		assert_int_equal(strspn(a->name, "abcdefghijklmnopqrstuvwxyz0123456789_"), len);
		assert_int_equal(strncmp(a->name, "ebb_", 4), 0);
		assert_true(len < 6 || strcmp(a->name + len - 6, "_total"));
		assert_int_equal(a->help[strlen(a->help) - 1], '.');
		for (const struct metric *b = a + 1; b->name; b++)
			assert_string_not_equal(a->name, b->name);
	}
}

static void requests_are_judged(void **unused)
{
	static const struct { const char *text; enum http_status status; bool open; } r[] = {
		{ "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", HTTP_OK, false },
		{ "GET /metrics?x=1 HTTP/1.0\n\n", HTTP_OK, false },
		{ "GET /metrics HTTP/1.1\r\nACCEPT: application/openmetrics-text;version=1.0.0,"
		  "text/plain;q=0.5\r\n\r\n", HTTP_OK, true },
		{ "GET /metrics HTTP/1.1\r\nAccept: text/plain, application/openmetrics-text;q=0.1\r\n\r\n",
		  HTTP_OK, false },
		{ "HEAD /metrics HTTP/1.1\r\n\r\n", HTTP_OK, false },
		{ "GET / HTTP/1.1\r\n\r\n", HTTP_NOT_FOUND, false },
		{ "GET /metricsx HTTP/1.1\r\n\r\n", HTTP_NOT_FOUND, false },
		{ "GET /?/metrics HTTP/1.1\r\n\r\n", HTTP_NOT_FOUND, false },
		{ "POST /metrics HTTP/1.1\r\n\r\n", HTTP_NOT_ALLOWED, false },
		{ "GET /metrics HTTP/2.0\r\n\r\n", HTTP_VERSION, false },
		{ "GET /metrics\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "GET  HTTP/1.1\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "GET /metrics HTTP/1.1 x\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "GET /metrics HTTP/1.1\r\nA : b\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "GET /metrics HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "\r\n\r\n", HTTP_BAD_REQUEST, false },
		{ "", HTTP_BAD_REQUEST, false },
		{ "GET", HTTP_BAD_REQUEST, false },
		{ "\026\003\001\n\n", HTTP_BAD_REQUEST, false },
	};

	for (size_t i = 0; i < sizeof(r) / sizeof(r[0]); i++) {
		struct http_request q;
		enum http_status status = http_judge(r[i].text, &q);

		if (status != r[i].status)
			print_error("%s: %d\n", r[i].text, status);
		assert_int_equal(status, r[i].status);
		assert_int_equal(q.openmetrics, r[i].open);
	}
}

/* Whatever it is: no crash, and no answer that is not one. */
static void arbitrary_requests(void **unused)
{
	static const char pieces[][12] = { "GET ", "/metrics", " HTTP/1.1", "\r\n", "\n", ":", " ", "\t",
					   "Accept", "HTTP/", "?", "1.0", "HEAD", "\377", "text/plain" };
	struct http_request q;
	uint32_t x = 1;

	for (int i = 0; i < 20000; i++) {
		char text[160] = "";

		for (int n = 0; n < 10; n++) {
			x = x * 1664525 + 1013904223;
			strcat(text, pieces[(x >> 16) % (sizeof(pieces) / sizeof(pieces[0]))]);
		}
		switch (http_judge(text, &q)) {
		case HTTP_OK: case HTTP_BAD_REQUEST: case HTTP_NOT_FOUND: case HTTP_NOT_ALLOWED:
		case HTTP_VERSION: break;
		default: assert_true(false);
		}
	}
}

static void reading_is_bounded(void **unused)
{
	char big[HTTP_REQUEST_MOST + 1], text[HTTP_REQUEST_MOST + 1];
	int pair[2];

	memset(big, 'a', sizeof(big));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(write(pair[1], big, sizeof(big)), sizeof(big));
	assert_int_equal(http_read(pair[0], text, sizeof(text)), HTTP_TOO_LARGE);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(write(pair[1], "GET /\0\r\n\r\n", 10), 10);
	assert_int_equal(http_read(pair[0], text, sizeof(text)), HTTP_BAD_REQUEST);
	assert_int_equal(write(pair[1], "GET /metr", 9), 9);
	shutdown(pair[1], SHUT_WR);
	assert_int_equal(http_read(pair[0], text, sizeof(text)), HTTP_BAD_REQUEST);
	close(pair[0]);
	close(pair[1]);
}

static void an_answer(void **unused)
{
	const struct http_request get = { .head = false }, head = { .head = true };
	char text[1024];
	ssize_t n;
	int pair[2];

	for (int i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
		shutdown(pair[1], SHUT_WR);
		assert_int_equal(http_answer(pair[0], HTTP_OK, i ? &head : &get, "text/plain", "body\n", 5), 0);
		n = recv(pair[1], text, sizeof(text) - 1, MSG_WAITALL);
		assert_true(n > 0);
		text[n] = '\0';
		assert_int_equal(strncmp(text, "HTTP/1.1 200 OK\r\n", 17), 0);
		has(text, "Content-Length: 5\r\n");
		has(text, "Connection: close\r\n");
		assert_string_equal(strstr(text, "\r\n\r\n") + 4, i ? "" : "body\n");
		close(pair[0]);
		close(pair[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_daemon), cmocka_unit_test(two_formats),
		cmocka_unit_test(sources_of_requests), cmocka_unit_test(labels_are_escaped),
		cmocka_unit_test(histograms_add_up),
		cmocka_unit_test(absent_is_not_zero), cmocka_unit_test(far_memory_of_the_donor),
		cmocka_unit_test(names_are_unique_and_proper),
		cmocka_unit_test(requests_are_judged), cmocka_unit_test(arbitrary_requests),
		cmocka_unit_test(reading_is_bounded), cmocka_unit_test(an_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
