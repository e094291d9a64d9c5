// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/rules/far_memory.h"
#include "lib/rules/far_words.h"
#include "extent.h"

/* Searches of all arenas while other members are faster. */
#define TRIES 4
/*
 * Other arenas that are tried before the pool grows.  A pool of more may get larger than it must,
 * by one arena in so many; all are tried before -ENOSPC, and by the first allocation of a class.
 */
#define OTHERS 16
#define ALL_OTHERS UINT32_MAX
/* Arenas where empty sections are looked for before the pool grows; how many are freed of one. */
#define TRIMMED_ARENAS 8
#define TRIMMED_SECTIONS 8
/* A search of all words that takes longer is made again after as many times its duration. */
#define SEARCH_MS 200
#define SEARCH_PAUSE 10
/* A thread that waits looks for words that another thread has received. */
#define LOOK_MS 50
/* One in so many frees corrects a hint that is not 0. */
#define FREES_PER_HINT 16
/* Turns of receiving for words, of up to 1 MiB each. */
#define RECEIVES 8

/* A place is the arena's number and the offset in it. */
#define ARENA_SHIFT 32

static uint32_t arena_of(const struct ebbfar_extent *x)
{
	return (uint32_t)(x->place >> ARENA_SHIFT);
}

static uint32_t offset_of(const struct ebbfar_extent *x)
{
	return (uint32_t)x->place;
}

static int leave(ebbfar_t *far, int result)
{
	pthread_mutex_unlock(&far->lock);
	return result;
}

/* Takes the handle: returns 0, or why it cannot be used. */
static int enter(ebbfar_t *far)
{
	int r = member_check(far);

	if (!r)
		pthread_mutex_lock(&far->lock);
	return r;
}

/* Takes the handle unless its connection is known to have ended. */
static int enter_live(ebbfar_t *far)
{
	int r = enter(far);

	return r || !far->client.lost ? r : leave(far, far->client.lost);
}

/* Sets *@n to the name of @x.  Returns 0, or -EINVAL: a name may come from anywhere. */
static int parse(const ebbfar_t *far, const struct ebbfar_extent *x, struct ebb_far_name *n)
{
	uint32_t page = offset_of(x) >> EBB_PAGE_SHIFT & (EBB_FAR_SLOTS - 1);
	uint32_t class = ebb_far_class(x->size);

	if (class > EBB_FAR_WHOLE_CLASS || x->size != ebb_far_bytes(class) ||
	    offset_of(x) & (x->size - 1) || offset_of(x) < far->table ||
	    arena_of(x) >= MEMBER_ARENAS)
		return -EINVAL;
	*n = (struct ebb_far_name){
		.section = offset_of(x) >> EBB_FAR_SECTION_SHIFT,
		.word = (uint16_t)ebb_far_word_of(page),
		.class = (uint8_t) class,
		.generation = x->generation,
	};
	return far_is_name(n, far->sections) ? 0 : -EINVAL;
}

static void name(struct ebbfar_extent *x, uint32_t arena, const struct ebb_far_name *n)
{
	*x = (struct ebbfar_extent){
		.place = (uint64_t)arena << ARENA_SHIFT | ebb_far_address(n),
		.size = ebb_far_bytes(n->class),
		.generation = n->generation,
	};
}

static int execute(ebbfar_t *far, uint32_t arena, const struct far_verb *verb)
{
	uint8_t *base = member_memory(far, arena);

	if (!base)
		return client_execute(&far->client, arena, verb);
	far_execute(base, verb);
	return 0;
}

/* Runs far->op on an arena that is known. */
static int run(ebbfar_t *far, uint32_t arena)
{
	struct far_verb verb = extent_next(&far->op, FAR_OK);

	while (verb.kind != FAR_DONE)
		verb = extent_next(&far->op, execute(far, arena, &verb));
	/* A hint that waits for this member's next call would hide memory from others. */
	if (far->client.count)
		client_go_on(&far->client);
	return far->op.result;
}

