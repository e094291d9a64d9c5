// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The far generation on a recorded program, with far cycles at donors, which libebbgc does not have
 * yet.  Regions of 64 KiB with slots of one size leave when local memory is short; their objects
 * come back one by one, or with their region.  A name is the place where an object was when a
 * reference to it was last stored or healed; forwards lead from old names.  Local cycles involve no
 * donor.  Far cycles trace at donors (lib/rules/far_cycle.h); no message of them is lost here.
 *
 * Large objects have pages, which leave one by one.
 */
#include <stdlib.h>
#include <string.h>

#include "heap_cache.h"
#include "heap_world.h"
#include "lib/rules/far_cycle.h"
#include "lib/rules/tablet.h"

#define CLASSES (TABLET_SLOT_MOST / TABLET_GRANULE + 1)
#define RECORD 48              /* bytes of a region's record at the borrower */
#define FORWARD 8
#define WINDOW 4               /* LEAVING regions are at most this part of the budget */
#define HOME_FETCHES 32        /* of the last HOME_OF fetches bring a region home */
#define HOME_OF 1024
#define FAR_GROWTH 3 / 2       /* far bytes against those that lived, for a far cycle */
#define NONE UINT32_MAX

enum state { LOCAL, LEAVING, FAR, VACANT };

struct region {
	uint32_t slot;          /* bytes of a slot */
	uint32_t slots, next;   /* next: slots from here on may be free */
	uint32_t live;          /* slots in use */
	uint32_t *object;       /* in each slot: number + 1, 0 = free or moved */
	uint8_t state, donor;
	uint32_t fetched, epoch; /* fetches among the last HOME_OF */
	uint64_t place;         /* bytes at its donor */
};

/* A queue of regions: those that do not count any more are skipped. */
struct queue {
	struct heap_list l;
	uint32_t head;
};

struct donor {
	struct far_cycle_donor_state at;
	struct heap_list queue;   /* objects to send there */
	struct heap_list batch, leave; /* of the unanswered TRACE; of its reply */
	uint64_t due;             /* when its reply arrives */
};

struct ebb {
	struct heap_world *w;
	struct region *at;
	uint32_t count, room;
	struct heap_list vacant;
	uint32_t current[CLASSES]; /* region for new and fetched objects of each size, or NONE */
	struct heap_list holes[CLASSES]; /* swept regions with free slots */
	struct queue local, leaving;
	uint64_t local_bytes, leaving_bytes, far_bytes, far_lived, large_bytes;
	uint32_t far_regions;
	uint32_t *address;        /* of each object: region * TABLET_SLOTS + granule */
	uint16_t *forwards;       /* old names of each object */
	uint8_t *named;
	uint64_t forward_count;
	struct heap_cache pages;  /* of large objects */
	uint32_t *first_page, page_count;
	uint32_t fetches, epoch;
	/* A far cycle. */
	struct far_cycle cycle;
	struct donor d[HEAP_SERVERS];
	bool tracing;
	uint32_t mark, *marked, *sent; /* cycle in which each object was */
	struct heap_list grey, log;
	uint64_t clock;           /* of the borrower's collector */
};

static uint32_t slot_of(uint32_t size)
{
	uint32_t step = TABLET_GRANULE;

	while (size > 16 * step)
		step *= 2;
	return (size + step - 1) / step * step;
}

static bool is_large(const struct ebb *e, uint32_t object)
{
	return e->w->file->size[object] > TABLET_SLOT_MOST;
}

static uint32_t region_of(uint32_t address)
{
	return address / TABLET_SLOTS;
}

static struct region *home_of(struct ebb *e, uint32_t object)
{
	return &e->at[region_of(e->address[object])];
}

