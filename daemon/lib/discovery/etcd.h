/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A client of etcd (3.4 and later) through its JSON gateway: leases, keys of a
 * lease, ranges.  Calls block up to ETCD_CALL_MS for each endpoint, so call them in a
 * thread that nothing waits for.  After a failure it tries the next endpoint.
 */
#ifndef EBB_ETCD_H
#define EBB_ETCD_H

#include <limits.h>
#include <stdbool.h>

#include "etcd_json.h"

#define ETCD_ENDPOINTS 8
#define ETCD_URL_MAX 256
#define ETCD_CALL_MS 2000
#define ETCD_PREFIX "/ebb/donors/"

struct etcd_config {
	char endpoint[ETCD_ENDPOINTS][ETCD_URL_MAX];
	int endpoints;
	/* Files; "" = none.  Without a CA the system's apply. */
	char ca[PATH_MAX], cert[PATH_MAX], key[PATH_MAX];
	char user[64], password_file[PATH_MAX];
	char prefix[128]; /* of the donors' keys */
};

/* Sets no endpoint, and the standard prefix. */
void etcd_config_defaults(struct etcd_config *c);

/* Adds the URLs of "URL[, URL...]"; @what names their origin in an error. */
int etcd_config_add(struct etcd_config *c, const char *urls, const char *what, struct error *e);

/*
 * Checks @c without a request: prefix, readable files, a key or password that other
 * users may read.  EXIT_USAGE in @e.
 */
int etcd_config_check(const struct etcd_config *c, struct error *e);

struct etcd;

/* Call once per process, before it has threads. */
void etcd_global_init(void);

/* Copies @c.  *@out is untouched on failure. */
int etcd_open(struct etcd **out, const struct etcd_config *c, struct error *e);
void etcd_close(struct etcd **p);

/*
 * Fails all calls in flight and all later ones with -ECANCELED; any thread may call it.  For a
 * process that ends: a thread that resolves a name may stay.
 */
void etcd_interrupt(struct etcd *t);

/*
 * All return 0 or -errno with endpoint, cause and remedy in @e; -EIO for a server that
 * is unreachable in time or sends an invalid answer, -EFBIG for an answer that is too large.
 */
int etcd_grant(struct etcd *t, uint32_t ttl_s, int64_t *lease, struct error *e);
/* Returns -ESTALE if the lease has ended. */
int etcd_keep_alive(struct etcd *t, int64_t lease, struct error *e);
/* Ends the lease, and with it its keys. */
int etcd_revoke(struct etcd *t, int64_t lease, struct error *e);
/*
 * Returns 0 if @key has @lease, which may be 0 = none yet, -ENOENT with an empty @e if there is no
 * such key, -EEXIST if another lease or none has it.
 */
int etcd_find(struct etcd *t, const char *key, int64_t lease, struct error *e);
/*
 * Puts @key for as long as @lease lives; -EEXIST when another lease has it.  etcd writes each such
 * call to the disks of all its members, even if it puts nothing: call etcd_find() first.
 */
int etcd_claim(struct etcd *t, const char *key, const char *value, int64_t lease, struct error *e);
/*
 * Gets the number of all pairs below @prefix, and the key of one that changed after @revision.
 * Fills @out, which must own nothing: found is 0 if none changed.
 */
int etcd_changed(struct etcd *t, const char *prefix, int64_t revision, struct etcd_pairs *out,
		 struct error *e);
/*
 * Gets the pairs below @prefix, up to ETCD_PAIRS_MAX, by several calls; skips, as invalid, those of
 * which one alone exceeds ETCD_ANSWER_MAX.  count and revision are those of the first call, so that
 * etcd_changed() reports what changed meanwhile.  Fills @out, which must own nothing.
 */
int etcd_range(struct etcd *t, const char *prefix, struct etcd_pairs *out, struct error *e);

#endif
