// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "heap_far.h"

#define UNIT 16u			/* of names */
#define REGION_UNITS (HEAP_REGION / UNIT)
#define SPACE (UINT64_C(1) << 36)	/* all that a name can say */
#define REGIONS ((uint32_t)(SPACE / HEAP_REGION))
#define LARGE 255u			/* a region's kind: part of one object */
#define LEAST_REGIONS 32u
#define WAITING 4u			/* one in so many local regions is leaving */

enum state {
	LOCAL,		/* the only one without a slow path */
	MIXED,		/* local; some of its objects are elsewhere */
	LEAVING,	/* local and read-only */
	FAR,
	FREE,
};

enum list { NO_LIST, ARRIVED, GOING, LISTS };

struct region {
	uint32_t next, before;
	uint8_t list, kind;
	uint16_t used, alive;	/* slots given out; objects that live here, near or far */
	uint16_t forwards, forward_room; /* live objects that were born here and are elsewhere */
	uint16_t rank;		/* of the last fetch, + 1 */
	bool open;
	uint32_t packed;	/* bytes at the donor */
	uint32_t span;		/* LARGE: regions of the object, in its first one */
	uint64_t since;		/* a fetch, by number */
	uint32_t fetched;	/* fetches from then on */
	uint64_t *forward;
	uint64_t *here, *tablet; /* slots with live objects; those at the donor when it left */
	uint64_t place[HEAP_PLACE / 8];
};

enum { ARRIVALS, BIRTHS, OPEN };
#define CLASSES 32u

struct heap_far {
	struct heap_far_options o;
	uint8_t *state, *memory;
	struct region *region;	/* the heads of lists are the last LISTS */
	uint32_t regions, length[LISTS], free;	/* used so far; list of free ones */
	uint32_t open[OPEN][CLASSES];
	uint64_t resident, tables;
	uint8_t *buffer;
	struct heap_far_stats s;
};

static void give_up(const char *what, int r)
{
	fprintf(stderr, "far store: %s%s%s\n", what, r ? ": " : "", r ? strerror(-r) : "");
	exit(2);
}

/* --- sizes of slots: 16 apart up to 128 bytes, then a quarter of the power of two below ------ */

static unsigned int class_of(size_t size)
{
	unsigned int log;

	if (size <= 128)
		return (unsigned int)((size + 15) / 16 - 1);
	log = 63 - (unsigned int)__builtin_clzl(size - 1);
	return 8 + (log - 7) * 4 + (unsigned int)((size - 1 - (1u << log)) >> (log - 2));
}

static size_t slot_size(unsigned int kind)
{
	if (kind < 8)
		return 16 * ((size_t)kind + 1);
	return (((size_t)(kind - 8) % 4) + 5) << ((kind - 8) / 4 + 5);
}

static unsigned int slots_of(unsigned int kind)
{
	return kind == LARGE ? 1 : (unsigned int)(HEAP_REGION / slot_size(kind));
}

static size_t words_of(unsigned int kind)
{
	return (slots_of(kind) + 63) / 64;
}

/* --- bitmaps ------------------------------------------------------------------------------- */

static bool has(const uint64_t *bits, unsigned int slot)
{
	return bits[slot / 64] >> slot % 64 & 1;
}

static void set(uint64_t *bits, unsigned int slot)
{
	bits[slot / 64] |= UINT64_C(1) << slot % 64;
}

static void clear(uint64_t *bits, unsigned int slot)
{
	bits[slot / 64] &= ~(UINT64_C(1) << slot % 64);
}

/* Returns how many bits are set below @slot. */
static unsigned int rank_of(const uint64_t *bits, unsigned int slot)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < slot / 64; i++)
		n += (unsigned int)__builtin_popcountl(bits[i]);
	return n + (unsigned int)__builtin_popcountl(bits[slot / 64] &
						    ((UINT64_C(1) << slot % 64) - 1));
}

/* --- lists of regions ------------------------------------------------------------------------ */