static void *ebb_create(struct heap_world *w)
{
	struct ebb *e = heap_zeroed(1, sizeof(*e));
	uint32_t n = w->file->objects;

	e->w = w;
	e->address = heap_zeroed(n, sizeof(*e->address));
	e->forwards = heap_zeroed(n, sizeof(*e->forwards));
	e->named = heap_zeroed(n, 1);
	e->first_page = heap_zeroed(n, sizeof(*e->first_page));
	e->marked = heap_zeroed(n, sizeof(*e->marked));
	e->sent = heap_zeroed(n, sizeof(*e->sent));
	for (uint32_t i = 0; i < CLASSES; i++)
		e->current[i] = NONE;
	heap_cache_init(&e->pages, 1, HEAP_PAGE);
	return e;
}

static void ebb_destroy(void *state)
{
	struct ebb *e = state;

	for (uint32_t i = 0; i < e->count; i++)
		free(e->at[i].object);
	for (uint32_t i = 0; i < CLASSES; i++)
		heap_list_free(&e->holes[i]);
	for (uint32_t i = 0; i < HEAP_SERVERS; i++) {
		heap_list_free(&e->d[i].queue);
		heap_list_free(&e->d[i].batch);
		heap_list_free(&e->d[i].leave);
	}
	heap_list_free(&e->vacant);
	heap_list_free(&e->local.l);
	heap_list_free(&e->leaving.l);
	heap_list_free(&e->grey);
	heap_list_free(&e->log);
	heap_cache_free(&e->pages);
	free(e->at);
	free(e->address);
	free(e->forwards);
	free(e->named);
	free(e->first_page);
	free(e->marked);
	free(e->sent);
	free(e);
}

static uint64_t sent_time(const struct ebb *e, uint64_t bytes)
{
	return heap_time(bytes, e->w->config->bandwidth);
}

/* --- memory ----------------------------------------------------------------------- */

/* Bytes of tables: of far regions, their records, tablets and prefixes; a state byte for all. */
static void count_memory(struct ebb *e)
{
	uint64_t bits = 0, named = 0, used = e->large_bytes, tables;

	for (uint32_t i = 0; i < e->count; i++) {
		const struct region *r = &e->at[i];

		if (r->state == VACANT)
			continue;
		named += (r->slots + 7) / 8;
		/* What it takes: its region here, its packed objects there. */
		used += r->state == FAR ? r->place : TABLET_REGION;
		if (r->state == FAR)
			bits += (r->slots + 7) / 8 + (r->slots + 63) / 64 * 2;
	}
	tables = e->count + (uint64_t)e->far_regions * RECORD + bits + e->forward_count * FORWARD;
	/* In a far cycle: sent and new-named bits, too. */
	heap_overhead(e->w, tables + (e->tracing ? 3 : 1) * named, used);
}

static void push(struct queue *q, uint32_t region)
{
	heap_list_add(&q->l, region);
}

/* Returns the oldest region that is still in @state, or NONE. */
static uint32_t pop(struct ebb *e, struct queue *q, enum state state)
{
	while (q->head < q->l.count) {
		uint32_t region = q->l.at[q->head++];

		if (q->head > 4096) {
			q->l.count -= q->head;
			memmove(q->l.at, q->l.at + q->head, q->l.count * sizeof(*q->l.at));
			q->head = 0;
		}
		if (e->at[region].state == state)
			return region;
	}
	return NONE;
}

static void vacate(struct ebb *e, uint32_t region)
{
	struct region *r = &e->at[region];

	if (r->state == FAR) {
		e->far_bytes -= r->place;
		e->far_regions--;
	} else {
		e->local_bytes -= TABLET_REGION;
		e->leaving_bytes -= r->state == LEAVING ? TABLET_REGION : 0;
	}
	free(r->object);
	memset(r, 0, sizeof(*r));
	r->state = VACANT;
	heap_list_add(&e->vacant, region);
}

static void found(struct ebb *e, uint32_t object);
static void take_over(struct ebb *e, uint32_t object);

