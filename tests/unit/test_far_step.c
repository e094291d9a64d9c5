// SPDX-License-Identifier: GPL-2.0-or-later
/* The protocol of far memory on a table in memory: classes, limits, hostile words. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/draw.h"
#include "lib/rules/far_step.h"
#include "lib/rules/far_words.h"

#include <cmocka.h>

enum { SECTIONS = 32, PAGES = SECTIONS * EBB_FAR_SLOTS, ME = 1, OTHER = 2, THIRD = 3 };

/* A table, and how verbs on it go wrong. */
struct arena {
	uint32_t sections;
	uint64_t *table;
	uint32_t verbs;
	int unknown;	  /* from this verb on, each outcome is unknown once; -1: none */
	bool executed;	  /* verbs with an unknown outcome have taken effect */
	uint64_t hostile; /* seed: words change by themselves; 0: they do not */
	int fails;	  /* number of the verb that fails; -1: none */
};

static struct arena *arena_new(uint32_t sections)
{
	struct arena *a = calloc(1, sizeof(*a));

	a->sections = sections;
	a->table = calloc(1, ebb_far_table(sections));
	a->unknown = a->fails = -1;
	for (uint32_t s = 0; s < sections; s++) {
		uint64_t hints = 0;

		a->table[ebb_far_section_at(s) / 8] = far_initial_section(sections, s, 0);
		for (uint32_t w = 0; w < EBB_FAR_SLOTS; w++)
			a->table[ebb_far_slot_at(sections, s, w) / 8] = far_initial_slot(sections,
											 s, w, 0);
		for (uint32_t line = 0; line < EBB_FAR_LINES; line++) {
			uint32_t free = 0;

			for (uint32_t i = 0; i < EBB_FAR_LINE; i++)
				free += !ebb_far_slot_owner(
					a->table[ebb_far_slot_at(sections, s,
								 line * EBB_FAR_LINE + i) /
						 8]);
			hints |= (uint64_t)far_hint(free) << (8 * line);
		}
		a->table[ebb_far_hint_at(sections, s) / 8] = hints;
	}
	return a;
}

static void arena_free(struct arena *a)
{
	free(a->table);
	free(a);
}

static uint64_t *section_word(struct arena *a, uint32_t section)
{
	return &a->table[ebb_far_section_at(section) / 8];
}

static uint64_t *slot_word(struct arena *a, uint32_t section, uint32_t word)
{
	return &a->table[ebb_far_slot_at(a->sections, section, word) / 8];
}

/* Returns the word at @at, which the protocol may use. */
static uint64_t *word_at(struct arena *a, uint64_t at)
{
	assert_false(at % 8);
	assert_true(at >= EBB_FAR_SECTIONS_AT && at < ebb_far_table(a->sections));
	return &a->table[at / 8];
}

static void execute(struct arena *a, const struct far_verb *v)
{
	assert_true(v->swaps <= EBB_FAR_LINE && v->reads <= FAR_READS);
	assert_true(v->swaps || v->reads);
	for (uint32_t i = 0; i < v->swaps; i++) {
		uint64_t *word = word_at(a, v->swap[i].at);

		/* Hints, which plain WRITEs change, are in words that no swap touches. */
		assert_true(v->swap[i].at < ebb_far_hint_at(a->sections, 0) ||
			    v->swap[i].at >= ebb_far_slot_at(a->sections, 0, 0));
		v->old[i] = *word;
		if (*word == v->swap[i].expect)
			*word = v->swap[i].desired;
	}
	for (uint32_t i = 0; i < v->reads; i++)
		for (uint32_t k = 0; k < v->read[i].words; k++)
			v->read[i].to[k] = *word_at(a, v->read[i].at + 8ull * k);
}

static void write_hint(struct arena *a, const struct far_verb *v)
{
	assert_true(v->at >= ebb_far_hint_at(a->sections, 0));
	assert_true(v->at + v->bytes <= ebb_far_hint_at(a->sections, a->sections));
	memcpy((uint8_t *)a->table + v->at, &v->word, v->bytes);
}

/* A word of the table, or a bit of it, becomes anything. */
static void disturb(struct arena *a)
{
	uint64_t first = EBB_FAR_SECTIONS_AT / 8, end = ebb_far_table(a->sections) / 8;
	uint64_t *word = &a->table[first + draw_below(&a->hostile, (uint32_t)(end - first))];

	if (draw_below(&a->hostile, 2))
		*word = (uint64_t)draw32(&a->hostile) << 32 | draw32(&a->hostile);
	else
		*word ^= 1ull << draw_below(&a->hostile, 64);
}

/* Runs @op to its end and returns its result; more than @most verbs fail the test. */
static int run_within(struct arena *a, struct far_op *op, uint32_t most)
{
	struct far_verb v = extent_next(op, FAR_OK);

	for (uint32_t n = 0; v.kind != FAR_DONE; n++) {
		bool unknown = a->unknown >= 0 && n % 2 == 0;
		int status = FAR_OK;

		assert_true(n < most);
		if (v.kind == FAR_POST) {
			write_hint(a, &v);
			v = extent_next(op, FAR_OK);
			continue;
		}
		a->verbs++;
		if (a->hostile)
			disturb(a);
		if (!unknown || a->executed)
			execute(a, &v);
		if (unknown)
			status = FAR_UNKNOWN;
		if (a->fails >= 0 && !a->fails--)
			status = -ESHUTDOWN;
		v = extent_next(op, status);
	}
	assert_int_equal(extent_next(op, FAR_OK).kind, FAR_DONE);
	return op->result;
}

static bool holds_none(const void *context, const struct ebb_far_name *name)
{
	return false;
}

static int run(struct arena *a, struct far_op *op)
{
	op->holds = holds_none;
	return run_within(a, op, 4000);
}

static int allocate(struct arena *a, struct far_view *v, uint32_t class, struct ebb_far_name *names,
		    uint32_t n)
{
	struct far_op op;

	far_allocate(&op, v, ME, class, names, n);
	return run(a, &op);
}

