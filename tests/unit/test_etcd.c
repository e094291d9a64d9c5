// SPDX-License-Identifier: GPL-2.0-or-later
/* The client of etcd, with servers that the test plays. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json.h"
#include "lib/discovery/etcd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>
#undef fail

#define HEADER "\"header\":{\"revision\":\"9\"}"
#define PREFIX "/d/"

/* A server: answers each request by @answer, which returns text that the server frees. */
struct server {
	char *(*answer)(struct server *s, const char *path, const char *token, const char *body,
			int *status);
	int fd, asked;
	pthread_t thread;
	char url[64];
};

/* Reads one request into @text of @size bytes; returns its body. */
static char *read_request(int fd, char *text, size_t size)
{
	size_t n = 0, want = size;
	char *body = NULL;

	while (n < want) {
		ssize_t some = recv(fd, text + n, size - 1 - n, 0);
		char *length;

		if (some <= 0)
			return NULL;
		n += (size_t)some;
		text[n] = '\0';
		if (body || !(body = strstr(text, "\r\n\r\n")))
			continue;
		body += 4;
		length = strcasestr(text, "content-length:");
		want = (size_t)(body - text) + (length ? strtoul(length + 15, NULL, 10) : 0);
	}
	return body;
}

static void serve(struct server *s, int fd)
{
	static char text[65536];
	char head[128], token[ETCD_TOKEN_MAX + 1] = "", path[64] = "";
	char *body = read_request(fd, text, sizeof(text)), *answer, *at;
	int status = 200;

	if (!body)
		return;
	s->asked++;
	sscanf(text, "POST %63s", path);
	at = strstr(text, "Authorization: ");
	if (at && at < body)
		sscanf(at, "Authorization: %4096s", token);
	answer = s->answer(s, path, token, body, &status);
	snprintf(head, sizeof(head), "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
		 status, strlen(answer));
	send(fd, head, strlen(head), MSG_NOSIGNAL | MSG_MORE);
	send(fd, answer, strlen(answer), MSG_NOSIGNAL);
	free(answer);
}

static void *server_main(void *data)
{
	struct server *s = data;
	int fd;

	while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
		serve(s, fd);
		close(fd);
	}
	return NULL;
}

static void server_start(struct server *s)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(a);

	s->asked = 0;
	s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_return_code(bind(s->fd, (struct sockaddr *)&a, sizeof(a)), errno);
	assert_return_code(listen(s->fd, 16), errno);
	getsockname(s->fd, (struct sockaddr *)&a, &size);
	snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%d", ntohs(a.sin_port));
	assert_int_equal(pthread_create(&s->thread, NULL, server_main, s), 0);
}

static void server_stop(struct server *s)
{
	shutdown(s->fd, SHUT_RDWR);
	pthread_join(s->thread, NULL);
	close(s->fd);
}

static struct etcd_config config_of(const char *urls)
{
	struct etcd_config c;
	struct error e = { 0 };

	etcd_config_defaults(&c);
	snprintf(c.prefix, sizeof(c.prefix), "%s", PREFIX);
	assert_int_equal(etcd_config_add(&c, urls, "test", &e), 0);
	return c;
}

static struct etcd *open_etcd(const struct etcd_config *c)
{
	struct etcd *t = NULL;
	struct error e = { 0 };

	assert_int_equal(etcd_open(&t, c, &e), 0);
	return t;
}

/* --- ranges ------------------------------------------------------------------------- */

enum { KEYS = 300 };

/* Key i is PREFIX and i as three digits; length[i] bytes of value, 0 = a donor's. */
static size_t length[KEYS];
static size_t largest; /* answer in bytes since the test began */

static void decode(const char *text, char *to)
{
	size_t len = strlen(text);
	int n = EVP_DecodeBlock((uint8_t *)to, (const uint8_t *)text, (int)len);

	for (size_t i = len; i && text[i - 1] == '='; i--)
		n--;
	to[n] = '\0';
}

static void add_base64(FILE *f, const char *bytes, size_t n)
{
	uint8_t *text = malloc((n + 2) / 3 * 4 + 1);

	EVP_EncodeBlock(text, (const uint8_t *)bytes, (int)n);
	fputs((char *)text, f);
	free(text);
}

