// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include "far_step.h"

#include <errno.h>
#include <string.h>

#include "far_words.h"

/* The model checker has smaller ones. */
#ifndef FAR_HOPS
#define FAR_HOPS 64   /* lines or runs that an allocation tries */
#define FAR_CROWDED 4 /* lines from which on it formats a free section instead */
#define FAR_PROBES 4  /* lines read although their hints say that they are full */
#endif
#define FAR_MISSES 2 /* lost swaps from which on it tries another line */

/* What the next call of extent_next() has to do. */
enum phase {
	ENDED,
	BEGIN_SLOT,
	BEGIN_RUN,
	SLOT_SWAPPED,
	ADOPT,
	LINE_READ,
	SLOT_WINDOW_READ,
	RUN_WINDOW_READ,
	RUN_SWAPPED,
	FORMAT_BEGIN,
	FORMAT_READ,
	FORMAT_SWAPPED,
	LINE_OPENED,
	REOPEN_READ,
	SECTION_OPENED,
	TRIM_BEGIN,
	TRIM_READ,
	TRIM_SWAPPED,
	LINE_CLOSED,
	SECTION_CLOSED,
	FREE_BEGIN,
	FREED,
	MOVE_BEGIN,
	MOVED,
	RECOVER_BEGIN,
	RECOVER_READ,
	RECOVER_WHOLE,
	RECOVER_LINE,
	RECOVER_LINE_READ,
	RECOVER_NEXT,
	FINISH,
};

static uint64_t at_of(const struct far_op *op, const struct ebb_far_name *n)
{
	return far_is_whole(n) ? ebb_far_section_at(n->section) :
				 ebb_far_slot_at(op->sections, n->section, n->word);
}

/* --- verbs ------------------------------------------------------------------------ */

static struct far_verb end(struct far_op *op, int result)
{
	op->phase = ENDED;
	op->result = result;
	return (struct far_verb){ .kind = FAR_DONE };
}

static struct far_verb execute(struct far_op *op, struct far_verb verb, enum phase then)
{
	verb.kind = FAR_EXECUTE;
	verb.swap = op->swap;
	verb.old = op->old;
	op->phase = (uint8_t)then;
	op->again = false;
	op->last = verb;
	op->swaps += verb.swaps;
	op->rounds++;
	return verb;
}

static struct far_verb post(struct far_op *op, uint64_t at, uint64_t word, uint32_t bytes,
			    enum phase then)
{
	op->phase = (uint8_t)then;
	op->last = (struct far_verb){ .kind = FAR_POST, .at = at, .word = word, .bytes = bytes };
	return op->last;
}

static void add_swap(struct far_op *op, struct far_verb *verb, uint64_t at, uint64_t expect,
		     uint64_t desired)
{
	op->swap[verb->swaps++] = (struct far_swap){ at, expect, desired };
}

static void add_read(struct far_verb *verb, uint64_t at, uint64_t *to, uint32_t words)
{
	verb->read[verb->reads++] = (struct far_read){ at, to, words };
}

static void add_line(const struct far_op *op, struct far_verb *verb, uint32_t section,
		     uint32_t line, uint64_t *to)
{
	add_read(verb, ebb_far_slot_at(op->sections, section, line * EBB_FAR_LINE), to,
		 EBB_FAR_LINE);
}

/* Returns whether swap @i of the last verb has set its word, which only one operation sets so. */
static bool won(const struct far_op *op, uint32_t i)
{
	return op->old[i] == op->swap[i].expect || (op->again && op->old[i] == op->swap[i].desired);
}

/*
 * Returns whether swap @i of the last verb has given @name to this member.  After an unknown
 * outcome, the word may also be as desired because the member had the name before.
 */
static bool won_name(const struct far_op *op, uint32_t i, const struct ebb_far_name *name)
{
	if (op->old[i] == op->swap[i].expect || !won(op, i))
		return op->old[i] == op->swap[i].expect;
	return op->holds && !op->holds(op->context, name);
}

/*
 * Returns whether swap @i of the last verb, of a word of this member, is done with.  After an
 * unknown outcome, the word may be another member's by now: it is not this one's in any case.
 */
static bool done(const struct far_op *op, uint32_t i)
{
	return op->old[i] == op->swap[i].expect || op->again;
}

/* --- allocating a slot ------------------------------------------------------------ */

