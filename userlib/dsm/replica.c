// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Values at twins: written by their owner, read by processes that have lost a donor. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "dsm.h"

/* A table of another process's list of twins. */
struct dsm_list {
	uint32_t donor;
	struct ebbfar_extent x;
	struct twin_head head;
};

int dsm_save(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, const struct content *c)
{
	struct heap_twin twin[HEAP_TWINS];
	int result[HEAP_TWINS] = { 0 };
	uint32_t n = heap_twins(&dsm->heap, at, twin), saved = 0;

	if (!n)
		return -EIO;
	dsm_leave(dsm, 0);
	for (uint32_t i = 0; i < n; i++) {
		struct dsm_op op;

		dsm_copy(&op, at, stamp);
		result[i] = link_run_at(twin[i].link, &op, (struct content *)c, &twin[i].x);
	}
	pthread_mutex_lock(&dsm->lock);
	for (uint32_t i = 0; i < n; i++) {
		saved += !result[i];
		/* It has an earlier value: it is no twin any more. */
		if (result[i])
			heap_lose_twin(&dsm->heap, at, &twin[i]);
	}
	return saved ? 0 : -EIO;
}

/* --- lists of others -------------------------------------------------------------- */

struct looking {
	struct dsm_list *list;
	uint32_t n;
	bool is_other; /* a place has no list any more */
	struct ebbfar_request q[EBBFAR_MEMBERS];
	uint64_t words[EBBFAR_MEMBERS];
	uint64_t place[EBBFAR_MEMBERS]; /* of lists; 0 = none */
	struct desk desk[EBBFAR_MEMBERS];
};

#define DESK_HEAD ((uint32_t)offsetof(struct desk, padding))

/*
 * Reads what one process says wrong, too: others' results count.  -EIO: the donor is lost; -ENOMEM:
 * its memory cannot be mapped now.
 */
static int read_each(struct link *l, struct looking *f, uint32_t n)
{
	int r = n ? link_error(link_submit(l, f->q, n)) : 0;

	return r == -ENOMEM || link_is_lost(l) ? r : 0;
}

/* Sets .place to those of the lists that processes at donor @l tell by what they publish. */
static int find_places(struct link *l, struct looking *f)
{
	uint32_t n = 0;
	int r = link_error(ebbfar_published(l->far, f->words));

	for (uint32_t i = 0; i < EBBFAR_MEMBERS && !r; i++) {
		uint64_t word = f->words[i], desk = desk_place(word);

		f->place[i] = word % EBBFAR_EXTENT_LEAST == TWIN_VERSION ? word - TWIN_VERSION : 0;
		if (desk)
			f->q[n++] = (struct ebbfar_request){
				.op = EBBFAR_READ, .memory = &f->desk[i], .size = DESK_HEAD,
				.extent = { .place = desk, .size = DESK_BYTES } };
	}
	r = r ?: read_each(l, f, n);
	for (uint32_t i = 0; i < EBBFAR_MEMBERS && !r; i++) {
		uint64_t desk = desk_place(f->words[i]);

		/* One that was not read is zeros. */
		if (desk && desk_is_valid(&f->desk[i], desk))
			f->place[i] = f->desk[i].twins;
	}
	return r;
}

/* Adds the tables at .place, and sets that to those before them. */
static int find_tables(struct link *l, struct looking *f)
{
	struct dsm_list *first = &f->list[f->n];
	uint32_t n = 0;
	int r;

	for (uint32_t i = 0; i < EBBFAR_MEMBERS; i++) {
		if (!f->place[i])
			continue;
		first[n] = (struct dsm_list){
			.donor = l->number,
			.x = { .place = f->place[i], .size = EBBFAR_EXTENT_LEAST } };
		f->q[n] = (struct ebbfar_request){ .op = EBBFAR_READ, .extent = first[n].x,
						   .memory = &first[n].head,
						   .size = sizeof(first->head) };
		n++;
	}
	memset(f->place, 0, sizeof(f->place));
	r = read_each(l, f, n);
	for (uint32_t i = 0; i < n && !r; i++) {
		const struct twin_head *h = &first[i].head;

		/* One that was replaced since, or what was not read, is none. */
		if (!twin_is_head(h, first[i].x.place)) {
			f->is_other = true;
			continue;
		}
		first[i].x.size = sizeof(*h) + h->entries * sizeof(struct twin_entry);
		f->place[i] = h->next;
		f->list[f->n++] = first[i];
	}
	return r ?: (int)n;
}

/* Sets .list to the tables at donor @l, the last of each list first. */
static int find_lists(struct link *l, struct looking *f)
{
	int r = find_places(l, f);

	if (r)
		return r;
	for (uint32_t i = 0; i < TWIN_TABLES && (r = find_tables(l, f)) > 0; i++)
		;
	return r < 0 ? r : 0;
}

/* Reads where the lists at @l are.  Sets *@is_other if one was replaced meanwhile. */
static int look(ebbdsm_t *dsm, struct link *l, bool *is_other)
{
	struct dsm_lists *lists = &dsm->lists[l->number];
	struct looking *f = calloc(1, sizeof(*f));
	int r = -ENOMEM;

	if (f)
		f->list = calloc((size_t)EBBFAR_MEMBERS * TWIN_TABLES, sizeof(*f->list));
	if (f && f->list)
		r = find_lists(l, f);
	if (!r) {
		struct dsm_list *old;

		*is_other |= f->is_other;
		pthread_mutex_lock(&dsm->lists_lock);
		old = lists->list;
		*lists = (struct dsm_lists){ f->list, f->n };
		pthread_mutex_unlock(&dsm->lists_lock);
		f->list = old;
	}
	if (f)
		free(f->list);
	free(f);
	return r;
}