static void add_pair(FILE *f, int i, bool keys_only, bool first)
{
	char key[16], *value = calloc(1, length[i] + 64);
	size_t n = (size_t)snprintf(value, 64, "{\"address\":\"%03d\"}", i);

	snprintf(key, sizeof(key), PREFIX "%03d", i);
	if (length[i])
		memset(value, 'x', n = length[i]);
	fputs(first ? "{\"key\":\"" : ",{\"key\":\"", f);
	add_base64(f, key, strlen(key));
	fputs("\",\"lease\":\"5\",\"value\":\"", f);
	add_base64(f, value, keys_only ? 0 : n);
	fputs("\"}", f);
	free(value);
}

static char *range(struct server *s, const char *path, const char *token, const char *body,
		   int *status)
{
	_cleanup_json_ struct json_object *o = json_tokener_parse(body);
	bool keys_only = json_object_get_boolean(json_member(o, "keys_only"));
	bool one = !json_member(o, "range_end");
	int limit = atoi(json_text(o, "limit", "0")), n = 0, from = 0, end;
	char key[1024], *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	assert_string_equal(path, "/v3/kv/range");
	decode(json_text(o, "key", ""), key);
	/* A key and a NUL: behind that key. */
	if (strlen(key) > strlen(PREFIX))
		from = atoi(key + strlen(PREFIX)) + !one;
	end = one && from < KEYS ? from + 1 : KEYS;
	fprintf(f, "{" HEADER ",\"count\":\"%d\",\"kvs\":[", end > from ? end - from : 0);
	for (; n < limit && from + n < end; n++)
		add_pair(f, from + n, keys_only, !n);
	fprintf(f, "]%s}", from + n < end ? ",\"more\":true" : "");
	fclose(f);
	if (size > largest)
		largest = size;
	return text;
}

/* Whatever is below the prefix, the donors are found. */
static void large_values_hide_no_donor(void **unused)
{
	struct server s = { .answer = range };
	struct etcd_config c;
	struct etcd_pairs p = { .n = 0 };
	struct error e = { 0 };
	struct etcd *t;

	server_start(&s);
	c = config_of(s.url);
	t = open_etcd(&c);
	memset(length, 0, sizeof(length));
	assert_int_equal(etcd_range(t, PREFIX, &p, &e), 0);
	assert_int_equal(p.n, KEYS);
	assert_int_equal(p.found, KEYS);
	assert_int_equal(p.count, KEYS);
	assert_string_equal(p.v[KEYS - 1].key, PREFIX "299");
	assert_int_equal(s.asked, 3);
	etcd_pairs_free(&p);

	/* First, last, two in a row, and many that fit alone. */
	length[0] = length[KEYS - 1] = length[100] = length[101] = 600 << 10;
	for (int i = 200; i < 220; i++)
		length[i] = 300 << 10;
	assert_int_equal(etcd_range(t, PREFIX, &p, &e), 0);
	assert_int_equal(p.n, KEYS - 24);
	assert_int_equal(p.found, KEYS);
	assert_int_equal(p.count, KEYS);
	assert_int_equal(p.revision, 9);
	for (int i = 0, at = 0; i < KEYS; i++) {
		char key[16];

		snprintf(key, sizeof(key), PREFIX "%03d", i);
		if (!length[i])
			assert_string_equal(p.v[at++].key, key);
	}
	etcd_pairs_free(&p);

	/* The frequent question is a small one. */
	largest = 0;
	assert_int_equal(etcd_changed(t, PREFIX, 3, &p, &e), 0);
	assert_int_equal(p.found, 1);
	assert_int_equal(p.count, KEYS);
	assert_in_range(largest, 1, 1000);
	etcd_pairs_free(&p);
	etcd_close(&t);
	server_stop(&s);
}