/* Makes the view's line that of @section and @line, which @verb reads with its hint. */
static void view_line(struct far_op *op, struct far_verb *verb, uint32_t section, uint32_t line)
{
	struct far_view *v = op->view;

	v->section = section;
	v->line = line;
	v->has_line = true;
	add_line(op, verb, section, line, v->words);
	add_read(verb, ebb_far_hint_at(op->sections, section), &v->hint, 1);
}

/* Writes the hint of the view's line if it is wrong.  Returns false if it is right. */
static bool mend_hint(struct far_op *op, enum phase then, struct far_verb *verb)
{
	const struct far_view *v = op->view;
	int hint = v->has_line ? far_hint_wanted(v->words, v->hint, v->line) : -1;

	if (hint < 0)
		return false;
	*verb = post(op, ebb_far_hint_at(op->sections, v->section) + v->line, (uint64_t)hint, 1,
		     then);
	return true;
}

/* Reads the hints of the view's window. */
static void add_hints(struct far_op *op, struct far_verb *verb)
{
	struct far_view *v = op->view;

	add_read(verb, ebb_far_hint_at(op->sections, v->window), v->hints, far_window_size(v));
}

static struct far_verb read_window(struct far_op *op, enum phase then)
{
	struct far_verb verb = { 0 };
	struct far_view *v = op->view;
	uint32_t n = far_window_size(v);

	v->has_window = true;
	v->has_next = false;
	add_read(&verb, ebb_far_section_at(v->window), v->states, n);
	if (then == SLOT_WINDOW_READ)
		add_hints(op, &verb);
	return execute(op, verb, then);
}

/*
 * Moves on to a window that this operation has not read: the present one first.  False without
 * any.
 */
static bool next_window(struct far_op *op)
{
	struct far_view *v = op->view;

	if (!op->window_read) {
		op->window_read = true;
		op->windows = 1;
		return true;
	}
	if (op->windows * EBB_FAR_WINDOW >= v->sections)
		return false;
	op->windows++;
	v->window += EBB_FAR_WINDOW;
	if (v->window >= v->sections)
		v->window = 0;
	return true;
}

static struct far_verb take_section(struct far_op *op, uint64_t state)
{
	struct far_verb verb = { 0 };

	op->state = ebb_far_section(EBB_FAR_OPENING, op->class, op->member,
				    far_raise_section(ebb_far_section_generation(state)));
	add_swap(op, &verb, ebb_far_section_at(op->section), state, op->state);
	add_line(op, &verb, op->section, 0, op->words);
	return execute(op, verb, FORMAT_SWAPPED);
}

static struct far_verb read_line(struct far_op *op, uint32_t section, uint32_t line)
{
	struct far_verb verb = { 0 };

	op->misses = 0;
	view_line(op, &verb, section, line);
	add_hints(op, &verb);
	return execute(op, verb, LINE_READ);
}

static struct far_verb choose_line(struct far_op *op)
{
	struct far_view *v = op->view;
	uint32_t section, line;

	if (op->hops++ >= FAR_HOPS)
		return end(op, -EBUSY);
	if (!v->has_window) {
		next_window(op);
		return read_window(op, SLOT_WINDOW_READ);
	}
	if ((op->hops <= FAR_CROWDED || !op->may_format) &&
	    far_choose_line(v, op->class, &section, &line))
		return read_line(op, section, line);
	if (op->may_format && far_choose_free(v, 1, &op->section))
		return take_section(op, v->states[op->section - v->window]);
	if (far_choose_line(v, op->class, &section, &line))
		return read_line(op, section, line);
	if (next_window(op))
		return read_window(op, SLOT_WINDOW_READ);
	if (op->probes++ < FAR_PROBES && far_probe_line(v, op->class, &section, &line))
		return read_line(op, section, line);
	return end(op, -ENOSPC);
}

static struct far_verb line_read(struct far_op *op);

/*
 * Reads another line together with the last usable slot of the view's line, so that the next
 * allocation, or this one if it loses, needs no round trip to find a slot.
 */
static void read_next(struct far_op *op, struct far_verb *verb)
{
	struct far_view *v = op->view;

	v->has_next = false;
	if (far_count_usable(v, op->class) > 1 || !v->has_window)
		return;
	far_drop_hint(v);
	v->has_next = far_choose_line(v, op->class, &v->next_section, &v->next_line);
	if (v->has_next)
		add_line(op, verb, v->next_section, v->next_line, v->next);
	add_hints(op, verb);
}

