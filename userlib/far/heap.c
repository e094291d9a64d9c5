// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cycle.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "member.h"

_Static_assert(EBBFAR_HEAP_POOLS == FAR_CYCLE_DONORS, "a cycle takes all pools of a heap");
_Static_assert(EBBFAR_RUNS == LAYOUT_RUNS, "a type's runs are those of a layout");

/* Without fields that later releases add; a larger size is a mistake. */
#define OPTIONS_LEAST (offsetof(struct ebbfar_heap_options, data) + sizeof(void *))
#define OPTIONS_MOST 4096u

#define LATE_NS UINT64_C(2000000) /* less time than that is none */

/* What donors have, or may have, of a region; and what they shall. */
struct known {
	struct ebbfar_extent extent;
	uint32_t version;
	uint32_t cycle;     /* the last one that has the region */
	uint32_t marked;    /* the last one that brought its marks */
	uint16_t pools;     /* bits of those that may have it */
	uint8_t pool;       /* that of .cycle, and of .extent */
	bool sure;          /* that one has it, of .version */
};

struct ebbfar_heap {
	struct ebbfar_heap_options o;
	pid_t pid;                             /* the process that made it */
	ebbfar_t *pools[EBBFAR_HEAP_POOLS];
	struct jobs_type *types;
	uint32_t type_count, type_room;
	/* Whether the donor has the heap, and how many of its types. */
	bool described[EBBFAR_HEAP_POOLS];
	uint32_t types_there[EBBFAR_HEAP_POOLS];
	struct known *known;                   /* by region */
	uint32_t *list, list_count, list_room; /* regions that some donor may have */
	uint32_t version;
	uint32_t job;                          /* number of the last evacuation */
	/* Cycles that pools were not told have ended; 0 = none. */
	uint32_t running[EBBFAR_HEAP_POOLS];
	/* A cycle. */
	uint32_t number;
	struct cycle *cycle;                   /* NULL = none */
	struct ebbfar_region *regions;
	uint32_t count, room;
	uint16_t left_out;                     /* pools, by the program, of the next cycle */
	uint16_t absent;                       /* of this cycle: those, and what cannot take part */
	uint32_t faults;                       /* pools because of which the last one failed */
	bool late;                             /* the program's time is used up */
	bool begun;
	int error, found;                      /* found: what the last .found said */
	uint32_t marked;                       /* regions whose marks are here */
};

/* --- upcalls of the cycle --------------------------------------------------------- */

static struct known *in_cycle(const struct ebbfar_heap *h, uint32_t region)
{
	struct known *k = &h->known[region];

	return k->cycle == h->number ? k : NULL;
}

static int named(void *data, uint32_t region, uint32_t granule)
{
	struct ebbfar_heap *h = data;

	h->found = h->o.found(h->o.data, region, granule);
	return h->found < 0 ? h->found : 0;
}

/* Called behind named(), which has asked the program. */
static int reached(void *data, uint32_t region, uint32_t granule)
{
	struct ebbfar_heap *h = data;
	const struct known *k = in_cycle(h, region);

	(void)granule;
	if (h->found && !k)
		h->error = -EINVAL;
	return h->found && k ? k->pool : -1;
}

static const struct ebbfar_region *region_of(const struct ebbfar_heap *h, uint32_t number)
{
	uint32_t low = 0, high = h->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (h->regions[middle].region < number)
			low = middle + 1;
		else
			high = middle;
	}
	return &h->regions[low];
}