static int free_of(struct arena *a, uint32_t member, struct ebb_far_name *names, uint32_t n)
{
	struct far_op op;

	far_free(&op, NULL, a->sections, member, names, n);
	return run(a, &op);
}

static int trim(struct arena *a, uint32_t section)
{
	struct far_op op;

	far_trim(&op, a->sections, ME, section);
	return run(a, &op);
}

static int take(struct arena *a, uint32_t giver, uint32_t receiver, struct ebb_far_name *names,
		uint32_t n)
{
	struct far_op op;

	far_take(&op, a->sections, receiver, giver, names, n);
	return run(a, &op);
}

static uint32_t recover(struct arena *a, uint32_t dead)
{
	struct far_op op;

	far_recover(&op, a->sections, dead);
	assert_int_equal(run(a, &op), 0);
	return op.next;
}

/* Marks the pages of @n, which no other extent has; false if one has. */
static bool mark(uint8_t *pages, const struct ebb_far_name *n, bool used)
{
	uint64_t first = ebb_far_address(n) / EBB_PAGE;

	for (uint64_t i = 0; i < ebb_far_bytes(n->class) / EBB_PAGE; i++) {
		if (first + i >= PAGES || pages[first + i] == used)
			return false;
		pages[first + i] = used;
	}
	return true;
}

/* --- layout ----------------------------------------------------------------------- */

static void words_keep_their_parts(void **state)
{
	uint64_t section = ebb_far_section(EBB_FAR_CLOSING, 31, 0xffff, EBB_FAR_SECTION_LAST);
	uint64_t slot = ebb_far_slot(EBB_FAR_DONOR, 8, EBB_FAR_SLOT_LAST - 1);

	assert_int_equal(ebb_far_section_state(section), EBB_FAR_CLOSING);
	assert_int_equal(ebb_far_section_class(section), 31);
	assert_int_equal(ebb_far_section_owner(section), 0xffff);
	assert_int_equal(ebb_far_section_generation(section), EBB_FAR_SECTION_LAST);
	section = ebb_far_section(EBB_FAR_WHOLE, 9, 1, EBB_FAR_SECTION_LAST + 1);
	assert_int_equal(ebb_far_section_generation(section), 0);
	assert_int_equal(ebb_far_section_owner(section), 1);
	assert_int_equal(ebb_far_section_class(section), 9);
	assert_int_equal(ebb_far_slot_owner(slot), EBB_FAR_DONOR);
	assert_int_equal(ebb_far_slot_class(slot), 8);
	assert_int_equal(ebb_far_slot_generation(slot), EBB_FAR_SLOT_LAST - 1);
	/* Memory of zeroes: a free section. */
	assert_int_equal(ebb_far_section(EBB_FAR_FREE, 0, EBB_FAR_NONE, 0), 0);
	assert_int_equal(sizeof(struct ebb_far_member), 64);
	assert_int_equal(sizeof(struct ebb_far_header), 64);
	assert_int_equal(sizeof(struct ebb_far_name), 16);
}

static void classes_are_powers_of_two(void **state)
{
	assert_int_equal(ebb_far_class(0), 0);
	assert_int_equal(ebb_far_class(4096), 0);
	assert_int_equal(ebb_far_class(4097), 1);
	assert_int_equal(ebb_far_class(64 << 10), 4);
	assert_int_equal(ebb_far_class(1 << 20), 8);
	assert_int_equal(ebb_far_class((1 << 20) + 1), EBB_FAR_WHOLE_CLASS);
	assert_int_equal(ebb_far_class(2 << 20), EBB_FAR_WHOLE_CLASS);
	assert_true(ebb_far_class((2 << 20) + 1) > EBB_FAR_WHOLE_CLASS);
	assert_int_equal(ebb_far_bytes(EBB_FAR_WHOLE_CLASS), EBB_FAR_SECTION);
	assert_int_equal(ebb_far_lines(0), EBB_FAR_LINES);
	assert_int_equal(ebb_far_lines(3), 1);
	assert_int_equal(ebb_far_lines(8), 1);
}

/* The words of a class are the first ones; their slots fill the section without overlap. */
static void slots_fill_a_section(void **state)
{
	for (uint32_t class = 0; class < EBB_FAR_WHOLE_CLASS; class ++) {
		uint8_t pages[PAGES] = { 0 };

		for (uint32_t w = 0; w < ebb_far_slots(class); w++) {
			struct ebb_far_name n = { .word = (uint16_t)w, .class = (uint8_t) class };

			assert_int_equal(ebb_far_word_of(ebb_far_page_of(w)), w);
			assert_int_equal(ebb_far_address(&n) % ebb_far_bytes(class), 0);
			assert_true(ebb_far_address(&n) < EBB_FAR_SECTION);
			assert_true(mark(pages, &n, true));
		}
	}
}

static void a_table_is_small(void **state)
{
	for (uint32_t sections = 1; sections <= EBB_FAR_ARENA_SECTIONS; sections++) {
		assert_true(ebb_far_hint_at(sections, 0) == ebb_far_section_at(sections));
		assert_true(ebb_far_slot_at(sections, 0, 0) >= ebb_far_hint_at(sections, sections));
		assert_int_equal(ebb_far_slot_at(sections, 0, 0) % EBB_PAGE, 0);
		assert_int_equal(ebb_far_table(sections) % EBB_PAGE, 0);
	}
	assert_true(ebb_far_table(32) * 10000 <= 25ull * 32 * EBB_FAR_SECTION);
	assert_true(ebb_far_table(512) * 10000 <= 25ull * 512 * EBB_FAR_SECTION);
}

