// SPDX-License-Identifier: GPL-2.0-or-later
#include <curl/curl.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/json.h"

#define TOKEN_MAX 512

struct etcd {
	struct etcd_config config;
	CURL *curl;
	struct curl_slist *headers;
	int endpoint;        /* the one that last answered */
	char token[TOKEN_MAX]; /* of the user; "" = none */
	char *answer;        /* ETCD_ANSWER_MAX + 1 bytes */
	size_t length;
	char cause[CURL_ERROR_SIZE];
	atomic_bool interrupted;
};

void etcd_global_init(void)
{
	/* With locked memory, an arena per thread would lock 64 MiB each. */
	mallopt(M_ARENA_MAX, 1);
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t take(char *data, size_t size, size_t n, void *to)
{
	struct etcd *t = to;

	n *= size;
	if (n > ETCD_ANSWER_MAX - t->length)
		return 0; /* ends the transfer */
	memcpy(t->answer + t->length, data, n);
	t->length += n;
	t->answer[t->length] = '\0';
	return n;
}

static int look(void *data, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	return atomic_load(&((struct etcd *)data)->interrupted);
}

static int set_headers(struct etcd *t)
{
	struct curl_slist *more, *list = curl_slist_append(NULL, "Content-Type: application/json");
	char line[TOKEN_MAX + 32];

	if (list && *t->token) {
		snprintf(line, sizeof(line), "Authorization: %s", t->token);
		more = curl_slist_append(list, line);
		if (!more)
			curl_slist_free_all(list);
		list = more;
	}
	if (!list)
		return -ENOMEM;
	curl_slist_free_all(t->headers);
	t->headers = list;
	return curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, list) ? -ENOMEM : 0;
}

static void set_file(CURL *c, CURLoption option, const char *path)
{
	if (*path)
		curl_easy_setopt(c, option, path);
}

int etcd_open(struct etcd **out, const struct etcd_config *config, struct error *e)
{
	struct etcd *t = calloc(1, sizeof(*t));
	CURL *c = curl_easy_init();

	if (t) {
		t->curl = c;
		t->config = *config;
		t->answer = malloc(ETCD_ANSWER_MAX + 1);
	}
	if (!t || !c || !t->answer || set_headers(t)) {
		if (t)
			etcd_close(&t);
		else
			curl_easy_cleanup(c);
		return fail(e, ENOMEM, "etcd: out of memory");
	}
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(c, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	/* Ignore proxies in the daemon's environment. */
	curl_easy_setopt(c, CURLOPT_PROXY, "");
	curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)ETCD_CALL_MS);
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)ETCD_CALL_MS / 2);
	curl_easy_setopt(c, CURLOPT_MAXFILESIZE, (long)ETCD_ANSWER_MAX);
	curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->cause);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look);
	curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
	set_file(c, CURLOPT_CAINFO, config->ca);
	set_file(c, CURLOPT_SSLCERT, config->cert);
	set_file(c, CURLOPT_SSLKEY, config->key);
	*out = t;
	return 0;
}

void etcd_close(struct etcd **p)
{
	struct etcd *t = *p;

	if (!t)
		return;
	curl_easy_cleanup(t->curl);
	curl_slist_free_all(t->headers);
	explicit_bzero(t->token, sizeof(t->token));
	free(t->answer);
	free(t);
	*p = NULL;
}

void etcd_interrupt(struct etcd *t)
{
	atomic_store(&t->interrupted, true);
}

static int unreachable(struct etcd *t, const char *url, CURLcode c, struct error *e)
{
	if (c == CURLE_ABORTED_BY_CALLBACK)
		return fail(e, ECANCELED, "etcd %s: cancelled", url);
	if (c == CURLE_WRITE_ERROR || c == CURLE_FILESIZE_EXCEEDED)
		return fail(e, EIO, "etcd %s: answer larger than %u KiB; check that it is etcd", url,
			    ETCD_ANSWER_MAX >> 10);
	return fail(e, EIO, "etcd %s: %s; check the URL, that etcd runs there, and its certificates",
		    url, *t->cause ? t->cause : curl_easy_strerror(c));
}

/* Copies the server's error text, fit for logs and terminals. */
static const char *reason(struct json_object *o, char *buf, size_t size)
{
	snprintf(buf, size, "%s", json_text(o, "error", "no reason given"));
	for (char *c = buf; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return buf;
}

/* Calls one endpoint once.  -EACCES when it requires authentication. */
static int call_one(struct etcd *t, const char *path, const char *body,
		    struct json_object **answer, struct error *e)
{
	const char *url = t->config.endpoint[t->endpoint];
	char full[ETCD_URL_MAX + 64], why[160];
	struct json_object *o;
	long status = 0;
	CURLcode c;
	int r;

	t->length = 0;
	*t->answer = *t->cause = '\0';
	snprintf(full, sizeof(full), "%s%s", url, path);
	curl_easy_setopt(t->curl, CURLOPT_URL, full);
	curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, body);
	c = atomic_load(&t->interrupted) ? CURLE_ABORTED_BY_CALLBACK : curl_easy_perform(t->curl);
	curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, NULL);
	if (c)
		return unreachable(t, url, c, e);
	curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
	o = etcd_answer_parse(t->answer, t->length);
	if (o && status == 200) {
		*answer = o;
		return 0;
	}
	/*
	 * 16 = UNAUTHENTICATED; a call without a token is 3 (INVALID_ARGUMENT), "user name is
	 * empty"
	 */
	if (o && (status == 401 || json_int(o, "code", 0) == 16 ||
		  strstr(json_text(o, "error", ""), "user name is empty")))
		r = fail(e, EACCES, "etcd %s: authentication required (%s); give a user and a password file",
			 url, reason(o, why, sizeof(why)));
	else if (o)
		r = fail(e, EIO, "etcd %s: refused (status %ld): %s", url, status,
			 reason(o, why, sizeof(why)));
	else
		r = fail(e, EIO, "etcd %s: unexpected answer (status %ld); check the URL", url,
			 status);
	json_object_put(o);
	return r;
}