static void a_key_is_found_by_its_lease(void **unused)
{
	struct server s = { .answer = range };
	struct error e = { 0 };
	struct etcd_config c;
	struct etcd *t;

	server_start(&s);
	c = config_of(s.url);
	t = open_etcd(&c);
	memset(length, 0, sizeof(length));
	/* Larger than any answer; its value does not matter. */
	length[7] = 600 << 10;
	assert_int_equal(etcd_find(t, PREFIX "007", 5, &e), 0);
	assert_int_equal(etcd_find(t, PREFIX "300", 5, &e), -ENOENT);
	assert_int_equal(e.code, 0);
	assert_int_equal(etcd_find(t, PREFIX "007", 6, &e), -EEXIST);
	assert_non_null(strstr(e.text, "two donors have one address"));
	e = (struct error){ 0 };
	assert_int_equal(etcd_find(t, PREFIX "007", 0, &e), -EEXIST);
	assert_int_equal(s.asked, 4);
	etcd_close(&t);
	server_stop(&s);
}

/* --- endpoints ---------------------------------------------------------------------- */

static char *empty(struct server *s, const char *path, const char *token, const char *body,
		   int *status)
{
	return strdup("{}");
}

static char *endless(struct server *s, const char *path, const char *token, const char *body,
		     int *status)
{
	char *text = malloc(ETCD_ANSWER_MAX + 2);

	memset(text, ' ', ETCD_ANSWER_MAX + 1);
	text[ETCD_ANSWER_MAX + 1] = '\0';
	return text;
}

static char *lease(struct server *s, const char *path, const char *token, const char *body,
		   int *status)
{
	if (!strcmp(path, "/v3/kv/range"))
		return range(s, path, token, body, status);
	if (!strcmp(path, "/v3/lease/grant"))
		return strdup("{" HEADER ",\"ID\":\"7\",\"TTL\":\"10\"}");
	if (!strcmp(path, "/v3/lease/keepalive"))
		return strdup("{\"result\":{" HEADER ",\"ID\":\"7\"}}");
	if (!strcmp(path, "/v3/kv/txn"))
		return strdup("{" HEADER ",\"succeeded\":true}");
	return strdup("{" HEADER "}");
}

/* An endpoint whose answers are JSON, but not etcd's, is one that fails. */
static void the_next_endpoint_is_etcd(void **unused)
{
	static char *(*const answers[])(struct server *, const char *, const char *, const char *,
					int *) = { empty, endless };

	memset(length, 0, sizeof(length));
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		for (int kind = 0; kind < 6; kind++) {
			struct server bad = { .answer = answers[i] }, good = { .answer = lease };
			struct etcd_pairs p = { .n = 0 };
			struct error e = { 0 };
			struct etcd_config c;
			int64_t id = 0;
			struct etcd *t;
			char urls[256];

			server_start(&bad);
			server_start(&good);
			snprintf(urls, sizeof(urls), "%s,%s", bad.url, good.url);
			c = config_of(urls);
			t = open_etcd(&c);
			switch (kind) {
			case 0:
				assert_int_equal(etcd_grant(t, 10, &id, &e), 0);
				assert_int_equal(id, 7);
				break;
			case 1: /* the lease is over, says etcd */
				assert_int_equal(etcd_keep_alive(t, 7, &e), -ESTALE);
				assert_non_null(strstr(e.text, "expired"));
				break;
			case 2:
				assert_int_equal(etcd_claim(t, "k", "v", 7, &e), 0);
				break;
			case 3:
				assert_int_equal(etcd_range(t, PREFIX, &p, &e), 0);
				assert_int_equal(p.n, KEYS);
				etcd_pairs_free(&p);
				break;
			case 4:
				assert_int_equal(etcd_find(t, PREFIX "007", 5, &e), 0);
				break;
			case 5:
				assert_int_equal(etcd_revoke(t, 7, &e), 0);
			}
			/* It stays with the good one. */
			bad.asked = 0;
			assert_int_equal(etcd_grant(t, 10, &id, &(struct error){ 0 }), 0);
			assert_int_equal(bad.asked, 0);
			etcd_close(&t);
			server_stop(&bad);
			server_stop(&good);
		}
}

static void no_endpoint_is_etcd(void **unused)
{
	struct server s = { .answer = empty };
	struct error e = { 0 };
	struct etcd_config c;
	struct etcd *t;

	server_start(&s);
	c = config_of(s.url);
	t = open_etcd(&c);
	assert_int_equal(etcd_keep_alive(t, 7, &e), -EIO);
	assert_non_null(strstr(e.text, s.url));
	assert_non_null(strstr(e.text, "does not tell of the lease"));
	etcd_close(&t);
	server_stop(&s);
}