/* --- kept extents ----------------------------------------------------------------- */

static bool is_kept(const ebbfar_t *far, const struct ebbfar_extent *x,
		    const struct ebb_far_name *n)
{
	return n->class < KEPT_CLASSES && kept_has(&far->kept[n->class], x);
}

static int free_names(ebbfar_t *far, uint32_t arena, struct ebb_far_name *names, uint32_t n)
{
	struct member_view *v = &far->views[names->class];

	far_free(&far->op, v->used && v->arena == arena ? &v->view : NULL, far->sections,
		 far->member, names, n);
	return run(far, arena);
}

/* Writes the hint of @n's line if the line's words call for another one. */
static void mend_hint(const ebbfar_t *far, uint8_t *base, const struct ebb_far_name *n)
{
	uint32_t line = n->word / EBB_FAR_LINE;
	uint64_t hint_at = ebb_far_hint_at(far->sections, n->section), words[EBB_FAR_LINE];
	uint64_t at = ebb_far_slot_at(far->sections, n->section, line * EBB_FAR_LINE);
	uint8_t byte;
	int hint;

	for (uint32_t i = 0; i < EBB_FAR_LINE; i++)
		words[i] = far_load(base, at + 8ull * i);
	hint = far_hint_wanted(words, far_load(base, hint_at), line);
	byte = (uint8_t)hint;
	if (hint >= 0)
		far_copy_in(base, hint_at + line, &byte, 1);
}

/*
 * Frees the slot of mapped memory that is named @n by its compare-and-swap.  The hint of a line
 * without free slots is corrected at once, that of another line now and then.  Returns 0 or
 * -ESTALE.
 */
static int free_at_once(ebbfar_t *far, uint32_t arena, const struct ebb_far_name *n)
{
	struct member_view *mv = &far->views[n->class];
	uint8_t *base = member_memory(far, arena);
	uint64_t word = far_owned_word(n, far->member, n->generation), freed = far_freed_word(n);
	uint32_t line = n->word / EBB_FAR_LINE;

	if (far_swap(base, ebb_far_slot_at(far->sections, n->section, n->word), word, freed) !=
	    word)
		return -ESTALE;
	if (mv->used && mv->arena == arena && mv->view.section == n->section &&
	    mv->view.line == line)
		mv->view.words[n->word % EBB_FAR_LINE] = freed;
	if (!(far_load(base, ebb_far_hint_at(far->sections, n->section)) >> 8 * line & 0xff) ||
	    !draw_below(&far->seed, FREES_PER_HINT))
		mend_hint(far, base, n);
	return 0;
}

/* Frees the older half of what is kept of @class.  Returns 0 or -errno. */
static int free_oldest(ebbfar_t *far, uint32_t class)
{
	struct ebbfar_extent x[KEPT_MOST];
	uint32_t n = kept_evict(&far->kept[class], x);
	struct ebb_far_name name;
	int r = 0;

	for (uint32_t i = 0; i < n && !r; i++) {
		r = parse(far, &x[i], &name) ?: free_at_once(far, arena_of(&x[i]), &name);
		/* Another member that guessed the name could have taken it. */
		r = r == -ESTALE ? 0 : r;
	}
	return r;
}

/*
 * Frees @x, which is named @n, by keeping it, or at once.  Returns 0, -errno, or 1: far_free() has
 * to do it.
 */
static int keep(ebbfar_t *far, const struct ebbfar_extent *x, const struct ebb_far_name *n)
{
	uint8_t *base = member_memory(far, arena_of(x));
	struct kept *k;
	int r;

	if (!base || n->class >= EBB_FAR_WHOLE_CLASS)
		return 1;
	if (n->class >= KEPT_CLASSES)
		return free_at_once(far, arena_of(x), n);
	k = &far->kept[n->class];
	/* It is the next to be allocated again: older ones, and those of another section, go. */
	while ((r = kept_add(k, base, far->sections, far->member, x, n)) > 0 && k->count) {
		r = free_oldest(far, n->class);
		if (r)
			return r;
	}
	return r > 0 ? free_at_once(far, arena_of(x), n) : r;
}