static struct far_verb choose_slot(struct far_op *op)
{
	struct far_view *v = op->view;
	struct far_verb verb = { 0 };
	int word = op->misses < FAR_MISSES ? far_choose_word(v, op->class) : -1;

	if (word < 0) {
		far_drop_hint(v);
		far_drop_section(v, op->class);
		v->has_line = false;
		if (op->hops >= FAR_HOPS || !far_adopt_next(v))
			return choose_line(op);
		op->misses = 0;
		op->hops++;
		return line_read(op);
	}
	op->word = v->line * EBB_FAR_LINE + (uint32_t)word;
	op->section = v->section;
	add_swap(op, &verb, ebb_far_slot_at(op->sections, op->section, op->word), v->words[word],
		 ebb_far_slot(op->member, op->class, ebb_far_slot_generation(v->words[word])));
	read_next(op, &verb);
	view_line(op, &verb, v->section, v->line);
	return execute(op, verb, SLOT_SWAPPED);
}

/* After an allocation: the next line takes the place of one without usable slots. */
static struct far_verb adopt_next(struct far_op *op)
{
	struct far_view *v = op->view;
	struct far_verb verb;

	if (far_count_usable(v, op->class))
		v->has_next = false;
	return far_adopt_next(v) && mend_hint(op, FINISH, &verb) ? verb : end(op, 0);
}

static struct far_verb slot_swapped(struct far_op *op)
{
	struct far_view *v = op->view;
	struct far_verb verb;

	struct ebb_far_name name = {
		.section = op->section,
		.word = (uint16_t)op->word,
		.class = op->class,
		.held = 1,
		.generation = ebb_far_slot_generation(op->swap[0].desired),
	};

	if (!won_name(op, 0, &name)) {
		op->misses++;
		return choose_slot(op);
	}
	op->names[0] = name;
	/* Whatever the table says now. */
	v->words[op->word % EBB_FAR_LINE] = op->swap[0].desired;
	return mend_hint(op, ADOPT, &verb) ? verb : adopt_next(op);
}

static struct far_verb line_read(struct far_op *op)
{
	struct far_verb verb;

	return mend_hint(op, BEGIN_SLOT, &verb) ? verb : choose_slot(op);
}

/* --- allocating sections ---------------------------------------------------------- */

static struct far_verb free_some(struct far_op *op);

/*
 * The first word alone decides between members that want the same words.  The others follow
 * together.
 */
static uint32_t last_of_batch(const struct far_op *op)
{
	uint32_t most = op->next ? op->next + EBB_FAR_LINE : 1;

	return most < op->n ? most : op->n;
}

static struct far_verb swap_run(struct far_op *op)
{
	struct far_verb verb = { 0 };

	for (uint32_t i = op->next; i < last_of_batch(op); i++) {
		const struct ebb_far_name *n = &op->names[i];

		add_swap(op, &verb, at_of(op, n),
			 ebb_far_section(EBB_FAR_FREE, 0, 0, n->generation),
			 far_owned_word(n, op->member, n->generation));
	}
	return execute(op, verb, RUN_SWAPPED);
}

static struct far_verb choose_run(struct far_op *op)
{
	struct far_view *v = op->view;
	uint32_t section;

	if (op->hops++ >= FAR_HOPS)
		return end(op, -EBUSY);
	if (!v->has_window || !far_choose_free(v, op->n, &section))
		return next_window(op) ? read_window(op, RUN_WINDOW_READ) : end(op, -ENOSPC);
	for (uint32_t i = 0; i < op->n; i++)
		op->names[i] = (struct ebb_far_name){
			.section = section + i,
			.class = EBB_FAR_WHOLE_CLASS,
			.generation = ebb_far_section_generation(
				v->states[section + i - v->window]),
		};
	op->next = 0;
	return swap_run(op);
}

static struct far_verb run_swapped(struct far_op *op)
{
	struct far_view *v = op->view;
	uint32_t last = last_of_batch(op);
	bool lost = false;

	for (uint32_t i = op->next; i < last; i++) {
		struct ebb_far_name *n = &op->names[i];
		uint32_t k = i - op->next;

		n->held = won_name(op, k, n);
		lost |= !n->held;
		v->states[n->section - v->window] = n->held ? op->swap[k].desired : op->old[k];
	}
	op->next = last;
	if (!lost)
		return last < op->n ? swap_run(op) : end(op, 0);
	op->next = 0;
	return free_some(op);
}

/* --- opening a section ------------------------------------------------------------ */

