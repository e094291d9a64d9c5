// SPDX-License-Identifier: GPL-2.0-or-later
/* Words, what is always true of them, and verbs. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"

static uint32_t draw(uint64_t *seed, uint32_t below);
#define FAR_HOPS 4
#define FAR_CROWDED 2
#define FAR_PROBES 1
#define FAR_DRAW(seed, below) draw(seed, below)

#include "daemon/lib/rules/far_view.c"
#include "daemon/lib/rules/far_step.c"

struct world W;

void *const far_world = &W;
struct far_drawn drawn;
char far_wrong[160];
const char *far_only;
uint64_t far_reached_phases, far_reached_results[FAR_RECOVER + 1];
/* far_format() is not modelled by itself. */
const uint64_t far_all_phases = ((2ull << FINISH) - 1) &
				~(1ull << ENDED | 1ull << FORMAT_BEGIN | 1ull << FORMAT_READ);
enum far_mutant far_mutant;

static uint32_t draw(uint64_t *seed, uint32_t below)
{
	uint32_t r = drawn.choice % below;

	drawn.choice /= below;
	drawn.choices *= below;
	return r;
}

void wrong(const char *what, uint32_t a, uint64_t b)
{
	if (!*far_wrong && (!far_only || !strcmp(far_only, what)))
		snprintf(far_wrong, sizeof(far_wrong), "%s: %u, %#llx", what, a,
			 (unsigned long long)b);
}

/* --- words ------------------------------------------------------------------------ */

static bool is_section_word(uint64_t at)
{
	return at < ebb_far_hint_at(SECTIONS, 0);
}

/* Returns NULL for a hint word, which is not kept. */
uint64_t *word_at(uint64_t at)
{
	if (is_section_word(at))
		return &W.section[(at - ebb_far_section_at(0)) / 8];
	if (at < ebb_far_slot_at(SECTIONS, 0, 0))
		return NULL;
	at = (at - ebb_far_slot_at(SECTIONS, 0, 0)) / 8;
	return &W.slot[at / PAGES][at % PAGES];
}

/* The member that a word says has it, or 0. */
uint32_t owner_in(uint64_t at, uint64_t word)
{
	uint32_t owner = ebb_far_slot_owner(word);

	if (is_section_word(at))
		return ebb_far_section_state(word) == EBB_FAR_WHOLE ? ebb_far_section_owner(word) :
								      0;
	return owner <= EBB_FAR_MEMBERS ? owner : 0;
}

static uint64_t generation_in(uint64_t at, uint64_t word)
{
	return is_section_word(at) ? ebb_far_section_generation(word) :
				     ebb_far_slot_generation(word);
}

uint64_t name_at(const struct ebb_far_name *n)
{
	return far_is_whole(n) ? ebb_far_section_at(n->section) :
				 ebb_far_slot_at(SECTIONS, n->section, n->word);
}

uint64_t name_word(const struct ebb_far_name *n, uint32_t owner)
{
	return far_owned_word(n, owner, mutant(FAR_NO_GENERATION) ? 0 : n->generation);
}

static bool has_name(const struct hold *h, uint32_t number, uint64_t at, uint64_t word)
{
	for (int i = 0; i < h->n; i++)
		if (name_at(&h->name[i]) == at && name_word(&h->name[i], number) == word)
			return true;
	return false;
}

/* Returns the hold of @m that has the word @word at @at. */
static struct hold *hold_of(struct member *m, uint64_t at, uint64_t word)
{
	uint32_t number = (uint32_t)(m - W.m) + 1;

	for (int h = 0; h < HOLDS; h++)
		if (has_name(&m->hold[h], number, at, word))
			return &m->hold[h];
	return NULL;
}

bool holds(const void *member, const struct ebb_far_name *n)
{
	const struct member *m = member;

	for (int h = 0; h < HOLDS && !mutant(FAR_UNKNOWN_IS_WON); h++)
		if (has_name(&m->hold[h], number_of(m), name_at(n), name_word(n, number_of(m))))
			return true;
	return false;
}

