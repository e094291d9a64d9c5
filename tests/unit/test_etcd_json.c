// SPDX-License-Identifier: GPL-2.0-or-later
/* What etcd is sent, and what becomes of answers that are not etcd's. */
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

#include "lib/discovery/etcd_json.h"

static void expect_text(char *text, const char *want)
{
	assert_non_null(text);
	assert_string_equal(text, want);
	free(text);
}

static void requests(void **unused)
{
	expect_text(etcd_grant_text(10), "{\"TTL\":\"10\"}");
	expect_text(etcd_lease_text(INT64_MAX), "{\"ID\":\"9223372036854775807\"}");
	/* "/a/" up to, and without, "/a0" */
	expect_text(etcd_range_text(&(struct etcd_query){ .prefix = "/a/", .limit = 64 }),
		    "{\"key\":\"L2Ev\",\"range_end\":\"L2Ew\",\"limit\":\"64\"}");
	expect_text(etcd_range_text(&(struct etcd_query){ .prefix = "/a/", .from = "L2EvAA==",
							  .limit = 1, .revision = 41,
							  .keys_only = true }),
		    "{\"key\":\"L2EvAA==\",\"range_end\":\"L2Ew\",\"limit\":\"1\","
		    "\"min_mod_revision\":\"42\",\"keys_only\":true}");
	expect_text(etcd_range_text(&(struct etcd_query){ .key = "/a/b", .limit = 1 }),
		    "{\"key\":\"L2EvYg==\",\"limit\":\"1\"}");
	expect_text(etcd_claim_text("k", "v", 7),
		    "{\"compare\":[{\"key\":\"aw==\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],"
		    "\"success\":[{\"request_put\":{\"key\":\"aw==\",\"value\":\"dg==\",\"lease\":\"7\"}}],"
		    "\"failure\":[{\"request_range\":{\"key\":\"aw==\"}}]}");
	expect_text(etcd_authenticate_text("u", "a\"b"), "{\"name\":\"u\",\"password\":\"a\\\"b\"}");
}

static struct json_object *parse(const char *text)
{
	return etcd_answer_parse(text, strlen(text));
}

#define HEADER "\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"}"

/* As etcd 3.4.23 answers. */
static void good_answers(void **unused)
{
	struct json_object *o = parse("{" HEADER ",\"ID\":\"7587862\",\"TTL\":\"10\"}\n");
	struct etcd_pairs p = { .n = 0 };
	int64_t lease;
	uint32_t ttl;

	assert_int_equal(etcd_granted(o, &lease, &ttl), 0);
	assert_int_equal(lease, 7587862);
	assert_int_equal(ttl, 10);
	json_object_put(o);

	o = parse("{\"result\":{" HEADER ",\"ID\":\"7587862\",\"TTL\":\"10\"}}\n");
	assert_int_equal(etcd_kept_alive(o), 0);
	json_object_put(o);
	/* The lease is over: no TTL. */
	o = parse("{\"result\":{" HEADER ",\"ID\":\"7587862\"}}\n");
	assert_int_equal(etcd_kept_alive(o), -ESTALE);
	json_object_put(o);

	o = parse("{" HEADER ",\"kvs\":[{\"key\":\"aw==\",\"create_revision\":\"4\",\"mod_revision\":\"5\","
		  "\"version\":\"1\",\"value\":\"dg==\",\"lease\":\"9\"},{\"key\":\"aw==\",\"value\":\"!\"}],"
		  "\"count\":\"2\"}");
	assert_int_equal(etcd_ranged(o, &p), 0);
	assert_int_equal(p.n, 1); /* the second is none */
	assert_int_equal(p.found, 2);
	assert_null(p.next);
	assert_int_equal(p.count, 2);
	assert_int_equal(p.revision, 5);
	assert_string_equal(p.v[0].key, "k");
	assert_string_equal(p.v[0].value, "v");
	assert_int_equal(p.v[0].lease, 9);
	etcd_pairs_free(&p);
	json_object_put(o);

	/* There is more: behind "k", "kk" and "kkk", by a NUL. */
	for (int i = 0; i < 3; i++) {
		static const char *const key[][2] = {
			{ "aw==", "awA=" }, { "a2s=", "a2sA" }, { "a2tr", "a2trAA==" },
		};
		char text[256];

		snprintf(text, sizeof(text), "{" HEADER ",\"kvs\":[{\"key\":\"%s\"}],\"more\":true,"
			 "\"count\":\"2\"}", key[i][0]);
		o = parse(text);
		assert_int_equal(etcd_ranged(o, &p), 0);
		assert_string_equal(p.next, key[i][1]);
		etcd_pairs_free(&p);
		json_object_put(o);
	}

	o = parse("{" HEADER "}"); /* nothing there */
	assert_int_equal(etcd_ranged(o, &p), 0);
	assert_int_equal(p.n, 0);
	etcd_pairs_free(&p);
	json_object_put(o);

	o = parse("{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{" HEADER "}}]}");
	assert_int_equal(etcd_claimed(o, 9), 0);
	json_object_put(o);
	o = parse("{" HEADER ",\"responses\":[{\"response_range\":{" HEADER
		  ",\"kvs\":[{\"key\":\"aw==\",\"lease\":\"9\"}],\"count\":\"1\"}}]}");
	assert_int_equal(etcd_claimed(o, 9), 0); /* an earlier attempt that we did not hear of */
	assert_int_equal(etcd_claimed(o, 8), -EEXIST);
	json_object_put(o);

	o = parse("{" HEADER ",\"token\":\"abc.12\"}");
	assert_string_equal(etcd_token(o), "abc.12");
	json_object_put(o);
}