/*
 * Frees all that the member has without use: a section is not empty while the member has a slot of
 * it.
 */
static int free_kept(ebbfar_t *far)
{
	struct ebbfar_extent x;
	int r = small_evict(&far->small, &x) ? extent_free(far, &x) : 0;

	for (uint32_t class = 0; class < KEPT_CLASSES; class++)
		while (!r && far->kept[class].count)
			r = free_oldest(far, class);
	return r;
}

/* --- allocation ------------------------------------------------------------------- */

static struct far_view *view_of(ebbfar_t *far, uint32_t class, uint32_t arena)
{
	struct member_view *v = &far->views[class];

	if (!v->used || v->arena != arena)
		far_view_init(&v->view, far->sections, (far->seed += 2) | 1);
	v->used = true;
	v->arena = arena;
	return &v->view;
}

/*
 * Sets *@word to a usable word of the view's line if there are two or more: after the last one,
 * far_allocate() has to mend the hint and to find another line.  The search goes on where it found
 * the second one; members that have the same image began at different words.
 */
static bool choose_word(struct member_view *mv, uint32_t class, uint32_t *word)
{
	const struct far_view *v = &mv->view;
	uint32_t slots = ebb_far_slots(class), first = v->line * EBB_FAR_LINE, n, at;
	bool found = false;

	if (!v->has_line || first >= slots)
		return false;
	n = slots - first < EBB_FAR_LINE ? slots - first : EBB_FAR_LINE;
	at = mv->next < n ? mv->next : 0;
	for (uint32_t i = 0; i < n; i++, at = at + 1 < n ? at + 1 : 0) {
		if (!far_slot_usable(v->words[at], class))
			continue;
		if (found) {
			mv->next = at;
			return true;
		}
		*word = at;
		found = true;
	}
	/* In the next line. */
	mv->next = draw_below(&mv->view.seed, n);
	return false;
}

/*
 * Allocates by the compare-and-swap of far_allocate() alone, in mapped memory: the image of the
 * line tells enough, and if it is old, the swap fails and the line is read.
 */
static bool allocate_at_once(ebbfar_t *far, uint32_t class, struct ebbfar_extent *x)
{
	struct member_view *mv = &far->views[class];
	uint8_t *base = mv->used ? member_memory(far, mv->arena) : NULL;
	struct far_view *v = &mv->view;
	struct ebb_far_name n;
	uint64_t was, old;
	uint32_t word;

	if (!base || class >= EBB_FAR_WHOLE_CLASS || !choose_word(mv, class, &word))
		return false;
	was = v->words[word];
	n = (struct ebb_far_name){
		.section = v->section,
		.word = (uint16_t)(v->line * EBB_FAR_LINE + word),
		.class = (uint8_t) class,
		.generation = ebb_far_slot_generation(was),
	};
	v->words[word] = far_owned_word(&n, far->member, n.generation);
	old = far_swap(base, ebb_far_slot_at(far->sections, n.section, n.word), was,
		       v->words[word]);
	if (old != was) {
		v->words[word] = old;
		return false;
	}
	name(x, mv->arena, &n);
	return true;
}

static int allocate_in(ebbfar_t *far, uint32_t class, uint32_t arena, struct ebbfar_extent *x)
{
	struct ebb_far_name n;
	int r = member_reach(far, arena);

	if (r)
		return r;
	far_allocate(&far->op, view_of(far, class, arena), far->member, class, &n, 1);
	r = run(far, arena);
	if (!r)
		name(x, arena, &n);
	return r;
}

/*
 * Tries the arena of the last allocation, then up to @others, in turn: to try all of them each time
 * that one is full would take a time that grows with the square of their number.
 */
