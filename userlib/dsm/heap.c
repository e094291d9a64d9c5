// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "heap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_LEAST 64u
/*
 * Numbers that are kept for objects that are there: changes, offers, and a move to another block.
 */
#define NUMBERS_KEPT 16u

static uint32_t bucket_of(const struct heap_part *p, uint64_t place)
{
	return (uint32_t)((place >> 12) * 0x9e3779b97f4a7c15ull >> 32) & (p->size - 1);
}

static int grow_table(struct heap_part *p)
{
	struct heap_part old = *p;

	if (p->blocks < p->size)
		return 0;
	p->size = p->size ? 2 * p->size : TABLE_LEAST;
	p->table = calloc(p->size, sizeof(*p->table));
	if (!p->table) {
		p->size = old.size;
		p->table = old.table;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < old.size; i++)
		while (old.table[i]) {
			struct block *b = old.table[i], **at = &p->table[bucket_of(p, b->x.place)];

			old.table[i] = b->chain;
			b->chain = *at;
			*at = b;
		}
	free(old.table);
	return 0;
}

static struct heap_part *part_of(struct heap *h, const struct block *b)
{
	return &h->part[b->link->number];
}

static struct block *find_block(const struct heap_part *p, uint64_t place)
{
	struct block *b = p->size ? p->table[bucket_of(p, place)] : NULL;

	while (b && b->x.place != place)
		b = b->chain;
	return b;
}

static void enlist(struct heap *h, struct block *b)
{
	struct block **first = &part_of(h, b)->listed[b->kind];

	b->listed = true;
	b->prev = NULL;
	b->next = *first;
	if (b->next)
		b->next->prev = b;
	*first = b;
}

static void unlist(struct heap *h, struct block *b)
{
	if (!b->listed)
		return;
	b->listed = false;
	if (b->prev)
		b->prev->next = b->next;
	else
		part_of(h, b)->listed[b->kind] = b->next;
	if (b->next)
		b->next->prev = b->prev;
}

static bool is_worn(const struct block *b)
{
	return b->numbers + NUMBERS_KEPT >= DSM_NUMBERS;
}

/* --- twins ----------------------------------------------------------------------- */

/* A donor that had no memory is asked again after as long, ms. */
#define ROOM_PAUSE 2000
/* A block that could not be copied is copied again after as long, doubled each time, ms. */
#define MEND_PAUSE 1000
#define MEND_PAUSE_MOST 64000

/* Waits for a change by another call, which has not to send what this one has posted. */
static void wait_for_others(struct heap *h)
{
	if (!h->told.later) {
		pthread_cond_wait(h->told.changed, h->told.lock);
		return;
	}
	twin_unlock(&h->told);
	pthread_mutex_lock(h->told.lock);
}

static void note_bare(struct heap *h, struct block *b, bool is_bare)
{
	if (b->is_bare == is_bare)
		return;
	b->is_bare = is_bare;
	h->bare += is_bare ? b->x.size : -(uint64_t)b->x.size;
	h->bares += is_bare ? 1 : -(uint64_t)1;
	if (is_bare) {
		b->bare_next = NULL;
		b->bare_prev = h->bare_last;
		*(h->bare_last ? &h->bare_last->bare_next : &h->bare_first) = b;
		h->bare_last = b;
		return;
	}
	*(b->bare_prev ? &b->bare_prev->bare_next : &h->bare_first) = b->bare_next;
	*(b->bare_next ? &b->bare_next->bare_prev : &h->bare_last) = b->bare_prev;
}

static bool is_used(const struct heap_twin *t)
{
	return t->link && !t->is_old;
}

/* Frees memory at a donor without waiting.  Without memory, when this process leaves. */
static void free_later(struct heap *h, struct link *link, const struct ebbfar_extent *x)
{
	twin_later(&h->told, link, EBBFAR_FREE, x, 0, NULL, 0);
	h->full[link->number].until = 0;
}

static void unlist_twin(struct heap *h, const struct block *b, struct link *link)
{
	twin_list_remove(&h->list[link->number], link, &h->told, twin_key(b->first));
}

static void drop_twin(struct heap *h, struct block *b, struct heap_twin *t)
{
	unlist_twin(h, b, t->link);
	free_later(h, t->link, &t->x);
	h->part[t->link->number].bytes -= t->x.size;
	*t = (struct heap_twin){ 0 };
}