/* Gets a token for the user, valid until the server rejects it. */
static int authenticate(struct etcd *t, struct error *e)
{
	const struct etcd_config *c = &t->config;
	_cleanup_json_ struct json_object *answer = NULL;
	_cleanup_free_ char *body = NULL;
	char password[256];
	const char *token;
	ssize_t n = file_read(c->password_file, password, sizeof(password));
	int r;

	if (n < 0)
		return fail(e, (int)n, "etcd password file %s: %s", c->password_file, strerror((int)-n));
	password[strcspn(password, "\r\n")] = '\0';
	body = etcd_authenticate_text(c->user, password);
	explicit_bzero(password, sizeof(password));
	if (!body)
		return fail(e, ENOMEM, "etcd: out of memory");
	*t->token = '\0';
	r = set_headers(t);
	if (!r)
		r = call_one(t, "/v3/auth/authenticate", body, &answer, e);
	explicit_bzero(body, strlen(body));
	token = r ? NULL : etcd_token(answer);
	if (!r && !token)
		r = fail(e, EIO, "etcd %s: no token for user %s; check auth at the server",
			 c->endpoint[t->endpoint], c->user);
	if (r)
		return r;
	snprintf(t->token, sizeof(t->token), "%s", token);
	return set_headers(t);
}

/* Calls the endpoint that answered last, then the others. */
static int call(struct etcd *t, const char *path, char *text, struct json_object **answer,
		struct error *e)
{
	_cleanup_free_ char *body = text;
	struct error first = { 0 };
	int r = -EIO;

	if (!body)
		return fail(e, ENOMEM, "etcd: out of memory");
	for (int i = 0; i < t->config.endpoints; i++) {
		struct error inner = { 0 };

		r = *t->config.user && !*t->token ? authenticate(t, &inner) : 0;
		if (!r)
			r = call_one(t, path, body, answer, &inner);
		if (r == -EACCES && *t->config.user) {
			inner = (struct error){ 0 };
			r = authenticate(t, &inner);
			if (!r)
				r = call_one(t, path, body, answer, &inner);
		}
		if (!r)
			return 0;
		if (!first.code)
			first = inner;
		if (r == -ECANCELED)
			break;
		t->endpoint = (t->endpoint + 1) % t->config.endpoints;
	}
	return first.code ? fail(e, r, "%s", first.text) : r;
}

static int not_etcd(struct etcd *t, int r, const char *what, struct error *e)
{
	return fail(e, r == -EBADMSG ? EIO : r, "etcd %s: its answer does not %s; check that it is etcd 3.4 or later",
		    t->config.endpoint[t->endpoint], what);
}

int etcd_grant(struct etcd *t, uint32_t ttl_s, int64_t *lease, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	uint32_t granted;
	int r = call(t, "/v3/lease/grant", etcd_grant_text(ttl_s), &answer, e);

	if (r)
		return r;
	r = etcd_granted(answer, lease, &granted);
	return r ? not_etcd(t, r, "grant a lease", e) : 0;
}

int etcd_keep_alive(struct etcd *t, int64_t lease, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	int r = call(t, "/v3/lease/keepalive", etcd_lease_text(lease), &answer, e);

	if (r)
		return r;
	r = etcd_kept_alive(answer);
	if (r == -ESTALE)
		return fail(e, ESTALE, "etcd %s: lease has expired",
			    t->config.endpoint[t->endpoint]);
	return r ? not_etcd(t, r, "tell of the lease", e) : 0;
}

int etcd_revoke(struct etcd *t, int64_t lease, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;

	return call(t, "/v3/lease/revoke", etcd_lease_text(lease), &answer, e);
}

int etcd_claim(struct etcd *t, const char *key, const char *value, int64_t lease, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	int r = call(t, "/v3/kv/txn", etcd_claim_text(key, value, lease), &answer, e);

	if (r)
		return r;
	r = etcd_claimed(answer, lease);
	if (r == -EEXIST)
		return fail(e, EEXIST,
			    "etcd: %s is registered until its lease expires; if this persists, two donors have one address: correct --advertise of one",
			    key);
	return r ? not_etcd(t, r, "tell of the key", e) : 0;
}

int etcd_range(struct etcd *t, const char *prefix, int64_t revision, struct etcd_pairs *out,
	       struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	int r = call(t, "/v3/kv/range", etcd_range_text(prefix, revision), &answer, e);

	if (r)
		return r;
	r = etcd_ranged(answer, out);
	return r ? not_etcd(t, r, "list keys", e) : 0;
}
