// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "sync_step.h"

#include <errno.h>
#include <string.h>

/* What the next call of sync_next() has to do. */
enum phase {
	ENDED,
	JOIN_BEGIN,
	JOIN_READ,
	JOIN_ASKED,
	JOIN_AGAIN,     /* the state, after an entry's member is known to be dead */
	JOIN_FREED,
	JOIN_ENTERED,
	JOIN_COUNTED,
	LEAVE_BEGIN,
	LOCK_BEGIN,
	LOCK_SWAPPED,
	LOCK_READ,
	LOCK_MARKED,
	LOCK_SLEPT,
	LOCK_ASKED,
	LOCK_TAKEN_OVER,
	LOCK_WITHDRAWN,
	LOCK_FREED,
	UNLOCK_BEGIN,
	UNLOCK_SWAPPED,
	UNLOCK_RUNG,
	HOLD_BEGIN,
	HOLD_SWAPPED,
	UNHOLD_BEGIN,
	UNHOLD_SWAPPED,
	SWEEP_BEGIN,
	SWEEP_READ,
	SWEEP_ASKED,
	SWEEP_SWAPPED,
	SWEEP_FREED,
	ONE_DONE,
};

static void begin(struct sync_op *op, enum phase phase, uint64_t me, uint32_t user, uint64_t state)
{
	memset(op, 0, sizeof(*op));
	op->phase = (uint8_t)phase;
	op->me = me;
	op->user = (uint8_t)user;
	op->word = state;
}

void sync_join(struct sync_op *op, uint64_t me)
{
	begin(op, JOIN_BEGIN, me, 0, 0);
}

void sync_leave(struct sync_op *op, uint64_t me, uint32_t user)
{
	begin(op, LEAVE_BEGIN, me, user, 0);
}

void sync_lock(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state, bool tries)
{
	begin(op, LOCK_BEGIN, me, user, state);
	op->tries = op->looks = tries;
}

void sync_unlock(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state, bool repaired)
{
	begin(op, UNLOCK_BEGIN, me, user, state);
	op->repaired = repaired;
}

void sync_hold(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state)
{
	begin(op, HOLD_BEGIN, me, user, state);
}

void sync_unhold(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state)
{
	begin(op, UNHOLD_BEGIN, me, user, state);
}

void sync_sweep(struct sync_op *op)
{
	begin(op, SWEEP_BEGIN, 0, 0, 0);
}

/* --- words ------------------------------------------------------------------------ */

static uint64_t bit(uint32_t user)
{
	return 1ull << user;
}

static uint64_t with_holder(uint64_t state, int user)
{
	return (state & ~(63ull << SYNC_HOLDER_SHIFT)) | (uint64_t)(user + 1) << SYNC_HOLDER_SHIFT;
}

/* Returns whether the state names the user. */
static bool names(uint64_t state, uint32_t user)
{
	return state & bit(user) || sync_holder(state) == (int)user;
}

static uint32_t bits_of(uint64_t state)
{
	return (uint32_t)(state & SYNC_BITS);
}

/* --- verbs ------------------------------------------------------------------------ */

static struct sync_verb end(struct sync_op *op, int result)
{
	op->phase = ENDED;
	op->result = result;
	return (struct sync_verb){ .kind = SYNC_ENDED };
}

static struct sync_verb execute(struct sync_op *op, enum phase next)
{
	op->phase = (uint8_t)next;
	return (struct sync_verb){ .kind = SYNC_EXECUTE };
}

static void add(struct sync_verb *v, enum sync_part_kind kind)
{
	v->part[v->parts++] = (struct sync_part){ .kind = kind };
}

static void add_swap(struct sync_verb *v, uint32_t word, uint64_t expect, uint64_t desired)
{
	v->part[v->parts++] = (struct sync_part){ SYNC_SWAP, word, 0, expect, desired };
}

static void add_read(struct sync_verb *v, uint32_t word, uint32_t count)
{
	v->part[v->parts++] = (struct sync_part){ SYNC_READ, word, count, 0, 0 };
}

/* Swaps the state from op->word to @desired. */
static struct sync_verb swap_state(struct sync_op *op, enum phase next, uint64_t desired)
{
	struct sync_verb v = execute(op, next);

	op->swapped = desired;
	add_swap(&v, SYNC_STATE, op->word, desired);
	return v;
}

/* Returns whether that was done; op->word is the state, or as it is now. */
static bool was_swapped(struct sync_op *op)
{
	bool was = op->old == op->word;

	op->word = was ? op->swapped : op->old;
	op->fresh = false;
	return was;
}