static uint32_t line_end(const struct far_op *op)
{
	uint32_t slots = ebb_far_slots(op->class), first = op->line * EBB_FAR_LINE;

	return slots - first < EBB_FAR_LINE ? slots - first : EBB_FAR_LINE;
}

static struct far_verb open_section(struct far_op *op)
{
	struct far_verb verb = { 0 };

	add_swap(
		op, &verb, ebb_far_section_at(op->section), op->state,
		ebb_far_section(EBB_FAR_OPEN, op->class, 0, ebb_far_section_generation(op->state)));
	if (op->kind == FAR_ALLOCATE)
		view_line(op, &verb, op->section, 0);
	return execute(op, verb, SECTION_OPENED);
}

/* Opens the closed slots of op->line, whose words are in op->words, and reads the next line. */
static struct far_verb open_line(struct far_op *op)
{
	struct far_verb verb = { 0 };
	uint32_t first = op->line * EBB_FAR_LINE;

	for (uint32_t i = 0; i < line_end(op); i++) {
		uint64_t word = op->words[i], generation = ebb_far_slot_generation(word);

		if (ebb_far_slot_owner(word) == EBB_FAR_CLOSED && generation < EBB_FAR_SLOT_LAST)
			add_swap(op, &verb, ebb_far_slot_at(op->sections, op->section, first + i),
				 word,
				 ebb_far_slot(EBB_FAR_NONE, op->class, far_raise_slot(generation)));
	}
	op->line++;
	if (op->line < ebb_far_lines(op->class))
		add_line(op, &verb, op->section, op->line, op->words);
	else if (!verb.swaps)
		return open_section(op);
	return execute(op, verb, LINE_OPENED);
}

static struct far_verb line_opened(struct far_op *op)
{
	return op->line < ebb_far_lines(op->class) ? open_line(op) : open_section(op);
}

static struct far_verb reopen(struct far_op *op)
{
	struct far_verb verb = { 0 };

	op->line = 0;
	add_line(op, &verb, op->section, 0, op->words);
	return execute(op, verb, REOPEN_READ);
}

static struct far_verb format_read(struct far_op *op)
{
	return far_section_usable(op->state) ? take_section(op, op->state) : end(op, -EBUSY);
}

static struct far_verb format_begin(struct far_op *op)
{
	struct far_verb verb = { 0 };

	add_read(&verb, ebb_far_section_at(op->section), &op->state, 1);
	return execute(op, verb, FORMAT_READ);
}

static struct far_verb format_swapped(struct far_op *op)
{
	struct far_view *v = op->view;

	if (won(op, 0)) {
		op->line = 0;
		return open_line(op);
	}
	if (!v)
		return end(op, -EBUSY);
	/* Other members are formatting sections: the image is old. */
	return op->hops < FAR_HOPS ? read_window(op, SLOT_WINDOW_READ) : end(op, -EBUSY);
}

/* The hint word of a section of free slots. */
static uint64_t hints_of(uint32_t class)
{
	uint32_t slots = ebb_far_slots(class);
	uint64_t hints = 0;

	for (uint32_t line = 0; line < ebb_far_lines(class); line++)
		hints |= (uint64_t)far_hint(slots < EBB_FAR_LINE ? slots : EBB_FAR_LINE)
			 << (8 * line);
	return hints;
}

static struct far_verb recover_lines(struct far_op *op);

static struct far_verb section_opened(struct far_op *op)
{
	struct far_view *v = op->view;
	uint64_t hints = hints_of(op->class);
	uint32_t at = op->section;

	if (op->kind == FAR_RECOVER)
		return recover_lines(op);
	if (!done(op, 0))
		return end(op, -EIO);
	if (op->kind == FAR_ALLOCATE) {
		v->hint = hints;
		v->hints[at - v->window] = hints;
		v->states[at - v->window] = op->swap[0].desired;
		op->misses = 0;
	}
	return post(op, ebb_far_hint_at(op->sections, at), hints, EBB_FAR_LINES,
		    op->kind == FAR_ALLOCATE ? BEGIN_SLOT : FINISH);
}

/* --- closing a section ------------------------------------------------------------ */

static struct far_verb trim_begin(struct far_op *op)
{
	struct far_verb verb = { 0 };

	add_read(&verb, ebb_far_section_at(op->section), &op->state, 1);
	return execute(op, verb, TRIM_READ);
}

