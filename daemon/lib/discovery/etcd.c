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

/* Pairs requested at once: 240 KiB at most if all are donors'. */
#define ETCD_PAGE 128

struct etcd {
	struct etcd_config config;
	CURL *curl;
	struct curl_slist *headers;
	int endpoint;        /* the one that last answered */
	char token[ETCD_TOKEN_MAX + 1]; /* of the user; "" = none */
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
	struct etcd *t = data;

	if (!atomic_load(&t->interrupted))
		return 0;
#if LIBCURL_VERSION_NUM >= 0x075700
	/*
	 * The process ends: do not wait for a name that is being resolved.  Only here, because each
	 * such name leaves a thread behind.
	 */
	curl_easy_setopt(t->curl, CURLOPT_QUICK_EXIT, 1L);
#endif
	return 1;
}

static int set_headers(struct etcd *t)
{
	struct curl_slist *more, *list = curl_slist_append(NULL, "Content-Type: application/json");
	char line[ETCD_TOKEN_MAX + 32];

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
		return fail(e, EFBIG, "etcd %s: answer larger than %u KiB; check that it is etcd, without large keys", url,
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

/*
 * Returns whether the server requires a token, or another one: "auth: revision in header is old"
 * and "revision of auth store is old" reject one from before the last change of a user or role.
 */
static bool wants_token(struct json_object *o, long status)
{
	const char *text = json_text(o, "error", "");

	/* 16 = UNAUTHENTICATED; without a token it may be 3 (INVALID_ARGUMENT) instead. */
	return status == 401 || json_int(o, "code", 0) == 16 || strstr(text, "user name is empty") ||
	       (strstr(text, "revision") && strstr(text, "old"));
}

/* Calls one endpoint once.  -EACCES when it requires authentication, or another token. */
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
	if (o && wants_token(o, status))
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
		/* Not -ENOENT, which callers take for a missing key. */
		return fail(e, EIO, "etcd password file %s: %s", c->password_file, strerror((int)-n));
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

struct request {
	const char *path;
	char *text;            /* owned by call(); NULL = no memory for it */
	const char *expected;  /* of the answer, for an error: "its answer does not ..." */
	/* Reads the answer: 0 or -errno, -EBADMSG if it is not etcd's. */
	int (*parse)(struct json_object *answer, void *data);
	void *data;
	bool divisible;        /* the caller asks for less if the answer is too large (-EFBIG) */
};

static int call_and_parse(struct etcd *t, const struct request *q, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	int r = call_one(t, q->path, q->text, &answer, e);

	if (r)
		return r;
	r = q->parse(answer, q->data);
	if (r == -EBADMSG)
		return fail(e, EIO, "etcd %s: its answer does not %s; check that it is etcd 3.4 or later",
			    t->config.endpoint[t->endpoint], q->expected);
	return r == -ENOMEM ? fail(e, r, "etcd: out of memory") : r;
}

/* Calls one endpoint, at most twice: with a new token if the server rejects the one there is. */
static int call_endpoint(struct etcd *t, const struct request *q, struct error *e)
{
	bool has_user = *t->config.user;
	int r = has_user && !*t->token ? authenticate(t, e) : 0;

	if (!r)
		r = call_and_parse(t, q, e);
	if (r != -EACCES || !has_user)
		return r;
	*e = (struct error){ 0 };
	r = authenticate(t, e);
	return r ? r : call_and_parse(t, q, e);
}

/* Another endpoint would not answer otherwise. */
static bool is_final(const struct request *q, int r)
{
	return !r || r == -ESTALE || r == -EEXIST || r == -ENOMEM || r == -ECANCELED ||
	       (r == -EFBIG && q->divisible);
}

/*
 * Calls the endpoint that answered last, then the others.  -ESTALE and -EEXIST of @q->parse leave
 * @e empty.
 */
static int call(struct etcd *t, struct request q, struct error *e)
{
	_cleanup_free_ char *text = q.text;
	struct error first = { 0 };
	int r = -EIO;

	if (!text)
		return fail(e, ENOMEM, "etcd: out of memory");
	for (int i = 0; i < t->config.endpoints; i++) {
		struct error inner = { 0 };

		r = call_endpoint(t, &q, &inner);
		if (is_final(&q, r))
			return r && inner.code ? fail(e, r, "%s", inner.text) : r;
		if (!first.code)
			first = inner;
		t->endpoint = (t->endpoint + 1) % t->config.endpoints;
	}
	return fail(e, r, "%s", first.text);
}

static int parse_grant(struct json_object *answer, void *lease)
{
	uint32_t granted;

	return etcd_granted(answer, lease, &granted);
}

int etcd_grant(struct etcd *t, uint32_t ttl_s, int64_t *lease, struct error *e)
{
	return call(t, (struct request){ .path = "/v3/lease/grant", .text = etcd_grant_text(ttl_s),
					 .expected = "grant a lease", .parse = parse_grant,
					 .data = lease }, e);
}

static int parse_kept_alive(struct json_object *answer, void *unused)
{
	return etcd_kept_alive(answer);
}

int etcd_keep_alive(struct etcd *t, int64_t lease, struct error *e)
{
	int r = call(t, (struct request){ .path = "/v3/lease/keepalive",
					  .text = etcd_lease_text(lease),
					  .expected = "tell of the lease",
					  .parse = parse_kept_alive }, e);

	return r == -ESTALE ? fail(e, r, "etcd %s: lease has expired",
				   t->config.endpoint[t->endpoint]) : r;
}

static int parse_revoked(struct json_object *answer, void *unused)
{
	return etcd_revoked(answer);
}

int etcd_revoke(struct etcd *t, int64_t lease, struct error *e)
{
	return call(t, (struct request){ .path = "/v3/lease/revoke", .text = etcd_lease_text(lease),
					 .expected = "end the lease", .parse = parse_revoked }, e);
}

static int parse_claimed(struct json_object *answer, void *lease)
{
	return etcd_claimed(answer, *(int64_t *)lease);
}

static int taken(const char *key, struct error *e)
{
	return fail(e, EEXIST,
		    "etcd: %s is registered until its lease expires; if this persists, two donors have one address: correct --advertise of one",
		    key);
}

int etcd_claim(struct etcd *t, const char *key, const char *value, int64_t lease, struct error *e)
{
	int r = call(t, (struct request){ .path = "/v3/kv/txn",
					  .text = etcd_claim_text(key, value, lease),
					  .expected = "tell of the key", .parse = parse_claimed,
					  .data = &lease }, e);

	return r == -EEXIST ? taken(key, e) : r;
}

static int parse_pairs(struct json_object *answer, void *pairs)
{
	return etcd_ranged(answer, pairs);
}

static int query(struct etcd *t, const struct etcd_query *q, struct etcd_pairs *out,
		 struct error *e)
{
	return call(t, (struct request){ .path = "/v3/kv/range", .text = etcd_range_text(q),
					 .expected = "list keys", .parse = parse_pairs,
					 .data = out, .divisible = !q->keys_only }, e);
}

int etcd_changed(struct etcd *t, const char *prefix, int64_t revision, struct etcd_pairs *out,
		 struct error *e)
{
	return query(t, &(struct etcd_query){ .prefix = prefix, .limit = 1, .revision = revision,
					      .keys_only = true }, out, e);
}

/*
 * Not serializable: a member that lags or has lost the others would report a key that is deleted.
 * The leader confirms a linearizable read with a heartbeat for all reads that wait, and writes
 * nothing.
 */
int etcd_find(struct etcd *t, const char *key, int64_t lease, struct error *e)
{
	struct etcd_pairs p = { .n = 0 };
	bool own;
	int r = query(t, &(struct etcd_query){ .key = key, .limit = 1, .keys_only = true }, &p, e);

	if (r)
		return r;
	own = lease && p.n && p.v[0].lease == lease;
	r = own ? 0 : p.found ? taken(key, e) : -ENOENT;
	etcd_pairs_free(&p);
	return r;
}

/*
 * Gets the page at @q, of fewer pairs while it does not fit.  A pair that does not fit alone is
 * passed over: its key is a page without valid pairs.
 */
static int get_page(struct etcd *t, struct etcd_query *q, struct etcd_pairs *page,
		    struct error *e)
{
	for (;;) {
		struct etcd_query key = *q;
		struct error inner = { 0 };
		int endpoint = t->endpoint;
		int r = query(t, q, page, &inner);

		if (r != -EFBIG)
			return r ? fail(e, r, "%s", inner.text) : 0;
		if (q->limit > 1) {
			q->limit /= 2;
			continue;
		}
		key.keys_only = true;
		r = query(t, &key, page, e);
		if (r)
			return r;
		if (t->endpoint == endpoint) {
			page->n = 0;
			return 0;
		}
		/* The answer was no etcd's; another endpoint's may fit. */
		etcd_pairs_free(page);
		q->limit = ETCD_PAGE;
	}
}

/* Adds @page, and empties it except for its ->next. */
static void append(struct etcd_pairs *all, struct etcd_pairs *page)
{
	int room = ETCD_PAIRS_MAX - all->n, n = page->n < room ? page->n : room;

	if (!all->revision) {
		all->count = page->count;
		all->revision = page->revision;
	}
	memcpy(all->v + all->n, page->v, (size_t)n * sizeof(*all->v));
	all->n += n;
	all->found += page->found;
	if (all->found > ETCD_PAIRS_MAX)
		all->found = ETCD_PAIRS_MAX;
	free(page->v);
	page->v = NULL;
}

int etcd_range(struct etcd *t, const char *prefix, struct etcd_pairs *out, struct error *e)
{
	struct etcd_pairs all = { .v = calloc(ETCD_PAIRS_MAX, sizeof(*all.v)) };
	_cleanup_free_ char *from = NULL;
	int r = all.v ? 0 : fail(e, ENOMEM, "etcd: out of memory"), limit = ETCD_PAGE;
	bool more = true;

	while (!r && more && all.found < ETCD_PAIRS_MAX) {
		struct etcd_query q = { .prefix = prefix, .from = from, .limit = limit };
		struct etcd_pairs page = { .n = 0 };

		if (q.limit > ETCD_PAIRS_MAX - all.found)
			q.limit = ETCD_PAIRS_MAX - all.found;
		r = get_page(t, &q, &page, e);
		if (r)
			break;
		append(&all, &page);
		free(from);
		from = page.next;
		more = from;
		limit = q.limit < ETCD_PAGE / 2 ? q.limit * 2 : ETCD_PAGE;
	}
	if (r) {
		etcd_pairs_free(&all);
		return r;
	}
	*out = all;
	return 0;
}