static void marks(void *data, uint32_t donor, const struct wire_job_bits *b)
{
	uint64_t live[TABLET_WORDS], holds[TABLET_WORDS];
	struct ebbfar_heap *h = data;
	struct known *k = in_cycle(h, b->region);
	const struct ebbfar_region *r;

	if (h->error)
		return;
	/* Unless all is well. */
	h->faults |= 1u << donor;
	if (!k || k->pool != donor || k->marked == h->number || b->version != k->version) {
		h->error = -EBADMSG;
		return;
	}
	r = region_of(h, b->region);
	if (b->words != tablet_words(tablet_slots(r->slot_bytes))) {
		h->error = -EBADMSG;
		return;
	}
	for (uint32_t i = 0; i < b->words; i++) {
		live[i] = get64(b->bits + 8 * i);
		holds[i] = get64(b->bits + 8 * (b->words + i));
		/* What a reference at the donor leads to, is marked there. */
		if (live[i] & ~r->live[i] || holds[i] & ~live[i]) {
			h->error = -EBADMSG;
			return;
		}
	}
	h->faults &= ~(1u << donor);
	k->marked = h->number;
	h->marked++;
	h->o.marks(h->o.data, b->region, live, holds);
}

static bool is_late(void *data)
{
	const struct ebbfar_heap *h = data;

	return h->o.late && h->o.late(h->o.data);
}

static const struct cycle_ops ops = { .named = named, .reached = reached, .late = is_late,
				      .marks = marks };

/* --- what donors know ------------------------------------------------------------- */

static bool is_same(const struct ebbfar_extent *a, const struct ebbfar_extent *b)
{
	return a->place == b->place && a->size == b->size && a->generation == b->generation;
}

static int describe(struct ebbfar_heap *h, uint32_t pool)
{
	struct wire_job_limits limits;
	int r;

	if (!h->pools[pool]->client.jobs)
		return -EOPNOTSUPP;
	if (h->described[pool] && h->types_there[pool] == h->type_count)
		return 0;
	r = jobs_heap(h->pools[pool], h->o.base, h->o.mask, h->o.regions,
		      h->types + h->types_there[pool], h->type_count - h->types_there[pool],
		      &limits);
	if (r)
		return r;
	h->described[pool] = true;
	h->types_there[pool] = h->type_count;
	return 0;
}

/* What a pool's donor is told before a cycle begins, one message after the other. */
struct telling {
	struct jobs_call *call;
	struct jobs_place *list; /* regions that it does not have any more, and those that it has */
	uint32_t n, sent, next;  /* of the list: all; told; after this message */
	uint32_t types;          /* that it has after this message */
};

static int list_regions(struct ebbfar_heap *h, uint32_t pool, struct telling *t)
{
	const uint16_t bit = (uint16_t)(1u << pool);
	struct jobs_place *list = calloc(h->list_count + h->count + 1, sizeof(*list));
	uint32_t n = 0;

	t->list = list;
	if (!list)
		return -ENOMEM;
	for (uint32_t i = 0; i < h->list_count; i++) {
		struct known *k = &h->known[h->list[i]];

		if (!(k->pools & bit) || (k->cycle == h->number && k->pool == pool))
			continue;
		/* If this fails, it is not known whether the donor has it. */
		if (k->cycle != h->number)
			k->sure = false;
		list[n++] = (struct jobs_place){ .region = h->list[i], .version = ++h->version };
	}
	for (uint32_t i = 0; i < h->count; i++) {
		const struct ebbfar_region *w = &h->regions[i];
		struct known *k = &h->known[w->region];

		if (w->pool != pool || k->sure)
			continue;
		k->version = ++h->version;
		k->pools |= bit;
		list[n++] = (struct jobs_place){
			.region = w->region, .version = k->version, .slot_bytes = w->slot_bytes,
			.leaf = w->leaf, .extent = w->extent, .live = w->live };
	}
	t->n = n;
	return 0;
}

/* Builds the pool's next message.  Returns 1, 0 = there is none, or -errno. */
static int tell(struct ebbfar_heap *h, uint32_t pool, struct telling *t)
{
	int r = 0;

	t->next = t->sent;
	t->types = h->types_there[pool];
	if (h->running[pool]) {
		wire_build_job_end(t->call->payload, &(struct wire_job_end){
			h->running[pool], WIRE_JOB_ABORT, 0 });
		t->call->length = WIRE_JOB_END_SIZE;
		jobs_start(h->pools[pool], WIRE_JOB_END, t->call);
	} else if (!h->described[pool] || t->types < h->type_count) {
		r = jobs_put_heap(t->call, h->o.base, h->o.mask, h->o.regions, h->types,
				  h->type_count, &t->types);
		jobs_start(h->pools[pool], WIRE_JOB_HEAP, t->call);
	} else if (t->sent < t->n) {
		jobs_put_places(t->call, t->list, t->n, &t->next);
		jobs_start(h->pools[pool], WIRE_JOB_PLACE, t->call);
	} else {
		return 0;
	}
	return r ?: 1;
}