static struct sync_verb ask(struct sync_op *op, enum phase next, uint32_t user)
{
	op->asked = (int8_t)user;
	op->phase = (uint8_t)next;
	return (struct sync_verb){ .kind = SYNC_ALIVE, .entry = op->seen[SYNC_ENTRY + user] };
}

/* Frees the entry of the first of op->dead. */
static struct sync_verb free_entry(struct sync_op *op, enum phase next)
{
	uint32_t user = (uint32_t)__builtin_ctz(op->dead);
	struct sync_verb v = execute(op, next);

	op->dead &= ~(uint32_t)bit(user);
	add_swap(&v, SYNC_ENTRY + user, op->seen[SYNC_ENTRY + user], 0);
	return v;
}

/* --- users ------------------------------------------------------------------------ */

static struct sync_verb join_read(struct sync_op *op)
{
	struct sync_verb v = execute(op, JOIN_READ);

	add_read(&v, SYNC_STATE, SYNC_CONTENT);
	return v;
}

/* Enters the entry of @user, which is free. */
static struct sync_verb enter(struct sync_op *op, uint32_t user)
{
	struct sync_verb v = execute(op, JOIN_ENTERED);

	op->user = (uint8_t)user;
	add_swap(&v, SYNC_ENTRY + user, 0, op->me);
	return v;
}

/* Asks about the next entry from op->asked on that the state does not name. */
static struct sync_verb join_ask(struct sync_op *op)
{
	for (uint32_t user = (uint32_t)op->asked; user < SYNC_USERS; user++)
		if (!names(op->seen[SYNC_STATE], user))
			return ask(op, JOIN_ASKED, user);
	return end(op, -EUSERS);
}

static struct sync_verb join_found(struct sync_op *op)
{
	for (uint32_t user = 0; user < SYNC_USERS; user++)
		if (!op->seen[SYNC_ENTRY + user])
			return enter(op, user);
	op->asked = 0;
	return join_ask(op);
}

static struct sync_verb join_asked(struct sync_op *op, bool alive)
{
	struct sync_verb v;

	if (alive) {
		op->asked++;
		return join_ask(op);
	}
	/* A dead member cannot change the state any more, but may have done so since. */
	v = execute(op, JOIN_AGAIN);
	add_read(&v, SYNC_STATE, 1);
	return v;
}

static struct sync_verb join_again(struct sync_op *op)
{
	if (names(op->seen[SYNC_STATE], (uint32_t)op->asked)) {
		op->asked++;
		return join_ask(op);
	}
	op->dead = (uint32_t)bit((uint32_t)op->asked);
	return free_entry(op, JOIN_FREED);
}

static struct sync_verb join_entered(struct sync_op *op)
{
	if (op->old)
		return join_read(op);
	op->word = op->seen[SYNC_STATE];
	return swap_state(op, JOIN_COUNTED, op->word + (1ull << SYNC_VERSION_SHIFT));
}

static struct sync_verb join_counted(struct sync_op *op)
{
	if (was_swapped(op))
		return end(op, 0);
	return swap_state(op, JOIN_COUNTED, op->word + (1ull << SYNC_VERSION_SHIFT));
}

static struct sync_verb leave_begin(struct sync_op *op)
{
	struct sync_verb v = execute(op, ONE_DONE);

	add_swap(&v, SYNC_ENTRY + op->user, op->me, 0);
	return v;
}

/* --- mutexes ---------------------------------------------------------------------- */

/* The mutex is free, as far as is known. */
static struct sync_verb lock_try(struct sync_op *op)
{
	uint64_t desired = with_holder(op->word & ~bit(op->user), op->user);
	struct sync_verb v = swap_state(op, LOCK_SWAPPED, desired);

	add(&v, SYNC_FETCH);
	return v;
}

static struct sync_verb lock_read(struct sync_op *op)
{
	struct sync_verb v = execute(op, LOCK_READ);

	add_read(&v, SYNC_STATE, 1);
	add_read(&v, SYNC_ENTRY, SYNC_USERS);
	add(&v, SYNC_FETCH);
	return v;
}

/* The caller does not wait any longer, and the mutex is another's. */
static struct sync_verb lock_give_up(struct sync_op *op)
{
	if (op->word & bit(op->user))
		return swap_state(op, LOCK_WITHDRAWN, op->word & ~bit(op->user));
	return end(op, op->slept ? -ETIMEDOUT : -EAGAIN);
}

/* Goes on with the state op->word. */
static struct sync_verb lock_found(struct sync_op *op)
{
	int holder = sync_holder(op->word);