/* The donor has the pages of the table, and no others, in arenas with a table of each size. */
static void the_donor_has_the_table(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 32, 64, 500, 512 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		uint64_t pages = 0;

		for (uint32_t s = 0; s < sizes[i]; s++) {
			uint64_t word = far_initial_section(sizes[i], s, 5);

			assert_int_equal(ebb_far_section_generation(word), 5);
			if (ebb_far_section_state(word) == EBB_FAR_WHOLE)
				pages += EBB_FAR_SLOTS;
			for (uint32_t w = 0; w < EBB_FAR_SLOTS; w++) {
				uint64_t slot = far_initial_slot(sizes[i], s, w, 5);

				assert_int_equal(ebb_far_slot_generation(slot), 5);
				pages += ebb_far_slot_owner(slot) == EBB_FAR_DONOR;
			}
		}
		assert_int_equal(pages * EBB_PAGE, ebb_far_table(sizes[i]));
	}
}

/* The first generation differs between pools, and leaves three quarters of the range. */
static void first_generations(void **state)
{
	assert_true(far_first_generation(1ull << 26) != far_first_generation(2ull << 26));
	assert_true(far_first_generation(1ull << 62) != far_first_generation(1ull << 63));
	assert_true(far_first_generation(UINT64_MAX) < EBB_FAR_SECTION_LAST / 4 + 1);
}

/* --- allocating ------------------------------------------------------------------- */

/* Allocates all that there is; returns how many. */
static uint32_t fill(struct arena *a, struct far_view *v, uint32_t class, uint8_t *pages,
		     struct ebb_far_name *names)
{
	uint32_t n = 0;
	int r;

	while (!(r = allocate(a, v, class, &names[n], 1))) {
		assert_int_equal(names[n].class, class);
		assert_true(ebb_far_address(&names[n]) >= ebb_far_table(a->sections));
		assert_true(mark(pages, &names[n], true));
		n++;
	}
	assert_int_equal(r, -ENOSPC);
	return n;
}

static void each_class_fills_an_arena(void **state)
{
	struct ebb_far_name *names = calloc(PAGES, sizeof(*names));
	uint8_t *pages = calloc(1, PAGES);

	for (uint32_t class = 0; class <= EBB_FAR_WHOLE_CLASS; class ++) {
		struct arena *a = arena_new(SECTIONS);
		struct far_view v;
		uint32_t n;

		memset(pages, 0, PAGES);
		far_view_init(&v, SECTIONS, class + 1);
		n = fill(a, &v, class, pages, names);
		/* The first section is divided into pages. */
		if (!class)
			assert_int_equal(n, PAGES - ebb_far_table(SECTIONS) / EBB_PAGE);
		else
			assert_int_equal(n, (SECTIONS - 1) * ebb_far_slots(class));
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(free_of(a, ME, &names[i], 1), 0);
		for (uint32_t i = 0; i < n; i += 97)
			assert_int_equal(free_of(a, ME, &names[i], 1), -ESTALE);
		assert_int_equal(trim(a, 0), -EBUSY);
		for (uint32_t s = 1; s < SECTIONS; s++)
			assert_int_equal(trim(a, s), class == EBB_FAR_WHOLE_CLASS ? -EBUSY : 0);
		memset(pages, 0, PAGES);
		assert_int_equal(fill(a, &v, EBB_FAR_WHOLE_CLASS, pages, names), SECTIONS - 1);
		arena_free(a);
	}
	free(pages);
	free(names);
}

/* From each window on, an allocation finds the free sections of all windows. */
static void all_windows_are_searched(void **state)
{
	enum { MANY = 2 * EBB_FAR_WINDOW + 2 };

	for (uint32_t window = 0; window < MANY; window += EBB_FAR_WINDOW) {
		struct arena *a = arena_new(MANY);
		struct ebb_far_name names[MANY];
		struct far_view v;

		far_view_init(&v, MANY, 1);
		v.window = window;
		/* The first section has the table. */
		for (uint32_t i = 0; i < MANY - 1; i++)
			assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, &names[i], 1), 0);
		assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, &names[0], 1), -ENOSPC);
		assert_int_equal(free_of(a, ME, &names[MANY - 2], 1), 0);
		assert_int_equal(allocate(a, &v, 4, &names[0], 1), 0);
		assert_int_equal(names[0].section, names[MANY - 2].section);
		arena_free(a);
	}
}

/* A free outside the view's window gives the view a line there, for the next allocation. */
static void a_freed_slot_of_another_window_is_reused(void **state)
{
	enum { MANY = 2 * EBB_FAR_WINDOW };
	struct arena *a = arena_new(MANY);
	struct ebb_far_name first, name;
	struct far_view v, other;
	struct far_op op;

	far_view_init(&v, MANY, 1);
	far_view_init(&other, MANY, 1);
	other.window = EBB_FAR_WINDOW;
	assert_int_equal(allocate(a, &v, 8, &first, 1), 0);
	assert_int_equal(allocate(a, &other, 8, &name, 1), 0);
	assert_true(first.section < EBB_FAR_WINDOW && name.section >= EBB_FAR_WINDOW);
	far_free(&op, &v, MANY, ME, &name, 1);
	assert_int_equal(run(a, &op), 0);
	/* Both slots of that section, then one at home. */
	for (int i = 0; i < 3; i++) {
		far_allocate(&op, &v, ME, 8, &first, 1);
		assert_int_equal(run(a, &op), 0);
		assert_int_equal(first.section == name.section, i < 2);
		if (!i)
			assert_int_equal(op.rounds, 1);
	}
	arena_free(a);
}

static void large_extents_are_consecutive_sections(void **state)
{
	struct arena *a = arena_new(SECTIONS);
	struct ebb_far_name names[EBB_FAR_EXTENT_SECTIONS + 1], more[EBB_FAR_EXTENT_SECTIONS];
	struct far_view v;

	far_view_init(&v, SECTIONS, 5);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, SECTIONS), -ENOSPC);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, SECTIONS - 1), 0);
	for (uint32_t i = 0; i < SECTIONS - 1; i++)
		assert_int_equal(names[i].section, i + 1);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, more, 1), -ENOSPC);
	/* Every second section: no pair. */
	for (uint32_t i = 0; i < SECTIONS - 1; i += 2)
		assert_int_equal(free_of(a, ME, &names[i], 1), 0);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, more, 2), -ENOSPC);
	assert_int_equal(free_of(a, ME, &names[1], 1), 0);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, more, 3), 0);
	assert_int_equal(more[0].section, 1);
	assert_int_equal(free_of(a, ME, more, 3), 0);
	assert_int_equal(free_of(a, ME, more, 3), -ESTALE);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, EBB_FAR_EXTENT_SECTIONS + 1),
			 -EINVAL);
	assert_int_equal(allocate(a, &v, 0, names, 2), -EINVAL);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS + 1, names, 1), -EINVAL);
	assert_int_equal(allocate(a, &v, 0, names, 0), -EINVAL);
	arena_free(a);
}