/* The pool's donor knows what the message says. */
static void told(struct ebbfar_heap *h, uint32_t pool, struct telling *t)
{
	if (t->call->op == WIRE_JOB_END)
		h->running[pool] = 0;
	if (t->call->op == WIRE_JOB_HEAP)
		h->described[pool] = true;
	h->types_there[pool] = t->types;
	for (; t->sent < t->next; t->sent++) {
		struct known *k = &h->known[t->list[t->sent].region];

		if (t->list[t->sent].slot_bytes)
			k->sure = true;
		else
			k->pools &= (uint16_t)~(1u << pool);
	}
}

/* Forgets regions that no donor has. */
static void tidy(struct ebbfar_heap *h)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < h->list_count; i++)
		if (h->known[h->list[i]].pools)
			h->list[n++] = h->list[i];
	h->list_count = n;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = ((const struct ebbfar_region *)a)->region;
	uint32_t y = ((const struct ebbfar_region *)b)->region;

	return x < y ? -1 : x > y;
}

/* Pools that have no region of the cycle have no part in it. */
static void leave_out_empty(struct ebbfar_heap *h)
{
	uint16_t used = 0;

	for (uint32_t i = 0; i < h->count; i++)
		used |= (uint16_t)(1u << h->regions[i].pool);
	for (uint32_t i = 0; i < h->o.count; i++)
		if (!(used & 1u << i) && !(h->absent & 1u << i)) {
			h->absent |= (uint16_t)(1u << i);
			cycle_leave_out(h->cycle, i);
		}
}

/* Tells each pool its next message.  Returns how many there are, or -errno. */
static int tell_all(struct ebbfar_heap *h, struct telling *telling, const struct jobs_wait *w)
{
	struct jobs_call *calls[EBBFAR_HEAP_POOLS];
	uint32_t pools[EBBFAR_HEAP_POOLS], n = 0;
	int r, error = 0;

	for (uint32_t i = 0; i < h->o.count; i++) {
		r = h->absent & 1u << i ? 0 : tell(h, i, &telling[i]);
		if (r < 0)
			return r;
		pools[n] = i;
		calls[n] = telling[i].call;
		n += (uint32_t)r;
	}
	jobs_settle(calls, n, w);
	for (uint32_t i = 0; i < n; i++) {
		struct telling *t = &telling[pools[i]];

		r = jobs_is_done(t->call) ? t->call->result : -EAGAIN;
		if (r == -EAGAIN) {
			jobs_leave(t->call);
			t->call = NULL;
		}
		if (!r)
			told(h, pools[i], t);
		else if (r != -ENOMEM)
			h->faults |= 1u << pools[i];
		error = error ?: r;
	}
	return error ?: (int)n;
}

/* Tells all donors of the cycle about its regions, side by side. */
static int begin(struct ebbfar_heap *h, const struct jobs_wait *w)
{
	struct telling telling[EBBFAR_HEAP_POOLS] = { 0 };
	int r = 0;

	qsort(h->regions, h->count, sizeof(*h->regions), by_number);
	leave_out_empty(h);
	for (uint32_t i = 0; i < h->o.count && !r; i++) {
		if (h->absent & 1u << i)
			continue;
		telling[i].call = malloc(sizeof(*telling[i].call));
		r = !telling[i].call ? -ENOMEM : !h->pools[i]->client.jobs ? -EOPNOTSUPP :
		    list_regions(h, i, &telling[i]);
		if (r && r != -ENOMEM)
			h->faults |= 1u << i;
	}
	while (!r) {
		r = tell_all(h, telling, w);
		if (!r)
			break;
		r = r < 0 ? r : 0;
	}
	for (uint32_t i = 0; i < h->o.count; i++) {
		free(telling[i].call);
		free(telling[i].list);
	}
	tidy(h);
	h->begun = !r;
	return r;
}

