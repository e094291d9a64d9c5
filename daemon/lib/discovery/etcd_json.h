/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Requests and answers of etcd's JSON gateway (etcd 3.4 and later, api/v3rpc).
 * Pure functions.  Answers are untrusted: their size, depth and number of parts are
 * limited before they are parsed.
 */
#ifndef EBB_ETCD_JSON_H
#define EBB_ETCD_JSON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

#define ETCD_ANSWER_MAX (512u << 10) /* bytes */
#define ETCD_PAIRS_MAX 1024
#define ETCD_KEY_MAX 256             /* bytes, NUL included */
#define ETCD_VALUE_MAX 1024
#define ETCD_TOKEN_MAX 4096          /* bytes; JWTs with RSA signatures have about 600 */

struct etcd_pair {
	char key[ETCD_KEY_MAX], value[ETCD_VALUE_MAX]; /* NUL only at the end */
	int64_t lease; /* 0 = none */
};

struct etcd_pairs {
	struct etcd_pair *v; /* owned */
	int n;
	int found;        /* number of pairs in the answer, invalid ones included */
	int64_t count;    /* number of keys, even if only changed ones were requested */
	int64_t revision; /* of the store */
	char *next;       /* owned: base64 of the key to continue with; NULL = no more pairs */
};

/* A request for pairs whose keys begin with @prefix, or for that of @key. */
struct etcd_query {
	const char *prefix;
	const char *key;   /* NULL = all keys below @prefix */
	const char *from;  /* etcd_pairs.next of the pairs before; NULL = from the first one on */
	int limit;         /* pairs in the answer */
	int64_t revision;  /* only pairs that changed after it; 0 = all */
	bool keys_only;    /* values are empty */
};

void etcd_pairs_free(struct etcd_pairs *p);

/* Return requests as text owned by the caller; NULL without memory. */
char *etcd_grant_text(uint32_t ttl_s);
char *etcd_lease_text(int64_t lease); /* keep alive, revoke */
char *etcd_range_text(const struct etcd_query *q);
/* Puts @key if it does not exist, else gets it. */
char *etcd_claim_text(const char *key, const char *value, int64_t lease);
char *etcd_authenticate_text(const char *user, const char *password);

/*
 * Parses @len bytes, followed by a NUL, as one JSON object within the limits above.
 * Returns the object, owned by the caller, or NULL.
 */
struct json_object *etcd_answer_parse(const char *text, size_t len);

/*
 * Extract values of an answer; return -EBADMSG without a valid one.  etcd omits
 * members that are zero.
 */
int etcd_granted(struct json_object *answer, int64_t *lease, uint32_t *ttl_s);
/* Returns -ESTALE when the lease has ended. */
int etcd_kept_alive(struct json_object *answer);
/* Fills @out, which must own nothing. */
int etcd_ranged(struct json_object *answer, struct etcd_pairs *out);
int etcd_revoked(struct json_object *answer);
/* Returns -EEXIST when the key exists with another lease. */
int etcd_claimed(struct json_object *answer, int64_t lease);
/* Returns the token, a string of @answer, or NULL. */
const char *etcd_token(struct json_object *answer);

#endif