	if (op->word & SYNC_LOST)
		return end(op, -ENOTRECOVERABLE);
	if (holder >= (int)SYNC_USERS)
		return end(op, -EINVAL);
	if (holder == op->user)
		return lock_read(op);
	if (holder < 0)
		return lock_try(op);
	if (op->looks && !op->fresh)
		return lock_read(op);
	if (op->looks)
		return ask(op, LOCK_ASKED, (uint32_t)holder);
	if (op->tries)
		return lock_give_up(op);
	if (!(op->word & bit(op->user)))
		return swap_state(op, LOCK_MARKED, op->word | bit(op->user));
	op->phase = LOCK_SLEPT;
	return (struct sync_verb){ .kind = SYNC_SLEEP };
}

static struct sync_verb lock_was_read(struct sync_op *op)
{
	op->word = op->seen[SYNC_STATE];
	op->fresh = true;
	if (sync_holder(op->word) == op->user)
		return end(op, op->word & SYNC_DAMAGED ? -EOWNERDEAD : 0);
	return lock_found(op);
}

static struct sync_verb lock_slept(struct sync_op *op, enum sync_wake why)
{
	op->slept = true;
	op->tries = why == SYNC_TIMEOUT;
	op->looks = why != SYNC_RANG;
	return lock_read(op);
}

/* The holder is dead, and so are op->dead of those that wait. */
static struct sync_verb take_over(struct sync_op *op)
{
	uint64_t bits = (op->word & ~bit(op->user)) & ~(uint64_t)op->dead;
	struct sync_verb v;

	v = swap_state(op, LOCK_TAKEN_OVER, with_holder(bits, op->user) | SYNC_DAMAGED);
	add(&v, SYNC_FETCH);
	return v;
}

static struct sync_verb lock_asked(struct sync_op *op, bool alive)
{
	uint32_t holder = (uint32_t)sync_holder(op->word), user = (uint32_t)op->asked;
	uint32_t others = bits_of(op->word) & ~(uint32_t)bit(op->user);

	if (user == holder && alive) {
		op->looks = false;
		return lock_found(op);
	}
	if (!alive)
		op->dead |= (uint32_t)bit(user);
	/* Then those that wait, from the first on: none of them is the holder. */
	others &= user == holder ? ~0u : ~(((uint32_t)bit(user) << 1) - 1);
	return others ? ask(op, LOCK_ASKED, (uint32_t)__builtin_ctz(others)) : take_over(op);
}

static struct sync_verb lock_taken_over(struct sync_op *op)
{
	if (was_swapped(op))
		return op->dead ? free_entry(op, LOCK_FREED) : end(op, -EOWNERDEAD);
	op->dead = 0;
	return lock_found(op);
}

static struct sync_verb unlock_swap(struct sync_op *op, bool stores)
{
	uint32_t waiting = bits_of(op->word);
	uint32_t after = waiting & ~(((uint32_t)bit(op->user) << 1) - 1);
	bool lost = op->word & SYNC_DAMAGED && !op->repaired;
	uint64_t desired = with_holder(op->word & ~SYNC_DAMAGED, -1);
	struct sync_verb v = execute(op, UNLOCK_SWAPPED);

	op->rings = 0;
	if (lost) {
		desired |= SYNC_LOST;
		op->rings = waiting;
	} else if (waiting) {
		uint32_t next = (uint32_t)__builtin_ctz(after ?: waiting);

		desired = with_holder(desired & ~bit(next), (int)next);
		op->rings = (uint32_t)bit(next);
	}
	if (stores)
		add(&v, SYNC_STORE);
	op->swapped = desired;
	add_swap(&v, SYNC_STATE, op->word, desired);
	/* Of those that wait: they stay while the state names them. */
	add_read(&v, SYNC_ENTRY, SYNC_USERS);
	return v;
}

static struct sync_verb unlock_ring(struct sync_op *op)
{
	uint32_t user;

	if (!op->rings)
		return end(op, 0);
	user = (uint32_t)__builtin_ctz(op->rings);
	op->rings &= ~(uint32_t)bit(user);
	op->phase = UNLOCK_RUNG;
	return (struct sync_verb){ .kind = SYNC_RING, .entry = op->seen[SYNC_ENTRY + user] };
}

static struct sync_verb unlock_swapped(struct sync_op *op)
{
	if (was_swapped(op))
		return unlock_ring(op);
	return sync_holder(op->word) == op->user ? unlock_swap(op, false) : end(op, -EPERM);
}

/* --- counts ----------------------------------------------------------------------- */

static struct sync_verb hold(struct sync_op *op)
{
	if (op->word & SYNC_LOST)
		return end(op, -ESTALE);
	return swap_state(op, HOLD_SWAPPED, op->word | bit(op->user));
}