/* --- what is always true ---------------------------------------------------------- */

/* The word at @at became owned by another, or under another name. */
void check_name(uint64_t at, uint64_t word)
{
	uint64_t generation = generation_in(at, word), *p = word_at(at);
	uint64_t first = ebb_far_slot_at(SECTIONS, 0, 0), slot = at < first ? 0 : (at - first) / 8;
	uint16_t *names = at < first ? &W.section_names[p - W.section] :
				       &W.slot_names[slot / PAGES][slot % PAGES];
	uint64_t last = is_section_word(at) ? EBB_FAR_SECTION_LAST : EBB_FAR_SLOT_LAST;
	uint64_t bit = W.late ? 15 - (last - generation) % 16 : generation % 16;

	if (*names >> bit & 1)
		wrong("two allocations have one name", owner_in(at, word), generation);
	*names |= (uint16_t)(1u << bit);
}

/* @by changed a word. */
static void check_swap(const struct flight *f, uint32_t by, uint64_t at, uint64_t old, uint64_t new)
{
	uint32_t before = owner_in(at, old), after = owner_in(at, new);

	if (f->stale)
		wrong("a stale free took effect", by, old);
	if (before && before != by) {
		struct member *loser = &W.m[before - 1];
		struct hold *h = hold_of(loser, at, old);

		if (by == EBB_FAR_DONOR && loser->life == LIVE)
			wrong("a live member's extent was recovered", before, old);
		if (by != EBB_FAR_DONOR && (f->op.kind != FAR_TAKE || !h || h->offered != by))
			wrong("an extent was taken that was not offered", by, old);
	}
	if (after && new != old)
		check_name(at, new);
}

/* Returns whether the extent of slot word @word, if it is one, has page @page of its section. */
static bool has_page(uint32_t word_number, uint64_t word, uint32_t page)
{
	uint32_t first = ebb_far_page_of(word_number);

	return owner_in(UINT64_MAX, word) && page >= first &&
	       page - first < 1u << ebb_far_slot_class(word);
}

/* @number, under @name, changes a page, which another extent may have. */
static void write_page(const struct ebb_far_name *name, uint32_t number, uint32_t page)
{
	uint32_t s = name->section;
	uint64_t mine = name_word(name, number), state = W.section[s];

	if (owner_in(0, state) && !(far_is_whole(name) && state == mine))
		wrong("a byte of another member changed", number, state);
	for (uint32_t i = 0; i < PAGES; i++)
		if (has_page(i, W.slot[s][i], page) &&
		    !(!far_is_whole(name) && i == name->word && W.slot[s][i] == mine))
			wrong("a byte of another member changed", number, W.slot[s][i]);
}

void write_bytes(const struct member *m)
{
	for (uint32_t i = 0; i < m->wrote.n; i++) {
		const struct ebb_far_name *n = &m->wrote.name[i];
		uint32_t first = ebb_far_page_of(n->word);

		for (uint32_t page = first; page < first + (1u << n->class); page++)
			write_page(n, number_of(m), page);
	}
}

static void check_slot(uint32_t section, uint32_t i)
{
	uint64_t state = W.section[section], word = W.slot[section][i];
	uint32_t is = ebb_far_section_state(state), class = ebb_far_section_class(state);
	bool closed = ebb_far_slot_owner(word) == EBB_FAR_CLOSED;

	if (mutant(FAR_LAST_FREE) && (is != EBB_FAR_WHOLE || !ebb_far_slot_owner(word)))
		return;
	if ((is == EBB_FAR_FREE || is == EBB_FAR_WHOLE) && !closed)
		wrong("extents overlap: a slot of a section that is not open", section, word);
	if (is == EBB_FAR_FREE || is == EBB_FAR_WHOLE)
		return;
	if (!closed && (i >= ebb_far_slots(class) || ebb_far_slot_class(word) != class))
		wrong("extents overlap: a slot of another class", section, word);
	if (is == EBB_FAR_OPEN && closed && i < ebb_far_slots(class) &&
	    ebb_far_slot_generation(word) < EBB_FAR_SLOT_LAST)
		wrong("a slot of an open section is closed", section, word);
}