/* Another member has a section that the image shows as free: what was taken is undone. */
static void a_partial_extent_is_undone(void **state)
{
	struct arena *a = arena_new(4);
	struct ebb_far_name names[3];
	struct far_view v;
	struct far_op op;

	far_view_init(&v, 4, 1);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, 1), 0);
	assert_int_equal(free_of(a, ME, names, 1), 0);
	far_allocate(&op, &v, ME, EBB_FAR_WHOLE_CLASS, names, 3);
	/* The second verb takes the first section. */
	for (int i = 0; i < 2; i++) {
		struct far_verb verb = extent_next(&op, FAR_OK);

		execute(a, &verb);
		if (verb.swaps)
			*section_word(a, 3) = ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS,
							      OTHER, 0);
	}
	assert_int_equal(run(a, &op), -ENOSPC);
	for (uint32_t s = 1; s < 3; s++)
		assert_int_equal(ebb_far_section_state(*section_word(a, s)), EBB_FAR_FREE);
	assert_int_equal(ebb_far_section_owner(*section_word(a, 3)), OTHER);
	arena_free(a);
}

/* Another member takes @section while a run of two is allocated, in place of its second one. */
static int allocate_pair_against(struct arena *a, struct far_view *v, struct ebb_far_name *names,
				 uint32_t first)
{
	struct far_op op;
	struct far_verb verb;

	far_allocate(&op, v, ME, EBB_FAR_WHOLE_CLASS, names, 2);
	op.holds = holds_none;
	for (verb = extent_next(&op, FAR_OK); !verb.swaps; verb = extent_next(&op, FAR_OK))
		execute(a, &verb);
	if (names[0].section != first)
		return -EAGAIN;
	*section_word(a, first + 1) = ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, OTHER, 0);
	execute(a, &verb);
	return run(a, &op);
}

/* A section that an allocation took and then undid is free for its next try. */
static void an_undone_extent_is_tried_again(void **state)
{
	int r = -EAGAIN;

	for (uint64_t seed = 1; r == -EAGAIN; seed++) {
		struct arena *a = arena_new(5);
		struct ebb_far_name names[2];
		struct far_view v;

		assert_true(seed < 100);
		far_view_init(&v, 5, seed);
		/* Sections 1 to 4 are free.  With 3 lost, 1 and 2 are the only pair. */
		r = allocate_pair_against(a, &v, names, 2);
		if (!r) {
			assert_int_equal(names[0].section, 1);
			assert_int_equal(names[1].section, 2);
		}
		arena_free(a);
	}
	assert_int_equal(r, 0);
}

/* The member's own free of a section is in its view: the next allocation needs no READ. */
static void a_view_learns_of_freed_sections(void **state)
{
	struct arena *a = arena_new(2);
	struct ebb_far_name name;
	struct far_view v;
	struct far_op op;

	far_view_init(&v, 2, 1);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, &name, 1), 0);
	far_free(&op, &v, 2, ME, &name, 1);
	assert_int_equal(run(a, &op), 0);
	far_allocate(&op, &v, ME, EBB_FAR_WHOLE_CLASS, &name, 1);
	assert_int_equal(run(a, &op), 0);
	assert_int_equal(op.rounds, 1);
	arena_free(a);
}

/* Another member takes each slot just before, and frees the next one of the line. */
static void overtake(struct arena *a, const struct far_verb *v)
{
	for (uint32_t i = 0; i < v->swaps; i++) {
		uint64_t *word = word_at(a, v->swap[i].at);
		uint64_t first = ebb_far_slot_at(a->sections, 0, 0);
		uint64_t at = (v->swap[i].at - first) / 8;
		uint64_t next = at / EBB_FAR_LINE * EBB_FAR_LINE + (at + 1) % EBB_FAR_LINE;
		uint64_t *other = word_at(a, first + 8 * next);

		if (*word != v->swap[i].expect)
			continue;
		*word = ebb_far_slot(OTHER, 0, ebb_far_slot_generation(*word));
		*other = ebb_far_slot(EBB_FAR_NONE, 0, ebb_far_slot_generation(*other) + 1);
	}
}

/* An allocation that always loses ends, though each line always shows a free slot. */
static void an_allocation_gives_up(void **state)
{
	struct arena *a = arena_new(4);
	struct ebb_far_name name;
	struct far_view v;
	struct far_op op;
	struct far_verb verb;

	for (uint32_t s = 0; s < 4; s++) {
		*section_word(a, s) = ebb_far_section(EBB_FAR_OPEN, 0, 0, 0);
		a->table[ebb_far_hint_at(4, s) / 8] = 0x0101010101010101;
		for (uint32_t w = 0; w < EBB_FAR_SLOTS; w++)
			*slot_word(a, s, w) = ebb_far_slot(w % EBB_FAR_LINE ? OTHER : EBB_FAR_NONE,
							   0, 0);
	}
	far_view_init(&v, 4, 1);
	far_allocate(&op, &v, ME, 0, &name, 1);
	verb = extent_next(&op, FAR_OK);
	for (uint32_t n = 0; verb.kind != FAR_DONE; n++) {
		/* Of each of 64 lines at most a READ, two swaps and two hints. */
		assert_true(n < 64 * 5);
		overtake(a, &verb);
		if (verb.kind == FAR_POST)
			write_hint(a, &verb);
		else
			execute(a, &verb);
		verb = extent_next(&op, FAR_OK);
	}
	assert_int_equal(op.result, -EBUSY);
	arena_free(a);
}