/* Returns the copies that others can read. */
static uint32_t count_copies(struct heap *h, struct block *b)
{
	uint32_t n = !link_is_lost(b->link);

	for (uint32_t i = 0; i < HEAP_TWINS; i++) {
		struct heap_twin *t = &b->twin[i];

		if (t->link && link_is_lost(t->link))
			drop_twin(h, b, t);
		n += is_used(t);
	}
	return n;
}

/* Returns whether a twin of the block may be at @link. */
static bool may_have_room(const struct heap *h, const struct block *b, const struct link *link)
{
	return link != b->link && link != b->twin[0].link && link != b->twin[1].link &&
	       !link_is_lost(link) && (h->full[link->number].size > b->x.size ||
				       bell_now() >= h->full[link->number].until);
}

static bool may_find_room(const struct heap *h, const struct block *b)
{
	for (uint32_t i = 0; i < h->told.donors; i++)
		if (may_have_room(h, b, &h->link[i]))
			return true;
	return false;
}

/*
 * Sets @t to memory for a twin of @b, which no other call works at, at the next donor that has
 * some.  Gives the lock up meanwhile.  -ENOSPC: none has.
 */
static int find_room(struct heap *h, const struct block *b, struct heap_twin *t)
{
	for (uint32_t i = 1; i < h->told.donors; i++) {
		struct link *link = &h->link[(b->link->number + i) % h->told.donors];
		int r;

		if (!may_have_room(h, b, link))
			continue;
		twin_unlock(&h->told);
		r = ebbfar_alloc(link->far, b->x.size, &t->x);
		pthread_mutex_lock(h->told.lock);
		t->link = link;
		if (!r)
			return 0;
		h->full[link->number].size = b->x.size;
		h->full[link->number].until = bell_now() + ROOM_PAUSE;
	}
	return -ENOSPC;
}

/* Makes @t, with @content or zeros if that is NULL, a twin.  Gives the lock up meanwhile. */
static int add_twin(struct heap *h, struct block *b, const struct heap_twin *t, uint8_t *content)
{
	struct ebbfar_request q = { .op = EBBFAR_WRITE, .extent = t->x, .memory = content,
				    .size = t->x.size };
	int r;

	twin_unlock(&h->told);
	/* Content does not come before the headers that the memory had. */
	r = link_zero(t->link, &t->x, 0, t->x.size);
	if (!r && content)
		r = link_error(link_submit(t->link, &q, 1));
	pthread_mutex_lock(h->told.lock);
	if (!r)
		r = twin_list_add(&h->list[t->link->number], t->link, &h->told, twin_key(b->first),
				  t->x.place);
	if (r) {
		free_later(h, t->link, &t->x);
		return r;
	}
	b->twin[b->twin[0].link != NULL] = *t;
	h->part[t->link->number].bytes += t->x.size;
	return 0;
}

static int add_empty_twin(struct heap *h, struct block *b)
{
	struct heap_twin t = { 0 };

	return find_room(h, b, &t) ?: add_twin(h, b, &t, NULL);
}

/* --- blocks ----------------------------------------------------------------------- */

static struct block *make_block(uint32_t kind)
{
	uint32_t slots = name_extent(kind) / name_place(kind);
	struct block *b = calloc(1, sizeof(*b) + slots * sizeof(*b->slot));

	if (!b)
		return NULL;
	b->kind = kind;
	b->slots = slots;
	b->free = 1;
	for (uint32_t i = 0; i < slots; i++)
		b->slot[i].size = i + 1 < slots ? i + 2 : 0;
	return b;
}

static int map_block(struct block *b)
{
	void *memory;
	int r;

	if (!b->link->maps)
		return link_zero(b->link, &b->x, 0, b->x.size);
	r = ebbfar_map(b->link->far, &b->x, &memory);
	if (r)
		return link_error(r);
	b->memory = memory;
	memset(memory, 0, b->x.size);
	/* Before any content. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return 0;
}

static int add_block(struct heap *h, struct link *link, uint32_t kind)
{
	struct heap_part *p = &h->part[link->number];
	struct block *b = make_block(kind), **at;
	int r = b ? grow_table(p) : -ENOMEM;

	if (!r) {
		b->link = link;
		r = link_error(ebbfar_alloc(link->far, name_extent(kind), &b->x));
	}
	if (r) {
		free(b);
		return r == -EAGAIN ? -ENOSPC : r;
	}
	r = map_block(b);
	if (r) {
		link_free(link, &b->x);
		free(b);
		return r;
	}
	b->first = name_make(link->number, link->member, &b->x, 0, kind, 1);
	b->place = name_place(kind);
	b->unit_shift = (uint32_t)__builtin_ctz(name_unit(kind));
	/* Other calls do not know the block yet. */
	if (h->replicas) {
		add_empty_twin(h, b);
		/* Donors that were lost meanwhile are noted for blocks that were known. */
		note_bare(h, b, count_copies(h, b) <= h->replicas);
	}
	at = &p->table[bucket_of(p, b->x.place)];
	b->chain = *at;
	*at = b;
	p->blocks++;
	p->bytes += b->x.size;
	enlist(h, b);
	return 0;
}

