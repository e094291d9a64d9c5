// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include "far_view.h"

#include <string.h>

/* The model checker tries every value. */
#ifndef FAR_DRAW
#include "lib/base/draw.h"
#define FAR_DRAW(seed, below) draw_below(seed, below)
#endif

enum { HINT_MOST = EBB_FAR_LINE_ORDER + 1 }; /* a line of free slots */

_Static_assert(EBB_FAR_LINES <= 8, "a hint word has a byte for each line");
_Static_assert(EBB_FAR_WHOLE_CLASS <= 16, "a slot word has four bits for its class");

void far_view_init(struct far_view *view, uint32_t sections, uint64_t seed)
{
	memset(view, 0, sizeof(*view));
	view->sections = sections;
	view->seed = seed;
}

static uint32_t hint_byte(uint64_t hints, uint32_t line)
{
	uint32_t hint = hints >> (8 * line) & 0xff;

	return hint < HINT_MOST ? hint : HINT_MOST;
}

uint32_t far_count_free(const uint64_t *words)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < EBB_FAR_LINE; i++)
		n += ebb_far_slot_owner(words[i]) == EBB_FAR_NONE &&
		     ebb_far_slot_generation(words[i]) < EBB_FAR_SLOT_LAST;
	return n;
}

int far_hint_wanted(const uint64_t *words, uint64_t hints, uint32_t line)
{
	int right = (int)far_hint(far_count_free(words)), is = (int)hint_byte(hints, line);

	return !right != !is || right > is + 1 || is > right + 1 ? right : -1;
}

/* Words behind those of the class would name memory outside the section. */
static uint32_t words_of_class(const struct far_view *view, uint32_t class)
{
	uint32_t slots = ebb_far_slots(class), first = view->line * EBB_FAR_LINE;

	if (!view->has_line || first >= slots)
		return 0;
	return slots - first < EBB_FAR_LINE ? slots - first : EBB_FAR_LINE;
}

uint32_t far_count_usable(const struct far_view *view, uint32_t class)
{
	uint32_t n = words_of_class(view, class), usable = 0;

	for (uint32_t i = 0; i < n; i++)
		usable += far_slot_usable(view->words[i], class);
	return usable;
}

int far_choose_word(struct far_view *view, uint32_t class)
{
	uint32_t n = words_of_class(view, class), usable = far_count_usable(view, class), chosen;

	if (!usable)
		return -1;
	chosen = FAR_DRAW(&view->seed, usable);
	for (uint32_t i = 0; i < n; i++)
		if (far_slot_usable(view->words[i], class) && !chosen--)
			return (int)i;
	return -1;
}

bool far_adopt_next(struct far_view *view)
{
	if (!view->has_next)
		return false;
	view->has_next = false;
	view->has_line = true;
	view->section = view->next_section;
	view->line = view->next_line;
	view->hint = view->hints[view->section - view->window];
	memcpy(view->words, view->next, sizeof(view->words));
	return true;
}

void far_drop_hint(struct far_view *view)
{
	if (view->has_line && view->section - view->window < EBB_FAR_WINDOW)
		view->hints[view->section - view->window] &= ~(0xffull << (8 * view->line));
}

void far_drop_section(struct far_view *view, uint32_t class)
{
	if (view->has_line && view->section - view->window < EBB_FAR_WINDOW &&
	    !far_count_usable(view, class) && far_count_free(view->words))
		view->states[view->section - view->window] = ebb_far_section(EBB_FAR_CLOSING, class,
									     0, 0);
}

static bool is_open(uint64_t state, uint32_t class)
{
	return ebb_far_section_state(state) == EBB_FAR_OPEN &&
	       ebb_far_section_class(state) == class;
}

/* The weight of a line of an open section. */
static uint32_t weight(const struct far_view *view, uint32_t at, uint32_t line, bool probe)
{
	uint32_t hint = hint_byte(view->hints[at], line);

	return probe ? 1 : hint ? 1u << (hint - 1) : 0;
}

static bool choose(struct far_view *view, uint32_t class, bool probe, uint32_t *section,
		   uint32_t *line)
{
	uint32_t n = far_window_size(view), lines = ebb_far_lines(class), sum = 0, chosen;

	for (uint32_t at = 0; at < n; at++)
		for (uint32_t l = 0; l < lines && is_open(view->states[at], class); l++)
			sum += weight(view, at, l, probe);
	if (!sum)
		return false;
	chosen = FAR_DRAW(&view->seed, sum);
	for (uint32_t at = 0; at < n; at++) {
		for (uint32_t l = 0; l < lines && is_open(view->states[at], class); l++) {
			uint32_t w = weight(view, at, l, probe);

			if (chosen < w) {
				*section = view->window + at;
				*line = l;
				return true;
			}
			chosen -= w;
		}
	}
	return false;
}

bool far_choose_line(struct far_view *view, uint32_t class, uint32_t *section, uint32_t *line)
{
	return choose(view, class, false, section, line);
}

bool far_probe_line(struct far_view *view, uint32_t class, uint32_t *section, uint32_t *line)
{
	return choose(view, class, true, section, line);
}

/* Returns whether a run of @n usable sections starts at @at of the window. */
static bool starts_run(const struct far_view *view, uint32_t at, uint32_t n)
{
	if (at + n > far_window_size(view))
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!far_section_usable(view->states[at + i]))
			return false;
	return true;
}

bool far_choose_free(struct far_view *view, uint32_t n, uint32_t *section)
{
	uint32_t runs = 0, chosen;

	for (uint32_t at = 0; at < EBB_FAR_WINDOW; at++)
		runs += starts_run(view, at, n);
	if (!runs)
		return false;
	chosen = FAR_DRAW(&view->seed, runs);
	for (uint32_t at = 0; at < EBB_FAR_WINDOW; at++) {
		if (!starts_run(view, at, n) || chosen--)
			continue;
		*section = view->window + at;
		return true;
	}
	return false;
}
