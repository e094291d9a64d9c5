// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Options given as text. */
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include "mark.h"
#include "versions.h"

#define TEXT_MAX 512

struct word {
	const char *name;
	unsigned int value;
};

static int choose(const struct word *words, const char *text, unsigned int *value)
{
	for (; words->name; words++) {
		if (!strcmp(words->name, text)) {
			*value = words->value;
			return 0;
		}
	}
	return -EINVAL;
}

static int number(const char *text, char end, unsigned long long max, unsigned long long *value,
		  const char **rest)
{
	char *after;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	*value = strtoull(text, &after, 10);
	if (errno || *value > max || *after != end)
		return -EINVAL;
	*rest = after;
	return 0;
}

static int small(const char *text, unsigned int *value)
{
	unsigned long long n;
	const char *rest;
	int r = number(text, '\0', UINT32_MAX, &n, &rest);

	if (!r)
		*value = (unsigned int)n;
	return r;
}

static int bytes(const char *text, size_t *value)
{
	unsigned int shift;
	char *after;
	unsigned long long n;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtoull(text, &after, 10);
	shift = *after == 'K' ? 10 : *after == 'M' ? 20 : *after == 'G' ? 30 : 0;
	if (errno || after[shift ? 1 : 0] || n > SIZE_MAX >> shift)
		return -EINVAL;
	*value = (size_t)n << shift;
	return 0;
}

static int delays(const char *text, unsigned int value[3])
{
	for (int i = 0; i < 3; i++) {
		unsigned long long n;

		if (number(text, i < 2 ? ':' : '\0', WORK_FORCED - 1, &n, &text))
			return -EINVAL;
		value[i] = (unsigned int)n;
		text++;
	}
	return 0;
}

/* The decimal separator is a point in any locale. */
static int real(const char *text, double *value)
{
	locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	char *after;

	if (!c)
		return -EINVAL;
	*value = strtod_l(text, &after, c);
	freelocale(c);
	return after == text || *after ? -EINVAL : 0;
}

static int set_valued(struct ebbgc_options *o, const char *key, const char *value)
{
	static const struct word modes[] = {
		{ "concurrent", EBBGC_CONCURRENT }, { "stop", EBBGC_STOP_WORLD },
		{ "memliner", EBBGC_MEMLINER }, { "swapping", EBBGC_SWAPPING }, { 0 },
	};
	static const struct word sizings[] = {
		{ "growable", EBBGC_GROWABLE }, { "fixed", EBBGC_FIXED }, { 0 },
	};
	static const struct word residencies[] = {
		{ "pagemap_scan", EBBGC_RESIDENCY_PAGEMAP_SCAN },
		{ "pagemap", EBBGC_RESIDENCY_PAGEMAP },
		{ "mincore", EBBGC_RESIDENCY_MINCORE },
		{ "simulated", EBBGC_RESIDENCY_SIMULATED }, { 0 },
	};
	unsigned int chosen;
	int r = -EINVAL;

	if (!strcmp(key, "mode")) {
		r = choose(modes, value, &chosen);
		if (!r)
			o->mode = (enum ebbgc_mode)chosen;
	} else if (!strcmp(key, "sizing")) {
		r = choose(sizings, value, &chosen);
		if (!r)
			o->sizing = (enum ebbgc_sizing)chosen;
	} else if (!strcmp(key, "residency")) {
		r = choose(residencies, value, &chosen);
		if (!r)
			o->residency = (enum ebbgc_residency)chosen;
	} else if (!strcmp(key, "growth")) {
		r = real(value, &o->growth);
	} else if (!strcmp(key, "max")) {
		r = bytes(value, &o->max_bytes);
	} else if (!strcmp(key, "min")) {
		r = bytes(value, &o->min_bytes);
	} else if (!strcmp(key, "budget")) {
		r = bytes(value, &o->resident_budget);
	} else if (!strcmp(key, "nursery")) {
		r = bytes(value, &o->nursery_bytes);
	} else if (!strcmp(key, "markers")) {
		r = small(value, &o->markers);
	} else if (!strcmp(key, "depth")) {
		r = small(value, &o->depth);
	} else if (!strcmp(key, "delta")) {
		r = small(value, &o->delta);
	} else if (!strcmp(key, "epoch")) {
		r = small(value, &o->epoch_percent);
	} else if (!strcmp(key, "scan")) {
		r = small(value, &o->scan_percent);
	} else if (!strcmp(key, "delays")) {
		r = delays(value, o->delays);
	}
	return r;
}

static int set_plain(struct ebbgc_options *o, const char *key)
{
	static const struct word features[] = {
		{ "exact", EBBGC_EXACT }, { "park", EBBGC_PARK }, { "drop", EBBGC_DROP },
		{ "incognito", EBBGC_INCOGNITO }, { "cold", EBBGC_COLD },
		{ "arrivals", EBBGC_ARRIVALS }, { "hints", EBBGC_HINTS },
		{ "overcommit", EBBGC_OVERCOMMIT }, { "count", EBBGC_COUNT_FAULTS },
		{ "address", EBBGC_ADDRESS_ORDER }, { "plain", EBBGC_PLAIN },
		{ "newest", EBBGC_NEWEST_FIRST }, { 0 },
	};
	unsigned int feature;

	if (!strcmp(key, "lock"))
		o->lock_side = true;
	else if (!strcmp(key, "check"))
		o->check = true;
	else if (!choose(features, key, &feature))
		o->features |= feature;
	else
		return -EINVAL;
	return 0;
}

/* Is the word for ebbgc_debug() only? */
static bool is_for_debugging(const char *key, const char *value)
{
	static const char *const keys[] = {
		"exact", "park", "drop", "incognito", "cold", "arrivals", "hints", "count", "address",
		"depth", "delays", "delta", "epoch", "scan", "residency",
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (!strcmp(keys[i], key))
			return true;
	return value && !strcmp(key, "mode") && !strcmp(value, "memliner");
}

enum words { WORDS_DOCUMENTED, WORDS_ALL };

static int parse(struct ebbgc_options *options, const char *text, enum words words)
{
	size_t size = options->struct_size,
	       known = size < sizeof(*options) ? size : sizeof(*options);
	char copy[TEXT_MAX], *rest = copy, *word;
	struct ebbgc_options o = { 0 };

	if (strlen(text) >= sizeof(copy) || size < OPTIONS_LEAST)
		return -EINVAL;
	memcpy(&o, options, known);
	strcpy(copy, text);
	while ((word = strsep(&rest, ","))) {
		char *value = strchr(word, '=');
		int r;

		if (!*word)
			continue;
		if (value)
			*value++ = '\0';
		if (words == WORDS_DOCUMENTED && is_for_debugging(word, value))
			return -EINVAL;
		r = value ? set_valued(&o, word, value) : set_plain(&o, word);
		if (r)
			return r;
	}
	memcpy(options, &o, known);
	return 0;
}

int ebbgc_options_words(struct ebbgc_options *options, const char *text)
{
	return parse(options, text, WORDS_DOCUMENTED);
}

int ebbgc_debug(struct ebbgc_options *options, const char *text)
{
	return parse(options, text, WORDS_ALL);
}
