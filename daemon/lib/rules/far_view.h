/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/* What a member remembers of an arena's table, and where an allocation tries next. */
#ifndef EBB_FAR_VIEW_H
#define EBB_FAR_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "ebb/far.h"

/*
 * What a member remembers of a table between operations: images of words, which may be old.  Used
 * by one operation at a time, and for one class, so that it stays at lines of that class.
 */
struct far_view {
	uint32_t sections;		  /* of the arena */
	/*
	 * First section whose words are here, a multiple of EBB_FAR_WINDOW.  The caller may choose
	 * the first window after far_view_init(): members that begin apart compete less.
	 */
	uint32_t window;
	uint32_t section, line;		  /* where .words is from */
	uint32_t next_section, next_line; /* where .next is from */
	bool has_window, has_line, has_next;
	uint64_t seed;
	uint64_t states[EBB_FAR_WINDOW]; /* section words */
	uint64_t hints[EBB_FAR_WINDOW];
	uint64_t words[EBB_FAR_LINE];
	uint64_t next[EBB_FAR_LINE]; /* a line in the window, for when .words has no more */
	uint64_t hint;		     /* hint word of .section */
};

/* Prepares @view for an arena of @sections; @seed is not 0. */
void far_view_init(struct far_view *view, uint32_t sections, uint64_t seed);

/* Returns the hint byte for a line with @free free slots. */
static inline uint32_t far_hint(uint32_t free)
{
	return free ? 32 - (uint32_t)__builtin_clz(free) : 0;
}

/* A free slot that can be allocated in @class. */
static inline bool far_slot_usable(uint64_t word, uint32_t class)
{
	return ebb_far_slot_owner(word) == EBB_FAR_NONE && ebb_far_slot_class(word) == class &&
	       ebb_far_slot_generation(word) < EBB_FAR_SLOT_LAST;
}

/* A free section that can be allocated or formatted: a format and a trim raise the word twice. */
static inline bool far_section_usable(uint64_t word)
{
	uint64_t generation = ebb_far_section_generation(word);

	return word == ebb_far_section(EBB_FAR_FREE, 0, 0, generation) &&
	       generation < EBB_FAR_SECTION_LAST - 1;
}

/* Returns the number of free slots, of any class, in @words. */
uint32_t far_count_free(const uint64_t *words);

/*
 * Returns the hint byte that @words of line @line call for, if the one in the hint word @hints
 * differs by more than a factor of two or in being 0; else -1.
 */
int far_hint_wanted(const uint64_t *words, uint64_t hints, uint32_t line);

/* Returns how many words of the view's line are usable. */
uint32_t far_count_usable(const struct far_view *view, uint32_t class);

/* Returns the index of a usable word of the view's line, at random, or -1. */
int far_choose_word(struct far_view *view, uint32_t class);

/* Makes the next line, if there is one, the view's line. */
bool far_adopt_next(struct far_view *view);

/* Treats the view's line as full, as far as the view's hints go. */
void far_drop_hint(struct far_view *view);

/* Treats the view's section as not open, if its line has free slots of other classes alone. */
void far_drop_section(struct far_view *view, uint32_t class);

/* Chooses a line at random, in proportion to its free slots as hints tell.  False without any. */
bool far_choose_line(struct far_view *view, uint32_t class, uint32_t *section, uint32_t *line);

/* Chooses a line of an open section at random, whatever its hint.  False without any. */
bool far_probe_line(struct far_view *view, uint32_t class, uint32_t *section, uint32_t *line);

/* Chooses the first of @n consecutive usable free sections, at random.  False without any. */
bool far_choose_free(struct far_view *view, uint32_t n, uint32_t *section);

/* Returns how many sections the view's window has. */
static inline uint32_t far_window_size(const struct far_view *view)
{
	uint32_t left = view->sections - view->window;

	return left < EBB_FAR_WINDOW ? left : EBB_FAR_WINDOW;
}

#endif
