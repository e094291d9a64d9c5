/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The list of donors: addresses without duplicates, from a configuration or from
 * donors' entries in etcd.
 */
#ifndef EBB_DONOR_LIST_H
#define EBB_DONOR_LIST_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#include "etcd_json.h"
#include "lib/base/error.h"

#define DONOR_LIST_MAX ETCD_PAIRS_MAX
#define DONOR_ADDRESS_MAX 128 /* size of struct address's text */

struct donor_entry {
	char address[DONOR_ADDRESS_MAX]; /* "host:port" or "unix:/path", with its port */
	uint64_t slab, total;            /* bytes, as reported by the donor; 0 = not known */
	uint64_t missed;                 /* ns: time since which etcd lacks it; 0 = present */
};

struct donor_list {
	struct donor_entry *v; /* owned */
	int n;
};

void donor_list_free(struct donor_list *l);

/* Returns the entry whose address equals @address, or NULL. */
struct donor_entry *donor_list_find(const struct donor_list *l, const char *address);

/*
 * Checks @address and adds it with its port, without resolving its name.  Returns 0,
 * -EEXIST for a duplicate, -E2BIG or -EINVAL; @what names the origin in the error.
 */
int donor_list_add(struct donor_list *l, const char *address, const char *what, struct error *e);

/* Adds each of "ADDRESS[, ADDRESS...]". */
int donor_list_parse(struct donor_list *l, const char *text, const char *what, struct error *e);

/* *@to, which must own nothing, becomes a copy.  -ENOMEM. */
int donor_list_copy(struct donor_list *to, const struct donor_list *from);

/* Returns whether both have equal addresses, in any sequence. */
bool donor_list_same(const struct donor_list *a, const struct donor_list *b);

/*
 * Formats a donor's entry, the value of key PREFIX ADDRESS, in @buf of @size bytes.
 * Returns @buf, or NULL if it is too small.
 */
char *donor_entry_value(const struct donor_entry *d, char *buf, size_t size);

/*
 * Builds the list from etcd's pairs below @prefix.  Skips pairs whose value is no
 * donor's entry, or has another address than its key, and counts them in *@bad.
 */
int donor_list_from_pairs(struct donor_list *out, const struct etcd_pairs *pairs,
			  const char *prefix, int *bad);

/* Returns the number of donors that etcd lacks. */
int donor_list_missing(const struct donor_list *l);

/*
 * Returns whether so many donors are missing in etcd that etcd is to blame: all, or at least two
 * and more than a fifth.
 */
bool donor_list_frozen(const struct donor_list *l);

/*
 * Adopts etcd's list at @now (ns): a new donor is listed at once; a missing one stays for @grace
 * ns, and while the list is frozen and has at most 2 * DONOR_LIST_MAX entries.  @fresh is emptied.
 * Returns whether addresses changed.
 */
bool donor_list_merge(struct donor_list *l, struct donor_list *fresh, uint64_t now, uint64_t grace);

/*
 * Returns at most @most donors of @l that can lend slabs of @slab bytes (their slabs are
 * as large, or of unknown size): an array of strings that the caller frees.  The choice
 * depends on @borrower and changes little with the list (rendezvous hashing), so that
 * many borrowers spread over many donors.
 */
struct json_object *donor_list_choose(const struct donor_list *l, const char *borrower,
				      uint64_t slab, int most);

/*
 * Stores the name by which @device of this machine chooses donors, and returns @buf.  It differs
 * between machines that share a host name, or a machine id as copies of one image do.
 */
char *donor_list_borrower(const char *device, char *buf, size_t size);

#endif