/* Without contention, an allocation from a known line is one verb with one swap. */
static void an_allocation_is_one_swap(void **state)
{
	struct arena *a = arena_new(SECTIONS);
	struct ebb_far_name name;
	struct far_view v;
	struct far_op op;

	far_view_init(&v, SECTIONS, 1);
	for (int i = 0; i < 8; i++) {
		far_allocate(&op, &v, ME, 0, &name, 1);
		assert_int_equal(run(a, &op), 0);
		if (!i)
			continue;
		assert_int_equal(op.swaps, 1);
		assert_int_equal(op.rounds, 1);
	}
	far_free(&op, &v, SECTIONS, ME, &name, 1);
	assert_int_equal(run(a, &op), 0);
	assert_int_equal(op.rounds, 1);
	arena_free(a);
}

/* Hints lead to the last free slots; without them, all is still safe and mended by what is read. */
static void hints_lead_to_free_slots(void **state)
{
	struct arena *a = arena_new(SECTIONS);
	struct ebb_far_name *names = calloc(PAGES, sizeof(*names)), name;
	uint8_t *pages = calloc(1, PAGES);
	struct far_view v;
	struct far_op op;
	uint32_t n;

	far_view_init(&v, SECTIONS, 1);
	n = fill(a, &v, 0, pages, names);
	for (int i = 0; i < 100; i++) {
		struct ebb_far_name *freed = &names[(uint32_t)i * 131 % n];

		far_free(&op, &v, SECTIONS, ME, freed, 1);
		assert_int_equal(run(a, &op), 0);
		/* Of a member that knows nothing yet. */
		far_view_init(&v, SECTIONS, (uint64_t)i + 1);
		far_allocate(&op, &v, ME, 0, freed, 1);
		assert_int_equal(run(a, &op), 0);
		assert_int_equal(op.swaps, 1);
		assert_true(op.rounds <= 3);
	}
	far_free(&op, &v, SECTIONS, ME, names, 1);
	assert_int_equal(run(a, &op), 0);
	memset(&a->table[ebb_far_hint_at(SECTIONS, 0) / 8], 0, 8ul * SECTIONS);
	for (int i = 0, r = -ENOSPC; r; i++) {
		assert_true(i < 2000);
		far_view_init(&v, SECTIONS, (uint64_t)i + 1);
		r = allocate(a, &v, 0, &name, 1);
		assert_true(!r || r == -ENOSPC);
	}
	memset(&a->table[ebb_far_hint_at(SECTIONS, 0) / 8], 0xff, 8ul * SECTIONS);
	far_view_init(&v, SECTIONS, 1);
	assert_true(allocate(a, &v, 0, &name, 1));
	arena_free(a);
	free(pages);
	free(names);
}

/* --- generations ------------------------------------------------------------------ */

static int format(struct arena *a, uint32_t section, uint32_t class)
{
	struct far_op op;

	far_format(&op, a->sections, ME, section, class);
	return run(a, &op);
}

/* A section has got slots of another class since the member has seen it. */
static void slots_of_another_class_are_not_allocated(void **state)
{
	struct arena *a = arena_new(2);
	struct ebb_far_name name;
	struct far_view v;

	*section_word(a, 0) = ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, EBB_FAR_DONOR, 0);
	far_view_init(&v, 2, 1);
	assert_int_equal(allocate(a, &v, 0, &name, 1), 0);
	assert_int_equal(name.section, 1);
	assert_int_equal(free_of(a, ME, &name, 1), 0);
	assert_int_equal(trim(a, 1), 0);
	assert_int_equal(format(a, 1, 1), 0);
	assert_int_equal(allocate(a, &v, 0, &name, 1), -ENOSPC);
	for (uint32_t w = 0; w < ebb_far_slots(1); w++)
		assert_int_equal(ebb_far_slot_owner(*slot_word(a, 1, w)), EBB_FAR_NONE);
	arena_free(a);
}

/* Each format raises all words; each trim, the section's. */
static void formats_and_trims_raise_generations(void **state)
{
	struct arena *a = arena_new(2);

	for (uint64_t i = 1; i <= 3; i++) {
		assert_int_equal(format(a, 1, 8), 0);
		assert_int_equal(*section_word(a, 1),
				 ebb_far_section(EBB_FAR_OPEN, 8, 0, 2 * i - 1));
		for (uint32_t w = 0; w < 2; w++)
			assert_int_equal(*slot_word(a, 1, w), ebb_far_slot(EBB_FAR_NONE, 8, i));
		assert_int_equal(*slot_word(a, 1, 2), ebb_far_slot(EBB_FAR_CLOSED, 0, 0));
		assert_int_equal(trim(a, 1), 0);
		assert_int_equal(*section_word(a, 1), ebb_far_section(EBB_FAR_FREE, 0, 0, 2 * i));
		for (uint32_t w = 0; w < 2; w++)
			assert_int_equal(*slot_word(a, 1, w), ebb_far_slot(EBB_FAR_CLOSED, 8, i));
	}
	arena_free(a);
}

/* A section that is not free, or that is retired, is not formatted. */
static void free_sections_alone_are_formatted(void **state)
{
	const uint64_t words[] = {
		ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, ME, 5),
		ebb_far_section(EBB_FAR_OPENING, 3, OTHER, 5),
		ebb_far_section(EBB_FAR_OPEN, 3, 0, 5),
		ebb_far_section(EBB_FAR_CLOSING, 3, ME, 5),
		ebb_far_section(EBB_FAR_FREE, 0, 0, EBB_FAR_SECTION_LAST - 1),
		ebb_far_section(7, 0, 0, 5),
		/* Not a word that a free leaves. */
		ebb_far_section(EBB_FAR_FREE, 0, ME, 5),
		ebb_far_section(EBB_FAR_FREE, 1, 0, 5),
	};
	struct ebb_far_name name;
	struct far_view v;
	struct arena *a = arena_new(2);

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		*section_word(a, 1) = words[i];
		assert_int_equal(format(a, 1, 3), -EBUSY);
		far_view_init(&v, 2, 1);
		assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, &name, 1), -ENOSPC);
		assert_int_equal(*section_word(a, 1), words[i]);
	}
	arena_free(a);
}