/* Makes place for one more; returns the array, or NULL and leaves it. */
static void *with_room(void *array, uint32_t count, uint32_t *room, size_t size)
{
	void *more;

	if (count < *room)
		return array;
	more = realloc(array, (2 * (size_t)*room + 64) * size);
	if (more)
		*room = 2 * *room + 64;
	return more;
}

/* Adds the region to those that some donor may have. */
static int list_add(struct ebbfar_heap *h, uint32_t region)
{
	uint32_t *list;

	if (h->known[region].pools)
		return 0;
	list = with_room(h->list, h->list_count, &h->list_room, sizeof(*list));
	if (!list)
		return -ENOMEM;
	h->list = list;
	h->list[h->list_count++] = region;
	return 0;
}

/* Tells a donor of one region, unless it knows it as it is. */
static int place_one(struct ebbfar_heap *h, const struct ebbfar_region *w)
{
	struct known *k = &h->known[w->region];
	struct jobs_place p = {
		.region = w->region, .version = h->version + 1, .slot_bytes = w->slot_bytes,
		.leaf = w->leaf, .extent = w->extent, .live = w->live };
	int r;

	if (k->sure && k->pool == w->pool && is_same(&k->extent, &w->extent))
		return 0;
	r = list_add(h, w->region);
	if (r)
		return r;
	k->sure = false;
	k->pools |= (uint16_t)(1u << w->pool);
	k->pool = (uint8_t)w->pool;
	k->extent = w->extent;
	k->version = ++h->version;
	r = jobs_place(h->pools[w->pool], &p, 1);
	k->sure = !r;
	return r;
}

/* --- the interface ---------------------------------------------------------------- */

int ebbfar_heap_new(const struct ebbfar_heap_options *o, ebbfar_heap_t **out)
{
	struct ebbfar_heap *h;

	if (o->size < OPTIONS_LEAST || o->size > OPTIONS_MOST ||
	    !member_knows(o, o->size, sizeof(*o)))
		return -EINVAL;
	if (!o->count || o->count > EBBFAR_HEAP_POOLS || !o->pools || !o->regions ||
	    o->regions > WIRE_JOB_REGIONS || o->base % TABLET_REGION || !o->found || !o->marks)
		return -EINVAL;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->known = calloc(o->regions, sizeof(*h->known));
	if (!h->known) {
		free(h);
		return -ENOMEM;
	}
	memcpy(&h->o, o, o->size < sizeof(h->o) ? o->size : sizeof(h->o));
	memcpy(h->pools, o->pools, o->count * sizeof(*h->pools));
	h->number = 1;
	h->pid = getpid();
	*out = h;
	return 0;
}

void ebbfar_heap_free(ebbfar_heap_t *h)
{
	/* In a child, a thread of the parent may have been changing what is there. */
	if (!h || h->pid != getpid())
		return;
	cycle_free(&h->cycle);
	free(h->types);
	free(h->known);
	free(h->list);
	free(h->regions);
	free(h);
}

int ebbfar_heap_type(ebbfar_heap_t *h, uint32_t type, const struct ebbfar_layout *l)
{
	struct jobs_type t = { .type = type, .layout = {
		.size = l->size, .element_size = l->element_size,
		.length_offset = l->length_offset, .length_width = l->length_width,
		.runs = l->runs, .bitmap = l->bitmap } };
	struct jobs_type *more;

	if (type >= WIRE_JOB_TYPES || l->runs > EBBFAR_RUNS)
		return -EINVAL;
	for (uint32_t i = 0; i < l->runs; i++)
		t.layout.run[i] = (struct layout_run){ l->run[i].offset, l->run[i].stride,
						       l->run[i].count };
	if (!layout_is_valid(&t.layout))
		return -EINVAL;
	more = with_room(h->types, h->type_count, &h->type_room, sizeof(*more));
	if (!more)
		return -ENOMEM;
	h->types = more;
	h->types[h->type_count++] = t;
	return 0;
}