/* What etcd_ranged() makes of one key, as base64: true and @key, or false. */
static bool decoded(const char *text, char key[static ETCD_KEY_MAX])
{
	char json[1024];
	struct etcd_pairs p;
	struct json_object *o;
	bool found;

	snprintf(json, sizeof(json), "{" HEADER ",\"kvs\":[{\"key\":\"%s\"}],\"count\":\"1\"}", text);
	o = parse(json);
	assert_int_equal(etcd_ranged(o, &p), 0);
	found = p.n;
	if (found)
		strcpy(key, p.v[0].key);
	etcd_pairs_free(&p);
	json_object_put(o);
	return found;
}

/* RFC 4648, section 10; two texts never mean the same. */
static void strict_base64(void **unused)
{
	static const char *const good[][2] = {
		{ "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" }, { "foo", "Zm9v" },
		{ "foob", "Zm9vYg==" }, { "fooba", "Zm9vYmE=" }, { "foobar", "Zm9vYmFy" },
		{ "\xff\xfe\xfb", "//77" },
	};
	static const char *const bad[] = {
		"Z", "Zg", "Zg=", "Zg===", "====", "=Zg=", "Zg=g", "Zh==", "Zm9=", "Zm9v Zm9v",
		" Zm9v", "Zm9v\\n", "Zm9-", "Zm9_", "Z\\u0080g=", "Zg==Zg==", "==", "=",
		"AA==", "ZgBm",
	};
	char key[ETCD_KEY_MAX], text[400];

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(decoded(good[i][1], key));
		assert_string_equal(key, good[i][0]);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(decoded(bad[i], key));
	/* 255 bytes and the NUL fit exactly. */
	memset(text, 'A', sizeof(text));
	for (int i = 0; i < 340; i += 4)
		memcpy(text + i, "Zm9v", 4);
	text[340] = '\0';
	assert_true(decoded(text, key));
	assert_int_equal(strlen(key), ETCD_KEY_MAX - 1);
	strcpy(text + 340, "Zg==");
	assert_false(decoded(text, key));
}