void check_sections(void)
{
	for (uint32_t s = 0; s < SECTIONS; s++)
		for (uint32_t i = 0; i < PAGES; i++)
			check_slot(s, i);
}

/* Returns whether the operation of a busy member is about the word at @at. */
static bool in_flight(const struct member *m, uint64_t at)
{
	const struct far_op *op = &m->f.op;

	if (!m->f.busy)
		return false;
	for (uint32_t i = 0; i < op->last.swaps; i++)
		if (op->swap[i].at == at)
			return true;
	/* An allocation of a slot has no name before its end. */
	for (uint32_t i = 0; op->names && i < op->n; i++)
		if (name_at(&op->names[i]) == at &&
		    (op->kind != FAR_ALLOCATE || far_is_whole(&op->names[i])))
			return true;
	return false;
}

/* Returns whether @number has begun to open or close section @s, and has forgotten it. */
static bool is_stuck(const struct member *m, uint32_t s)
{
	uint32_t state = ebb_far_section_state(W.section[s]);

	return (state == EBB_FAR_OPENING || state == EBB_FAR_CLOSING) &&
	       ebb_far_section_owner(W.section[s]) == number_of(m) &&
	       !(m->f.busy && m->f.op.section == s) && !mutant(FAR_EARLY_REUSE);
}

/* Returns whether @number knows of a word that it owns, or a message to it tells. */
static bool is_known(struct member *m, uint64_t at, uint64_t word)
{
	uint32_t number = (uint32_t)(m - W.m) + 1;

	if (owner_in(at, word) != number || hold_of(m, at, word) || in_flight(m, at) ||
	    mutant(FAR_EARLY_REUSE))
		return true;
	for (int i = 0; i < OFFERS && mutant(FAR_GIVER_MOVES); i++)
		if (W.offer[i].to == number && has_name(&W.offer[i].hold, number, at, word))
			return true;
	return false;
}

/* What a live member has is its own by the words, and it knows of all words that it owns. */
static void check_member(struct member *m)
{
	uint32_t number = (uint32_t)(m - W.m) + 1;

	if (m->life != LIVE)
		return;
	for (int h = 0; h < HOLDS; h++) {
		const struct hold *hold = &m->hold[h];

		for (int i = 0; i < hold->n && !hold->offered; i++)
			if (!in_flight(m, name_at(&hold->name[i])) &&
			    *word_at(name_at(&hold->name[i])) != name_word(&hold->name[i], number))
				wrong("a live member lost an extent", number,
				      *word_at(name_at(&hold->name[i])));
	}
	for (uint32_t s = 0; s < SECTIONS; s++) {
		if (is_stuck(m, s))
			wrong("a section is neither open nor closed", number, W.section[s]);
		if (!is_known(m, ebb_far_section_at(s), W.section[s]))
			wrong("a member does not know its section", number, W.section[s]);
		for (uint32_t i = 0; i < PAGES; i++)
			if (!is_known(m, ebb_far_slot_at(SECTIONS, s, i), W.slot[s][i]))
				wrong("a member does not know its slot", number, W.slot[s][i]);
	}
}

void check(void)
{
	check_sections();
	for (int i = 0; i < W.members; i++)
		check_member(&W.m[i]);
}

/* --- verbs ------------------------------------------------------------------------ */

uint32_t effects(const struct far_op *op)
{
	const struct far_verb *v = &op->last;
	uint32_t n = v->swaps;

	for (uint32_t i = 0; i < v->reads; i++)
		n += v->read[i].words;
	return n;
}