static void list_take(struct heap_far *f, uint32_t r)
{
	struct region *g = &f->region[r];

	f->region[g->before].next = g->next;
	f->region[g->next].before = g->before;
	f->length[g->list]--;
	g->list = NO_LIST;
}

static void list_append(struct heap_far *f, uint32_t r, uint8_t list)
{
	uint32_t head = REGIONS + list;
	struct region *g = &f->region[r];

	g->list = list;
	g->next = head;
	g->before = f->region[head].before;
	f->region[g->before].next = r;
	f->region[head].before = r;
	f->length[list]++;
}

static uint32_t list_first(const struct heap_far *f, unsigned int list)
{
	return f->region[REGIONS + list].next;
}

/* --- memory ---------------------------------------------------------------------------------- */

static void *reserve(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void account(struct heap_far *f)
{
	f->s.bytes = f->resident * HEAP_REGION + f->tables;
	if (f->s.bytes > f->s.bytes_most)
		f->s.bytes_most = f->s.bytes;
	if (f->tables > f->s.tables_most)
		f->s.tables_most = f->tables;
}

static void *table_new(struct heap_far *f, size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		give_up("no memory", -ENOMEM);
	f->tables += bytes;
	return p;
}

static void table_free(struct heap_far *f, void *p, size_t bytes)
{
	if (p)
		f->tables -= bytes;
	free(p);
}

static uint8_t *memory_of(const struct heap_far *f, uint32_t r)
{
	return f->memory + (uint64_t)r * HEAP_REGION;
}

static void memory_in(struct heap_far *f, uint32_t r)
{
	if (madvise(memory_of(f, r), HEAP_REGION, MADV_POPULATE_WRITE))
		give_up("no memory for a region", -errno);
	f->resident++;
	account(f);
}

static void memory_out(struct heap_far *f, uint32_t r)
{
	if (madvise(memory_of(f, r), HEAP_REGION, MADV_DONTNEED))
		give_up("MADV_DONTNEED", -errno);
	f->resident--;
	account(f);
}

/*
 * --- forwards: by the region that an object was born in --------------------------------------
 *
 * Few: a sorted list of slot << 32 | address, 8 bytes each.  Many: an address for each slot.
 */

static bool is_dense(const struct region *g)
{
	return g->forward_room * 8 > slots_of(g->kind) * 4;
}

static size_t forward_bytes(const struct region *g, unsigned int room)
{
	return room * 8 > slots_of(g->kind) * 4 ? slots_of(g->kind) * 4 : room * 8;
}

/* Returns the first place in the list whose slot is not below @slot. */
static unsigned int forward_place(const struct region *g, unsigned int slot)
{
	unsigned int low = 0, high = g->forwards;

	while (low < high) {
		unsigned int middle = (low + high) / 2;

		if (g->forward[middle] >> 32 < slot)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Returns the address of the object that was born in @slot; 0: it is where it was born. */
static uint32_t forward_of(const struct region *g, unsigned int slot)
{
	unsigned int at;

	if (!g->forwards)
		return 0;
	if (is_dense(g))
		return ((const uint32_t *)g->forward)[slot];
	at = forward_place(g, slot);
	return at < g->forwards && g->forward[at] >> 32 == slot ? (uint32_t)g->forward[at] : 0;
}

/* There is room, and a place for the slot if it has one. */
static void forward_put(struct region *g, unsigned int slot, uint32_t to)
{
	unsigned int at;

	if (is_dense(g)) {
		uint32_t *all = (uint32_t *)g->forward;

		g->forwards += !all[slot];
		all[slot] = to;
		return;
	}
	at = forward_place(g, slot);
	if (at == g->forwards || g->forward[at] >> 32 != slot) {
		memmove(&g->forward[at + 1], &g->forward[at], (g->forwards - at) * 8ul);
		g->forwards++;
	}
	g->forward[at] = (uint64_t)slot << 32 | to;
}

static void forward_remove(struct heap_far *f, struct region *g, unsigned int slot)
{
	unsigned int at;

	if (is_dense(g)) {
		((uint32_t *)g->forward)[slot] = 0;
	} else {
		at = forward_place(g, slot);
		memmove(&g->forward[at], &g->forward[at + 1], (g->forwards - at - 1) * 8ul);
	}
	f->s.forwards--;
	if (--g->forwards)
		return;
	table_free(f, g->forward, forward_bytes(g, g->forward_room));
	g->forward = NULL;
	g->forward_room = 0;
}

/* The region is nothing's any more, unless there are forwards for its addresses. */
static void region_retire(struct heap_far *f, uint32_t r)
{
	struct region *g = &f->region[r];

	if (g->alive || g->forwards || g->open || f->state[r] != FREE)
		return;
	table_free(f, g->here, words_of(g->kind) * 8);
	g->here = NULL;
	g->next = f->free;
	f->free = r;
}

/* Its last object has died or has moved. */
static void region_empty(struct heap_far *f, uint32_t r)
{
	struct region *g = &f->region[r];
	int e;

	if (f->state[r] == FAR) {
		e = f->o.donor.drop(f->o.donor.arg, g->place);
		if (e)
			give_up("freeing an extent", e);
		f->s.far -= g->packed;
		table_free(f, g->tablet, words_of(g->kind) * 8);
		g->tablet = NULL;
	} else {
		if (g->list)
			list_take(f, r);
		memory_out(f, r);
		f->s.left_empty++;
	}
	f->state[r] = FREE;
	region_retire(f, r);
}

/* The object in @slot is here no longer. */
static void slot_vacate(struct heap_far *f, uint32_t r, unsigned int slot)
{
	struct region *g = &f->region[r];

	clear(g->here, slot);
	if (!--g->alive && !g->open)
		region_empty(f, r);
}

/* --- leaving --------------------------------------------------------------------------------- */

/* Packs the live slots of a region; returns the bytes. */
static uint32_t region_pack(const struct heap_far *f, uint32_t r, const void **packed)
{
	const struct region *g = &f->region[r];
	size_t size;
	uint32_t bytes = 0;

	if (g->kind == LARGE) {
		*packed = memory_of(f, r);
		return HEAP_REGION;
	}
	size = slot_size(g->kind);
	for (unsigned int slot = 0; slot < g->used; slot++) {
		if (!has(g->here, slot))
			continue;
		memcpy(f->buffer + bytes, memory_of(f, r) + slot * size, size);
		bytes += (uint32_t)size;
	}
	*packed = f->buffer;
	return bytes;
}

static void region_leave(struct heap_far *f, uint32_t r)
{
	struct region *g = &f->region[r];
	const void *packed;
	int e;

	list_take(f, r);
	g->packed = region_pack(f, r, &packed);
	e = f->o.donor.put(f->o.donor.arg, packed, g->packed, g->place);
	if (e)
		give_up("writing a region to the donor", e);
	g->rank = 0;
	g->fetched = 0;
	f->state[r] = FAR;
	f->s.left++;
	f->s.left_bytes += g->packed;
	f->s.far += g->packed;
	if (f->s.far > f->s.far_most)
		f->s.far_most = f->s.far;
	memory_out(f, r);
	g->tablet = table_new(f, words_of(g->kind) * 8);
	memcpy(g->tablet, g->here, words_of(g->kind) * 8);
	account(f);
}

static void announce_one(struct heap_far *f)
{
	uint32_t r = list_first(f, ARRIVED);

	list_take(f, r);
	list_append(f, r, GOING);
	f->state[r] = LEAVING;
}

/* Keeps a share of the local regions on their way out. */
static void announce(struct heap_far *f)
{
	while (f->length[GOING] < f->resident / WAITING && f->length[ARRIVED])
		announce_one(f);
}

static void leave_one(struct heap_far *f)
{
	if (!f->length[GOING]) {
		if (!f->length[ARRIVED])
			give_up("the budget is too small for the regions in use", 0);
		announce_one(f);
	}
	region_leave(f, list_first(f, GOING));
}

/* Makes room for @bytes. */
static void make_room(struct heap_far *f, uint64_t bytes)
{
	announce(f);
	while (f->resident * HEAP_REGION + f->tables + bytes > f->o.budget) {
		leave_one(f);
		announce(f);
	}
}

void heap_far_leave_all(struct heap_far *f)
{
	while (f->length[GOING] || f->length[ARRIVED])
		leave_one(f);
}

/* --- arriving -------------------------------------------------------------------------------- */

/* Takes a region, with memory.  @fresh: its number is above those of all others so far. */
static uint32_t region_new(struct heap_far *f, uint8_t kind, bool fresh)
{
	uint32_t r;
	struct region *g;

	make_room(f, HEAP_REGION + sizeof(*g) + 1 + words_of(kind) * 8);
	if (f->free && !fresh) {
		r = f->free;
		f->free = f->region[r].next;
	} else {
		if (f->regions == REGIONS)
			give_up("more regions than names can say", 0);
		r = f->regions++;
		f->tables += sizeof(*g) + 1;
	}
	g = &f->region[r];
	*g = (struct region){ .kind = kind };
	g->here = table_new(f, words_of(kind) * 8);
	f->state[r] = LOCAL;
	memory_in(f, r);
	return r;
}

/* Returns the name of a new slot, which is taken. */
static uint32_t slot_new(struct heap_far *f, unsigned int which, unsigned int kind)
{
	uint32_t r = f->open[which][kind];
	struct region *g = &f->region[r];
	unsigned int slot;

	if (!r || g->used == slots_of(kind)) {
		if (r) {
			g->open = false;
			if (g->alive)
				list_append(f, r, ARRIVED);
			else
				region_empty(f, r);
		}
		r = f->open[which][kind] = region_new(f, (uint8_t)kind, false);
		g = &f->region[r];
		g->open = true;
	}
	slot = g->used++;
	set(g->here, slot);
	g->alive++;
	return r * REGION_UNITS + (uint32_t)(slot * slot_size(kind) / UNIT);
}

static uint8_t *address(const struct heap_far *f, uint32_t name)
{
	return f->memory + (uint64_t)name * UNIT;
}

static unsigned int slot_of(const struct heap_far *f, uint32_t name)
{
	return (unsigned int)(name % REGION_UNITS * UNIT /
			      slot_size(f->region[name / REGION_UNITS].kind));
}

/* Makes room for one more forward of a region's objects. */
static void forwards_grow(struct heap_far *f, struct region *g)
{
	unsigned int room = g->forward_room < 4 ? 4 : g->forward_room * 3u / 2;
	struct region old = *g;

	if (is_dense(g) || g->forwards < g->forward_room)
		return;
	make_room(f, forward_bytes(g, room));
	g->forward = table_new(f, forward_bytes(g, room));
	g->forward_room = (uint16_t)room;
	g->forwards = 0;
	for (unsigned int i = 0; i < old.forwards; i++)
		forward_put(g, (unsigned int)(old.forward[i] >> 32), (uint32_t)old.forward[i]);
	account(f);
	table_free(f, old.forward, forward_bytes(&old, old.forward_room));
}

/* The object has been copied to @to. */
static void move(struct heap_far *f, struct heap_name *name, uint32_t to)
{
	uint32_t from = name->now;
	struct region *born = &f->region[name->born / REGION_UNITS];

	if (name->now == name->born) {
		forwards_grow(f, born);
		if (++f->s.forwards > f->s.forwards_most)
			f->s.forwards_most = f->s.forwards;
	}
	forward_put(born, slot_of(f, name->born), to);
	name->now = to;
	slot_vacate(f, from / REGION_UNITS, slot_of(f, from));
}

static void far_read(struct heap_far *f, const struct region *g, size_t offset, void *to,
		     size_t size)
{
	int e = f->o.donor.get(f->o.donor.arg, g->place, offset, to, size);
	struct timespec t;
	uint64_t end;

	if (e)
		give_up("reading from the donor", e);
	if (!f->o.delay_ns)
		return;
	clock_gettime(CLOCK_MONOTONIC, &t);
	end = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec + f->o.delay_ns;
	do {
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while ((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec < end);
}

/* Brings a region home, to its own addresses. */
static void region_home(struct heap_far *f, uint32_t r)
{
	struct region *g = &f->region[r];
	size_t size, at = 0;
	int e;

	make_room(f, HEAP_REGION);
	memory_in(f, r);
	if (g->kind == LARGE) {
		far_read(f, g, 0, memory_of(f, r), HEAP_REGION);
	} else {
		size = slot_size(g->kind);
		far_read(f, g, 0, f->buffer, g->packed);
		for (unsigned int slot = 0; slot < g->used; slot++) {
			if (!has(g->tablet, slot))
				continue;
			if (has(g->here, slot))
				memcpy(memory_of(f, r) + slot * size, f->buffer + at, size);
			at += size;
		}
	}
	f->s.homes++;
	f->s.home_bytes += g->packed;
	f->s.far -= g->packed;
	e = f->o.donor.drop(f->o.donor.arg, g->place);
	if (e)
		give_up("freeing an extent", e);
	table_free(f, g->tablet, words_of(g->kind) * 8);
	g->tablet = NULL;
	f->state[r] = g->forwards ? MIXED : LOCAL;
	list_append(f, r, ARRIVED);
}

/* Is this fetch, of the object with @rank in the region, a reason to bring all of it home? */
static bool comes_home(struct heap_far *f, struct region *g, unsigned int rank)
{
	uint64_t number = f->s.fetches + f->s.homes + 1;
	bool home = f->o.neighbours && g->rank && g->rank == rank;

	g->rank = (uint16_t)(rank + 1);
	if (!g->fetched || number - g->since >= f->o.home) {
		g->fetched = 0;
		g->since = number;
	}
	g->fetched++;
	return home || (f->o.few && g->fetched >= f->o.few);
}

/* Copies a leaving or far object into a slot of its own. */
static void bring(struct heap_far *f, struct heap_name *name, uint32_t r, unsigned int slot)
{
	struct region *g = &f->region[r];
	size_t size = slot_size(g->kind);
	uint32_t to = slot_new(f, ARRIVALS, g->kind);

	/* That may have made room by this very region. */
	if (f->state[r] == FAR) {
		far_read(f, g, rank_of(g->tablet, slot) * size, address(f, to), size);
		f->s.fetches++;
		f->s.fetched_bytes += size;
	} else {
		memcpy(address(f, to), address(f, name->now), size);
		f->s.rescues++;
	}
	move(f, name, to);
}

static void *touch_large(struct heap_far *f, const struct heap_name *name, size_t offset)
{
	uint32_t r = name->now / REGION_UNITS + (uint32_t)(offset / HEAP_REGION);

	if (f->state[r] == LEAVING) {
		list_take(f, r);
		list_append(f, r, ARRIVED);
		f->state[r] = LOCAL;
		f->s.rescues++;
	} else if (f->state[r] == FAR) {
		region_home(f, r);
	}
	return address(f, name->now) + offset;
}

static void *touch_slow(struct heap_far *f, struct heap_name *name, size_t offset)
{
	uint32_t r;
	unsigned int slot;

	f->s.slow++;
	if (!f->o.heal) {
		uint32_t to = forward_of(&f->region[name->born / REGION_UNITS],
					 slot_of(f, name->born));

		if ((to ? to : name->born) != name->now)
			give_up("a forward is wrong", 0);
	}
	r = name->now / REGION_UNITS;
	if (f->region[r].kind == LARGE)
		return touch_large(f, name, offset);
	slot = slot_of(f, name->now);
	if (f->state[r] == FAR &&
	    comes_home(f, &f->region[r], rank_of(f->region[r].tablet, slot)))
		region_home(f, r);
	else if (f->state[r] == FAR || f->state[r] == LEAVING)
		bring(f, name, r, slot);
	return address(f, name->now) + offset;
}

void *heap_far_touch(struct heap_far *f, struct heap_name *name, size_t offset)
{
	uint32_t at = f->o.heal ? name->now : name->born;

	if (f->state[at / REGION_UNITS + offset / HEAP_REGION] == LOCAL)
		return address(f, at) + offset;
	return touch_slow(f, name, offset);
}

static void born_large(struct heap_far *f, size_t size, struct heap_name *name)
{
	uint32_t span = (uint32_t)((size + HEAP_REGION - 1) / HEAP_REGION), first = f->regions;

	for (uint32_t i = 0; i < span; i++) {
		uint32_t r = region_new(f, LARGE, true);

		f->region[r].used = f->region[r].alive = 1;
		set(f->region[r].here, 0);
		list_append(f, r, ARRIVED);
	}
	f->region[first].span = span;
	name->born = name->now = first * REGION_UNITS;
}

void *heap_far_born(struct heap_far *f, size_t size, struct heap_name *name)
{
	if (size > HEAP_SLOT_MOST) {
		born_large(f, size, name);
		return heap_far_touch(f, name, 0);
	}
	name->born = name->now = slot_new(f, BIRTHS, class_of(size));
	return address(f, name->now);
}

void heap_far_died(struct heap_far *f, struct heap_name *name)
{
	uint32_t r = name->now / REGION_UNITS, born = name->born / REGION_UNITS;

	if (f->region[r].kind == LARGE) {
		for (uint32_t i = f->region[r].span; i-- > 0;)
			slot_vacate(f, r + i, 0);
	} else {
		slot_vacate(f, r, slot_of(f, name->now));
	}
	if (name->born != name->now) {
		forward_remove(f, &f->region[born], slot_of(f, name->born));
		if (!f->region[born].forwards && f->state[born] == MIXED)
			f->state[born] = LOCAL;
		region_retire(f, born);
	}
	*name = (struct heap_name){ 0 };
}

struct heap_far *heap_far_new(const struct heap_far_options *options)
{
	struct heap_far *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->o = *options;
	f->regions = 1;
	f->memory = reserve(SPACE);
	f->state = reserve(REGIONS);
	f->region = reserve((uint64_t)(REGIONS + LISTS) * sizeof(*f->region));
	f->buffer = reserve(HEAP_REGION);
	if (!f->memory || !f->state || !f->region || !f->buffer ||
	    options->budget < LEAST_REGIONS * HEAP_REGION) {
		heap_far_free(f);
		return NULL;
	}
	madvise(f->memory, SPACE, MADV_NOHUGEPAGE);
	f->tables = HEAP_REGION;
	for (uint32_t head = REGIONS; head < REGIONS + LISTS; head++)
		f->region[head].next = f->region[head].before = head;
	return f;
}

static void unmap(void *p, uint64_t bytes)
{
	if (p)
		munmap(p, bytes);
}

void heap_far_free(struct heap_far *f)
{
	for (uint32_t r = 1; f->region && r < f->regions; r++) {
		if (f->state[r] == FAR)
			f->o.donor.drop(f->o.donor.arg, f->region[r].place);
		free(f->region[r].here);
		free(f->region[r].tablet);
		free(f->region[r].forward);
	}
	unmap(f->memory, SPACE);
	unmap(f->state, REGIONS);
	unmap(f->region, (uint64_t)(REGIONS + LISTS) * sizeof(*f->region));
	unmap(f->buffer, HEAP_REGION);
	free(f);
}

const struct heap_far_stats *heap_far_stats(const struct heap_far *f)
{
	return &f->s;
}

/* --- a donor in this process --------------------------------------------------------------- */

static int memory_put(void *arg, const void *bytes, size_t size, void *place)
{
	void *p = malloc(size);

	(void)arg;
	if (!p)
		return -ENOMEM;
	memcpy(p, bytes, size);
	memcpy(place, &p, sizeof(p));
	return 0;
}

static int memory_get(void *arg, const void *place, size_t offset, void *to, size_t size)
{
	const char *p;

	(void)arg;
	memcpy(&p, place, sizeof(p));
	memcpy(to, p + offset, size);
	return 0;
}

static int memory_drop(void *arg, const void *place)
{
	void *p;

	(void)arg;
	memcpy(&p, place, sizeof(p));
	free(p);
	return 0;
}

void heap_donor_memory(struct heap_donor *donor)
{
	*donor = (struct heap_donor){ NULL, memory_put, memory_get, memory_drop };
}