/* All that the region's objects refer to is named; it is written to its donor. */
static void write_out(struct ebb *e, uint32_t region)
{
	struct region *r = &e->at[region];
	uint64_t bytes = (uint64_t)r->live * r->slot;

	if (!bytes) {
		vacate(e, region);
		return;
	}
	for (uint32_t s = 0; s < r->slots; s++) {
		uint32_t o = r->object[s] - 1;

		if (!r->object[s])
			continue;
		for (uint32_t k = 1; k < heap_words(e->w, o); k++) {
			uint32_t target = e->w->slots[o][k].target;

			if (!target)
				continue;
			e->named[target - 1] = 1;
			/* Leaving is tracing: what leaves counts as alive in a cycle. */
			if (e->tracing)
				found(e, target - 1);
		}
		if (e->tracing) {
			e->marked[o] = e->mark;
			e->sent[o] = e->mark;
		}
	}
	e->w->r.bytes_out += bytes;
	heap_message(e->w, 16);
	r->place = bytes;
	r->state = FAR;
	r->donor = (uint8_t)(region % e->w->config->servers);
	r->fetched = 0;
	e->far_regions++;
	e->far_bytes += bytes;
	e->local_bytes -= TABLET_REGION;
	e->leaving_bytes -= TABLET_REGION;
}

/* Local memory for regions: large objects, which the kernel swaps, have up to half. */
static uint64_t budget(const struct ebb *e)
{
	uint64_t half = e->w->config->local / 2;

	return e->w->config->local - (e->large_bytes < half ? e->large_bytes : half);
}

static bool is_current(const struct ebb *e, uint32_t region)
{
	return e->current[e->at[region].slot / TABLET_GRANULE] == region;
}

static void make_room(struct ebb *e)
{
	uint64_t most = budget(e);

	while (e->local_bytes + TABLET_REGION > most) {
		uint32_t region;

		/* The window: regions that are leaving are still readable. */
		if (e->leaving_bytes < most / WINDOW) {
			region = pop(e, &e->local, LOCAL);
			if (region != NONE && is_current(e, region)) {
				push(&e->local, region);
				region = pop(e, &e->local, LOCAL);
				if (region != NONE && is_current(e, region)) {
					push(&e->local, region);
					region = NONE;
				}
			}
			if (region != NONE) {
				e->at[region].state = LEAVING;
				e->leaving_bytes += TABLET_REGION;
				push(&e->leaving, region);
				continue;
			}
		}
		region = pop(e, &e->leaving, LEAVING);
		if (region == NONE)
			return;
		write_out(e, region);
	}
}

static uint32_t region_new(struct ebb *e, uint32_t slot)
{
	uint32_t region;
	struct region *r;

	make_room(e);
	if (e->vacant.count) {
		region = e->vacant.at[--e->vacant.count];
	} else {
		e->at = heap_grow(e->at, &e->room, e->count + 1, sizeof(*e->at));
		region = e->count++;
	}
	r = &e->at[region];
	*r = (struct region){ .slot = slot, .slots = tablet_slots(slot) };
	r->object = heap_zeroed(r->slots, sizeof(*r->object));
	e->local_bytes += TABLET_REGION;
	push(&e->local, region);
	count_memory(e);
	heap_local(e->w, e->local_bytes + (uint64_t)e->pages.resident * HEAP_PAGE);
	return region;
}

static bool place_in(struct ebb *e, uint32_t region, uint32_t object)
{
	struct region *r = &e->at[region];

	while (r->next < r->slots && r->object[r->next])
		r->next++;
	if (r->next == r->slots)
		return false;
	r->object[r->next] = object + 1;
	r->live++;
	e->address[object] = region * TABLET_SLOTS + r->next * r->slot / TABLET_GRANULE;
	return true;
}

/* Gives the object a slot of a local region. */
static void place(struct ebb *e, uint32_t object)
{
	uint32_t slot = slot_of(e->w->file->size[object]), class = slot / TABLET_GRANULE;

	while (e->current[class] == NONE || e->at[e->current[class]].state != LOCAL ||
	       e->at[e->current[class]].slot != slot || !place_in(e, e->current[class], object)) {
		struct heap_list *holes = &e->holes[class];
		uint32_t region = NONE;

		while (holes->count && region == NONE) {
			region = holes->at[--holes->count];
			if (e->at[region].state != LOCAL || e->at[region].slot != slot)
				region = NONE;
		}
		e->current[class] = region == NONE ? region_new(e, slot) : region;
	}
}

