// SPDX-License-Identifier: GPL-2.0-only
/* The world as one object: saved, restored and compared. */
#include "inside.h"

struct world W;
enum session_mutant session_mutant;
char session_wrong[160];
unsigned long jiffies;

void wrong(const char *what)
{
	if (!*session_wrong)
		strncpy(session_wrong, what, sizeof(session_wrong) - 1);
}

size_t session_size(void)
{
	return sizeof(W);
}

/* Copies all of @from that counts: a search does little else. */
static void copy(struct world *to, const struct world *from)
{
	memcpy(to, from, offsetof(struct world, heap));
	for (int i = 0; i < CHUNKS; i++)
		memcpy(to->heap[i], from->heap[i], from->used[i] > FREED ? from->used[i] : FREED);
	for (int i = 0; i < THREADS; i++)
		if (from->thread[i].block != IDLE)
			memcpy(to->stack[i], from->stack[i], STACK);
}

void session_save(void *to)
{
	W.now = jiffies;
	copy(to, &W);
}

void session_restore(const void *from)
{
	copy(&W, from);
	jiffies = W.now;
}

static void mix(u64 *h, const void *data, size_t size)
{
	const u64 *word = data;

	for (; size >= sizeof(*word); size -= sizeof(*word)) {
		*h = (*h ^ *word++) * 0x9e3779b97f4a7c15ull;
		*h ^= *h >> 29;
	}
}

/* Of all that decides what may follow.  The clock counts only by what it is compared with. */
u64 session_fingerprint(void)
{
	u64 h = 1, clock = 0;
	_Alignas(8) u8 session[CHUNK];

	for (int i = 0; i < THREADS; i++) {
		const struct thread *t = &W.thread[i];

		mix(&h, t, offsetof(struct thread, sp));
		if (t->block == IDLE)
			continue;
		mix(&h, t->context, sizeof(t->context));
		mix(&h, t->sp, (size_t)(W.stack[i] + STACK - t->sp));
	}
	mix(&h, &W.left, offsetof(struct world, now) - offsetof(struct world, left));
	for (int i = 1; i < CHUNKS; i++)
		if (W.used[i])
			mix(&h, W.heap[i], 64);
	if (W.s && !W.freed) {
		struct ebb_session *s = memcpy(session, W.s, sizeof(*s));

		clock = 1 + time_after(jiffies, s->away_at + msecs_to_jiffies(s->grace)) +
			2 * is_back_lately(s);
		s->away_at = s->back_at = 0;
		mix(&h, session, sizeof(*s));
	}
	mix(&h, &clock, sizeof(clock));
	return h ? h : 1;
}