static void remove_block(struct heap *h, struct block *b)
{
	struct heap_part *p = part_of(h, b);
	struct block **at = &p->table[bucket_of(p, b->x.place)];

	while (*at != b)
		at = &(*at)->chain;
	*at = b->chain;
	p->blocks--;
	p->bytes -= b->x.size;
	unlist(h, b);
	for (uint32_t i = 0; i < HEAP_TWINS; i++)
		if (b->twin[i].link)
			drop_twin(h, b, &b->twin[i]);
	note_bare(h, b, false);
	free_later(h, b->link, &b->x);
	free(b);
}

static void end_part(struct heap_part *p)
{
	for (uint32_t i = 0; i < p->size; i++)
		while (p->table[i]) {
			struct block *b = p->table[i];

			p->table[i] = b->chain;
			free(b);
		}
	free(p->table);
	p->table = NULL;
	p->size = 0;
}

void heap_end(struct heap *h)
{
	for (uint32_t i = 0; i < NAME_DONORS; i++) {
		end_part(&h->part[i]);
		twin_list_end(&h->list[i]);
	}
}

/* --- places ----------------------------------------------------------------------- */

/* As name_make(), which each access of an object cannot afford. */
static uint64_t make_at(const struct block *b, uint32_t slot, size_t size)
{
	return b->first + ((uint64_t)(slot * b->place) << 11) +
	       ((DSM_HEAD + size - 1) >> b->unit_shift);
}

bool heap_has_place(const struct heap *h, uint32_t donor, size_t size)
{
	const struct block *b = h->part[donor].listed[name_kind(DSM_HEAD + size)];

	return b && !is_worn(b);
}

int heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot)
{
	struct heap_part *p = &h->part[donor];
	struct link *link = &h->link[donor];
	uint32_t kind = name_kind(DSM_HEAD + size), i;
	struct block *b;

	/* Mapped memory of a donor that has exited can still be accessed. */
	if (*ebbfar_why(link->far))
		return -EIO;
	while ((b = p->listed[kind]) && is_worn(b))
		unlist(h, b);
	if (!b) {
		int r = add_block(h, link, kind);

		if (r)
			return r;
		b = p->listed[kind];
	}
	i = b->free - 1;
	b->free = b->slot[i].size;
	b->used++;
	h->places++;
	p->places++;
	if (!b->free)
		unlist(h, b);
	b->slot[i] = (struct slot){ .size = (uint32_t)size, .state = SLOT_WORKING };
	*at = make_at(b, i, size);
	*slot = &b->slot[i];
	return 0;
}

/* Sets *@i to the slot of place @at.  Returns its block, or NULL. */
static struct block *locate(const struct heap *h, uint64_t at, uint32_t *i)
{
	uint64_t place = name_at_place(at), extent = name_extent(name_at_kind(at));
	struct block *b;

	b = find_block(&h->part[at >> 61], place & ~(extent - 1));
	if (!b)
		return NULL;
	*i = (uint32_t)(place & (extent - 1)) / b->place;
	/* Of a name with another kind, donor or member, a bit differs. */
	if (*i >= b->slots || b->slot[*i].state == SLOT_UNUSED ||
	    make_at(b, *i, b->slot[*i].size) != at)
		return NULL;
	return b;
}

struct slot *heap_find(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	return b ? &b->slot[i] : NULL;
}

struct content *heap_memory(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	return b && b->memory ? (struct content *)(b->memory + i * b->place) : NULL;
}

uint64_t heap_stamp(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	if (!b || b->numbers + 1 >= DSM_NUMBERS)
		return 0;
	return dsm_stamp(b->x.generation, ++b->numbers);
}

bool heap_is_worn(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	return !b || is_worn(b);
}

/* Without waiting. */
static void zero_head(struct heap *h, struct link *l, const struct ebbfar_extent *x,
		      uint32_t offset)
{
	struct dsm_head none = { 0 };
	struct ebbfar_request q = { .op = EBBFAR_WRITE, .extent = *x, .memory = &none,
				    .size = DSM_HEAD, .offset = offset };

	/* Without memory for that, waits.  A failure then is the link's. */
	if (twin_later(&h->told, l, EBBFAR_WRITE, x, offset, NULL, DSM_HEAD))
		link_submit(l, &q, 1);
}

