/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Jobs of the store of gc_store.h: it is two donors, which have regions in turn, and traces what
 * lies there.  It can refuse, fail at each call, and say what is not so.
 */
#ifndef GC_JOBS_H
#define GC_JOBS_H

#include <unistd.h>
#include "bits.h"
#include "gc_store.h"
#include "heap.h"
#include "lib/rules/tablet.h"

/* What it says wrongly. */
enum jobs_wrong {
	JOBS_HONEST,
	JOBS_REGION,		/* finds an object in a region that there is not */
	JOBS_GRANULE,		/* ... at a granule that there is not */
	JOBS_UNNAMED,		/* ... that no region ever named */
	JOBS_UNNAMED_THERE,	/* names one of its own that none named */
	JOBS_MARK_BEYOND,	/* marks a slot that is not in the store */
	JOBS_MARK_DEAD,		/* ... whose object was freed */
	JOBS_NONE_MARKED,	/* marks nothing, though objects were passed to it */
	JOBS_OTHER_REGION,	/* has marks of a region that it does not have */
	JOBS_TWICE,		/* has those of a region twice, and none of another one */
	JOBS_LEFT_OUT,		/* has none of a region */
	JOBS_NAMED_DEAD,	/* names what it does not mark */
	JOBS_FINDS_LATE,	/* has sent a region's marks, then finds one more object there */
	JOBS_WRONGS,
	JOBS_FINDS,		/* finds an object of .unlike that was named; is not noticed */
};

struct jobs_queue {
	uint32_t *items;
	size_t count, room;
};

struct jobs {
	const struct ebbgc_far_cycle *cycle;	/* NULL: none */
	uint32_t *where;			/* of each region, number in .stored + 1; 0: none */
	uint64_t (*marks)[TABLET_WORDS], (*named)[TABLET_WORDS];
	struct jobs_queue queue;
	uint32_t unlike, granule;		/* JOBS_UNNAMED: a region without names */
	/* Set by the test: the call, of all from 0, that fails, and how. */
	uint64_t fail_at;
	int error;
	enum jobs_wrong wrong;
	bool one_donor;
	bool leaves, leaves_all;		/* donor 1's regions to the heap, or all */
	/* Of the test. */
	uint64_t calls, begins, commits, passed, found;
	uint64_t traces, compactions;		/* atomic */
	unsigned int compact_us;		/* of compact() */
	int answer;				/* < 0: of found() */
	unsigned int delay_us;			/* of trace() and end() */
	bool in_time;				/* calls take no longer than the heap allows */
};

/* One for each test: the store's argument is not ours. */
static struct jobs the_jobs;

static inline void jobs_reset(void)
{
	the_jobs = (struct jobs){ .fail_at = UINT64_MAX };
}

static inline void jobs_free(struct jobs *j)
{
	free(j->where);
	free(j->marks);
	free(j->named);
	free(j->queue.items);
	j->where = NULL;
	j->marks = j->named = NULL;
	j->queue = (struct jobs_queue){ 0 };
	j->cycle = NULL;
}

static inline int jobs_fails(struct jobs *j)
{
	return j->calls++ == j->fail_at ? j->error : 0;
}

static inline uint32_t jobs_donor(const struct jobs *j, uint32_t region)
{
	return j->one_donor ? 0 : region / 4 % 2;
}

static inline int jobs_begin(void *arg, const struct ebbgc_far_cycle *c)
{
	struct jobs *j = &the_jobs;
	struct ebbgc_heap *h = c->data;
	int r = jobs_fails(j);

	assert_null(j->cycle);
	assert_int_equal(c->size, sizeof(*c));
	/* The collector's thread may wait for a processor beyond the heap's limits. */
	for (int i = 0; i < 2 && !j->in_time; i++)
		h->far.marking.call_ns[i] = UINT64_MAX;
	assert_true(c->type_count > 0 && c->stored_count > 0);
	j->cycle = c;
	j->begins++;
	j->answer = 0;
	if (r)
		return r;
	j->where = calloc(c->regions, sizeof(*j->where));
	j->marks = calloc(c->stored_count, sizeof(*j->marks));
	j->named = calloc(c->stored_count, sizeof(*j->named));
	for (uint32_t i = 0; i < c->stored_count; i++) {
		assert_true(c->stored[i].region < c->regions);
		assert_int_equal(j->where[c->stored[i].region], 0);
		c->reads[i] = j->leaves_all ||
			      (j->leaves && jobs_donor(j, c->stored[i].region));
		j->where[c->stored[i].region] = c->reads[i] ? 0 : i + 1;
	}
	return 0;
}

/* Returns the slot at a granule, if its object is in the store and has not come back; or -1. */
static inline int jobs_slot(const struct ebbgc_far_region *r, uint32_t granule)
{
	uint32_t slot = tablet_slot_at(granule * 16, r->slot_bytes);

	return slot < tablet_slots(r->slot_bytes) && tablet_has(r->live, slot) &&
	       !(r->gone[granule / 64] >> granule % 64 & 1) ? (int)slot : -1;
}