/* Mutants that change what a swap writes. */
static uint64_t mutated(const struct far_op *op, const struct far_swap *s)
{
	bool section = is_section_word(s->at);
	uint64_t last = section ? EBB_FAR_SECTION_LAST : EBB_FAR_SLOT_LAST;
	uint64_t generation = generation_in(s->at, s->desired),
		 before = generation_in(s->at, s->expect);
	bool format = op->phase == FORMAT_SWAPPED || op->phase == LINE_OPENED;
	bool recovery = op->phase == RECOVER_WHOLE || op->phase == RECOVER_LINE;

	if (mutant(FAR_FORMAT_GENERATION) && !format && op->kind != FAR_TAKE)
		generation = before;
	if (mutant(FAR_MOVE_GENERATION) && op->kind == FAR_TAKE && op->phase == MOVED)
		generation = before;
	if (mutant(FAR_WITHDRAW_GENERATION) && op->kind == FAR_WITHDRAW)
		generation = before;
	if (mutant(FAR_RECOVER_GENERATION) && recovery)
		generation = before;
	if (mutant(FAR_WRAP) && generation == last)
		generation = last - 1;
	return (s->desired & ~last) | generation;
}

static void swap_word(struct flight *f, uint32_t by, uint32_t i)
{
	struct far_swap *s = &f->op.swap[i];
	uint64_t *word = word_at(s->at), old = *word;
	bool plain = mutant(FAR_PLAIN_WRITE) && is_section_word(s->at) &&
		     f->op.phase == FORMAT_SWAPPED;

	f->op.old[i] = old;
	if (old != s->expect && !plain)
		return;
	*word = s->desired;
	check_swap(f, by, s->at, old, s->desired);
	if (plain)
		f->op.old[i] = s->expect;
}

/* Effect number @n of the verb in flight. */
static void one_effect(struct flight *f, uint32_t by, uint32_t n)
{
	const struct far_verb *v = &f->op.last;
	uint32_t k = n - v->swaps;

	if (n < v->swaps) {
		swap_word(f, by, n);
		return;
	}
	for (uint32_t i = 0; i < v->reads; i++) {
		const struct far_read *r = &v->read[i];
		const uint64_t *word;

		if (k >= r->words) {
			k -= r->words;
			continue;
		}
		word = word_at(r->at + 8ull * k);
		r->to[k] = word ? *word : f->lies ? 0 : 0x0202020202020202ull;
		return;
	}
}

/* Effects that no member can tell apart from the next one: reads of hints. */
static bool is_silent(const struct far_verb *v, uint32_t n)
{
	uint32_t k = n - v->swaps;

	if (n < v->swaps)
		return false;
	for (uint32_t i = 0; i < v->reads; i++) {
		if (k < v->read[i].words)
			return !word_at(v->read[i].at);
		k -= v->read[i].words;
	}
	return true;
}

static uint64_t without_generation(const struct far_swap *s, uint64_t word)
{
	return word & ~(is_section_word(s->at) ? EBB_FAR_SECTION_LAST : EBB_FAR_SLOT_LAST);
}

static void mutate(struct far_op *op)
{
	for (uint32_t i = 0; i < op->last.swaps; i++) {
		struct far_swap *s = &op->swap[i];

		s->desired = mutated(op, s);
		if (!mutant(FAR_NO_GENERATION))
			continue;
		s->expect = without_generation(s, s->expect);
		s->desired = without_generation(s, s->desired);
	}
}