/* Returns the state without the references @bits. */
static uint64_t without(uint64_t state, uint64_t bits)
{
	state &= ~bits;
	return bits_of(state) ? state : state | SYNC_LOST;
}

static struct sync_verb unhold_swapped(struct sync_op *op)
{
	if (was_swapped(op))
		return end(op, op->word & SYNC_LOST ? 1 : 0);
	return swap_state(op, UNHOLD_SWAPPED, without(op->word, bit(op->user)));
}

static struct sync_verb sweep_read(struct sync_op *op)
{
	struct sync_verb v = execute(op, SWEEP_READ);

	op->dead = 0;
	op->asked = -1;
	add_read(&v, SYNC_STATE, 1);
	add_read(&v, SYNC_ENTRY, SYNC_USERS);
	return v;
}

/* Asks about the next reference after that of op->asked. */
static struct sync_verb sweep_ask(struct sync_op *op)
{
	uint32_t after = op->asked < 0 ? ~0u : ~(((uint32_t)bit((uint32_t)op->asked) << 1) - 1);
	uint32_t left = bits_of(op->word) & after;

	if (left)
		return ask(op, SWEEP_ASKED, (uint32_t)__builtin_ctz(left));
	if (op->dead)
		return swap_state(op, SWEEP_SWAPPED, without(op->word, op->dead));
	return end(op, op->word & SYNC_LOST ? 1 : 0);
}

static struct sync_verb sweep_found(struct sync_op *op)
{
	op->word = op->seen[SYNC_STATE];
	return sweep_ask(op);
}

static struct sync_verb sweep_asked(struct sync_op *op, bool alive)
{
	if (!alive)
		op->dead |= (uint32_t)bit((uint32_t)op->asked);
	return sweep_ask(op);
}

static struct sync_verb sweep_freed(struct sync_op *op)
{
	return op->dead ? free_entry(op, SWEEP_FREED) : end(op, op->word & SYNC_LOST ? 1 : 0);
}

struct sync_verb sync_next(struct sync_op *op, int status)
{
	if (status < 0)
		return end(op, status);
	switch ((enum phase)op->phase) {
	case JOIN_BEGIN:
	case JOIN_FREED:
		return join_read(op);
	case JOIN_READ:
		return join_found(op);
	case JOIN_ASKED:
		return join_asked(op, status);
	case JOIN_AGAIN:
		return join_again(op);
	case JOIN_ENTERED:
		return join_entered(op);
	case JOIN_COUNTED:
		return join_counted(op);
	case LEAVE_BEGIN:
		return leave_begin(op);
	case LOCK_BEGIN:
		op->word = with_holder(op->word & ~(SYNC_BITS | SYNC_DAMAGED | SYNC_LOST), -1);
		return lock_try(op);
	case LOCK_SWAPPED:
		return was_swapped(op) ? end(op, 0) : lock_found(op);
	case LOCK_READ:
		return lock_was_read(op);
	case LOCK_MARKED:
		was_swapped(op);
		return lock_found(op);
	case LOCK_SLEPT:
		return lock_slept(op, (enum sync_wake)status);
	case LOCK_ASKED:
		return lock_asked(op, status);
	case LOCK_TAKEN_OVER:
		return lock_taken_over(op);
	case LOCK_WITHDRAWN:
		return was_swapped(op) ? end(op, -ETIMEDOUT) : lock_found(op);
	case LOCK_FREED:
		return op->dead ? free_entry(op, LOCK_FREED) : end(op, -EOWNERDEAD);
	case UNLOCK_BEGIN:
		return unlock_swap(op, true);
	case UNLOCK_SWAPPED:
		return unlock_swapped(op);
	case UNLOCK_RUNG:
		return unlock_ring(op);
	case HOLD_BEGIN:
		return hold(op);
	case HOLD_SWAPPED:
		return was_swapped(op) ? end(op, 0) : hold(op);
	case UNHOLD_BEGIN:
		return swap_state(op, UNHOLD_SWAPPED, without(op->word, bit(op->user)));
	case UNHOLD_SWAPPED:
		return unhold_swapped(op);
	case SWEEP_BEGIN:
		return sweep_read(op);
	case SWEEP_READ:
		return sweep_found(op);
	case SWEEP_ASKED:
		return sweep_asked(op, status);
	case SWEEP_SWAPPED:
		return was_swapped(op) ? sweep_freed(op) : sweep_read(op);
	case SWEEP_FREED:
		return sweep_freed(op);
	case ONE_DONE:
		return end(op, 0);
	case ENDED:
		break;
	}
	return end(op, op->result);
}
