// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd_json.h"
#include "lib/base/cleanup.h"
#include "lib/base/json.h"

/* Size of @n bytes as base64, including NUL; also enough to decode these. */
#define BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)
#define DEPTH 12 /* a claim's answer has 6 */
/* Limit of objects and arrays: one per pair, and those around them. */
#define PARTS (ETCD_PAIRS_MAX + 64)

void etcd_pairs_free(struct etcd_pairs *p)
{
	free(p->v);
	free(p->next);
	*p = (struct etcd_pairs){ .n = 0 };
}

static struct json_object *base64_json(const void *bytes, size_t n)
{
	_cleanup_free_ char *text = malloc(BASE64_SIZE(n));

	if (!text)
		return NULL;
	EVP_EncodeBlock((uint8_t *)text, bytes, (int)n);
	return json_object_new_string(text);
}

static void add_bytes(struct json_object *o, const char *key, const char *bytes)
{
	json_object_object_add(o, key, base64_json(bytes, strlen(bytes)));
}

/* int64 are strings in etcd's JSON. */
static void add_int64(struct json_object *o, const char *key, int64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)v);
	json_add_text(o, key, text);
}

static char *text_of(struct json_object *o)
{
	const char *text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);

	return text ? strdup(text) : NULL;
}

char *etcd_grant_text(uint32_t ttl_s)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	add_int64(o, "TTL", ttl_s);
	return text_of(o);
}

char *etcd_lease_text(int64_t lease)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	add_int64(o, "ID", lease);
	return text_of(o);
}

/* The range of a prefix ends at the prefix with its last byte incremented. */
static void add_end(struct json_object *o, const char *prefix)
{
	char end[ETCD_KEY_MAX];
	size_t n = strlen(prefix);

	memcpy(end, prefix, n);
	end[n - 1]++;
	json_object_object_add(o, "range_end", base64_json(end, n));
}

char *etcd_range_text(const struct etcd_query *q)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	if (q->from)
		json_add_text(o, "key", q->from);
	else
		add_bytes(o, "key", q->key ? q->key : q->prefix);
	/* A donor may read its own key alone, which a range_end exceeds. */
	if (!q->key)
		add_end(o, q->prefix);
	add_int64(o, "limit", q->limit);
	if (q->revision)
		add_int64(o, "min_mod_revision", q->revision + 1);
	if (q->keys_only)
		json_add_bool(o, "keys_only", true);
	return text_of(o);
}

static struct json_object *wrap(const char *key, struct json_object *member)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, key, member);
	return o;
}

static struct json_object *list_of(struct json_object *member)
{
	struct json_object *list = json_object_new_array();

	json_object_array_add(list, member);
	return list;
}

char *etcd_claim_text(const char *key, const char *value, int64_t lease)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	struct json_object *absent = json_object_new_object();
	struct json_object *put = json_object_new_object(), *get = json_object_new_object();

	add_bytes(absent, "key", key);
	json_add_text(absent, "target", "CREATE");
	json_add_text(absent, "result", "EQUAL");
	add_int64(absent, "create_revision", 0);
	add_bytes(put, "key", key);
	add_bytes(put, "value", value);
	add_int64(put, "lease", lease);
	add_bytes(get, "key", key);
	json_object_object_add(o, "compare", list_of(absent));
	json_object_object_add(o, "success", list_of(wrap("request_put", put)));
	json_object_object_add(o, "failure", list_of(wrap("request_range", get)));
	return text_of(o);
}

char *etcd_authenticate_text(const char *user, const char *password)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	json_add_text(o, "name", user);
	json_add_text(o, "password", password);
	return text_of(o);
}

struct json_object *etcd_answer_parse(const char *text, size_t len)
{
	struct json_tokener *t;
	struct json_object *o;
	size_t parts = 0;

	if (len > ETCD_ANSWER_MAX)
		return NULL;
	for (size_t i = 0; i < len; i++)
		parts += text[i] == '{' || text[i] == '[';
	if (parts > PARTS)
		return NULL;
	t = json_tokener_new_ex(DEPTH);
	if (!t)
		return NULL;
	o = json_tokener_parse_ex(t, text, (int)len);
	/* A stream has one answer per line; only the first matters. */
	if (json_tokener_get_error(t) != json_tokener_success ||
	    !json_object_is_type(o, json_type_object)) {
		json_object_put(o);
		o = NULL;
	}
	json_tokener_free(t);
	return o;
}

static struct json_object *member(struct json_object *o, const char *key, enum json_type type)
{
	struct json_object *v;

	return o && json_object_object_get_ex(o, key, &v) && json_object_is_type(v, type) ? v :
											    NULL;
}

/* Sets *@v to 0 if the member is absent; -EBADMSG when it is not a whole number. */
static int get_int64(struct json_object *o, const char *key, int64_t *v)
{
	struct json_object *m;
	const char *text;
	char *end;

	*v = 0;
	if (!json_object_object_get_ex(o, key, &m))
		return 0;
	if (json_object_is_type(m, json_type_int)) {
		*v = json_object_get_int64(m);
		return 0;
	}
	if (!json_object_is_type(m, json_type_string))
		return -EBADMSG;
	text = json_object_get_string(m);
	errno = 0;
	*v = strtoll(text, &end, 10);
	return errno || end == text || *end ? -EBADMSG : 0;
}

int etcd_granted(struct json_object *answer, int64_t *lease, uint32_t *ttl_s)
{
	int64_t id, ttl;

	if (get_int64(answer, "ID", &id) || get_int64(answer, "TTL", &ttl) || id <= 0 || ttl <= 0 ||
	    ttl > INT32_MAX)
		return -EBADMSG;
	*lease = id;
	*ttl_s = (uint32_t)ttl;
	return 0;
}