static void clear_twin(struct heap *h, const struct heap_twin *t, uint32_t offset)
{
	zero_head(h, t->link, &t->x, offset);
}

static void clear_twins(struct heap *h, struct block *b, uint32_t i)
{
	for (uint32_t k = 0; k < HEAP_TWINS; k++)
		if (is_used(&b->twin[k]))
			clear_twin(h, &b->twin[k], i * b->place);
}

static void clear_head(struct heap *h, struct block *b, uint32_t i)
{
	struct dsm_head *head;

	if (!b->memory) {
		zero_head(h, b->link, &b->x, i * b->place);
		return;
	}
	head = (struct dsm_head *)(b->memory + i * name_place(b->kind));
	__atomic_store_n(&head->stamp, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&head->check, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&head->hold, 0, __ATOMIC_RELAXED);
	/* Before the place's next content. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* One block of each kind is kept for the next object. */
static void remove_if_unused(struct heap *h, struct block *b)
{
	if (!b->used && !b->is_mended &&
	    (b->slots == 1 || is_worn(b) || part_of(h, b)->listed[b->kind] != b || b->next ||
	     (h->replicas && link_is_lost(b->link))))
		remove_block(h, b);
}

void heap_free(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	clear_head(h, b, i);
	clear_twins(h, b, i);
	b->slot[i] = (struct slot){ .size = b->free };
	b->free = i + 1;
	b->used--;
	h->places--;
	part_of(h, b)->places--;
	if (is_worn(b))
		unlist(h, b);
	else if (!b->listed)
		enlist(h, b);
	remove_if_unused(h, b);
}

/* --- twins of places -------------------------------------------------------------- */

bool heap_is_cut(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = h->replicas ? locate(h, at, &i) : NULL;

	return b && link_is_lost(b->link) &&
	       (b->memory || is_used(&b->twin[0]) || is_used(&b->twin[1]));
}

void heap_begin_write(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = h->replicas ? locate(h, at, &i) : NULL;

	if (!b)
		return;
	while (b->is_mended)
		wait_for_others(h);
	b->writers++;
}

uint32_t heap_twins(struct heap *h, uint64_t at, struct heap_twin twin[HEAP_TWINS])
{
	uint32_t i, n = 0;
	struct block *b = h->replicas ? locate(h, at, &i) : NULL;

	for (uint32_t k = 0; b && k < HEAP_TWINS; k++)
		if (is_used(&b->twin[k]))
			twin[n++] = b->twin[k];
	return n;
}

void heap_end_write(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = h->replicas ? locate(h, at, &i) : NULL;

	if (!b || --b->writers)
		return;
	for (uint32_t k = 0; k < HEAP_TWINS; k++)
		if (b->twin[k].is_old)
			drop_twin(h, b, &b->twin[k]);
	if (b->is_mended)
		pthread_cond_broadcast(h->told.changed);
}

void heap_lose_twin(struct heap *h, uint64_t at, const struct heap_twin *twin)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	for (uint32_t k = 0; b && k < HEAP_TWINS; k++) {
		struct heap_twin *t = &b->twin[k];

		/* Places of two donors may be equal. */
		if (!is_used(t) || t->link != twin->link || t->x.place != twin->x.place ||
		    t->x.generation != twin->x.generation)
			continue;
		t->is_old = true;
		unlist_twin(h, b, t->link);
		note_bare(h, b, true);
	}
}

/* Reads the block, which no other call writes to, from one of its copies.  Without the lock. */
static int read_block(const struct block *b, uint8_t *to)
{
	struct ebbfar_request q = { .op = EBBFAR_READ, .memory = to, .size = b->x.size };
	int r = -EIO;

	for (uint32_t k = 0; r && k <= HEAP_TWINS; k++) {
		struct link *link = k ? b->twin[k - 1].link : b->link;

		if (!link || link_is_lost(link))
			continue;
		q.extent = k ? b->twin[k - 1].x : b->x;
		r = link_error(link_submit(link, &q, 1));
	}
	return r;
}

/* Has the place of slot @i of what was read as its owner has it.  -EIO: it is not there. */
static int settle_place(const struct block *b, uint32_t i, uint8_t *read)
{
	struct dsm_head *head = (struct dsm_head *)(void *)(read + i * b->place);
	const struct slot *s = &b->slot[i];
	bool is_object = s->state == SLOT_OWNED || s->state == SLOT_LENT ||
			 s->state == SLOT_OFFERED || s->state == SLOT_SHARED;

	head->hold = 0;
	if ((is_object || s->state == SLOT_WORKING) && s->stamp && head->stamp == s->stamp &&
	    head->check == dsm_check(make_at(b, i, s->size), s->stamp))
		return 0;
	/* A call that changes it, or a borrow, writes it when it ends. */
	memset(head, 0, sizeof(*head));
	return is_object ? -EIO : 0;
}

