// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "../walk.h"
#include "stamp.h"

#define WORDS (PAGE / sizeof(uint64_t))
#define FILLED 3 /* words before the filling */
#define MAGIC 0x6574697277626265ull
#define SAME_TAG 0x80u

static uint64_t checksum(const uint64_t *w)
{
	uint64_t sum = MAGIC;

	for (size_t i = 0; i < WORDS - 1; i++)
		sum = ((sum << 5 | sum >> 59) ^ w[i]) * MIX;
	return sum;
}

static uint64_t same_word(const struct stamp *s)
{
	return (uint64_t)(SAME_TAG | (s->device & 0x7f)) << 56 | (uint64_t)s->page << 32 |
	       s->generation;
}

void stamp_write(void *memory, const struct stamp *s)
{
	uint64_t *w = memory, state;

	switch (s->kind) {
	case STAMP_SAME:
		for (size_t i = 0; i < WORDS; i++)
			w[i] = same_word(s);
		return;
	case STAMP_FULL:
		w[0] = MAGIC;
		w[1] = (uint64_t)s->device << 32 | s->page;
		w[2] = (uint64_t)s->generation << 32 | s->writer;
		state = (w[1] ^ w[2] * MIX) | 1;
		for (size_t i = FILLED; i < WORDS - 1; i++)
			w[i] = next_random(&state);
		w[WORDS - 1] = checksum(w);
		return;
	default:
		memset(memory, 0, PAGE);
	}
}

void stamp_read(const void *memory, struct stamp *s)
{
	const uint64_t *w = memory;

	*s = (struct stamp){ .kind = STAMP_BROKEN };
	if (!memcmp(w, w + 1, PAGE - sizeof(*w))) {
		if (!w[0]) {
			s->kind = STAMP_ZERO;
		} else if (w[0] >> 56 & SAME_TAG) {
			s->kind = STAMP_SAME;
			s->device = w[0] >> 56 & 0x7f;
			s->page = w[0] >> 32 & (STAMP_PAGES - 1);
			s->generation = (uint32_t)w[0];
		}
		return;
	}
	if (w[0] != MAGIC || w[WORDS - 1] != checksum(w))
		return;
	s->kind = STAMP_FULL;
	s->device = (uint32_t)(w[1] >> 32);
	s->page = (uint32_t)w[1];
	s->generation = (uint32_t)(w[2] >> 32);
	s->writer = (uint32_t)w[2];
}

int stamp_same_device(const struct stamp *s, uint32_t device)
{
	return s->kind == STAMP_SAME ? s->device == (device & 0x7f) : s->device == device;
}

const char *stamp_kind_text(enum stamp_kind kind)
{
	static const char *const texts[] = {
		[STAMP_ZERO] = "zeroes",
		[STAMP_FULL] = "stamped",
		[STAMP_SAME] = "same-filled",
		[STAMP_BROKEN] = "no stamp",
	};

	return texts[kind];
}