/* Each may be accepted or refused by some reader; none may crash or be believed by all. */
static void answers_of_the_wrong_kind(void **unused)
{
	static const char *const bad[] = {
		"{}", "{\"ID\":7}", "{\"ID\":\"x\",\"TTL\":\"1\"}", "{\"ID\":\"-1\",\"TTL\":\"1\"}",
		"{\"ID\":\"1\",\"TTL\":\"99999999999999999999\"}", "{\"ID\":[],\"TTL\":{}}",
		"{\"result\":[]}", "{\"result\":\"x\"}", "{\"result\":{\"TTL\":\"ten\"}}",
		"{\"kvs\":[]}", "{\"header\":[],\"kvs\":[]}", "{\"header\":{\"revision\":\"0\"}}",
		"{" HEADER ",\"kvs\":[1,2],\"count\":\"1\"}", "{" HEADER ",\"count\":\"-1\"}",
		"{\"header\":{},\"succeeded\":\"yes\"}", "{\"header\":{},\"responses\":[]}",
		"{\"header\":{},\"responses\":[null]}", "{\"header\":{},\"responses\":[[]]}",
		"{\"header\":{},\"responses\":[{\"response_range\":{\"kvs\":[7]}},{}]}",
		"{\"token\":\"a\\r\\nHost: b\"}", "{\"token\":\"\"}", "{\"token\":7}",
	};
	struct etcd_pairs p;
	int64_t lease;
	uint32_t ttl;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct json_object *o = parse(bad[i]);

		assert_non_null(o);
		assert_int_equal(etcd_granted(o, &lease, &ttl), -EBADMSG);
		assert_int_equal(etcd_kept_alive(o), -EBADMSG);
		assert_int_equal(etcd_ranged(o, &p), -EBADMSG);
		assert_int_equal(etcd_claimed(o, 1), -EBADMSG);
		assert_null(etcd_token(o));
		json_object_put(o);
	}
}

static void answers_that_are_no_object(void **unused)
{
	static const char *const bad[] = {
		"", " ", "null", "7", "\"x\"", "[]", "{", "{\"a\":", "<html>404</html>", "\x80\xff",
		"{\"a\":[[[[[[[[[[[[[[1]]]]]]]]]]]]]]}", /* deeper than any answer */
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_null(parse(bad[i]));
}

static void answers_without_end(void **unused)
{
	size_t len = ETCD_ANSWER_MAX + 1;
	char *text = malloc(len + 1);

	/* A few bytes each that would become hundreds. */
	strcpy(text, "{\"kvs\":[");
	for (size_t at = strlen(text); at + 3 < len; at += 3)
		strcpy(text + at, "[],");
	assert_null(etcd_answer_parse(text, strlen(text)));
	/* One too long, of blanks that would not hurt. */
	memset(text, ' ', len);
	text[0] = '{';
	text[len - 1] = '}';
	text[len] = '\0';
	assert_null(etcd_answer_parse(text, len));
	text[len - 2] = '}';
	struct json_object *o = etcd_answer_parse(text, len - 1);

	assert_non_null(o);
	json_object_put(o);
	free(text);
}

/* A good answer, damaged in every place and cut at every place. */
static void damaged_answers(void **unused)
{
	static const char good[] =
		"{" HEADER ",\"kvs\":[{\"key\":\"L2ViYi9kb25vcnMvYToxOjE=\",\"value\":\"e30=\",\"lease\":\"9\"}],"
		"\"count\":\"1\",\"succeeded\":true,\"responses\":[{\"response_range\":{\"kvs\":[{\"lease\":\"9\"}]}}],"
		"\"result\":{\"TTL\":\"3\"},\"ID\":\"4\",\"TTL\":\"3\",\"token\":\"t\"}";
	static const char junk[] = "\"{}[],:\\0-9aZ=\x01\x7f\x80\xff";
	char text[sizeof(good)];
	int understood = 0;

	for (size_t at = 0; at < sizeof(good); at++)
		for (size_t j = 0; j < sizeof(junk); j++) { /* its NUL cuts */
			struct etcd_pairs p = { .n = 0 };
			struct json_object *o;
			int64_t lease;
			uint32_t ttl;

			memcpy(text, good, sizeof(good));
			text[at] = at + 1 < sizeof(good) ? junk[j] : '\0';
			o = etcd_answer_parse(text, strlen(text));
			if (!o)
				continue;
			etcd_granted(o, &lease, &ttl);
			etcd_kept_alive(o);
			etcd_claimed(o, 9);
			etcd_token(o);
			if (!etcd_ranged(o, &p)) {
				assert_in_range(p.n, 0, 1);
				understood++;
			}
			etcd_pairs_free(&p);
			json_object_put(o);
		}
	assert_true(understood > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests),
		cmocka_unit_test(good_answers),
		cmocka_unit_test(strict_base64),
		cmocka_unit_test(answers_of_the_wrong_kind),
		cmocka_unit_test(answers_that_are_no_object),
		cmocka_unit_test(answers_without_end),
		cmocka_unit_test(damaged_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