static struct far_verb trim_read(struct far_op *op)
{
	struct far_verb verb = { 0 };
	uint64_t open = op->state;
	uint32_t class = ebb_far_section_class(open);

	if (ebb_far_section_state(open) != EBB_FAR_OPEN || class >= EBB_FAR_WHOLE_CLASS)
		return end(op, -EBUSY);
	op->class = (uint8_t) class;
	op->state = ebb_far_section(EBB_FAR_CLOSING, class, op->member,
				    ebb_far_section_generation(open));
	add_swap(op, &verb, ebb_far_section_at(op->section), open, op->state);
	add_line(op, &verb, op->section, 0, op->words);
	return execute(op, verb, TRIM_SWAPPED);
}

static struct far_verb trim_undo(struct far_op *op)
{
	op->result = -EBUSY;
	return reopen(op);
}

static struct far_verb close_section(struct far_op *op)
{
	struct far_verb verb = { 0 };

	add_swap(op, &verb, ebb_far_section_at(op->section), op->state,
		 ebb_far_section(EBB_FAR_FREE, 0, 0,
				 far_raise_section(ebb_far_section_generation(op->state))));
	return execute(op, verb, SECTION_CLOSED);
}

/* Closes the free slots of op->line, whose words are in op->words, and reads the next line. */
static struct far_verb close_line(struct far_op *op)
{
	struct far_verb verb = { 0 };
	uint32_t first = op->line * EBB_FAR_LINE;

	for (uint32_t i = 0; i < line_end(op); i++) {
		uint64_t word = op->words[i];
		uint32_t owner = ebb_far_slot_owner(word);

		if (owner == EBB_FAR_NONE)
			add_swap(op, &verb, ebb_far_slot_at(op->sections, op->section, first + i),
				 word,
				 ebb_far_slot(EBB_FAR_CLOSED, ebb_far_slot_class(word),
					      ebb_far_slot_generation(word)));
		else if (owner != EBB_FAR_CLOSED)
			return trim_undo(op);
	}
	op->line++;
	if (op->line < ebb_far_lines(op->class))
		add_line(op, &verb, op->section, op->line, op->words);
	else if (!verb.swaps)
		return close_section(op);
	return execute(op, verb, LINE_CLOSED);
}

static struct far_verb trim_swapped(struct far_op *op)
{
	if (!won(op, 0))
		return end(op, -EBUSY);
	op->line = 0;
	return close_line(op);
}

static struct far_verb line_closed(struct far_op *op)
{
	for (uint32_t i = 0; i < op->last.swaps; i++)
		if (!won(op, i))
			return trim_undo(op);
	return op->line < ebb_far_lines(op->class) ? close_line(op) : close_section(op);
}

static struct far_verb section_closed(struct far_op *op)
{
	if (!done(op, 0))
		return end(op, -EIO);
	return post(op, ebb_far_hint_at(op->sections, op->section), 0, EBB_FAR_LINES, FINISH);
}

/* --- freeing ---------------------------------------------------------------------- */

/* All is free.  The last slot's line was read, so that its hint can tell others. */
static struct far_verb freed_all(struct far_op *op)
{
	struct far_view *v = op->view;
	int hint;

	if (op->kind == FAR_TAKE)
		return end(op, -ESTALE);
	if (op->kind == FAR_ALLOCATE)
		return choose_run(op);
	if (!op->freed)
		return end(op, op->result);
	if (v) {
		v->section = op->section;
		v->line = op->line;
		v->has_line = true;
		v->hint = op->hints;
		memcpy(v->words, op->words, sizeof(v->words));
	}
	hint = far_hint_wanted(op->words, op->hints, op->line);
	if (hint < 0)
		return end(op, op->result);
	return post(op, ebb_far_hint_at(op->sections, op->section) + op->line, (uint64_t)hint, 1,
		    FINISH);
}

/* Frees the names from op->next on that the member has. */
static struct far_verb free_some(struct far_op *op)
{
	const struct ebb_far_name *last = NULL;
	struct far_verb verb = { 0 };

	for (uint32_t i = op->next; i < op->n && verb.swaps < EBB_FAR_LINE; i++) {
		const struct ebb_far_name *n = &op->names[i];

		if (!n->held)
			continue;
		add_swap(op, &verb, at_of(op, n), far_owned_word(n, op->member, n->generation),
			 far_freed_word(n));
		last = n;
	}
	if (!last)
		return freed_all(op);
	op->freed = op->kind == FAR_FREE && !far_is_whole(last);
	if (op->freed) {
		op->section = last->section;
		op->line = last->word / EBB_FAR_LINE;
		add_line(op, &verb, op->section, op->line, op->words);
		add_read(&verb, ebb_far_hint_at(op->sections, op->section), &op->hints, 1);
	}
	return execute(op, verb, FREED);
}