static inline void jobs_mark(struct jobs *j, uint32_t at, uint32_t slot)
{
	uint64_t bit = UINT64_C(1) << slot % 64;

	if (j->marks[at][slot / 64] & bit)
		return;
	j->marks[at][slot / 64] |= bit;
	if (j->cycle->stored[at].leaf)
		return;
	if (j->queue.count + 2 > j->queue.room) {
		j->queue.room = 2 * j->queue.room + 64;
		j->queue.items = realloc(j->queue.items, j->queue.room * sizeof(uint32_t));
		assert_non_null(j->queue.items);
	}
	j->queue.items[j->queue.count++] = at;
	j->queue.items[j->queue.count++] = slot;
}

/* A region of @donor refers to this. */
static inline void jobs_follow(struct jobs *j, uint32_t donor, uint64_t reference)
{
	const struct ebbgc_far_cycle *c = j->cycle;
	uint64_t offset = (reference & c->mask) - c->base;
	uint32_t region = (uint32_t)(offset >> 16), granule = (uint32_t)(offset & 0xffff) / 16, at;
	int slot = -1, answer;

	if (!(reference & c->mask) || offset >> 16 >= c->regions)
		return;
	assert_int_equal(offset % 16, 8);
	at = j->where[region];
	if (at && jobs_donor(j, region) == donor)
		slot = jobs_slot(&c->stored[at - 1], granule);
	if (slot >= 0) {
		j->named[at - 1][slot / 64] |= UINT64_C(1) << slot % 64;
		return jobs_mark(j, at - 1, (uint32_t)slot);
	}
	j->found++;
	answer = c->found(c->data, region, granule);
	j->answer = answer < 0 ? answer : j->answer;
	if (answer <= 0)
		return;
	/* The heap passes on what another donor has, and nothing else. */
	assert_true(at && jobs_donor(j, region) != donor);
	slot = jobs_slot(&c->stored[at - 1], granule);
	assert_true(slot >= 0);
	jobs_mark(j, at - 1, (uint32_t)slot);
}

static inline void jobs_object(struct jobs *j, const struct ebbgc_far_region *r, uint32_t slot)
{
	uint32_t donor = jobs_donor(j, r->region), rank = 0, t = 0;
	const struct ebbgc_far_type *l;
	const char *object;
	uint64_t length = 0;

	for (uint32_t i = 0; i < slot; i++)
		rank += tablet_has(r->live, i);
	object = (const char *)(uintptr_t)r->place.words[0] + (size_t)rank * r->slot_bytes + 8;
	while (j->cycle->types[t].type != *(const uint32_t *)(object - 8))
		assert_true(++t < j->cycle->type_count);
	l = &j->cycle->types[t];
	if (l->length_width == 8)
		length = *(const uint64_t *)(object + l->length_offset);
	for (uint64_t bits = l->bitmap; bits; bits &= bits - 1)
		jobs_follow(j, donor, *(const uint64_t *)(object + 8 * __builtin_ctzll(bits)));
	for (uint32_t i = 0; i < l->run_count; i++) {
		const struct ebbgc_run *run = &l->runs[i];
		uint64_t n = run->count == EBBGC_COUNT_LENGTH ? length : run->count;

		for (uint64_t k = 0; k < n; k++)
			jobs_follow(j, donor, *(const uint64_t *)(object + run->offset +
								  k * run->stride));
	}
}

static inline void jobs_lie_about_names(struct jobs *j)
{
	const struct ebbgc_far_cycle *c = j->cycle;

	if (j->wrong == JOBS_REGION) {
		assert_int_equal(c->found(c->data, c->regions, 0), -EBADMSG);
		assert_int_equal(c->found(c->data, UINT32_MAX, 0), -EBADMSG);
	}
	if (j->wrong == JOBS_GRANULE)
		assert_int_equal(c->found(c->data, c->stored[0].region, UINT32_MAX), -EBADMSG);
	if (j->wrong == JOBS_FINDS)
		assert_int_equal(c->found(c->data, j->unlike, j->granule), 0);
	if (j->wrong == JOBS_UNNAMED)
		assert_int_equal(c->found(c->data, j->unlike, 0), -EBADMSG);
}

static inline int jobs_trace(void *arg, const struct ebbgc_far_set *sets, size_t count,
			     unsigned wait_ms)
{
	struct jobs *j = &the_jobs;
	int r = jobs_fails(j);

	assert_non_null(j->cycle);
	assert_true(wait_ms && count);
	__atomic_fetch_add(&j->traces, 1, __ATOMIC_SEQ_CST);
	usleep(j->delay_us);
	for (size_t i = 0; !r && i < count; i++)
		for (uint64_t bits = sets[i].bits; bits; bits &= bits - 1) {
			uint32_t granule = 64 * sets[i].word + (uint32_t)__builtin_ctzll(bits);
			uint32_t at = j->where[sets[i].region];
			int slot = at ? jobs_slot(&j->cycle->stored[at - 1], granule) : -1;

			assert_true(slot >= 0);
			j->passed++;
			jobs_mark(j, at - 1, (uint32_t)slot);
		}
	while (!r && j->queue.count) {
		uint32_t slot = j->queue.items[--j->queue.count];

		jobs_object(j, &j->cycle->stored[j->queue.items[--j->queue.count]], slot);
	}
	jobs_lie_about_names(j);
	return r ? r : j->answer;
}