static int add_ghosts(struct ebbfar_heap *h, const struct ebbfar_region *r)
{
	uint32_t per_slot = r->slot_bytes / TABLET_GRANULE;

	for (uint32_t i = 0; i < TABLET_WORDS; i++) {
		uint64_t ghosts = 0;

		/* Of what the extent has: others may have come back before it was written. */
		for (uint64_t bits = r->gone[i]; bits; bits &= bits - 1) {
			uint32_t granule = 64 * i + (uint32_t)__builtin_ctzll(bits);

			if (granule % per_slot == 0 &&
			    granule / per_slot < tablet_slots(r->slot_bytes) &&
			    tablet_has(r->live, granule / per_slot))
				ghosts |= bits & -bits;
		}
		if (ghosts && cycle_ghosts(h->cycle, r->pool, r->region, i, ghosts))
			return -ENOMEM;
	}
	return 0;
}

/* Begins a cycle, unless there is one. */
static int open_cycle(struct ebbfar_heap *h)
{
	int r;

	if (h->cycle)
		return 0;
	h->count = h->marked = 0;
	h->begun = false;
	h->error = 0;
	h->absent = 0;
	h->faults = 0;
	h->late = false;
	r = cycle_new(&h->cycle, h->pools, h->o.count, h->number, h->o.regions, &ops, h);
	for (uint32_t i = 0; !r && i < h->o.count; i++)
		if (h->left_out & 1u << i || *ebbfar_why(h->pools[i])) {
			h->absent |= (uint16_t)(1u << i);
			cycle_leave_out(h->cycle, i);
		}
	return r;
}

int ebbfar_heap_region(ebbfar_heap_t *h, const struct ebbfar_region *r)
{
	struct known *k = r->region < h->o.regions ? &h->known[r->region] : NULL;
	struct ebbfar_region *regions;
	int error;

	if (!k || h->begun || r->pool >= h->o.count || !tablet_slots(r->slot_bytes))
		return -EINVAL;
	error = open_cycle(h);
	if (!error && h->absent & 1u << r->pool)
		error = *ebbfar_why(h->pools[r->pool]) ? -ESHUTDOWN : -EINVAL;
	if (error)
		return error;
	regions = with_room(h->regions, h->count, &h->room, sizeof(*regions));
	h->regions = regions ?: h->regions;
	if (!regions)
		return -ENOMEM;
	if (k->cycle == h->number)
		return -EINVAL;
	error = list_add(h, r->region);
	if (error)
		return error;
	k->sure = k->sure && k->pool == r->pool && is_same(&k->extent, &r->extent);
	k->pool = (uint8_t)r->pool;
	/* So that it stays on the list once. */
	k->pools |= (uint16_t)(1u << r->pool);
	k->extent = r->extent;
	k->cycle = h->number;
	h->regions[h->count++] = *r;
	return add_ghosts(h, r);
}

int ebbfar_heap_leave_out(ebbfar_heap_t *h, unsigned pool)
{
	if (pool >= h->o.count || h->cycle)
		return -EINVAL;
	h->left_out |= (uint16_t)(1u << pool);
	return 0;
}

uint32_t ebbfar_heap_faults(const ebbfar_heap_t *h)
{
	return h->faults;
}

static int copy(struct ebbfar_heap *h, const struct ebbfar_region *w, const uint64_t *keep,
		unsigned wait_ms, uint32_t bytes, const struct ebbfar_extent *to)
{
	const struct known *k = &h->known[w->region];
	const struct jobs_keep one = { w->region, k->version,
				       tablet_words(tablet_slots(w->slot_bytes)), keep };
	struct jobs_copy done;
	int r = jobs_evacuate(h->pools[w->pool], ++h->job, to, 0, &one, 1, wait_ms, &done);

	return r ? r : done.bytes == bytes ? 0 : -EBADMSG;
}