static void a_word_retires_at_its_last_generation(void **state)
{
	struct arena *a = arena_new(2);
	struct ebb_far_name names[2];
	struct far_view v;
	struct far_op op;

	*section_word(a, 0) = ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, EBB_FAR_DONOR, 0);
	*section_word(a, 1) = ebb_far_section(EBB_FAR_OPEN, 8, 0, EBB_FAR_SECTION_LAST - 2);
	*slot_word(a, 1, 0) = ebb_far_slot(EBB_FAR_NONE, 8, EBB_FAR_SLOT_LAST);
	*slot_word(a, 1, 1) = ebb_far_slot(EBB_FAR_NONE, 8, EBB_FAR_SLOT_LAST - 1);
	a->table[ebb_far_hint_at(2, 1) / 8] = 2;
	far_view_init(&v, 2, 1);
	assert_int_equal(allocate(a, &v, 8, names, 1), 0);
	assert_int_equal(names[0].word, 1);
	assert_int_equal(allocate(a, &v, 8, names + 1, 1), -ENOSPC);
	assert_int_equal(trim(a, 1), -EBUSY);
	assert_int_equal(free_of(a, ME, names, 1), 0);
	assert_int_equal(allocate(a, &v, 8, names + 1, 1), -ENOSPC);
	/* A slot that is handed over at its last generation but one is retired with its free. */
	*slot_word(a, 1, 1) = ebb_far_slot(ME, 8, EBB_FAR_SLOT_LAST - 1);
	assert_int_equal(take(a, ME, OTHER, names, 1), 0);
	assert_int_equal(free_of(a, OTHER, names, 1), 0);
	assert_int_equal(*slot_word(a, 1, 1), ebb_far_slot(EBB_FAR_NONE, 8, EBB_FAR_SLOT_LAST));
	/* The section goes on without its slots, once more as a whole, and then no more. */
	assert_int_equal(trim(a, 1), 0);
	assert_int_equal(ebb_far_section_generation(*section_word(a, 1)), EBB_FAR_SECTION_LAST - 1);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, 1), -ENOSPC);
	*section_word(a, 1) = ebb_far_section(EBB_FAR_FREE, 0, 0, EBB_FAR_SECTION_LAST - 2);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, 1), 0);
	assert_int_equal(take(a, ME, OTHER, names, 1), 0);
	assert_int_equal(take(a, OTHER, ME, names, 1), 0);
	assert_int_equal(names[0].generation, EBB_FAR_SECTION_LAST);
	/* There is no generation left for another owner, nor to withdraw an offer. */
	assert_int_equal(take(a, ME, OTHER, names, 1), -EINVAL);
	far_withdraw(&op, 2, ME, names, 1);
	assert_int_equal(run(a, &op), -EINVAL);
	assert_int_equal(free_of(a, ME, names, 1), 0);
	assert_int_equal(free_of(a, ME, names, 1), -ESTALE);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, 1), -ENOSPC);
	arena_free(a);
}

/* --- hand-over and recovery ------------------------------------------------------- */

static void one_owner_after_a_hand_over(void **state)
{
	struct arena *a = arena_new(SECTIONS);
	struct ebb_far_name names[3], old[3], again[3];
	struct far_view v;
	struct far_op op;

	far_view_init(&v, SECTIONS, 1);
	for (uint32_t n = 1; n <= 3; n += 2) {
		assert_int_equal(allocate(a, &v, n == 1 ? 2 : EBB_FAR_WHOLE_CLASS, names, n), 0);
		memcpy(old, names, sizeof(old));
		assert_int_equal(take(a, ME, OTHER, names, n), 0);
		/* The giver's names, and the offer, are old. */
		memcpy(again, old, sizeof(old));
		assert_int_equal(free_of(a, ME, again, n), -ESTALE);
		assert_int_equal(take(a, ME, THIRD, again, n), -ESTALE);
		/* The way back does not revive them. */
		assert_int_equal(take(a, OTHER, ME, names, n), 0);
		memcpy(again, old, sizeof(old));
		assert_int_equal(take(a, ME, THIRD, again, n), -ESTALE);
		/* Withdrawn. */
		memcpy(old, names, sizeof(old));
		far_withdraw(&op, SECTIONS, ME, names, n);
		assert_int_equal(run(a, &op), 0);
		assert_int_equal(take(a, ME, OTHER, old, n), -ESTALE);
		assert_int_equal(free_of(a, ME, names, n), 0);
		memcpy(old, names, sizeof(old));
		far_withdraw(&op, SECTIONS, ME, names, n);
		assert_int_equal(run(a, &op), -ESTALE);
		/* The giver's names are as before, to be freed when the receiver fails. */
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(names[i].generation, old[i].generation);
	}
	arena_free(a);
}

/* The giver was recovered while the receiver takes: the receiver frees what it took. */
static void a_partial_take_is_undone(void **state)
{
	struct arena *a = arena_new(SECTIONS);
	struct ebb_far_name names[3];
	struct far_view v;
	struct far_op op;

	far_view_init(&v, SECTIONS, 1);
	assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, 3), 0);
	far_take(&op, SECTIONS, OTHER, ME, names, 3);
	struct far_verb verb = extent_next(&op, FAR_OK);

	execute(a, &verb);
	assert_int_equal(recover(a, ME), 2);
	assert_int_equal(run(a, &op), -ESTALE);
	for (uint32_t s = 1; s < SECTIONS; s++)
		assert_int_equal(ebb_far_section_state(*section_word(a, s)), EBB_FAR_FREE);
	arena_free(a);
}

/*
 * An offer that names an extent twice gives it once, whether outcomes are known or not; the names
 * are then neither taken nor leaked.
 */