/* The view learns that this member freed @n. */
static void view_freed(struct far_op *op, const struct ebb_far_name *n)
{
	struct far_view *v = op->view;

	if (v && far_is_whole(n) && n->section - v->window < far_window_size(v))
		v->states[n->section - v->window] = far_freed_word(n);
}

static struct far_verb freed_some(struct far_op *op)
{
	uint32_t k = 0;

	for (; op->next < op->n && k < op->last.swaps; op->next++) {
		struct ebb_far_name *n = &op->names[op->next];

		if (!n->held)
			continue;
		n->held = 0;
		if (done(op, k++))
			view_freed(op, n);
		else
			op->result = -ESTALE;
	}
	return free_some(op);
}

/* --- hand-over -------------------------------------------------------------------- */

static struct far_verb move_some(struct far_op *op)
{
	struct far_verb verb = { 0 };

	for (uint32_t i = op->next; i < last_of_batch(op); i++) {
		const struct ebb_far_name *n = &op->names[i];

		add_swap(op, &verb, at_of(op, n), far_owned_word(n, op->other, n->generation),
			 far_owned_word(n, op->member, n->generation + 1));
	}
	return execute(op, verb, MOVED);
}

/* Returns whether a name before name @i of @op has the same word. */
static bool is_repeated(const struct far_op *op, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (at_of(op, &op->names[k]) == at_of(op, &op->names[i]))
			return true;
	return false;
}

static struct far_verb moved(struct far_op *op)
{
	uint32_t last = last_of_batch(op);
	bool lost = false;

	for (uint32_t i = op->next; i < last; i++) {
		struct ebb_far_name *n = &op->names[i];

		n->generation++;
		/* After an unknown outcome, a repeated name looks like one that was moved. */
		n->held = won_name(op, i - op->next, n) && !(op->again && is_repeated(op, i));
		n->generation -= !n->held;
		lost |= !n->held;
	}
	op->next = last;
	if (!lost)
		return last < op->n ? move_some(op) : end(op, 0);
	if (op->kind == FAR_WITHDRAW)
		return end(op, -ESTALE);
	op->next = 0;
	return free_some(op);
}

/* --- recovery --------------------------------------------------------------------- */

static struct far_verb recover_section(struct far_op *op)
{
	struct far_verb verb = { 0 };

	if (op->section >= op->sections)
		return end(op, 0);
	add_read(&verb, ebb_far_section_at(op->section), &op->state, 1);
	return execute(op, verb, RECOVER_READ);
}

static struct far_verb recover_next(struct far_op *op)
{
	op->section++;
	return recover_section(op);
}

/* Writes the hints of a section of which slots were freed. */
static struct far_verb recovered_lines(struct far_op *op)
{
	if (!op->freed)
		return recover_next(op);
	return post(op, ebb_far_hint_at(op->sections, op->section), op->hints, EBB_FAR_LINES,
		    RECOVER_NEXT);
}

/*
 * Frees what the dead member has of op->line, whose words are in op->words, and reads the next
 * line.
 */
static struct far_verb recover_line(struct far_op *op)
{
	struct far_verb verb = { 0 };
	uint32_t first = op->line * EBB_FAR_LINE, free = far_count_free(op->words);

	for (uint32_t i = 0; i < EBB_FAR_LINE; i++) {
		uint64_t word = op->words[i];

		if (ebb_far_slot_owner(word) == op->other)
			add_swap(op, &verb, ebb_far_slot_at(op->sections, op->section, first + i),
				 word,
				 ebb_far_slot(EBB_FAR_NONE, ebb_far_slot_class(word),
					      far_raise_slot(ebb_far_slot_generation(word))));
	}
	op->hints |= (uint64_t)far_hint(free + verb.swaps) << (8 * op->line);
	op->line++;
	if (op->line < EBB_FAR_LINES)
		add_line(op, &verb, op->section, op->line, op->words);
	else if (!verb.swaps)
		return recovered_lines(op);
	return execute(op, verb, RECOVER_LINE);
}

static struct far_verb recover_lines(struct far_op *op)
{
	struct far_verb verb = { 0 };