static int allocate(ebbfar_t *far, uint32_t class, uint32_t others, struct ebbfar_extent *x)
{
	struct member_view *mv = &far->views[class];
	uint32_t n = far->arenas, arena = mv->used ? mv->arena : 0;
	int result = -ENOSPC;

	for (uint32_t i = 0; n && i <= n && i <= others; i++) {
		int r = allocate_in(far, class, arena, x);

		if (r == -EBUSY)
			result = r;
		else if (r != -ENOSPC)
			return r;
		arena = mv->turn++ % n;
	}
	return result;
}

/* Reads @words words of an arena's table. */
static int read_table(ebbfar_t *far, uint32_t arena, uint64_t at, uint64_t *to, uint32_t words)
{
	const struct far_verb verb = { .kind = FAR_EXECUTE, .reads = 1,
				       .read = { { at, to, words } } };

	return execute(far, arena, &verb);
}

/* Returns whether most slots of @class are free by @hints, which may be half of the truth. */
static bool seems_empty(uint64_t hints, uint32_t class)
{
	uint32_t slots = ebb_far_slots(class);
	uint32_t least = far_hint(slots < EBB_FAR_LINE ? slots : EBB_FAR_LINE) - 1;

	for (uint32_t line = 0; line < ebb_far_lines(class); line++)
		if ((hints >> (8 * line) & 0xff) < least)
			return false;
	return true;
}

/* Returns 1 if all slots of @class are free, 0 or -errno. */
static int is_empty(ebbfar_t *far, uint32_t arena, uint32_t section, uint32_t class)
{
	uint64_t words[EBB_FAR_LINE];
	uint32_t slots = ebb_far_slots(class);

	for (uint32_t at = 0; at < slots; at += EBB_FAR_LINE) {
		int r = read_table(far, arena, ebb_far_slot_at(far->sections, section, at), words,
				   EBB_FAR_LINE);

		for (uint32_t i = 0; i < EBB_FAR_LINE && at + i < slots && !r; i++)
			if (ebb_far_slot_owner(words[i]) != EBB_FAR_NONE)
				return 0;
		if (r)
			return r;
	}
	return 1;
}

static bool has_usable(const uint64_t *words, uint32_t class)
{
	for (uint32_t i = 0; i < EBB_FAR_LINE; i++)
		if (far_slot_usable(words[i], class))
			return true;
	return false;
}

/*
 * Corrects the hints of a section of @class, which another member may do meanwhile.  Returns how
 * many lines have slots that can be allocated, or -errno.
 */
static int mend_hints(ebbfar_t *far, uint32_t arena, uint32_t section, uint32_t class,
		      uint64_t hints)
{
	uint64_t words[EBB_FAR_SLOTS];
	uint32_t lines = ebb_far_lines(class);
	int usable = 0, r = read_table(far, arena, ebb_far_slot_at(far->sections, section, 0),
				       words, lines * EBB_FAR_LINE);

	for (uint32_t line = 0; line < lines && !r; line++) {
		const uint64_t *of_line = words + line * EBB_FAR_LINE;
		int hint = far_hint_wanted(of_line, hints, line);
		const struct far_verb verb = {
			.kind = FAR_POST, .at = ebb_far_hint_at(far->sections, section) + line,
			.word = (uint64_t)hint, .bytes = 1,
		};

		usable += has_usable(of_line, class);
		r = hint < 0 ? 0 : execute(far, arena, &verb);
	}
	return r ?: usable;
}

/*
 * How to find empty sections: by hints, which may lack some, or by all words, which takes a round
 * trip or more for each section.
 */
enum trim { TRIM_HINTED, TRIM_ALL };

/*
 * Makes memory that can be allocated in @class of up to @most empty sections of other classes, and
 * of free slots that no hint shows.  Returns how many, or -errno.
 */