/* Contents that the verb will replace, and padding, must not tell states apart. */
static void forget_old(struct far_op *op)
{
	struct far_verb v = op->last;

	memset(&op->last, 0, sizeof(op->last));
	op->last.kind = v.kind;
	op->last.swaps = v.swaps;
	op->last.swap = v.swap;
	op->last.old = v.old;
	for (; op->last.reads < v.reads; op->last.reads++) {
		op->last.read[op->last.reads].at = v.read[op->last.reads].at;
		op->last.read[op->last.reads].to = v.read[op->last.reads].to;
		op->last.read[op->last.reads].words = v.read[op->last.reads].words;
	}
	memset(op->old, 0, sizeof(op->old));
	memset(op->swap + op->last.swaps, 0, sizeof(op->swap) - op->last.swaps * sizeof(*op->swap));
	for (uint32_t i = 0; i < op->last.reads; i++)
		memset(op->last.read[i].to, 0, 8ul * op->last.read[i].words);
	op->swaps = op->rounds = 0;
}

void effect(struct flight *f, uint32_t by)
{
	do {
		one_effect(f, by, f->done++);
	} while (f->done < effects(&f->op) && is_silent(&f->op.last, f->done));
}

/* Mutants that change what the protocol is told about its swaps. */
static void tamper(struct far_op *op)
{
	for (uint32_t i = 0; i < op->last.swaps; i++) {
		if (mutant(FAR_CARELESS_TRIM) && op->phase == LINE_CLOSED)
			op->old[i] = op->swap[i].expect;
		if (mutant(FAR_CARELESS_TAKE) && op->phase == MOVED)
			op->old[i] = op->swap[i].expect;
	}
	if (mutant(FAR_UNKNOWN_IS_LOST))
		op->again = false;
	if (((mutant(FAR_NO_UNDO) && op->phase == RUN_SWAPPED) ||
	     (mutant(FAR_NO_TAKE_UNDO) && op->phase == MOVED && op->kind == FAR_TAKE)) &&
	    op->next && op->old[0] != op->swap[0].expect)
		op->names[0].held = 0;
	if (mutant(FAR_SHORT_RECOVERY) && op->phase == RECOVER_READ &&
	    ebb_far_section_state(op->state) != EBB_FAR_WHOLE && ebb_far_section_owner(op->state) &&
	    ebb_far_section_owner(op->state) != op->other)
		op->state = 0;
	if (mutant(FAR_NO_ROLL) && op->phase == RECOVER_READ &&
	    ebb_far_section_state(op->state) != EBB_FAR_WHOLE)
		op->state = ebb_far_section(EBB_FAR_OPEN, 0, 0, 0);
}

/* Goes on to the next verb that has an effect.  Returns false when the operation has ended. */
bool go_on(struct flight *f, int status)
{
	struct far_verb v;

	if (!status)
		tamper(&f->op);
	far_reached_phases |= 1ull << f->op.phase;
	v = extent_next(&f->op, status);
	while (v.kind == FAR_POST) {
		far_reached_phases |= 1ull << f->op.phase;
		v = extent_next(&f->op, FAR_OK);
	}
	f->done = 0;
	if (v.kind == FAR_DONE)
		return false;
	forget_old(&f->op);
	if (!status)
		mutate(&f->op);
	return true;
}

bool begin_last_free(struct member *m, uint32_t s)
{
	struct far_op *op = &m->f.op;
	uint64_t word = W.section[s];

	if (!m->view.has_line || m->view.section != s ||
	    ebb_far_section_state(word) != EBB_FAR_OPEN || far_count_free(m->view.words) < PAGES)
		return false;
	memset(op, 0, sizeof(*op));
	op->kind = FAR_TRIM;
	op->phase = SECTION_CLOSED;
	op->section = s;
	op->sections = SECTIONS;
	op->swap[0] = (struct far_swap){ ebb_far_section_at(s), word,
					 ebb_far_section(EBB_FAR_FREE, 0, 0,
							 ebb_far_section_generation(word) + 1) };
	op->last = (struct far_verb){
		.kind = FAR_EXECUTE, .swaps = 1, .swap = op->swap, .old = op->old
	};
	m->f.done = 0;
	return true;
}

void swap_late(struct member *m)
{
	uint64_t *word = word_at(m->late.at);

	if (*word == m->late.expect)
		*word = m->late.desired;
	memset(&m->late, 0, sizeof(m->late));
}