	op->line = 0;
	op->hints = 0;
	op->freed = false;
	add_line(op, &verb, op->section, 0, op->words);
	return execute(op, verb, RECOVER_LINE_READ);
}

static struct far_verb recovered_line(struct far_op *op)
{
	for (uint32_t i = 0; i < op->last.swaps; i++)
		op->next += won(op, i);
	op->freed |= op->last.swaps > 0;
	return op->line < EBB_FAR_LINES ? recover_line(op) : recovered_lines(op);
}

static struct far_verb recover_read(struct far_op *op)
{
	struct far_verb verb = { 0 };
	uint64_t state = op->state;
	uint32_t class = ebb_far_section_class(state);
	bool dead = ebb_far_section_owner(state) == op->other;

	switch (ebb_far_section_state(state)) {
	case EBB_FAR_WHOLE:
		if (!dead)
			break;
		add_swap(op, &verb, ebb_far_section_at(op->section), state,
			 ebb_far_section(EBB_FAR_FREE, 0, 0,
					 far_raise_section(ebb_far_section_generation(state))));
		return execute(op, verb, RECOVER_WHOLE);
	case EBB_FAR_OPENING:
	case EBB_FAR_CLOSING:
		if (!dead || class >= EBB_FAR_WHOLE_CLASS)
			return recover_lines(op);
		op->class = (uint8_t) class;
		return reopen(op);
	case EBB_FAR_OPEN:
		return recover_lines(op);
	}
	return recover_next(op);
}

static struct far_verb recovered_whole(struct far_op *op)
{
	op->next += won(op, 0);
	return recover_next(op);
}

/* --- the operations --------------------------------------------------------------- */

static struct far_verb finish(struct far_op *op)
{
	return end(op, op->result);
}

static struct far_verb (*const phases[])(struct far_op *) = {
	[BEGIN_SLOT] = choose_slot,
	[BEGIN_RUN] = choose_run,
	[SLOT_SWAPPED] = slot_swapped,
	[ADOPT] = adopt_next,
	[LINE_READ] = line_read,
	[SLOT_WINDOW_READ] = choose_line,
	[RUN_WINDOW_READ] = choose_run,
	[RUN_SWAPPED] = run_swapped,
	[FORMAT_BEGIN] = format_begin,
	[FORMAT_READ] = format_read,
	[FORMAT_SWAPPED] = format_swapped,
	[LINE_OPENED] = line_opened,
	[REOPEN_READ] = open_line,
	[SECTION_OPENED] = section_opened,
	[TRIM_BEGIN] = trim_begin,
	[TRIM_READ] = trim_read,
	[TRIM_SWAPPED] = trim_swapped,
	[LINE_CLOSED] = line_closed,
	[SECTION_CLOSED] = section_closed,
	[FREE_BEGIN] = free_some,
	[FREED] = freed_some,
	[MOVE_BEGIN] = move_some,
	[MOVED] = moved,
	[RECOVER_BEGIN] = recover_section,
	[RECOVER_READ] = recover_read,
	[RECOVER_WHOLE] = recovered_whole,
	[RECOVER_LINE] = recovered_line,
	[RECOVER_LINE_READ] = recover_line,
	[RECOVER_NEXT] = recover_next,
	[FINISH] = finish,
};

struct far_verb extent_next(struct far_op *op, int status)
{
	if (op->phase == ENDED)
		return (struct far_verb){ .kind = FAR_DONE };
	if (status == FAR_UNKNOWN) {
		op->again = true;
		op->rounds++;
		return op->last;
	}
	if (status)
		return end(op, status);
	return phases[op->phase](op);
}

/* Prepares @op, which ends at once with -EINVAL unless @ok. */
static void begin(struct far_op *op, enum far_kind kind, uint32_t sections, uint32_t member,
		  enum phase phase, bool ok)
{
	memset(op, 0, sizeof(*op));
	op->kind = kind;
	op->sections = sections;
	op->member = member;
	op->result = ok ? 0 : -EINVAL;
	op->phase = (uint8_t)(ok ? phase : ENDED);
}

static bool are_names(const struct ebb_far_name *names, uint32_t n, uint32_t sections,
		      uint64_t more)
{
	for (uint32_t i = 0; i < n; i++)
		if (!far_is_name(&names[i], sections) ||
		    names[i].generation + more > far_generation_last(&names[i]))
			return false;
	return n > 0;
}

