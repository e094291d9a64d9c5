/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A channel's content, as one member at a time changes it that has locked the channel's mutex.  The
 * library and the model checker run this source.
 *
 *	shape, messages, waiting, roles, commit
 *
 * Words are stored in their order, so commit, which says where the messages are, is last: a sender
 * or receiver that dies while it stores has done it, or has not.  Waiting users are bits: to
 * receive, lower half, and to send.  Roles are users that have received, and sent.
 *
 * A member that has made a message or room wakes one that waits for it.  That one, or its process,
 * may be dead: so a receiver that leaves messages behind wakes another one, a sender that leaves
 * room does, and sleepers look at intervals.
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBBDSM_CHANNEL_STEP_H
#define EBBDSM_CHANNEL_STEP_H

#include <stddef.h>
#include <stdint.h>

enum channel_side { CHANNEL_RECEIVES, CHANNEL_SENDS };

struct channel_call {
	uint64_t *content;
	uint32_t words, user;
	enum channel_side side;
	int waits;      /* wants to be woken if it has to wait */
	int keeps;      /* other calls of the member wait, by the same bit */
	uint32_t rings; /* set: users to wake after the unlock */
};

/* Returns how many words the content of a channel for @capacity messages of @size bytes takes. */
static inline uint64_t channel_words(uint32_t capacity, size_t size)
{
	return (uint64_t)capacity * (1 + (size + 7) / 8) + 4;
}

void channel_make(uint64_t *content, uint32_t capacity, uint32_t size);

/* Returns whether the content can be that of a channel; the others need that. */
int channel_is_valid(const uint64_t *content, uint32_t words);

/* Returns the most bytes of a message. */
uint32_t channel_size(const uint64_t *content);

/* The member's entry was perhaps another's: that one has no role and does not wait any more. */
void channel_enter(struct channel_call *c);

/* Sends, or receives.  -EPIPE; -ECONNRESET; -EAGAIN: full or empty; -EMSGSIZE. */
int channel_send(struct channel_call *c, const void *bytes, uint32_t size);
int channel_receive(struct channel_call *c, void *bytes, size_t room, size_t *size);

/* The member does not wait any longer. */
void channel_withdraw(struct channel_call *c);

/* Returns the users of the other side, which a sleeper depends on. */
uint32_t channel_others(const struct channel_call *c);

/* The users @gone have left, or are dead. */
void channel_forget(struct channel_call *c, uint32_t gone);

void channel_close(struct channel_call *c);

#endif
