// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "twin.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- the lock --------------------------------------------------------------------- */

void twin_unlock(struct twin_told *t)
{
	uint32_t later = t->later;

	t->later = 0;
	pthread_mutex_unlock(t->lock);
	for (; later; later &= later - 1)
		link_flush(&t->links[__builtin_ctz(later)]);
}

int twin_later(struct twin_told *t, struct link *l, uint32_t op, const struct ebbfar_extent *x,
	       uint32_t offset, const void *from, size_t bytes)
{
	t->later |= 1u << l->number;
	return link_later(l, op, x, offset, from, bytes);
}

/* --- entries ---------------------------------------------------------------------- */

static struct twin_entry *find(const struct twin_table *table, uint64_t key, uint64_t is)
{
	struct twin_entry *e = &table->entry[twin_first(key, table->entries)];

	for (uint32_t i = 0; i < TWIN_WINDOW; i++)
		if (e[i].key == is)
			return &e[i];
	return NULL;
}

/* Finds an entry for @key that has @is in any table, the last one first; sets *@table. */
static struct twin_entry *find_any(struct twin_list *list, uint64_t key, uint64_t is,
				   struct twin_table **table)
{
	for (uint32_t i = list->tables; i--;) {
		struct twin_entry *e = find(&list->table[i], key, is);

		*table = &list->table[i];
		if (e)
			return e;
	}
	return NULL;
}

static int write_entry(struct twin_told *t, const struct twin_table *table, struct link *l,
		       const struct twin_entry *e)
{
	uint32_t at = (uint32_t)(e - table->entry) * (uint32_t)sizeof(*e);

	return twin_later(t, l, EBBFAR_WRITE, &table->x,
			  (uint32_t)sizeof(struct twin_head) + at, e, sizeof(*e));
}

/* --- growth ----------------------------------------------------------------------- */

/* Tells others where the list is. */
static int publish(struct link *l, const struct twin_told *t, uint64_t place)
{
	if (l != t->home)
		return link_error(ebbfar_publish(l->far, place | TWIN_VERSION));
	return t->desk.size ? link_post(l, &t->desk, offsetof(struct desk, twins), &place,
					sizeof(place)) : -EOPNOTSUPP;
}

/* Makes an empty table for an extent of @bytes, with the entries of @old.  -EAGAIN: too small. */
static int make(struct twin_table *table, size_t bytes, const struct twin_table *old)
{
	table->entries = (uint32_t)((bytes - sizeof(struct twin_head)) / sizeof(*table->entry));
	table->entry = calloc(table->entries, sizeof(*table->entry));
	if (!table->entry)
		return -ENOMEM;
	for (uint32_t i = 0; i < old->entries; i++) {
		const struct twin_entry *e = &old->entry[i];
		struct twin_entry *to = e->key ? find(table, e->key, 0) : NULL;

		if (to) {
			*to = *e;
		} else if (e->key) {
			free(table->entry);
			return -EAGAIN;
		}
	}
	return 0;
}

/* Makes a table that is larger than @old; of none, the least.  -EAGAIN: there is no such. */
static int make_larger(struct twin_table *table, const struct twin_table *old, size_t *bytes)
{
	int r = -EAGAIN;

	for (*bytes = old->x.size ? 2 * old->x.size : EBBFAR_EXTENT_LEAST;
	     *bytes <= EBBFAR_EXTENT_MOST; *bytes *= 2) {
		r = make(table, *bytes, old);
		if (r != -EAGAIN)
			break;
	}
	return r;
}