int etcd_kept_alive(struct json_object *answer)
{
	struct json_object *result = member(answer, "result", json_type_object);
	int64_t ttl;

	if (!result || get_int64(result, "TTL", &ttl))
		return -EBADMSG;
	return ttl > 0 ? 0 : -ESTALE;
}

/*
 * Decodes a member into @to, NUL-terminated.  -EBADMSG unless the text is canonical base64 (RFC
 * 4648) without NUL bytes.
 */
static int get_bytes(struct json_object *o, const char *key, char *to, size_t size)
{
	uint8_t bytes[BASE64_SIZE(ETCD_VALUE_MAX)], again[BASE64_SIZE(ETCD_VALUE_MAX)];
	const char *text = json_text(o, key, "");
	size_t len = strlen(text);
	int n;

	if (len >= BASE64_SIZE(size - 1))
		return -EMSGSIZE;
	n = len ? EVP_DecodeBlock(bytes, (const uint8_t *)text, (int)len) : 0;
	/* OpenSSL counts the padding, and ignores blanks and stray bits. */
	for (size_t i = len; n > 0 && i > len - 2 && text[i - 1] == '='; i--)
		n--;
	if (n < 0 || (size_t)n >= size)
		return n < 0 ? -EBADMSG : -EMSGSIZE;
	EVP_EncodeBlock(again, bytes, n);
	if (strcmp((char *)again, text) || memchr(bytes, '\0', (size_t)n))
		return -EBADMSG;
	memcpy(to, bytes, (size_t)n);
	to[n] = '\0';
	return 0;
}
_Static_assert(ETCD_KEY_MAX <= ETCD_VALUE_MAX, "room for both in get_bytes()");

static int parse_pair(struct json_object *o, struct etcd_pair *pair)
{
	int r = json_object_is_type(o, json_type_object) ? 0 : -EBADMSG;

	if (!r)
		r = get_bytes(o, "key", pair->key, sizeof(pair->key));
	if (!r)
		r = get_bytes(o, "value", pair->value, sizeof(pair->value));
	return r ? r : get_int64(o, "lease", &pair->lease);
}

/* Returns base64 of the key that follows @pair's, of any length; NULL without memory or a key. */
static char *key_behind(struct json_object *pair)
{
	const char *text = json_text(pair, "key", "");
	size_t len = strlen(text);
	_cleanup_free_ uint8_t *key = len ? malloc(len + 1) : NULL;
	int n = key ? EVP_DecodeBlock(key, (const uint8_t *)text, (int)len) : -1;
	char *next;

	for (size_t i = len; n > 0 && i > len - 2 && text[i - 1] == '='; i--)
		n--;
	next = n > 0 ? malloc(BASE64_SIZE((size_t)n + 1)) : NULL;
	if (!next)
		return NULL;
	key[n] = '\0';
	EVP_EncodeBlock((uint8_t *)next, key, n + 1);
	return next;
}

int etcd_ranged(struct json_object *answer, struct etcd_pairs *out)
{
	struct json_object *header = member(answer, "header", json_type_object);
	struct json_object *kvs = member(answer, "kvs", json_type_array);
	struct json_object *more = member(answer, "more", json_type_boolean);
	struct etcd_pairs p = { .n = 0 };
	size_t n = kvs ? json_object_array_length(kvs) : 0;

	if (!header || get_int64(header, "revision", &p.revision) || p.revision <= 0 ||
	    get_int64(answer, "count", &p.count) || p.count < (int64_t)n || n > ETCD_PAIRS_MAX)
		return -EBADMSG;
	p.v = calloc(n ? n : 1, sizeof(*p.v));
	if (!p.v)
		return -ENOMEM;
	/* Foreign keys below the prefix do not invalidate other pairs. */
	for (size_t i = 0; i < n; i++)
		p.n += parse_pair(json_object_array_get_idx(kvs, i), &p.v[p.n]) == 0;
	p.found = (int)n;
	if (more && json_object_get_boolean(more)) {
		p.next = n ? key_behind(json_object_array_get_idx(kvs, n - 1)) : NULL;
		if (!p.next) {
			etcd_pairs_free(&p);
			return -EBADMSG;
		}
	}
	*out = p;
	return 0;
}

int etcd_revoked(struct json_object *answer)
{
	return member(answer, "header", json_type_object) ? 0 : -EBADMSG;
}

int etcd_claimed(struct json_object *answer, int64_t lease)
{
	struct json_object *succeeded = member(answer, "succeeded", json_type_boolean);
	struct json_object *list = member(answer, "responses", json_type_array), *kvs;
	int64_t holder;

	if (!member(answer, "header", json_type_object))
		return -EBADMSG;
	if (succeeded && json_object_get_boolean(succeeded))
		return 0;
	list = list && json_object_array_length(list) == 1 ? json_object_array_get_idx(list, 0) :
							     NULL;
	kvs = member(member(list, "response_range", json_type_object), "kvs", json_type_array);
	if (!kvs || json_object_array_length(kvs) != 1 ||
	    get_int64(json_object_array_get_idx(kvs, 0), "lease", &holder))
		return -EBADMSG;
	return holder == lease ? 0 : -EEXIST;
}

const char *etcd_token(struct json_object *answer)
{
	const char *token = json_text(answer, "token", NULL);

	/* The token becomes part of a header line. */
	return token && *token && strlen(token) <= ETCD_TOKEN_MAX && !strpbrk(token, "\r\n") ? token : NULL;
}
