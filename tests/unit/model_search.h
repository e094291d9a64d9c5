/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The exhaustive search of a world that takes one step at a time; to be included once, after the
 * world's header.  MODEL(name) is the world's name for wrong, world, world_size, world_possible,
 * world_take, world_end, world_end_fingerprint and world_fingerprint, which model_far/world.h
 * describes; MODEL_STEP is the type of a step, MODEL_STEPS the most that are possible at once.
 */
#ifndef EBB_MODEL_SEARCH_H
#define EBB_MODEL_SEARCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps of the longest path. */
#ifndef MODEL_DEPTH
#define MODEL_DEPTH 500
#endif

enum { DEPTH = MODEL_DEPTH, ENDS = 1 << 20 };

static struct {
	uint8_t *saved;
	uint64_t *seen, *ends; /* states; what world_end() has begun with, as far as it fits */
	uint32_t size, states;
	MODEL_STEP path[DEPTH];
	int deepest;
} search;

/* True the first time. */
static bool is_new(uint64_t print)
{
	uint32_t at = (uint32_t)(print >> 20) & (search.size - 1);

	while (search.seen[at] && search.seen[at] != print)
		at = (at + 1) & (search.size - 1);
	if (search.seen[at])
		return false;
	search.seen[at] = print;
	assert_true(++search.states < search.size / 4 * 3);
	return true;
}

static uint8_t *saved(int depth)
{
	return search.saved + (size_t)depth * MODEL(world_size)();
}

static void explore(int depth);

/* True the first time, and perhaps again. */
static bool is_new_end(uint64_t print)
{
	uint64_t *end = &search.ends[print >> 20 & (ENDS - 1)];
	bool is = *end != print;

	*end = print;
	return is;
}

/* Takes a step with each result of its draws. */
static void explore_step(int depth, const MODEL_STEP *step)
{
	uint32_t choices = 1;

	search.path[depth] = *step;
	for (uint32_t choice = 0; choice < choices; choice++) {
		uint32_t n = MODEL(world_take)(step, choice);

		/* Results of a first draw may lead to different numbers of results of others. */
		choices = n > choices ? n : choices;
		search.deepest = depth + 1;
		if (*MODEL(wrong))
			return;
		if (is_new(MODEL(world_fingerprint)()))
			explore(depth + 1);
		if (*MODEL(wrong))
			return;
		memcpy(MODEL(world), saved(depth), MODEL(world_size)());
	}
}

static void explore(int depth)
{
	MODEL_STEP steps[MODEL_STEPS];
	int n = MODEL(world_possible)(steps);

	if (depth == DEPTH - 1) {
		snprintf(MODEL(wrong), sizeof(MODEL(wrong)), "it goes on without end");
		return;
	}
	memcpy(saved(depth), MODEL(world), MODEL(world_size)());
	search.deepest = depth;
	/* From here, all may crash at once. */
	if (is_new_end(MODEL(world_end_fingerprint)())) {
		MODEL(world_end)();
		if (*MODEL(wrong))
			return;
		memcpy(MODEL(world), saved(depth), MODEL(world_size)());
	}
	for (int i = 0; i < n && !*MODEL(wrong); i++)
		explore_step(depth, &steps[i]);
}

/* Explores all that follows the world's state.  Returns the number of states. */
static uint32_t search_all(void)
{
	memset(search.seen, 0, search.size * sizeof(*search.seen));
	memset(search.ends, 0, ENDS * sizeof(*search.ends));
	search.states = 0;
	explore(0);
	return search.states;
}

/* Makes room for up to 3/4 of @size states, a power of two.  Returns false without memory. */
static bool search_new(uint32_t size)
{
	search.size = size;
	search.saved = malloc(DEPTH * MODEL(world_size)());
	search.seen = malloc(search.size * sizeof(*search.seen));
	search.ends = malloc(ENDS * sizeof(*search.ends));
	return search.saved && search.seen && search.ends;
}

static void search_free(void)
{
	free(search.saved);
	free(search.seen);
	free(search.ends);
}

#endif