static void a_name_is_taken_once(void **state)
{
	for (int unknown = -1; unknown <= 0; unknown++) {
		struct arena *a = arena_new(SECTIONS);
		struct ebb_far_name names[4];
		struct far_view v;

		far_view_init(&v, SECTIONS, 1);
		assert_int_equal(allocate(a, &v, 3, &names[0], 1), 0);
		assert_int_equal(allocate(a, &v, 3, &names[1], 1), 0);
		names[2] = names[1];
		names[3] = names[0];
		a->unknown = unknown;
		a->executed = true;
		assert_int_equal(take(a, ME, OTHER, names, 4), -ESTALE);
		a->unknown = -1;
		assert_int_equal(recover(a, OTHER), 0);
		arena_free(a);
	}
}

/* A member stops after each number of verbs of each operation; its extents are freed. */
static void recovery_frees_all_of_the_dead(void **state)
{
	for (int kind = 0; kind < 3; kind++) {
		for (int stop = 0;; stop++) {
			struct arena *a = arena_new(4);
			struct ebb_far_name names[2], theirs;
			struct far_view v, others;
			struct far_op op;
			bool ended;

			far_view_init(&v, 4, 1);
			far_view_init(&others, 4, 2);
			far_allocate(&op, &others, OTHER, 0, &theirs, 1);
			assert_int_equal(run(a, &op), 0);
			assert_int_equal(allocate(a, &v, 0, names, 1), 0);
			far_format(&op, 4, ME, 2, 1);
			if (kind == 1)
				assert_int_equal(run(a, &op), 0);
			if (kind == 1)
				far_trim(&op, 4, ME, 2);
			if (kind == 2)
				far_allocate(&op, &v, ME, EBB_FAR_WHOLE_CLASS, names, 2);
			a->fails = stop;
			ended = run(a, &op) != -ESHUTDOWN;
			a->fails = -1;
			recover(a, ME);
			assert_int_equal(recover(a, ME), 0);
			for (uint32_t s = 1; s < 4; s++) {
				uint32_t is = ebb_far_section_state(*section_word(a, s));

				assert_true(is == EBB_FAR_FREE || is == EBB_FAR_OPEN);
				for (uint32_t w = 0; w < ebb_far_slots(1); w++)
					assert_int_equal(ebb_far_slot_owner(*slot_word(a, s, w)),
							 is == EBB_FAR_OPEN ? EBB_FAR_NONE :
									      EBB_FAR_CLOSED);
			}
			assert_int_equal(free_of(a, OTHER, &theirs, 1), 0);
			assert_int_equal(free_of(a, ME, names, 1), -ESTALE);
			arena_free(a);
			if (ended)
				break;
		}
	}
}

/* --- unknown outcomes ------------------------------------------------------------- */

static void unknown_outcomes_are_repeated(void **state)
{
	for (int executed = 0; executed < 2; executed++) {
		struct arena *a = arena_new(8);
		struct ebb_far_name names[3], slot;
		struct far_view v;
		struct far_op op;

		a->unknown = 0;
		a->executed = executed;
		far_view_init(&v, 8, 1);
		assert_int_equal(allocate(a, &v, 3, &slot, 1), 0);
		assert_int_equal(allocate(a, &v, EBB_FAR_WHOLE_CLASS, names, 3), 0);
		assert_int_equal(take(a, ME, OTHER, names, 3), 0);
		far_withdraw(&op, 8, OTHER, names, 3);
		assert_int_equal(run(a, &op), 0);
		assert_int_equal(trim(a, slot.section), -EBUSY);
		assert_int_equal(free_of(a, ME, &slot, 1), 0);
		assert_int_equal(trim(a, slot.section), 0);
		assert_int_equal(recover(a, OTHER), 3);
		a->unknown = -1;
		for (uint32_t s = 1; s < 8; s++)
			assert_int_equal(ebb_far_section_state(*section_word(a, s)), EBB_FAR_FREE);
		arena_free(a);
	}
}

/* An unknown outcome of one verb does not hide what the next one finds. */
static void an_unknown_outcome_is_of_one_verb(void **state)
{
	enum { MANY = EBB_FAR_LINE + 1 };
	struct arena *a = arena_new(4);
	struct ebb_far_name names[MANY];
	struct far_view v;
	struct far_op op;
	struct far_verb verb;

	far_view_init(&v, 4, 1);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(allocate(a, &v, 0, &names[i], 1), 0);
	assert_int_equal(free_of(a, ME, &names[MANY - 1], 1), 0);
	far_free(&op, NULL, 4, ME, names, MANY);
	verb = extent_next(&op, FAR_OK);
	execute(a, &verb);
	verb = extent_next(&op, FAR_UNKNOWN);
	execute(a, &verb);
	assert_int_equal(run(a, &op), -ESTALE);
	arena_free(a);
}

/* --- hostile words ---------------------------------------------------------------- */

/* An open section of a class that there is not stays as it is: slots may be in use. */
static void sections_of_no_class_are_not_trimmed(void **state)
{
	struct arena *a = arena_new(2);

	for (uint32_t class = EBB_FAR_WHOLE_CLASS; class < 32; class ++) {
		uint64_t word = ebb_far_section(EBB_FAR_OPEN, class, 0, 5);

		*section_word(a, 1) = word;
		assert_int_equal(trim(a, 1), -EBUSY);
		assert_int_equal(*section_word(a, 1), word);
	}
	arena_free(a);
}

/*
 * Words change by themselves: every operation ends, uses no offset outside the words of the table,
 * and gives no extent outside the arena or of another size.
 */