static int trim_arena(ebbfar_t *far, uint32_t arena, uint32_t wanted, enum trim how, int most)
{
	uint64_t states[EBB_FAR_ARENA_SECTIONS], hints[EBB_FAR_ARENA_SECTIONS];
	const struct far_verb both = {
		.kind = FAR_EXECUTE, .reads = 2,
		.read = { { ebb_far_section_at(0), states, far->sections },
			  { ebb_far_hint_at(far->sections, 0), hints, far->sections } },
	};
	int trimmed = 0, r = member_reach(far, arena);

	if (!r)
		r = execute(far, arena, &both);
	for (uint32_t s = 0; s < far->sections && trimmed < most && !r; s++) {
		uint32_t class = ebb_far_section_class(states[s]);

		if (ebb_far_section_state(states[s]) != EBB_FAR_OPEN ||
		    class >= EBB_FAR_WHOLE_CLASS)
			continue;
		if (class == wanted && how == TRIM_ALL) {
			r = mend_hints(far, arena, s, class, hints[s]);
			trimmed += r > 0 ? r : 0;
			r = r > 0 ? 0 : r;
			continue;
		}
		/* The slots of the table's pages are the donor's: it is never empty. */
		if ((uint64_t)s << EBB_FAR_SECTION_SHIFT < far->table)
			continue;
		r = how == TRIM_HINTED ? seems_empty(hints[s], class) :
					 is_empty(far, arena, s, class);
		if (r <= 0)
			continue;
		far_trim(&far->op, far->sections, far->member, s);
		r = run(far, arena);
		trimmed += !r;
		r = r == -EBUSY ? 0 : r;
	}
	return r ?: trimmed;
}

static int trim_arenas(ebbfar_t *far, uint32_t class, enum trim how)
{
	int trimmed = 0;

	for (uint32_t i = 0; i < far->arenas; i++) {
		int r = trim_arena(far, i, class, how, INT_MAX);

		if (r < 0)
			return r;
		trimmed += r;
	}
	return trimmed;
}

static int trim(ebbfar_t *far, uint32_t class)
{
	int trimmed = trim_arenas(far, class, TRIM_HINTED);
	int64_t since = now_ms(), took;

	if (!trimmed && since >= far->search_at) {
		trimmed = trim_arenas(far, class, TRIM_ALL);
		took = now_ms() - since;
		/* A program whose pool is large and full must not wait for this each time. */
		if (!trimmed && took > SEARCH_MS)
			far->search_at = since + SEARCH_PAUSE * took;
	}
	if (trimmed < 0)
		return trimmed;
	/* Their images of sections are old. */
	for (uint32_t i = 0; i <= EBB_FAR_WHOLE_CLASS; i++)
		far->views[i].used = false;
	return trimmed ? 0 : -ENOSPC;
}

/*
 * Searches the next arenas in turn for empty sections of other classes, and allocates there.  So a
 * program that uses one size after the other does not need memory for each.
 */
static int allocate_trimmed(ebbfar_t *far, uint32_t class, struct ebbfar_extent *x)
{
	enum trim how = far->maps ? TRIM_ALL : TRIM_HINTED;
	uint32_t n = far->arenas < TRIMMED_ARENAS ? far->arenas : TRIMMED_ARENAS;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t arena = far->trims++ % far->arenas;
		int r = trim_arena(far, arena, class, how, TRIMMED_SECTIONS);

		if (!r)
			continue;
		/* Its image of the sections is old. */
		far->views[class].used = false;
		r = r > 0 ? allocate_in(far, class, arena, x) : r;
		if (r != -ENOSPC && r != -EBUSY)
			return r;
	}
	return -ENOSPC;
}

/*
 * Allocates in the next arena, which other members may have added and filled already, and so on.
 * Without memory for another one, allocates after a trim.
 */
static int allocate_more(ebbfar_t *far, uint32_t class, struct ebbfar_extent *x)
{
	int r = allocate_trimmed(far, class, x);

	if (r != -ENOSPC)
		return r;
	r = member_grow(far);
	while (!r) {
		r = allocate_in(far, class, far->arenas - 1, x);
		if (r != -ENOSPC && r != -EBUSY)
			return r;
		r = member_grow(far);
	}
	if (r != -ENOSPC)
		return r;
	r = allocate(far, class, ALL_OTHERS, x);
	if (r != -ENOSPC)
		return r;
	r = free_kept(far) ?: trim(far, class);
	return r ?: allocate(far, class, ALL_OTHERS, x);
}