/* Empties the slot of an object that moves or dies. */
static void leave_slot(struct ebb *e, uint32_t object)
{
	uint32_t region = region_of(e->address[object]);
	struct region *r = &e->at[region];
	uint32_t slot = e->address[object] % TABLET_SLOTS * TABLET_GRANULE / r->slot;

	r->object[slot] = 0;
	r->live--;
	if (!r->live && !is_current(e, region))
		vacate(e, region);
}

/* To a local region, with a forward from the old name. */
static void move(struct ebb *e, uint32_t object)
{
	leave_slot(e, object);
	place(e, object);
	if (e->forwards[object] < UINT16_MAX) {
		e->forwards[object]++;
		e->forward_count++;
	}
}

/* The far region comes back whole, to its own addresses. */
static void come_home(struct ebb *e, uint32_t region)
{
	struct region *r;
	uint64_t bytes = (uint64_t)e->at[region].live * e->at[region].slot;

	make_room(e);
	r = &e->at[region];
	e->far_bytes -= r->place;
	e->far_regions--;
	r->place = 0;
	r->state = LOCAL;
	r->next = r->slots; /* slots stay empty: forwards lead from them */
	e->local_bytes += TABLET_REGION;
	push(&e->local, region);
	e->w->r.homes++;
	e->w->r.bytes_in += bytes;
	if (e->tracing)
		for (uint32_t s = 0; s < r->slots; s++)
			if (r->object[s])
				take_over(e, r->object[s] - 1);
	heap_fetch(e->w, e->w->config->fetch + sent_time(e, bytes));
}

static void fetch(struct ebb *e, uint32_t object)
{
	uint32_t region = region_of(e->address[object]);
	struct region *r = &e->at[region];

	if (++e->fetches % HOME_OF == 0)
		e->epoch++;
	if (r->epoch != e->epoch)
		r->fetched = 0;
	r->epoch = e->epoch;
	if (++r->fetched >= HOME_FETCHES) {
		come_home(e, region);
		return;
	}
	e->w->r.fetches++;
	e->w->r.bytes_in += e->w->file->size[object];
	heap_fetch(e->w, e->w->config->fetch + sent_time(e, e->w->file->size[object]));
	/* Marked and pushed: healing would hide the path of the snapshot. */
	if (e->tracing)
		take_over(e, object);
	move(e, object);
}

/* The object is made local. */
static void use(struct ebb *e, uint32_t object)
{
	switch ((enum state)home_of(e, object)->state) {
	case LOCAL:
	case VACANT:
		break;
	case LEAVING:
		e->w->r.rescues++;
		e->w->r.moved_here += e->w->file->size[object];
		heap_spend(e->w, heap_time(e->w->file->size[object], e->w->config->copying));
		move(e, object);
		break;
	case FAR:
		fetch(e, object);
		break;
	}
}

/* --- cycles ----------------------------------------------------------------------- */

static bool is_far(const struct ebb *e, uint32_t object)
{
	return !is_large(e, object) && e->at[region_of(e->address[object])].state == FAR;
}

/* A reference that the borrower has found. */
static void found(struct ebb *e, uint32_t object)
{
	uint32_t donor;

	if (!is_far(e, object)) {
		if (e->marked[object] != e->mark) {
			e->marked[object] = e->mark;
			heap_list_add(&e->grey, object);
		}
		return;
	}
	if (e->sent[object] == e->mark)
		return;
	e->sent[object] = e->mark;
	donor = e->at[region_of(e->address[object])].donor;
	heap_list_add(&e->d[donor].queue, object);
	far_cycle_queue(&e->cycle, donor);
}