/* Of a region in whose store .dead has a freed object, or any. */
static inline void jobs_lie_about_marks(struct jobs *j, uint32_t at)
{
	const struct ebbgc_far_region *r = &j->cycle->stored[at];
	uint32_t slots = tablet_slots(r->slot_bytes);

	for (uint32_t i = 0; i < slots; i++) {
		bool there = tablet_has(r->live, i);
		uint64_t bit = UINT64_C(1) << i % 64;

		if (j->wrong == JOBS_MARK_BEYOND && !there)
			j->marks[at][i / 64] |= bit;
		/* The first one was named before. */
		if (j->wrong == JOBS_NAMED_DEAD && there && !(j->marks[at][i / 64] & bit)) {
			j->named[at][i / 64] |= bit;
			break;
		}
		if (j->wrong == JOBS_MARK_DEAD && there)
			j->marks[at][i / 64] |= bit;
		if (j->wrong == JOBS_NONE_MARKED)
			j->marks[at][i / 64] = j->named[at][i / 64] = 0;
		if (j->wrong == JOBS_UNNAMED_THERE && j->marks[at][i / 64] & bit)
			j->named[at][i / 64] |= bit;
	}
}

/* Returns whether a region has a dead object that is named. */
static inline bool jobs_find_dead(struct jobs *j, uint32_t at)
{
	const struct ebbgc_far_region *r = &j->cycle->stored[at];
	const struct ebbgc_heap *h = j->cycle->data;

	for (uint32_t i = 0; i < tablet_slots(r->slot_bytes); i++) {
		uint32_t granule = i * (r->slot_bytes / 16);

		if (!tablet_has(r->live, i) || j->marks[at][i / 64] >> i % 64 & 1 ||
		    !bit_test(h->far.named, (size_t)r->region * 64 * REGION_WORDS + granule))
			continue;
		assert_int_equal(j->cycle->found(j->cycle->data, r->region, granule), -EBADMSG);
		return true;
	}
	return false;
}

static inline int jobs_end(void *arg, bool commit, unsigned wait_ms)
{
	struct jobs *j = &the_jobs;
	const struct ebbgc_far_cycle *c = j->cycle;
	int r = commit ? jobs_fails(j) : 0;

	/* Once for each begin(), and once more after a failure. */
	assert_non_null(c);
	assert_true(wait_ms);
	assert_true(!commit || !j->queue.count);
	if (commit && j->wrong == JOBS_OTHER_REGION)
		c->marks(c->data, j->unlike, j->marks[0], j->named[0]);
	/* A failure comes when half of the marks are there. */
	for (uint32_t i = j->wrong == JOBS_LEFT_OUT; commit && i < c->stored_count / (r ? 2 : 1);
	     i++) {
		if (c->reads[i])
			continue;
		jobs_lie_about_marks(j, i);
		if (j->wrong == JOBS_TWICE && i == c->stored_count - 1)
			break;
		if (j->wrong == JOBS_TWICE && !i)
			c->marks(c->data, c->stored[i].region, j->marks[i], j->named[i]);
		c->marks(c->data, c->stored[i].region, j->marks[i], j->named[i]);
		if (j->wrong == JOBS_FINDS_LATE && jobs_find_dead(j, i))
			j->wrong = JOBS_HONEST;
	}
	assert_true(!commit || r || j->wrong != JOBS_FINDS_LATE);
	j->commits += commit && !r;
	if (r)
		return r;
	jobs_free(j);
	return 0;
}

/* The store's argument is a struct store. */
static inline int jobs_compact(void *arg, const struct ebbgc_far_region *from,
			       const uint64_t *keep, unsigned wait_ms, struct ebbgc_far_place *to)
{
	uint32_t slots = tablet_slots(from->slot_bytes), size = from->slot_bytes, n = 0, rank = 0;
	const char *old = (const char *)(uintptr_t)from->place.words[0];
	struct jobs *j = &the_jobs;
	int r = jobs_fails(j);

	assert_null(j->cycle);
	assert_true(wait_ms);
	assert_true(tablet_fits(keep, slots) && tablet_live(keep, slots));
	__atomic_fetch_add(&j->compactions, 1, __ATOMIC_SEQ_CST);
	usleep(j->compact_us);
	if (r)
		return r;
	*to = from->place;
	r = store_alloc(arg, tablet_bytes(keep, slots, size), to);
	for (uint32_t i = 0; !r && i < slots; i++) {
		assert_false(tablet_has(keep, i) && !tablet_has(from->live, i));
		if (tablet_has(keep, i))
			memcpy((char *)(uintptr_t)to->words[0] + (size_t)n++ * size,
			       old + (size_t)rank * size, size);
		rank += tablet_has(from->live, i);
	}
	return r;
}

static const struct ebbgc_far_jobs jobs_table = {
	sizeof(struct ebbgc_far_jobs), jobs_begin, jobs_trace, jobs_end, jobs_compact,
};

#endif