int ebbfar_heap_evacuate(ebbfar_heap_t *h, const struct ebbfar_region *w, const uint64_t *keep,
			 unsigned wait_ms, struct ebbfar_extent *to)
{
	uint32_t slots = tablet_slots(w->slot_bytes), words = tablet_words(slots), bytes;
	struct ebbfar_extent x;
	int r;

	if (w->region >= h->o.regions || w->pool >= h->o.count || !slots ||
	    !tablet_fits(keep, slots))
		return -EINVAL;
	for (uint32_t i = 0; i < words; i++)
		if (keep[i] & ~w->live[i])
			return -EINVAL;
	if (h->cycle)
		return -EBUSY;
	bytes = tablet_bytes(keep, slots, w->slot_bytes);
	r = describe(h, w->pool) ?: place_one(h, w) ?: ebbfar_alloc(h->pools[w->pool], bytes, &x);
	if (r)
		return r;
	r = copy(h, w, keep, wait_ms, bytes, &x);
	/* A donor that is lost may still write there: it frees it itself. */
	if (r && !*ebbfar_why(h->pools[w->pool]))
		ebbfar_free(h->pools[w->pool], &x);
	if (!r)
		*to = x;
	return r;
}

int ebbfar_heap_push(ebbfar_heap_t *h, uint32_t region, uint32_t word, uint64_t bits)
{
	const struct known *k = h->cycle && region < h->o.regions ? in_cycle(h, region) : NULL;

	if (!k || word >= TABLET_WORDS)
		return -EINVAL;
	return cycle_push_word(h->cycle, k->pool, region, word, bits);
}

int ebbfar_heap_trace(ebbfar_heap_t *h, unsigned wait_ms)
{
	uint64_t since = now_ns(), now;
	const struct jobs_wait w = { since + wait_ms * UINT64_C(1000000), is_late, h };
	int r = open_cycle(h);

	if (r || h->error)
		return r ?: h->error;
	if (!h->begun)
		r = begin(h, &w);
	now = now_ns();
	/* Rounded up: what is left of a millisecond is time. */
	if (!r)
		r = cycle_run(h->cycle, now < w.until ?
					(uint32_t)((w.until - now + 999999) / 1000000) : 0);
	h->error = r ?: h->error;
	h->late = now_ns() - since + LATE_NS >= wait_ms * UINT64_C(1000000);
	return h->error;
}

/* Donors whose marks of some region are not here. */
static void faults_find(struct ebbfar_heap *h)
{
	for (uint32_t i = 0; i < h->count; i++) {
		const struct known *k = &h->known[h->regions[i].region];

		if (k->marked != h->number)
			h->faults |= 1u << k->pool;
	}
}

int ebbfar_heap_end(ebbfar_heap_t *h, int commit, unsigned wait_ms)
{
	int r = commit && h->begun && !h->error ? 0 : -ECANCELED;

	h->left_out = 0;
	if (!h->cycle) {
		h->faults = 0;
		return r;
	}
	if (!r)
		r = cycle_end(h->cycle, wait_ms) ?: h->error;
	/* A donor that leaves a region out would have all of it freed. */
	if (!r && h->marked != h->count) {
		r = -EBADMSG;
		faults_find(h);
	}
	h->faults |= cycle_faults(h->cycle);
	/* No donor has failed; the program gives up as it took too long. */
	if (!commit && h->begun && !h->error && h->late)
		h->faults |= 1u << cycle_slowest(h->cycle);
	if (r)
		cycle_abandon(h->cycle);
	for (uint32_t i = 0; i < h->o.count; i++)
		if (cycle_running(h->cycle) & 1u << i)
			h->running[i] = h->number;
	cycle_free(&h->cycle);
	h->begun = false;
	h->number++;
	return r;
}