int extent_allocate(ebbfar_t *far, size_t size, struct ebbfar_extent *x)
{
	uint32_t class = ebb_far_class(size), others;
	int r;

	if (!size || class > EBB_FAR_WHOLE_CLASS)
		return -EINVAL;
	if (class < KEPT_CLASSES && kept_take(&far->kept[class], x))
		return 0;
	if (allocate_at_once(far, class, x))
		return 0;
	others = far->views[class].used ? OTHERS : ALL_OTHERS;
	r = allocate(far, class, others, x);
	for (int i = 0; i < TRIES && r == -EBUSY; i++)
		r = allocate(far, class, others, x);
	if (r == -ENOSPC)
		r = allocate_more(far, class, x);
	return r == -EBUSY ? -EAGAIN : r;
}

int ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *x)
{
	int r = enter_live(far);

	return r ?: leave(far, extent_allocate(far, size, x));
}

/* Begins to work on extent @x: *@n is its name.  On success the handle is taken. */
static int begin(ebbfar_t *far, const struct ebbfar_extent *x, struct ebb_far_name *n)
{
	int r = enter_live(far);

	if (r)
		return r;
	r = parse(far, x, n);
	if (!r)
		r = member_reach(far, arena_of(x));
	return r ? leave(far, r) : 0;
}

int extent_free(ebbfar_t *far, const struct ebbfar_extent *extent)
{
	const struct ebbfar_extent x = extent_copy(extent);
	struct ebb_far_name n;
	int r = parse(far, &x, &n);

	if (!r && small_has(&far->small, &x))
		r = -EBUSY;
	if (!r)
		r = member_reach(far, arena_of(&x));
	if (!r)
		r = keep(far, &x, &n);
	if (r > 0)
		r = free_names(far, arena_of(&x), &n, 1);
	if (!r)
		far->views[n.class].turn = arena_of(&x);
	return r;
}

int ebbfar_free(ebbfar_t *far, const struct ebbfar_extent *extent)
{
	int r = enter_live(far);

	return r ?: leave(far, extent_free(far, extent));
}

int ebbfar_take(ebbfar_t *far, uint32_t owner, struct ebbfar_extent *extent)
{
	const struct ebbfar_extent x = extent_copy(extent);
	struct ebb_far_name n;
	int r = owner && owner <= EBB_FAR_MEMBERS ? begin(far, &x, &n) : -EINVAL;

	if (r)
		return r;
	far_take(&far->op, far->sections, far->member, owner, &n, 1);
	r = run(far, arena_of(&x));
	if (!r)
		name(extent, arena_of(&x), &n);
	return leave(far, r);
}

int ebbfar_withdraw(ebbfar_t *far, struct ebbfar_extent *extent)
{
	const struct ebbfar_extent x = extent_copy(extent);
	struct ebb_far_name n;
	int r = begin(far, &x, &n);

	if (r)
		return r;
	if (is_kept(far, &x, &n) || small_has(&far->small, &x))
		return leave(far, is_kept(far, &x, &n) ? -ESTALE : -EBUSY);
	far_withdraw(&far->op, far->sections, far->member, &n, 1);
	r = run(far, arena_of(&x));
	if (!r)
		name(extent, arena_of(&x), &n);
	return leave(far, r);
}

int ebbfar_check(ebbfar_t *far, uint32_t owner, const struct ebbfar_extent *extent)
{
	const struct ebbfar_extent x = extent_copy(extent);
	struct ebb_far_name n;
	uint64_t at, word;
	int r = owner && owner <= EBB_FAR_MEMBERS ? begin(far, &x, &n) : -EINVAL;

	if (r)
		return r;
	at = far_is_whole(&n) ? ebb_far_section_at(n.section) :
				ebb_far_slot_at(far->sections, n.section, n.word);
	r = read_table(far, arena_of(&x), at, &word, 1);
	if (!r && (word != far_owned_word(&n, owner, n.generation) || is_kept(far, &x, &n)))
		r = -ESTALE;
	return leave(far, r);
}