static bool is_arena(uint32_t sections)
{
	return sections && sections <= EBB_FAR_ARENA_SECTIONS;
}

void far_allocate(struct far_op *op, struct far_view *view, uint32_t member, uint32_t class,
		  struct ebb_far_name *names, uint32_t n)
{
	bool whole = class == EBB_FAR_WHOLE_CLASS;

	begin(op, FAR_ALLOCATE, view->sections, member, whole ? BEGIN_RUN : BEGIN_SLOT,
	      is_arena(view->sections) && view->window < view->sections && far_is_member(member) &&
		      class <= EBB_FAR_WHOLE_CLASS && n &&
		      n <= (whole ? EBB_FAR_EXTENT_SECTIONS : 1));
	op->view = view;
	op->class = (uint8_t) class;
	op->names = names;
	op->n = n;
	op->may_format = true;
}

void far_free(struct far_op *op, struct far_view *view, uint32_t sections, uint32_t member,
	      struct ebb_far_name *names, uint32_t n)
{
	begin(op, FAR_FREE, sections, member, FREE_BEGIN,
	      is_arena(sections) && far_is_member(member) && are_names(names, n, sections, 0) &&
		      (!view || view->sections == sections));
	op->view = view;
	op->names = names;
	op->n = n;
	for (uint32_t i = 0; i < n; i++)
		names[i].held = 1;
}

void far_take(struct far_op *op, uint32_t sections, uint32_t member, uint32_t giver,
	      struct ebb_far_name *names, uint32_t n)
{
	begin(op, FAR_TAKE, sections, member, MOVE_BEGIN,
	      is_arena(sections) && far_is_member(member) && far_is_member(giver) &&
		      member != giver && are_names(names, n, sections, 1));
	op->other = giver;
	op->names = names;
	op->n = n;
	for (uint32_t i = 0; i < n; i++)
		names[i].held = 0;
}

void far_withdraw(struct far_op *op, uint32_t sections, uint32_t member, struct ebb_far_name *names,
		  uint32_t n)
{
	begin(op, FAR_WITHDRAW, sections, member, MOVE_BEGIN,
	      is_arena(sections) && far_is_member(member) && are_names(names, n, sections, 1));
	op->other = member;
	op->names = names;
	op->n = n;
}

void far_format(struct far_op *op, uint32_t sections, uint32_t member, uint32_t section,
		uint32_t class)
{
	begin(op, FAR_FORMAT, sections, member, FORMAT_BEGIN,
	      is_arena(sections) && far_is_member(member) && section < sections &&
		      class < EBB_FAR_WHOLE_CLASS);
	op->section = section;
	op->class = (uint8_t) class;
}

void far_trim(struct far_op *op, uint32_t sections, uint32_t member, uint32_t section)
{
	begin(op, FAR_TRIM, sections, member, TRIM_BEGIN,
	      is_arena(sections) && far_is_member(member) && section < sections);
	op->section = section;
}

void far_recover(struct far_op *op, uint32_t sections, uint32_t dead)
{
	begin(op, FAR_RECOVER, sections, EBB_FAR_DONOR, RECOVER_BEGIN,
	      is_arena(sections) && dead > EBB_FAR_NONE && dead <= EBB_FAR_MEMBERS);
	op->other = dead;
}

/* --- a new table ------------------------------------------------------------------ */

uint64_t far_initial_section(uint32_t sections, uint32_t section, uint64_t generation)
{
	uint64_t table = ebb_far_table(sections),
		 start = (uint64_t)section << EBB_FAR_SECTION_SHIFT;

	if (start + EBB_FAR_SECTION <= table)
		return ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, EBB_FAR_DONOR,
				       generation);
	return ebb_far_section(start < table ? EBB_FAR_OPEN : EBB_FAR_FREE, 0, 0, generation);
}

uint64_t far_initial_slot(uint32_t sections, uint32_t section, uint32_t word, uint64_t generation)
{
	uint64_t table = ebb_far_table(sections),
		 start = (uint64_t)section << EBB_FAR_SECTION_SHIFT;
	uint64_t at = start + ((uint64_t)ebb_far_page_of(word) << EBB_PAGE_SHIFT);

	if (start >= table || start + EBB_FAR_SECTION <= table)
		return ebb_far_slot(EBB_FAR_CLOSED, 0, generation);
	return ebb_far_slot(at < table ? EBB_FAR_DONOR : EBB_FAR_NONE, 0, generation);
}