/* Sets @content to the block's objects.  Gives the lock up meanwhile. */
static int get_content(struct heap *h, struct block *b, uint8_t *content)
{
	int r = 0;

	if (b->memory) {
		memcpy(content, b->memory, b->x.size);
	} else {
		twin_unlock(&h->told);
		r = read_block(b, content);
		pthread_mutex_lock(h->told.lock);
	}
	for (uint32_t i = 0; !r && i < b->slots; i++)
		r = settle_place(b, i, content);
	return r;
}

/* Ends, at twin @t, objects that have ended since @content was made of the block. */
static void clear_ended(struct heap *h, struct block *b, const struct heap_twin *t,
			const uint8_t *content)
{
	for (uint32_t i = 0; i < b->slots; i++) {
		const struct dsm_head *head = (const void *)(content + i * b->place);

		if (head->stamp && (b->slot[i].state == SLOT_UNUSED ||
				    b->slot[i].stamp != head->stamp))
			clear_twin(h, t, i * b->place);
	}
}

/* Makes a twin with the objects of the block, which no other call writes to. */
static int copy_block(struct heap *h, struct block *b)
{
	struct heap_twin t = { 0 };
	uint8_t *content;
	int r = find_room(h, b, &t);

	if (r)
		return r;
	content = aligned_alloc(16, b->x.size);
	r = content ? get_content(h, b, content) : -ENOMEM;
	if (r)
		free_later(h, t.link, &t.x);
	else
		r = add_twin(h, b, &t, content);
	if (!r)
		clear_ended(h, b, &t, content);
	free(content);
	/* The donor has room for a twin, but not for a list. */
	return r == -ENOSPC ? -ENOBUFS : r;
}

/* Makes a twin of a block that is bare, if it still is when writes to it have ended. */
static int mend_block(struct heap *h, struct block *b)
{
	int r = 0;

	b->is_mended = true;
	while (b->writers)
		wait_for_others(h);
	if (count_copies(h, b) <= h->replicas)
		r = copy_block(h, b);
	b->is_mended = false;
	pthread_cond_broadcast(h->told.changed);
	note_bare(h, b, r != 0);
	b->pause = !r || r == -ENOSPC ? 0 : b->pause ? 2 * b->pause : MEND_PAUSE;
	b->pause = b->pause < MEND_PAUSE_MOST ? b->pause : MEND_PAUSE_MOST;
	b->mend_at = bell_now() + b->pause;
	remove_if_unused(h, b);
	return r;
}

/* Notes which blocks are bare without donors that are lost. */
static void note_part(struct heap *h, struct heap_part *p)
{
	for (uint32_t i = 0; i < p->size; i++)
		for (struct block *b = p->table[i], *next; b; b = next) {
			next = b->chain;
			if (!b->used && !b->is_mended && link_is_lost(b->link))
				remove_block(h, b);
			else
				note_bare(h, b, count_copies(h, b) <= h->replicas);
		}
}

/* Twins that one heap_mend() makes at most. */
#define MENDED_MOST 64u

static void mend(struct heap *h)
{
	uint32_t copied = 0;

	/* Each that is bare now once, those of the last times last. */
	for (uint64_t n = h->bares; n && h->bare_first && copied < MENDED_MOST; n--) {
		struct block *b = h->bare_first;

		note_bare(h, b, false);
		note_bare(h, b, true);
		if (bell_now() >= b->mend_at && may_find_room(h, b))
			copied += mend_block(h, b) != -ENOSPC;
	}
}

void heap_mend(struct heap *h)
{
	uint32_t lost = 0;

	for (uint32_t i = 0; h->replicas && i < h->told.donors; i++)
		lost |= (uint32_t)link_is_lost(&h->link[i]) << i;
	if (h->is_mending || (!h->bare && lost == h->lost))
		return;
	h->is_mending = true;
	if (lost != h->lost)
		for (uint32_t i = 0; i < NAME_DONORS; i++)
			note_part(h, &h->part[i]);
	h->lost = lost;
	/* A block and its twin are at two donors. */
	if ((uint32_t)__builtin_popcount(lost) + 1 < h->told.donors)
		mend(h);
	h->is_mending = false;
}