/* Writes the table, which is new, and tells others.  Without the lock. */
static int show(struct twin_table *table, struct link *l, const struct twin_told *t,
		size_t bytes, uint64_t next)
{
	struct twin_head head = { .magic = TWIN_MAGIC, .entries = table->entries, .next = next };
	struct twin_head none = { 0 };
	struct ebbfar_request q[] = {
		/* The memory may begin with the header of a dead process's object. */
		{ .op = EBBFAR_WRITE, .memory = &none, .size = sizeof(none) },
		{ .op = EBBFAR_WRITE, .offset = sizeof(head), .memory = table->entry,
		  .size = table->entries * sizeof(*table->entry) },
		{ .op = EBBFAR_WRITE, .memory = &head, .size = sizeof(head) },
	};
	int r = link_error(ebbfar_alloc(l->far, bytes, &table->x));

	if (r)
		return r == -EAGAIN ? -ENOSPC : r;
	head.check = desk_check(table->x.place, TWIN_MAGIC);
	for (uint32_t i = 0; i < t->donors; i++)
		head.member[i] = t->links[i].member;
	q[0].extent = q[1].extent = q[2].extent = table->x;
	r = link_error(link_submit(l, q, 3)) ?: publish(l, t, table->x.place);
	if (r)
		link_free(l, &table->x);
	return r;
}

/* What was removed meanwhile is removed from the table that replaces @old. */
static void remove_others(struct twin_told *t, struct twin_table *table, struct link *l,
			  const struct twin_table *old)
{
	for (uint32_t i = 0; i < table->entries; i++) {
		struct twin_entry *e = &table->entry[i];

		if (!e->key || find(old, e->key, e->key))
			continue;
		*e = (struct twin_entry){ 0 };
		write_entry(t, table, l, e);
	}
}

/* Replaces @old by the table. */
static void replace(struct twin_told *t, struct twin_table *table, struct link *l,
		    struct twin_table *old)
{
	if (old->x.size) {
		remove_others(t, table, l, old);
		/* Readers that know it find that it is none any more. */
		twin_later(t, l, EBBFAR_WRITE, &old->x, 0, NULL, sizeof(struct twin_head));
		twin_later(t, l, EBBFAR_FREE, &old->x, 0, NULL, 0);
	}
	free(old->entry);
	*old = *table;
}

/* Makes room in the list's last table, or one more table. */
static int grow(struct twin_list *list, struct link *l, struct twin_told *t)
{
	struct twin_table table = { 0 };
	uint32_t last = list->tables ? list->tables - 1 : 0;
	size_t bytes;
	int r = make_larger(&table, &list->table[last], &bytes);

	if (r == -EAGAIN) {
		if (++last == TWIN_TABLES)
			return -ENOSPC;
		r = make_larger(&table, &list->table[last], &bytes);
	}
	if (r)
		return r;
	list->is_growing = true;
	twin_unlock(t);
	r = show(&table, l, t, bytes, last ? list->table[last - 1].x.place : 0);
	pthread_mutex_lock(t->lock);
	list->is_growing = false;
	pthread_cond_broadcast(t->changed);
	if (r) {
		free(table.entry);
		return r;
	}
	replace(t, &table, l, &list->table[last]);
	list->tables = last + 1;
	return 0;
}

/* --- the list --------------------------------------------------------------------- */

int twin_list_add(struct twin_list *list, struct link *l, struct twin_told *t, uint64_t key,
		  uint64_t place)
{
	struct twin_table *table;
	struct twin_entry *e, was;
	int r = 0;

	for (;;) {
		e = find_any(list, key, key, &table) ?: find_any(list, key, 0, &table);
		if (list->is_growing)
			pthread_cond_wait(t->changed, t->lock);
		else if (e || (r = grow(list, l, t)))
			break;
	}
	if (r)
		return r;
	was = *e;
	*e = (struct twin_entry){ key, place };
	r = write_entry(t, table, l, e);
	if (r)
		*e = was;
	return r;
}

void twin_list_remove(struct twin_list *list, struct link *l, struct twin_told *t, uint64_t key)
{
	struct twin_table *table;
	struct twin_entry *e = find_any(list, key, key, &table);

	if (!e)
		return;
	*e = (struct twin_entry){ 0 };
	/* Without memory, others find what the entry said, as twin.h says. */
	write_entry(t, table, l, e);
}

void twin_list_end(struct twin_list *list)
{
	for (uint32_t i = 0; i < list->tables; i++)
		free(list->table[i].entry);
}