/* --- access ----------------------------------------------------------------------- */

/*
 * Checks an access.  Sets *@base to the arena's memory, or to NULL: the donor executes the access,
 * and the handle is taken.
 */
static int reach(ebbfar_t *far, const struct ebbfar_extent *x, uint64_t offset, size_t size,
		 uint8_t **base)
{
	struct ebb_far_name n;
	int r = parse(far, x, &n);

	if (r || offset > x->size || size > x->size - offset)
		return -EINVAL;
	*base = member_memory(far, arena_of(x));
	if (*base)
		return member_check(far);
	r = begin(far, x, &n);
	if (!r && far->maps) {
		*base = member_memory(far, arena_of(x));
		leave(far, 0);
	}
	return r;
}

int extent_find(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset, size_t size,
		struct wire_frame *f, uint8_t **base)
{
	const struct ebbfar_extent x = extent_copy(extent);
	struct ebb_far_name n;
	int r = parse(far, &x, &n);

	if (r || offset > x.size || size > x.size - offset)
		return -EINVAL;
	r = member_reach(far, arena_of(&x));
	if (r)
		return r;
	*f = (struct wire_frame){ .slab = arena_of(&x),
				  .offset = offset_of(&x) + (uint32_t)offset };
	*base = member_memory(far, arena_of(&x));
	return 0;
}

/* The requests of a longer access are sent together. */
static int move(ebbfar_t *far, uint8_t op, const struct ebbfar_extent *x, uint64_t offset,
		uint8_t *memory, size_t size)
{
	int r = 0, settled;

	while (size && !r) {
		uint32_t n = size < WIRE_FAR_MOST ? (uint32_t)size : WIRE_FAR_MOST;
		bool reads = op == WIRE_FAR_READ;

		r = client_push(&far->client,
				(struct wire_frame){ .op = op, .slab = arena_of(x),
						     .offset = offset_of(x) + (uint32_t)offset,
						     .length = n },
				memory, (struct client_reply){ .length = reads ? n : 0,
							       .to = reads ? memory : NULL });
		memory += n;
		offset += n;
		size -= n;
	}
	settled = client_settle(&far->client);
	return r ?: settled;
}

int ebbfar_read(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset, void *to,
		size_t size)
{
	const struct ebbfar_extent x = extent_copy(extent);
	uint8_t *base;
	int r = reach(far, &x, offset, size, &base);

	if (r)
		return r;
	if (!base)
		return leave(far, move(far, WIRE_FAR_READ, &x, offset, to, size));
	far_copy_out(to, base, offset_of(&x) + offset, size);
	return 0;
}

int ebbfar_write(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset,
		 const void *from, size_t size)
{
	const struct ebbfar_extent x = extent_copy(extent);
	uint8_t *base;
	int r = reach(far, &x, offset, size, &base);

	if (r)
		return r;
	if (!base)
		return leave(far, move(far, WIRE_FAR_WRITE, &x, offset, (uint8_t *)from, size));
	far_copy_in(base, offset_of(&x) + offset, from, size);
	return 0;
}

/* Sends a request for a word. */
static int ask_word(ebbfar_t *far, struct wire_frame f, const void *payload, uint64_t *old)
{
	uint64_t word;
	int r = client_push(&far->client, f, payload,
			    (struct client_reply){ .length = sizeof(word), .to = &word,
						   .words = true });

	if (!r)
		r = client_settle(&far->client);
	if (!r)
		*old = word;
	return r;
}