static void hostile_words_do_no_harm(void **state)
{
	uint64_t seed = 7;

	for (int round = 0; round < 3000; round++) {
		static const uint32_t sizes[] = { 1, 3, 8 }, large[] = { 65, 500, 512 };
		struct arena *a = arena_new((round % 100 ? sizes : large)[round % 3]);
		struct ebb_far_name names[2];
		struct far_view v;

		a->hostile = (uint64_t)round + 1;
		far_view_init(&v, a->sections, (uint64_t)round + 1);
		for (int i = 0; i < 2000 && round % 2; i++)
			disturb(a);
		for (int i = 0; i < 20; i++) {
			uint32_t class = draw_below(&seed, EBB_FAR_WHOLE_CLASS + 1);
			uint32_t n = class == EBB_FAR_WHOLE_CLASS ? 1 + draw_below(&seed, 2) : 1;
			struct far_op op;

			far_allocate(&op, &v, ME, class, names, n);
			if (!run_within(a, &op, 1000)) {
				for (uint32_t k = 0; k < n; k++) {
					assert_int_equal(names[k].class, class);
					assert_true(ebb_far_address(&names[k]) %
							    ebb_far_bytes(class) ==
						    0);
					assert_true(ebb_far_address(&names[k]) +
							    ebb_far_bytes(class) <=
						    a->sections * EBB_FAR_SECTION);
				}
				far_free(&op, &v, a->sections, ME, names, n);
				run_within(a, &op, 100);
			}
			far_trim(&op, a->sections, ME, draw_below(&seed, a->sections));
			run_within(a, &op, 100);
		}
		struct far_op op;

		far_recover(&op, a->sections, ME);
		assert_int_equal(run_within(a, &op, 1000 + 12 * a->sections), 0);
		arena_free(a);
	}
}

static void hostile_names_are_refused(void **state)
{
	struct arena *a = arena_new(4);
	const struct ebb_far_name bad[] = {
		{ .section = 4 },
		{ .section = UINT32_MAX },
		{ .class = EBB_FAR_WHOLE_CLASS + 1 },
		{ .class = 255 },
		{ .word = EBB_FAR_SLOTS },
		{ .word = 2, .class = 8 },
		{ .word = 1, .class = EBB_FAR_WHOLE_CLASS },
		{ .generation = EBB_FAR_SLOT_LAST + 1 },
		{ .class = EBB_FAR_WHOLE_CLASS, .generation = EBB_FAR_SECTION_LAST + 1 },
	};
	struct ebb_far_name good = { .section = 1 };
	struct far_view v;
	struct far_op op;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct ebb_far_name n = bad[i];

		assert_int_equal(take(a, OTHER, ME, &n, 1), -EINVAL);
		assert_int_equal(free_of(a, ME, &n, 1), -EINVAL);
	}
	assert_int_equal(take(a, ME, ME, &good, 1), -EINVAL);
	assert_int_equal(take(a, EBB_FAR_NONE, ME, &good, 1), -EINVAL);
	assert_int_equal(take(a, EBB_FAR_CLOSED, ME, &good, 1), -EINVAL);
	assert_int_equal(take(a, EBB_FAR_MEMBERS + 1, ME, &good, 1), -EINVAL);
	assert_int_equal(free_of(a, EBB_FAR_NONE, &good, 1), -EINVAL);
	assert_int_equal(trim(a, 4), -EINVAL);
	/* A window, or a view of a larger arena, would lead outside this one. */
	far_view_init(&v, 4, 1);
	v.window = 64;
	assert_int_equal(allocate(a, &v, 0, &good, 1), -EINVAL);
	far_view_init(&v, 5, 1);
	far_free(&op, &v, 4, ME, &good, 1);
	assert_int_equal(run(a, &op), -EINVAL);
	far_format(&op, 4, ME, 1, EBB_FAR_WHOLE_CLASS);
	assert_int_equal(run(a, &op), -EINVAL);
	far_recover(&op, 4, EBB_FAR_DONOR);
	assert_int_equal(run(a, &op), -EINVAL);
	far_recover(&op, EBB_FAR_ARENA_SECTIONS + 1, ME);
	assert_int_equal(run(a, &op), -EINVAL);
	assert_int_equal(a->verbs, 0);
	arena_free(a);
}

static void an_error_ends_an_operation(void **state)
{
	struct arena *a = arena_new(4);
	struct ebb_far_name name;
	struct far_view v;
	struct far_op op;

	for (int i = 0; i < 3; i++) {
		a->fails = i;
		far_view_init(&v, 4, 1);
		far_allocate(&op, &v, ME, 0, &name, 1);
		assert_int_equal(run(a, &op), -ESHUTDOWN);
		assert_int_equal(extent_next(&op, FAR_OK).kind, FAR_DONE);
	}
	arena_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_keep_their_parts),
		cmocka_unit_test(classes_are_powers_of_two),
		cmocka_unit_test(slots_fill_a_section),
		cmocka_unit_test(a_table_is_small),
		cmocka_unit_test(the_donor_has_the_table),
		cmocka_unit_test(first_generations),
		cmocka_unit_test(each_class_fills_an_arena),
		cmocka_unit_test(all_windows_are_searched),
		cmocka_unit_test(a_freed_slot_of_another_window_is_reused),
		cmocka_unit_test(large_extents_are_consecutive_sections),
		cmocka_unit_test(a_partial_extent_is_undone),
		cmocka_unit_test(an_undone_extent_is_tried_again),
		cmocka_unit_test(a_view_learns_of_freed_sections),
		cmocka_unit_test(an_allocation_gives_up),
		cmocka_unit_test(an_allocation_is_one_swap),
		cmocka_unit_test(hints_lead_to_free_slots),
		cmocka_unit_test(slots_of_another_class_are_not_allocated),
		cmocka_unit_test(formats_and_trims_raise_generations),
		cmocka_unit_test(free_sections_alone_are_formatted),
		cmocka_unit_test(a_word_retires_at_its_last_generation),
		cmocka_unit_test(one_owner_after_a_hand_over),
		cmocka_unit_test(a_partial_take_is_undone),
		cmocka_unit_test(a_name_is_taken_once),
		cmocka_unit_test(recovery_frees_all_of_the_dead),
		cmocka_unit_test(unknown_outcomes_are_repeated),
		cmocka_unit_test(an_unknown_outcome_is_of_one_verb),
		cmocka_unit_test(sections_of_no_class_are_not_trimmed),
		cmocka_unit_test(hostile_words_do_no_harm),
		cmocka_unit_test(hostile_names_are_refused),
		cmocka_unit_test(an_error_ends_an_operation),
	};

	return cmocka_run_group_tests_name("far step", tests, NULL, NULL);
}