/* The object will be here: it is traced here, whatever its donor does. */
static void take_over(struct ebb *e, uint32_t object)
{
	if (!is_far(e, object)) {
		found(e, object);
		return;
	}
	e->marked[object] = e->mark;
	e->sent[object] = e->mark;
	heap_list_add(&e->grey, object);
}

static void trace_one(struct ebb *e)
{
	uint32_t o = e->grey.at[--e->grey.count];
	struct heap_world *w = e->w;

	w->r.traced_here += w->file->size[o];
	e->clock += heap_time(w->file->size[o], w->config->tracing);
	for (uint32_t k = 1; k < heap_words(w, o); k++)
		if (w->slots[o][k].target)
			found(e, w->slots[o][k].target - 1);
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Bytes of @l as sets: {region, first word, words} and their words of 64 slots. */
static uint64_t set_bytes(struct ebb *e, const struct heap_list *l)
{
	struct heap_list words = { 0 };
	uint64_t bytes = 0;

	for (uint32_t k = 0; k < l->count; k++) {
		uint32_t a = e->address[l->at[k]], region = region_of(a);
		uint32_t slot = a % TABLET_SLOTS * TABLET_GRANULE / e->at[region].slot;

		if (!is_large(e, l->at[k]))
			heap_list_add(&words, region * 64 + slot / 64);
		else
			bytes += 16;
	}
	if (words.count)
		qsort(words.at, words.count, sizeof(*words.at), by_number);
	for (uint32_t k = 0; k < words.count; k++) {
		uint32_t gap = k ? words.at[k] - words.at[k - 1] : 0;

		if (!k || words.at[k] / 64 != words.at[k - 1] / 64)
			bytes += 16;
		else
			bytes += 8ull * gap;
	}
	heap_list_free(&words);
	return bytes;
}

/* The donor traces a batch at once; its clock is when the reply arrives. */
static void donor_traces(struct ebb *e, uint32_t i, struct heap_list *batch)
{
	struct donor *d = &e->d[i];
	struct heap_world *w = e->w;
	struct heap_list stack = { 0 };

	d->leave.count = 0;
	for (uint32_t k = 0; k < batch->count; k++)
		heap_list_add(&stack, batch->at[k]);
	while (stack.count) {
		uint32_t o = stack.at[--stack.count];

		/* Objects that have been fetched since are the borrower's. */
		if (e->marked[o] == e->mark)
			continue;
		e->marked[o] = e->mark;
		w->r.traced += w->file->size[o];
		d->due += heap_time(w->file->size[o], w->config->tracing);
		for (uint32_t k = 1; k < heap_words(w, o); k++) {
			uint32_t target = w->slots[o][k].target;

			if (!target)
				continue;
			if (is_far(e, target - 1) && home_of(e, target - 1)->donor == i)
				heap_list_add(&stack, target - 1);
			else
				heap_list_add(&d->leave, target - 1);
		}
	}
	heap_list_free(&stack);
}

static void send_trace(struct ebb *e, uint32_t i)
{
	struct donor *d = &e->d[i];
	uint64_t bytes;

	if (far_cycle_next(&e->cycle, i) != FAR_CYCLE_TRACE)
		return;
	far_cycle_sent(&e->cycle, i, FAR_CYCLE_TRACE, false);
	d->batch.count = 0;
	for (uint32_t k = 0; k < d->queue.count; k++)
		heap_list_add(&d->batch, d->queue.at[k]);
	d->queue.count = 0;
	bytes = set_bytes(e, &d->batch);
	heap_message(e->w, bytes);
	e->w->r.rounds++;
	d->due = e->clock + e->w->config->trip + sent_time(e, bytes);
	if (far_cycle_traces(&d->at, e->cycle.number, e->cycle.donor[i].batch) == FAR_CYCLE_NEW)
		donor_traces(e, i, &d->batch);
	/* What leaves the donor's objects, without repetition. */
	if (d->leave.count > 1) {
		uint32_t n = 1;

		qsort(d->leave.at, d->leave.count, sizeof(*d->leave.at), by_number);
		for (uint32_t k = 1; k < d->leave.count; k++)
			if (d->leave.at[k] != d->leave.at[k - 1])
				d->leave.at[n++] = d->leave.at[k];
		d->leave.count = n;
	}
	bytes = set_bytes(e, &d->leave);
	heap_message(e->w, bytes);
	d->due += sent_time(e, bytes);
}

static void take_reply(struct ebb *e, uint32_t i)
{
	enum far_cycle_message m = e->cycle.donor[i].waits;

	if (far_cycle_replied(&e->cycle, i, m, e->cycle.donor[i].batch, false) &&
	    m == FAR_CYCLE_TRACE)
		for (uint32_t k = 0; k < e->d[i].leave.count; k++)
			found(e, e->d[i].leave.at[k]);
}

static void begin_far_cycle(struct ebb *e)
{
	struct heap_world *w = e->w;

	e->mark++;
	e->tracing = true;
	e->grey.count = e->log.count = 0;
	far_cycle_begin(&e->cycle, e->cycle.number + 1, w->config->servers);
	heap_stop(w, HEAP_STOP_WORLD, w->now + w->config->stop);
	e->clock = w->now;
	for (uint32_t i = 0; i < w->config->servers; i++) {
		e->d[i].queue.count = 0;
		far_cycle_sent(&e->cycle, i, FAR_CYCLE_BEGIN, false);
		far_cycle_begins(&e->d[i].at, e->cycle.number);
		heap_message(w, 16);
		heap_message(w, 16);
		e->d[i].due = w->now + w->config->trip;
	}
	for (uint32_t k = 0; k < w->roots.count; k++)
		found(e, w->roots.at[k]);
}

/* Frees what is not marked; of far regions with @far.  Large objects, too. */
static void sweep(struct ebb *e, bool far)
{
	struct heap_world *w = e->w;

	for (uint32_t o = 0; o < w->born; o++) {
		if (w->freed[o] || e->marked[o] == e->mark)
			continue;
		if (is_large(e, o)) {
			uint32_t pages = (w->file->size[o] + HEAP_PAGE - 1) / HEAP_PAGE;

			for (uint32_t p = 0; p < pages; p++)
				heap_cache_drop(&e->pages, e->first_page[o] + p);
			e->large_bytes -= w->file->size[o];
		} else {
			enum state s = (enum state)home_of(e, o)->state;

			if (s == LEAVING || (s == FAR && !far))
				continue;
			leave_slot(e, o);
		}
		e->forward_count -= e->forwards[o];
		e->forwards[o] = 0;
		heap_freed(w, o);
	}
	for (uint32_t i = 0; i < CLASSES; i++)
		e->holes[i].count = 0;
	for (uint32_t i = 0; i < e->count; i++) {
		struct region *r = &e->at[i];

		if (r->state == VACANT || is_current(e, i))
			continue;
		if (!r->live)
			vacate(e, i);
		if (r->state != LOCAL || r->live * 4 > r->slots * 3)
			continue;
		r->next = 0;
		heap_list_add(&e->holes[r->slot / TABLET_GRANULE], i);
	}
}

/* References of local objects are healed; forwards stay for what far objects name. */
static void drop_forwards(struct ebb *e)
{
	struct heap_world *w = e->w;

	for (uint32_t o = 0; o < w->born; o++) {
		if (w->freed[o])
			continue;
		if (e->forwards[o] && !e->named[o]) {
			e->forward_count -= e->forwards[o];
			e->forwards[o] = 0;
		}
		if (is_far(e, o))
			continue;
		for (uint32_t k = 1; k < heap_words(w, o); k++)
			if (w->slots[o][k].target)
				w->slots[o][k].name = e->address[w->slots[o][k].target - 1];
	}
}

/* What far objects refer to, by the donors' marks. */
static void name_again(struct ebb *e)
{
	struct heap_world *w = e->w;

	memset(e->named, 0, w->file->objects);
	for (uint32_t o = 0; o < w->born; o++)
		for (uint32_t k = 1; !w->freed[o] && is_far(e, o) && k < heap_words(w, o); k++)
			if (w->slots[o][k].target)
				e->named[w->slots[o][k].target - 1] = 1;
}

/* Donors pack regions with few objects. */
static void evacuate(struct ebb *e)
{
	const struct heap_config *c = e->w->config;
	uint64_t request = 0;

	e->far_lived = 0;
	for (uint32_t i = 0; i < e->count; i++) {
		struct region *r = &e->at[i];
		uint64_t bytes = (uint64_t)r->live * r->slot;

		if (r->state != FAR)
			continue;
		if (bytes * 100 <= r->place * c->sparse) {
			request += 16 + (r->slots + 7) / 8;
			e->w->r.moved += bytes;
			e->far_bytes -= r->place - bytes;
			r->place = bytes;
		}
		e->far_lived += bytes;
	}
	for (uint32_t i = 0; request && i < 2 * c->servers; i++)
		heap_message(e->w, request / (2 * c->servers));
}

static void end_far_cycle(struct ebb *e)
{
	struct heap_world *w = e->w;
	uint64_t bits = 0;

	for (uint32_t i = 0; i < e->count; i++)
		if (e->at[i].state == FAR)
			bits += 2 * ((e->at[i].slots + 7) / 8);
	count_memory(e);
	/* END: marks and names come back. */
	for (uint32_t i = 0; i < w->config->servers; i++) {
		heap_message(w, 16);
		heap_message(w, bits / w->config->servers);
	}
	heap_stop(w, HEAP_STOP_WORLD, w->now + w->config->stop);
	e->tracing = false;
	sweep(e, true);
	name_again(e);
	drop_forwards(e);
	evacuate(e);
	w->r.full++;
}

/* The borrower and the donors work until now, or until tracing has ended. */
static void ebb_run(void *state)
{
	struct ebb *e = state;
	uint64_t now = e->w->now;

	while (e->tracing) {
		uint32_t next = NONE;

		for (uint32_t k = 0; k < e->log.count; k++)
			found(e, e->log.at[k]);
		e->log.count = 0;
		if (e->grey.count && e->clock <= now) {
			trace_one(e);
			continue;
		}
		if (e->grey.count)
			return;
		for (uint32_t i = 0; i < e->w->config->servers; i++) {
			send_trace(e, i);
			if (e->cycle.donor[i].waits &&
			    (next == NONE || e->d[i].due < e->d[next].due))
				next = i;
		}
		if (next == NONE) {
			if (far_cycle_end(&e->cycle))
				end_far_cycle(e);
			return;
		}
		if (e->d[next].due > now)
			return;
		if (e->clock < e->d[next].due)
			e->clock = e->d[next].due;
		take_reply(e, next);
	}
}

static bool is_leaving(struct ebb *e, uint32_t object)
{
	return !is_large(e, object) && home_of(e, object)->state == LEAVING;
}

/* From roots, names and what is leaving or far; modelled as if at once, beside the program. */
static void local_cycle(struct ebb *e)
{
	struct heap_world *w = e->w;
	struct heap_list *grey = &e->grey;

	heap_stop(w, HEAP_STOP_WORLD, w->now + w->config->stop);
	e->mark++;
	grey->count = 0;
	for (uint32_t k = 0; k < w->roots.count; k++)
		heap_list_add(grey, w->roots.at[k]);
	for (uint32_t o = 0; o < w->born; o++)
		if (!w->freed[o] && (e->named[o] || is_leaving(e, o)))
			heap_list_add(grey, o);
	while (grey->count) {
		uint32_t o = grey->at[--grey->count];

		if (e->marked[o] == e->mark || is_far(e, o))
			continue;
		e->marked[o] = e->mark;
		w->r.traced_here += w->file->size[o];
		for (uint32_t k = 1; k < heap_words(w, o); k++)
			if (w->slots[o][k].target)
				heap_list_add(grey, w->slots[o][k].target - 1);
	}
	heap_stop(w, HEAP_STOP_WORLD, w->now + w->config->stop);
	sweep(e, false);
	drop_forwards(e);
}

static void ebb_collect(void *state)
{
	struct ebb *e = state;

	count_memory(e);
	if (e->tracing) {
		e->w->r.skipped++;
		return;
	}
	e->w->r.cycles++;
	if (e->far_bytes > e->far_lived * FAR_GROWTH && e->far_regions)
		begin_far_cycle(e);
	else
		local_cycle(e);
}

/* --- the mutator ------------------------------------------------------------------ */

static void touch_large(struct ebb *e, uint32_t object, uint32_t at, uint32_t bytes, bool write)
{
	uint64_t room = (e->w->config->local - budget(e)) / HEAP_PAGE;
	uint64_t wait = 0;

	e->pages.room = room ? (uint32_t)room : 1;
	for (uint32_t p = at / HEAP_PAGE; p <= (at + bytes - 1) / HEAP_PAGE; p++) {
		uint32_t out;

		while (e->pages.resident > e->pages.room)
			if (heap_cache_clean(&e->pages, e->pages.oldest, true))
				e->w->r.bytes_out += HEAP_PAGE;
		if (heap_cache_touch(&e->pages, e->first_page[object] + p, write, &out) ==
		    HEAP_MISS) {
			e->w->r.misses++;
			e->w->r.bytes_in += HEAP_PAGE;
			wait += e->w->config->page;
		}
		if (out != HEAP_CACHE_NONE)
			e->w->r.bytes_out += HEAP_PAGE;
	}
	if (wait)
		heap_fetch(e->w, wait);
}

static void ebb_born(void *state, uint32_t object)
{
	struct ebb *e = state;
	uint32_t size = e->w->file->size[object];

	if (e->tracing)
		e->marked[object] = e->mark;
	if (!is_large(e, object)) {
		place(e, object);
		return;
	}
	e->first_page[object] = e->page_count;
	e->page_count += (size + HEAP_PAGE - 1) / HEAP_PAGE;
	e->large_bytes += size;
	touch_large(e, object, 0, size, true);
}

static void ebb_touch(void *state, uint32_t object, uint32_t at, uint32_t bytes, bool write)
{
	struct ebb *e = state;

	if (is_large(e, object))
		touch_large(e, object, at, bytes, write);
	else
		use(e, object);
}

static void ebb_load(void *state, struct heap_slot *slot)
{
	struct ebb *e = state;
	uint32_t object = slot->target - 1;

	if (!e->far_regions && !e->leaving_bytes)
		return;
	e->w->r.tests++;
	e->w->r.translate_time += e->w->config->test;
	heap_spend(e->w, e->w->config->test);
	if (is_large(e, object))
		return;
	/* An old name: a forward is followed, and the slot is healed.  Else the tablet tells. */
	if (slot->name != e->address[object] || home_of(e, object)->state != LOCAL) {
		e->w->r.translations++;
		e->w->r.translate_time += e->w->config->translate;
		heap_spend(e->w, e->w->config->translate);
	}
	use(e, object);
	slot->name = e->address[object];
}

static void ebb_store(void *state, uint32_t owner, struct heap_slot *slot, uint32_t target)
{
	struct ebb *e = state;

	/* Objects that leave or are far are not written. */
	if (!is_large(e, owner))
		use(e, owner);
	if (e->tracing && slot->target)
		heap_list_add(&e->log, slot->target - 1);
	if (target)
		slot->name = e->address[target - 1];
}

const struct heap_scheme heap_ebb = {
	.name = "ebb", .title = "ebb", .create = ebb_create, .destroy = ebb_destroy, .born = ebb_born,
	.touch = ebb_touch, .store = ebb_store, .load = ebb_load, .collect = ebb_collect,
	.run = ebb_run,
};
