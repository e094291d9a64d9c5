// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "donor_list.h"
#include "lib/base/files.h"
#include "lib/base/fnv.h"
#include "lib/base/json.h"
#include "lib/wire/address.h"
#include "lib/wire/local.h"

/* The list is frozen while more than one in so many donors is missing. */
#define FROZEN_SHARE 5

void donor_list_free(struct donor_list *l)
{
	free(l->v);
	*l = (struct donor_list){ .n = 0 };
}

struct donor_entry *donor_list_find(const struct donor_list *l, const char *address)
{
	for (int i = 0; i < l->n; i++)
		if (!strcmp(l->v[i].address, address))
			return &l->v[i];
	return NULL;
}

static int append(struct donor_list *l, const struct donor_entry *d)
{
	struct donor_entry *more = realloc(l->v, (l->n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	l->v = more;
	l->v[l->n++] = *d;
	return 0;
}

int donor_list_add(struct donor_list *l, const char *address, const char *what, struct error *e)
{
	struct donor_entry d = { .slab = 0 };
	int r = address_check(address, what, d.address, sizeof(d.address), e);

	if (r)
		return r;
	if (donor_list_find(l, d.address))
		return fail_exit(e, EXIT_USAGE, EEXIST,
				 "%s: %s given twice; drop one",
				 what, d.address);
	if (l->n == DONOR_LIST_MAX)
		return fail_exit(e, EXIT_USAGE, E2BIG, "%s: more than %d donors; drop some", what,
				 DONOR_LIST_MAX);
	r = append(l, &d);
	return r ? fail(e, r, "%s: out of memory", what) : 0;
}

int donor_list_parse(struct donor_list *l, const char *text, const char *what, struct error *e)
{
	const char *p = text;

	while (*(p += strspn(p, ", \t"))) {
		char one[DONOR_ADDRESS_MAX + 1];
		size_t n = strcspn(p, ", \t");
		int r;

		/* Cut to one byte too many, which is rejected as too long. */
		snprintf(one, sizeof(one), "%.*s", (int)n, p);
		r = donor_list_add(l, one, what, e);
		if (r)
			return r;
		p += n;
	}
	return 0;
}

int donor_list_copy(struct donor_list *to, const struct donor_list *from)
{
	struct donor_entry *v = malloc((from->n ? from->n : 1) * sizeof(*v));

	if (!v)
		return -ENOMEM;
	if (from->n)
		memcpy(v, from->v, from->n * sizeof(*v));
	*to = (struct donor_list){ v, from->n };
	return 0;
}

bool donor_list_same(const struct donor_list *a, const struct donor_list *b)
{
	if (a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (!donor_list_find(b, a->v[i].address))
			return false;
	return true;
}

char *donor_entry_value(const struct donor_entry *d, char *buf, size_t size)
{
	struct json_object *o = json_object_new_object();
	int n;

	json_add_text(o, "address", d->address);
	json_add_int(o, "slab", d->slab);
	json_add_int(o, "total", d->total);
	n = snprintf(buf, size, "%s",
		     json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN |
						       JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
	return n >= 0 && (size_t)n < size ? buf : NULL;
}

static int parse_entry(const struct etcd_pair *pair, const char *prefix, struct donor_entry *d)
{
	_cleanup_json_ struct json_object *o = NULL;
	const char *address;
	int64_t slab, total;

	if (strncmp(pair->key, prefix, strlen(prefix)))
		return -EBADMSG;
	o = etcd_answer_parse(pair->value, strlen(pair->value));
	address = json_text(o, "address", "");
	/* A socket path names another donor on each machine: reject it from etcd. */
	if (!o || local_is(address) || strcmp(address, pair->key + strlen(prefix)) ||
	    address_check(address, "etcd", d->address, sizeof(d->address), NULL) ||
	    strcmp(address, d->address))
		return -EBADMSG;
	slab = json_int(o, "slab", 0);
	total = json_int(o, "total", 0);
	if (slab < 0 || total < 0)
		return -EBADMSG;
	d->slab = (uint64_t)slab;
	d->total = (uint64_t)total;
	d->missed = 0;
	return 0;
}

int donor_list_from_pairs(struct donor_list *out, const struct etcd_pairs *pairs,
			  const char *prefix, int *bad)
{
	struct donor_list l = { .n = 0 };

	*bad = 0;
	for (int i = 0; i < pairs->n; i++) {
		struct donor_entry d;
		int r = 0;

		if (parse_entry(&pairs->v[i], prefix, &d))
			(*bad)++;
		else
			r = append(&l, &d);
		if (r) {
			donor_list_free(&l);
			return r;
		}
	}
	*out = l;
	return 0;
}

int donor_list_missing(const struct donor_list *l)
{
	int n = 0;

	for (int i = 0; i < l->n; i++)
		n += l->v[i].missed != 0;
	return n;
}

bool donor_list_frozen(const struct donor_list *l)
{
	int missing = donor_list_missing(l);

	return missing && (missing == l->n || (missing > 1 && missing * FROZEN_SHARE > l->n));
}

/* Removes the donors that have been missing for @grace; returns whether there was one. */
static bool remove_missing(struct donor_list *l, uint64_t now, uint64_t grace)
{
	int kept = 0, n = l->n;

	for (int i = 0; i < n; i++)
		if (!l->v[i].missed || now - l->v[i].missed < grace)
			l->v[kept++] = l->v[i];
	l->n = kept;
	return kept != n;
}

bool donor_list_merge(struct donor_list *l, struct donor_list *fresh, uint64_t now, uint64_t grace)
{
	bool changed = false;

	for (int i = 0; i < l->n; i++) {
		struct donor_entry *old = &l->v[i], *is = donor_list_find(fresh, old->address);

		if (is)
			*old = *is;
		else if (!old->missed)
			old->missed = now ? now : 1;
	}
	for (int i = 0; i < fresh->n; i++)
		if (!donor_list_find(l, fresh->v[i].address))
			changed |= !append(l, &fresh->v[i]);
	donor_list_free(fresh);
	if (!donor_list_frozen(l) || l->n > 2 * DONOR_LIST_MAX)
		changed |= remove_missing(l, now, grace);
	return changed;
}

/* FNV-1a, mixed so that near addresses end up far apart. */
static uint64_t weight(const char *borrower, const char *address)
{
	uint64_t h = fnv1a(fnv1a(fnv1a(FNV1A_START, borrower), "\n"), address);

	h ^= h >> 33;
	h *= 0xff51afd7ed558ccd;
	return h ^ h >> 33;
}

struct weighed {
	uint64_t weight;
	const char *address;
};

static int heavier(const void *a, const void *b)
{
	const struct weighed *x = a, *y = b;

	return x->weight < y->weight ? 1 :
	       x->weight > y->weight ? -1 :
				       strcmp(x->address, y->address);
}

struct json_object *donor_list_choose(const struct donor_list *l, const char *borrower,
				      uint64_t slab, int most)
{
	struct weighed *w = calloc(l->n ? l->n : 1, sizeof(*w));
	struct json_object *list = w ? json_object_new_array() : NULL;
	int n = 0;

	for (int i = 0; w && i < l->n; i++)
		if (!l->v[i].slab || l->v[i].slab >= slab)
			w[n++] = (struct weighed){ weight(borrower, l->v[i].address),
						   l->v[i].address };
	if (n > most)
		qsort(w, n, sizeof(*w), heavier);
	for (int i = 0; list && i < n && i < most; i++)
		json_object_array_add(list, json_object_new_string(w[i].address));
	free(w);
	return list;
}

char *donor_list_borrower(const char *device, char *buf, size_t size)
{
	char host[65] = "", machine[64];

	gethostname(host, sizeof(host) - 1);
	file_read("/etc/machine-id", machine, sizeof(machine));
	snprintf(buf, size, "%s/%s/%s", machine, host, device);
	return buf;
}
