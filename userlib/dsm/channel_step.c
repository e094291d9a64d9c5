// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "channel_step.h"

#include <errno.h>
#include <string.h>

/* The commit word: first message 16 | messages 16 | flags 8 | next of each side 16. */
#define CLOSED (1ull << 32)
#define HAD(side) (1ull << (33 + (side))) /* there was a user of that side */
#define NEXT(side) (40 + 8 * (side))      /* 5 bits: the user after the one that was woken last */

static uint64_t *waiting(const struct channel_call *c)
{
	return &c->content[c->words - 3];
}

static uint64_t *roles(const struct channel_call *c)
{
	return &c->content[c->words - 2];
}

static uint64_t *commit(const struct channel_call *c)
{
	return &c->content[c->words - 1];
}

static uint32_t capacity_of(const uint64_t *content)
{
	return (uint32_t)(content[0] >> 32);
}

uint32_t channel_size(const uint64_t *content)
{
	return (uint32_t)content[0];
}

static uint32_t first(const struct channel_call *c)
{
	return *commit(c) & 0xffff;
}

static uint32_t count(const struct channel_call *c)
{
	return *commit(c) >> 16 & 0xffff;
}

static void set_commit(struct channel_call *c, uint32_t from, uint32_t n)
{
	*commit(c) = (*commit(c) & ~0xffffffffull) | n << 16 | from;
}

/* Returns the words of the message at @i: its size, and its bytes. */
static uint64_t *message(const struct channel_call *c, uint32_t i)
{
	return &c->content[1 + (size_t)i * (1 + (channel_size(c->content) + 7) / 8)];
}

static uint64_t bit_of(uint32_t user, enum channel_side side)
{
	return 1ull << (user + (side == CHANNEL_SENDS ? 32 : 0));
}

static uint32_t half(uint64_t word, enum channel_side side)
{
	return (uint32_t)(side == CHANNEL_SENDS ? word >> 32 : word);
}

static enum channel_side other(enum channel_side side)
{
	return side == CHANNEL_SENDS ? CHANNEL_RECEIVES : CHANNEL_SENDS;
}

void channel_make(uint64_t *content, uint32_t capacity, uint32_t size)
{
	memset(content, 0, 8 * channel_words(capacity, size));
	content[0] = (uint64_t)capacity << 32 | size;
}

int channel_is_valid(const uint64_t *content, uint32_t words)
{
	uint32_t capacity = words > 4 ? capacity_of(content) : 0;
	uint64_t last = words > 4 ? content[words - 1] : 0;

	return capacity && channel_words(capacity, channel_size(content)) == words &&
	       (last & 0xffff) < capacity && (last >> 16 & 0xffff) <= capacity;
}

void channel_enter(struct channel_call *c)
{
	channel_forget(c, 1u << c->user);
}

/* Wakes one that waits on @side: the next after the one before, so that each has its turn. */
static void wake(struct channel_call *c, enum channel_side side)
{
	uint32_t all = half(*waiting(c), side), next = *commit(c) >> NEXT(side) & 31, user;
	uint32_t after = all & ~((1u << next) - 1);

	if (!all)
		return;
	user = (uint32_t)__builtin_ctz(after ?: all);
	*commit(c) = (*commit(c) & ~(31ull << NEXT(side))) | ((user + 1ull) & 31) << NEXT(side);
	*waiting(c) &= ~bit_of(user, side);
	c->rings |= 1u << user;
}

/* The member has its side from now on.  Returns the error of a call that has to wait. */
static int wait_for_other(struct channel_call *c)
{
	enum channel_side side = other(c->side);

	if (*commit(c) & HAD(side) && !half(*roles(c), side))
		return -ECONNRESET;
	if (c->waits)
		*waiting(c) |= bit_of(c->user, c->side);
	return -EAGAIN;
}

static void take_side(struct channel_call *c)
{
	*roles(c) |= bit_of(c->user, c->side);
	*commit(c) |= HAD(c->side);
}

int channel_send(struct channel_call *c, const void *bytes, uint32_t size)
{
	uint32_t capacity = capacity_of(c->content);
	uint64_t *m;

	if (size > channel_size(c->content))
		return -EMSGSIZE;
	if (*commit(c) & CLOSED)
		return -EPIPE;
	take_side(c);
	if (count(c) == capacity)
		return wait_for_other(c);
	m = message(c, (first(c) + count(c)) % capacity);
	m[0] = size;
	memcpy(&m[1], bytes, size);
	set_commit(c, first(c), count(c) + 1);
	if (!c->keeps)
		channel_withdraw(c);
	wake(c, CHANNEL_RECEIVES);
	if (count(c) < capacity)
		wake(c, CHANNEL_SENDS);
	return 0;
}

int channel_receive(struct channel_call *c, void *bytes, size_t room, size_t *size)
{
	const uint64_t *m;

	take_side(c);
	if (!count(c))
		return *commit(c) & CLOSED ? -EPIPE : wait_for_other(c);
	m = message(c, first(c));
	if (m[0] > room || m[0] > channel_size(c->content)) {
		/* It stays, for another one: this one may have been woken for it. */
		if (!c->keeps)
			channel_withdraw(c);
		wake(c, CHANNEL_RECEIVES);
		return -EMSGSIZE;
	}
	memcpy(bytes, &m[1], m[0]);
	*size = m[0];
	set_commit(c, (first(c) + 1) % capacity_of(c->content), count(c) - 1);
	if (!c->keeps)
		channel_withdraw(c);
	wake(c, CHANNEL_SENDS);
	if (count(c))
		wake(c, CHANNEL_RECEIVES);
	return 0;
}

void channel_withdraw(struct channel_call *c)
{
	*waiting(c) &= ~bit_of(c->user, c->side);
}

uint32_t channel_others(const struct channel_call *c)
{
	return half(*roles(c), other(c->side));
}

void channel_forget(struct channel_call *c, uint32_t gone)
{
	uint64_t both = (uint64_t)gone << 32 | gone;

	*roles(c) &= ~both;
	*waiting(c) &= ~both;
	/* The last one of a side: those that wait for it learn it. */
	for (int side = CHANNEL_RECEIVES; side <= CHANNEL_SENDS; side++)
		if (*commit(c) & HAD(side) && !half(*roles(c), (enum channel_side)side)) {
			enum channel_side left = other((enum channel_side)side);

			c->rings |= half(*waiting(c), left);
			*waiting(c) &= ~((uint64_t)half(*waiting(c), left)
					 << (left == CHANNEL_SENDS ? 32 : 0));
		}
}

void channel_close(struct channel_call *c)
{
	*commit(c) |= CLOSED;
	c->rings |= half(*waiting(c), CHANNEL_RECEIVES) | half(*waiting(c), CHANNEL_SENDS);
	*waiting(c) = 0;
}