/* --- reads ------------------------------------------------------------------------ */

/* A process has one list at a donor; some tables may be those of a dead process. */
#define MATCHES (TWIN_TABLES + 3)
/* While the place's donor is there, all lists are read again after as long, ms. */
#define LOOK_MS 500
/* They are read again at once, as often at most, while lists are replaced. */
#define LOOKS 3

/* Sets @found to the lists of the owner of place @n at a donor, and returns how many there are. */
static uint32_t match(ebbdsm_t *dsm, uint32_t donor, const struct name *n,
		      struct dsm_list found[MATCHES])
{
	struct dsm_lists *lists = &dsm->lists[donor];
	uint32_t matches = 0;

	pthread_mutex_lock(&dsm->lists_lock);
	for (uint32_t i = 0; i < lists->n && matches < MATCHES; i++)
		if (lists->list[i].head.member[n->donor] == n->member)
			found[matches++] = lists->list[i];
	pthread_mutex_unlock(&dsm->lists_lock);
	return matches;
}

/*
 * Sets *@x to the twin's extent of place @n, whose key is @key, as @list has it.  -EAGAIN: the list
 * is another by now; -EIO.
 */
static int find_twin(ebbdsm_t *dsm, const struct dsm_list *list, uint64_t key,
		     const struct name *n, struct ebbfar_extent *x)
{
	struct twin_entry e[TWIN_WINDOW];
	struct twin_head head;
	struct ebbfar_request q[] = {
		{ .op = EBBFAR_READ, .extent = list->x, .memory = e, .size = sizeof(e),
		  .offset = (uint32_t)sizeof(head) +
			    twin_first(key, (uint32_t)list->head.entries) * (uint32_t)sizeof(*e) },
		{ .op = EBBFAR_READ, .extent = list->x, .memory = &head, .size = sizeof(head) },
	};
	int r = link_error(link_submit(&dsm->link[list->donor], q, 2));

	if (!r && memcmp(&head, &list->head, sizeof(head)))
		r = -EAGAIN;
	for (uint32_t i = 0; i < TWIN_WINDOW && !r; i++)
		if (e[i].key == key) {
			*x = (struct ebbfar_extent){ .place = e[i].place,
						     .size = name_extent(n->kind) };
			return 0;
		}
	return r ?: -EIO;
}

/* What is looked for, and where. */
struct wanted {
	uint64_t at, stamp;
	struct name name;
	struct content *to;
	uint64_t size;
	bool is_other; /* a list is another than the one that is known */
};

/* Reads the value at the twin that the owner's lists at @l have.  -ESTALE, -EIO: it is at none. */
static int read_listed(ebbdsm_t *dsm, struct link *l, struct wanted *w)
{
	struct dsm_list list[MATCHES];
	uint32_t n = match(dsm, l->number, &w->name, list);
	int found = -EIO;

	for (uint32_t i = 0; i < n; i++) {
		struct ebbfar_extent x;
		struct dsm_op op;
		int r = find_twin(dsm, &list[i], twin_key(w->at), &w->name, &x);

		w->is_other |= r == -EAGAIN;
		if (r == -ENOMEM)
			return r;
		if (r)
			continue;
		dsm_read_twin(&op, w->at, w->stamp);
		r = link_run_at(l, &op, w->to, &x);
		w->size = op.after.size;
		if (!r || r == -ENOMEM)
			return r;
		found = r == -ESTALE ? r : found;
	}
	return found;
}

/*
 * ... at all donors, after the place's, where most twins are: a donor that is silent is waited for
 * only if none before it has the value.
 */
static int read_anywhere(ebbdsm_t *dsm, struct wanted *w, bool looks)
{
	int found = -EIO;

	for (uint32_t i = 1; i < dsm->donors; i++) {
		struct link *l = &dsm->link[(w->name.donor + i) % dsm->donors];
		int r;

		if (link_is_lost(l))
			continue;
		r = looks ? look(dsm, l, &w->is_other) : 0;
		r = r ?: read_listed(dsm, l, w);
		if (!r || r == -ENOMEM)
			return r;
		found = r == -ESTALE ? r : found;
	}
	return found;
}

/* Returns whether the lists that are known may be too old to say that a value is at no twin. */
static bool may_look(ebbdsm_t *dsm, const struct wanted *w)
{
	int64_t now = bell_now();
	bool due;

	pthread_mutex_lock(&dsm->lists_lock);
	due = link_is_lost(&dsm->link[w->name.donor]) || w->is_other || !dsm->looked_at ||
	      now - dsm->looked_at >= LOOK_MS;
	if (due)
		dsm->looked_at = now;
	pthread_mutex_unlock(&dsm->lists_lock);
	return due;
}

int dsm_read_saved(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, struct content *to, uint64_t *size)
{
	struct wanted w = { .at = at, .stamp = stamp, .to = to };
	int r;

	if (!name_parse(at, 0, dsm->donors, &w.name))
		return -EINVAL;
	r = read_anywhere(dsm, &w, false);
	if (r && may_look(dsm, &w))
		for (int i = 0; i < LOOKS && r && r != -ENOMEM && (!i || w.is_other); i++) {
			w.is_other = false;
			r = read_anywhere(dsm, &w, true);
		}
	*size = w.size;
	pthread_mutex_lock(&dsm->lock);
	dsm->twin_reads += !r;
	dsm->lost += r == -EIO;
	dsm_leave(dsm, 0);
	return r;
}
