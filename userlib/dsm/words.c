// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Atomics.  A word is changed by a compare-and-swap from the value that this process saw last: one
 * round trip if it is still that.  The maker, whose memory is not another's as long as it is there,
 * adds at once.
 */
#include <string.h>

#include "cell.h"

int ebbdsm_words_new(ebbdsm_t *dsm, const uint64_t *values, uint32_t n, struct ebbdsm_words *words)
{
	uint64_t zeros[EBBDSM_GUARDED_MOST / 8] = { 0 };
	int r;

	if (!n || n > EBBDSM_GUARDED_MOST / 8)
		return -EINVAL;
	r = dsm_enter(dsm);
	if (r)
		return r;
	return dsm_leave(dsm, cell_make(dsm, CELL_WORDS, values ?: zeros, n, &words->at,
					&words->stamp));
}

int ebbdsm_words_drop(ebbdsm_t *dsm, struct ebbdsm_words *words)
{
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_drop(dsm, words->at, words->stamp);
	if (!r)
		*words = (struct ebbdsm_words){ 0 };
	return dsm_leave(dsm, r);
}

/* --- what was seen last ----------------------------------------------------------- */

static struct seen_word *seen_of(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i)
{
	uint64_t x = (words->at ^ words->stamp << 7 ^ i) * 0x9e3779b97f4a7c15ull;

	return &dsm->seen[x >> 32 & (DSM_SEEN - 1)];
}

/* Returns the value, or 0. */
static uint64_t guess(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i)
{
	const struct seen_word *s = seen_of(dsm, words, i);
	uint64_t value;

	pthread_mutex_lock(&dsm->lock);
	value = s->at == words->at && s->stamp == words->stamp && s->i == i ? s->value : 0;
	pthread_mutex_unlock(&dsm->lock);
	return value;
}

static void saw(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, uint64_t value)
{
	pthread_mutex_lock(&dsm->lock);
	*seen_of(dsm, words, i) = (struct seen_word){ words->at, words->stamp, value, i };
	pthread_mutex_unlock(&dsm->lock);
}

/* --- operations ------------------------------------------------------------------- */

static int execute(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, struct word_op *op)
{
	if (!*dsm->alive)
		return -ECHILD;
	return cell_word(dsm, CELL_WORDS, words->at, words->stamp, i, op);
}

int ebbdsm_load(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, uint64_t *value)
{
	struct word_op op = { .kind = WORD_LOAD };
	int r = execute(dsm, words, i, &op);

	if (r)
		return r;
	saw(dsm, words, i, op.old);
	*value = op.old;
	return 0;
}

int ebbdsm_cas(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, uint64_t expect,
	       uint64_t desired, uint64_t *old)
{
	struct word_op op = { .kind = WORD_SWAP, .expect = expect, .desired = desired };
	int r = execute(dsm, words, i, &op);

	if (r)
		return r;
	saw(dsm, words, i, op.old == expect ? desired : op.old);
	if (old)
		*old = op.old;
	return 0;
}

/* Returns whether the words are this process's, and there is word @i. */
static bool is_own(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i)
{
	const struct ebbdsm_box box = { words->at, words->stamp };
	struct slot *slot;
	bool is;

	pthread_mutex_lock(&dsm->lock);
	is = !dsm_own(dsm, &box, &slot) && slot->state == SLOT_CELL &&
	     slot->ticket == CELL_WORDS && i < slot->size / 8;
	pthread_mutex_unlock(&dsm->lock);
	return is;
}

/* Changes the word to @value, or adds that. */
static int change(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, uint64_t value,
		  bool adds, uint64_t *old)
{
	struct word_op op = { .kind = WORD_SWAP };
	uint64_t is;
	int r;

	if (!*dsm->alive)
		return -ECHILD;
	is = guess(dsm, words, i);
	if (adds && is_own(dsm, words, i))
		op = (struct word_op){ .kind = WORD_ADD, .desired = value };
	do {
		if (op.kind == WORD_SWAP) {
			op.expect = is;
			op.desired = adds ? is + value : value;
		}
		r = execute(dsm, words, i, &op);
		if (r)
			return r;
		is = op.old;
	} while (op.kind == WORD_SWAP && op.old != op.expect);
	saw(dsm, words, i, op.kind == WORD_ADD ? op.old + value : op.desired);
	if (old)
		*old = op.old;
	return 0;
}

int ebbdsm_store(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, uint64_t value)
{
	return change(dsm, words, i, value, false, NULL);
}

int ebbdsm_add(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i, uint64_t addend,
	       uint64_t *old)
{
	return change(dsm, words, i, addend, true, old);
}