int ebbfar_cas(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset, uint64_t expect,
	       uint64_t desired, uint64_t *old)
{
	const struct ebbfar_extent x = extent_copy(extent);
	const struct wire_far_swap s = { offset_of(&x) + offset, expect, desired };
	uint8_t payload[WIRE_FAR_SWAP_SIZE], *base;
	int r = offset % 8 ? -EINVAL : reach(far, &x, offset, 8, &base);

	if (r)
		return r;
	if (base) {
		*old = far_swap(base, s.at, expect, desired);
		return 0;
	}
	wire_put_far_swap(payload, 0, &s);
	return leave(far, ask_word(far, (struct wire_frame){
					   .op = WIRE_FAR_CAS, .slab = arena_of(&x),
					   .length = sizeof(payload) }, payload, old));
}

int ebbfar_add(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset, uint64_t addend,
	       uint64_t *old)
{
	const struct ebbfar_extent x = extent_copy(extent);
	uint8_t payload[WIRE_FAR_WORD_SIZE], *base;
	int r = offset % 8 ? -EINVAL : reach(far, &x, offset, 8, &base);

	if (r)
		return r;
	if (base) {
		*old = far_add(base, offset_of(&x) + offset, addend);
		return 0;
	}
	put64(payload, addend);
	return leave(far, ask_word(far, (struct wire_frame){
					   .op = WIRE_FAR_ADD, .slab = arena_of(&x),
					   .offset = offset_of(&x) + (uint32_t)offset,
					   .length = sizeof(payload) }, payload, old));
}

int ebbfar_map(ebbfar_t *far, const struct ebbfar_extent *extent, void **memory)
{
	const struct ebbfar_extent x = extent_copy(extent);
	uint8_t *base;
	int r = far->maps ? reach(far, &x, 0, x.size, &base) : -EOPNOTSUPP;

	if (!r)
		*memory = base + offset_of(&x);
	return r;
}

/* --- messages --------------------------------------------------------------------- */

int ebbfar_notify(ebbfar_t *far, uint32_t member, uint64_t word)
{
	const struct wire_far_word w = { member, word };
	uint8_t payload[WIRE_FAR_MEMBER_SIZE];
	int r = enter(far);

	if (r)
		return r;
	wire_build_far_word(payload, &w);
	r = client_push(&far->client, (struct wire_frame){ .op = WIRE_FAR_NOTIFY,
							   .length = sizeof(payload) },
			payload, (struct client_reply){ 0 });
	return leave(far, r ?: client_settle(&far->client));
}

/* Takes the oldest word.  Returns 0, -EAGAIN, or why none will come. */
static int take_word(ebbfar_t *far, uint32_t *member, uint64_t *word)
{
	struct client *c = &far->client;

	/* A donor could send words faster than they are received. */
	for (int i = 0; i < RECEIVES && client_go_on(c); i++)
		;
	if (!c->word_count)
		return c->lost ?: -EAGAIN;
	*member = c->words[c->first_word].member;
	*word = c->words[c->first_word].word;
	c->first_word = (c->first_word + 1) % CLIENT_WORDS;
	c->word_count--;
	return 0;
}

/* Asks a donor that has been silent for a time-out for a sign of life. */
static void look(struct client *c)
{
	if (!c->lost && !c->count && c->state == CLIENT_UP &&
	    now_ms() - c->heard_at > c->timeout &&
	    !client_push(c, (struct wire_frame){ .op = WIRE_PING }, NULL,
			 (struct client_reply){ .length = WIRE_DONOR_SIZE }))
		client_go_on(c);
}

int ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word)
{
	int64_t end = now_ms() + timeout_ms;

	for (;;) {
		struct pollfd p;
		int64_t left;
		int ms, r = enter(far);

		if (r)
			return r;
		r = take_word(far, member, word);
		if (r == -EAGAIN)
			look(&far->client);
		ms = client_poll(&far->client, &p);
		leave(far, 0);
		left = timeout_ms < 0 ? LOOK_MS : end - now_ms();
		if (r != -EAGAIN || left <= 0)
			return r;
		ms = ms < LOOK_MS ? ms : LOOK_MS;
		poll(&p, 1, left < ms ? (int)left : ms);
	}
}