/* --- users -------------------------------------------------------------------------- */

static const char *rejection; /* of all tokens but the last one given */
static int tokens;            /* given */

/* The token of that number, as long as the longest that fit. */
static void token_text(int number, char to[ETCD_TOKEN_MAX + 1])
{
	memset(to, 'a' + number, ETCD_TOKEN_MAX);
	to[ETCD_TOKEN_MAX] = '\0';
}

static char *with_users(struct server *s, const char *path, const char *token, const char *body,
			int *status)
{
	char right[ETCD_TOKEN_MAX + 1], *text = NULL;

	if (!strcmp(path, "/v3/auth/authenticate")) {
		token_text(++tokens, right);
		if (asprintf(&text, "{" HEADER ",\"token\":\"%s\"}", right) < 0)
			abort();
		return text;
	}
	token_text(tokens, right);
	if (!strcmp(token, right))
		return lease(s, path, token, body, status);
	*status = 400;
	return strdup(rejection);
}

/* A token is renewed after the users of etcd have changed, whatever its version says then. */
static void old_tokens_are_renewed(void **unused)
{
	static const char *const rejections[] = {
		"{\"error\":\"auth: revision in header is old\",\"code\":2}",
		"{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}",
		"{\"error\":\"etcdserver: invalid auth token\",\"code\":16}",
	};
	char file[] = "/tmp/ebb-test-etcd-XXXXXX";
	int fd = mkstemp(file);

	assert_int_equal(write(fd, "secret\n", 7), 7);
	close(fd);
	for (size_t i = 0; i < sizeof(rejections) / sizeof(rejections[0]); i++) {
		struct server s = { .answer = with_users };
		struct error e = { 0 };
		struct etcd_config c;
		struct etcd *t;
		int64_t id;

		rejection = rejections[i];
		tokens = 0;
		server_start(&s);
		c = config_of(s.url);
		strcpy(c.user, "u");
		strcpy(c.password_file, file);
		t = open_etcd(&c);
		assert_int_equal(etcd_grant(t, 10, &id, &e), 0);
		assert_int_equal(tokens, 1);
		/* Of a user that another one has changed. */
		tokens++;
		assert_int_equal(etcd_grant(t, 10, &id, &e), 0);
		assert_int_equal(tokens, 3);
		etcd_close(&t);
		server_stop(&s);
	}
	unlink(file);
}

/* --- the end ------------------------------------------------------------------------ */

static atomic_bool silent; /* the name server */

/* Ends after 8 s at most, or the test would not end without what it tests. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
		struct addrinfo **out)
{
	const struct timespec moment = { .tv_nsec = 10000000 };

	for (int i = 0; i < 800 && atomic_load(&silent); i++)
		nanosleep(&moment, NULL);
	return EAI_NONAME;
}

static void *interrupt(void *t)
{
	const struct timespec moment = { .tv_nsec = 200000000 };

	nanosleep(&moment, NULL);
	etcd_interrupt(t);
	return NULL;
}

/* libcurl looks about each second. */
static void an_interrupt_waits_for_no_name(void **unused)
{
	struct etcd_config c = config_of("https://slow.test:1");
	struct etcd *t = open_etcd(&c);
	struct error e = { 0 };
	pthread_t thread;
	uint64_t began = now_ns();
	int64_t id;

	atomic_store(&silent, true);
	assert_int_equal(pthread_create(&thread, NULL, interrupt, t), 0);
	assert_int_equal(etcd_grant(t, 10, &id, &e), -ECANCELED);
	pthread_join(thread, NULL);
	etcd_close(&t);
	assert_true(now_ns() - began < 5000000000ull);
	atomic_store(&silent, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_values_hide_no_donor),
		cmocka_unit_test(a_key_is_found_by_its_lease),
		cmocka_unit_test(the_next_endpoint_is_etcd),
		cmocka_unit_test(no_endpoint_is_etcd),
		cmocka_unit_test(old_tokens_are_renewed),
		cmocka_unit_test(an_interrupt_waits_for_no_name),
	};

	etcd_global_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
