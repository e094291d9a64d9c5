/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Part of ebbdsm.h, which includes it: what several processes change by turns.  Atomics, mutexes,
 * channels, objects with several owners, and groups of objects that travel together.
 *
 * Names.  Atomics, mutexes, channels and the counts of shared objects are made by a process, whose
 * home donor has their memory; other processes use them by names of plain data, which may be
 * copied, sent and stored.  They live until their maker drops them or exits.  -ESTALE: dropped.
 * -EOWNERDEAD, of mutexes -ENOTRECOVERABLE: the maker has exited; whether that or -ESTALE is
 * returned depends on how much of its memory others use by then.
 *
 * Damage.  Words are changed by compare-and-swap alone, from values that other memory does not
 * hold, so that a call which is late cannot change what has become another process's memory.
 *
 * Users.  A mutex, a channel and a shared object each have up to EBBDSM_USERS processes as users at
 * a time.  The first call of a process makes it one, with three more round trips, and one more at
 * each donor; -EUSERS: there are as many, of which dead ones count while they have a mutex or wait
 * for it.  It is one until ebbdsm_leave() or its exit.
 *
 * Waiting.  A call that has to wait sleeps until another process rings (ebbfar_notify()).  A ring
 * is for a process, not for a call: it wakes all calls of the process that wait at that donor,
 * also those of ebbdsm_task.h, and each looks again, over TCP by a round trip.  Every half second
 * it looks whether the process that it waits for is alive.  So what a process has locked that is
 * killed, or has called ebbdsm_close(), is available within 1 s after the donor has fenced it: at
 * once if it has mapped memory or closed, else after the grace period of ebb-donord.  Its
 * references end after that: when the maker has none left and calls ebbdsm_settle(), or when a
 * process needs its place among the users.
 *
 * Calls that can wait take @timeout_ms: 0 = do not wait, -1 = without limit; -EAGAIN: they would
 * have to wait; -ETIMEDOUT: they have waited.  The time that donors need comes on top, and of
 * channels the time in which another process, which may be stopped, is in the middle of such a
 * call.
 *
 * Costs.  In round trips to the maker's donor if that is not mapped, else none but the ring:
 *
 *	load, cas		1
 *	store, add		1 if the value is what this process saw last, and for the maker's
 *				add; else 2, and 1 more for each change by others meanwhile
 *	lock; unlock		1; 1
 *	... if others wait	2 and 1 for each ring; 1, 1 more if the waiters have changed, and 1
 *				for the ring
 *	send, receive		2, and 1 if they wake a process
 *	clone; unclone		0 if it is not the first or last of the process; else 4; 2
 *
 * Fairness.  Processes that wait for a mutex get it in the cyclic order of their numbers: each
 * waits for at most one turn of each other user.  Those that wait for a channel are woken in that
 * order; another process's call that comes first has the message or the room.  Threads of a process
 * that wait for a mutex, or for a channel, have their turns in the order of their calls; a call
 * that does not have to wait may come before one that has waited for less than 1 ms.
 *
 * Threads.  As in ebbdsm.h.  Threads of a process that want the same mutex wait for each other
 * without messages.
 */
#ifndef EBBDSM_SYNC_H
#define EBBDSM_SYNC_H

#ifndef EBBDSM_H
#error "include <ebbdsm.h>"
#endif

#define EBBDSM_USERS 32u
/* Bytes of a mutex's object, of all words of atomics, of all messages that a channel can hold. */
#define EBBDSM_GUARDED_MOST 4096u

/* --- atomics ------------------------------------------------------------------------------ */

/* Words of 64 bits. */
struct ebbdsm_words {
	uint64_t at, stamp;
};

/* Makes @n words, copies of @values or, if that is NULL, zeros.  -EINVAL: 0, or too many. */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_words_new(ebbdsm_t *dsm, const uint64_t *values, uint32_t n,
					       struct ebbdsm_words *words);

/* Frees words of this process; *@words becomes zero. */
EBBDSM_API int ebbdsm_words_drop(ebbdsm_t *dsm, struct ebbdsm_words *words);

/*
 * Operations on word @i; -EINVAL: there is none.  They are linearizable: each takes effect as a
 * whole at one time between its call and its return, after the thread's earlier operations at that
 * donor.
 */
EBBDSM_API int ebbdsm_load(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i,
			   uint64_t *value);
EBBDSM_API int ebbdsm_store(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i,
			    uint64_t value);
/* *@old, unless @old is NULL, is the value from before. */
EBBDSM_API int ebbdsm_add(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i,
			  uint64_t addend, uint64_t *old);
/* Stores @desired if the word is @expect.  0 also if it is not: *@old, unless NULL, tells. */
EBBDSM_API int ebbdsm_cas(ebbdsm_t *dsm, const struct ebbdsm_words *words, uint32_t i,
			  uint64_t expect, uint64_t desired, uint64_t *old);

/* --- mutexes ------------------------------------------------------------------------------ */

/* An object that one process at a time reads and changes. */
struct ebbdsm_mutex {
	uint64_t at, stamp;
};

/* Makes a mutex with an object of @size bytes, at most EBBDSM_GUARDED_MOST: @content, or zeros. */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_mutex_new(ebbdsm_t *dsm, const void *content, size_t size,
					       struct ebbdsm_mutex *mutex);

/* Frees a mutex of this process; *@mutex becomes zero.  -EBUSY: a call of this process has it. */
EBBDSM_API int ebbdsm_mutex_drop(ebbdsm_t *dsm, struct ebbdsm_mutex *mutex);

/*
 * Locks the mutex.  *@content is the object, for reading and writing until ebbdsm_unlock(): a copy
 * of this process, aligned to 16.
 *
 * 0; -EOWNERDEAD: it is locked by this thread, too, but the process that had it is dead: words of
 * the object may be as before its turn or after it; also if that process had the turn and had not
 * begun to use it.  Repair the object and call ebbdsm_consistent() before ebbdsm_unlock(), else no
 * process can lock the mutex again: -ENOTRECOVERABLE.  A mutex is not recursive: its thread's
 * second call waits for ever.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_lock(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex,
					  int timeout_ms, void **content);

/* After -EOWNERDEAD: the object is in order.  -EINVAL: not locked here, or not after that. */
EBBDSM_API int ebbdsm_consistent(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex);

/*
 * Writes what has changed of the object, and unlocks, also if it fails.  -EINVAL: not @content of
 * this process's lock.  Any thread may call it.
 */
EBBDSM_API int ebbdsm_unlock(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex, void *content);

/* --- channels ----------------------------------------------------------------------------- */

/* A queue of messages, with any number of senders and receivers. */
struct ebbdsm_channel {
	uint64_t at, stamp;
};

/*
 * Makes a channel for up to @capacity messages of up to @size bytes.  -EINVAL: @capacity * (@size,
 * rounded up to 8, + 8) is above EBBDSM_GUARDED_MOST.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_channel_new(ebbdsm_t *dsm, uint32_t capacity, size_t size,
						 struct ebbdsm_channel *channel);

/*
 * Frees a channel of this process; *@channel becomes zero.  Messages in it are lost.  -EBUSY: a
 * call of this process uses it.
 */
EBBDSM_API int ebbdsm_channel_drop(ebbdsm_t *dsm, struct ebbdsm_channel *channel);

/*
 * Sends @size bytes, at most as many as the channel's; waits while it is full.  -EPIPE: closed;
 * -ECONNRESET: it is full, there was a receiver, and all receivers have left or are dead.  A
 * message is sent whole or not at all, also if the sender is killed.
 */
EBBDSM_API int ebbdsm_send(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, const void *bytes,
			   size_t size, int timeout_ms);

/*
 * Receives a message, each by one receiver, the oldest first; *@size is its size.  Waits while
 * there is none.  -EMSGSIZE: it has more than @room bytes, and stays.  -EPIPE: closed, and empty;
 * -ECONNRESET: empty, there was a sender, and all senders have left or are dead.
 */
EBBDSM_API int ebbdsm_receive(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, void *bytes,
			      size_t room, size_t *size, int timeout_ms);

/*
 * As ebbdsm_give() and ebbdsm_send(): if that fails, the box is this process's as before.
 * ebbdsm_settle() frees the old place when it is received; a box that is never received is lost
 * with this process.  The channel's messages have at least 16 bytes.
 */
EBBDSM_API int ebbdsm_send_box(ebbdsm_t *dsm, const struct ebbdsm_channel *channel,
			       struct ebbdsm_box *box, int timeout_ms);

/*
 * As ebbdsm_receive() and ebbdsm_accept(), whose errors say that this message is lost: -EOWNERDEAD
 * or -ESTALE, the sender is dead.  -EINVAL: the message is no box; one of more than 16 bytes stays,
 * and calls fail until ebbdsm_receive() has taken it.  -ENOSPC, -ENOBUFS, -ENOMEM: there is no
 * memory for the box; a later call of this process gets it.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_receive_box(ebbdsm_t *dsm,
						 const struct ebbdsm_channel *channel,
						 struct ebbdsm_box *box, int timeout_ms);

/* Closes the channel for all: what is in it can be received, nothing can be sent. */
EBBDSM_API int ebbdsm_channel_close(ebbdsm_t *dsm, const struct ebbdsm_channel *channel);

/*
 * Ends this process's use of the mutex or channel with the name @at, @stamp.  -EBUSY: it is locked
 * here, or a call uses it.  0 if the process does not use it.  A call that begins meanwhile waits
 * for the end, and makes the process a user again.
 */
EBBDSM_API int ebbdsm_leave(ebbdsm_t *dsm, uint64_t at, uint64_t stamp);

/* --- shared ownership --------------------------------------------------------------------- */

/* An object that does not change, with an owner in each of several processes. */
struct ebbdsm_arc {
	struct ebbdsm_view value; /* read it by ebbdsm_borrow_view() */
	uint64_t at, stamp;       /* of the counts */
};

/*
 * Makes the box's object shared: *@box becomes zero, and this process has one reference.  The
 * memory is this process's until the last reference of all is dropped, and its
 * next ebbdsm_settle().
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_arc_new(ebbdsm_t *dsm, struct ebbdsm_box *box,
					     struct ebbdsm_arc *arc);

/*
 * This process has one reference more.  To give one to another process, send the name, and keep an
 * own reference until the other has called ebbdsm_clone().  -ESTALE: the last one was dropped.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_clone(ebbdsm_t *dsm, const struct ebbdsm_arc *arc);

/*
 * This process has one reference less: a last one frees the object when its maker settles.  Copies
 * of the value can be read until they are evicted.  -EINVAL: it has none.
 */
EBBDSM_API int ebbdsm_unclone(ebbdsm_t *dsm, const struct ebbdsm_arc *arc);

/* --- groups ------------------------------------------------------------------------------- */

/*
 * A group is a box of up to EBBDSM_SIZE_MOST bytes whose content is members: one allocation, and
 * one read, one loan or one parcel for them all.  A member is named by a number, the same in all
 * copies and values of the group: use numbers as links.  Members are accessed by the borrow of
 * their box, as long as that lasts.  These functions are pure: @group is a borrow's pointer, @size
 * the size of the box.  They read no memory beside it, whatever it holds.
 */

/* Makes a box with an empty group of @size bytes, at least 32. */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_group_new(ebbdsm_t *dsm, size_t size, struct ebbdsm_box *box);

/*
 * Adds a member of @bytes bytes, which are zero, to a group that is borrowed mutably.  Returns its
 * number, or 0: there is no room.  A member takes its size, rounded up to 16, and 16 bytes.
 */
EBBDSM_API uint32_t ebbdsm_group_add(void *group, size_t size, size_t bytes);

/* Removes a member; its number may be that of a later one.  -EINVAL: there is none. */
EBBDSM_API int ebbdsm_group_remove(void *group, size_t size, uint32_t member);

/* Returns the member's bytes, aligned to 16, and sets *@bytes; NULL: there is none. */
EBBDSM_API const void *ebbdsm_member(const void *group, size_t size, uint32_t member,
				     size_t *bytes);
EBBDSM_API void *ebbdsm_member_mut(void *group, size_t size, uint32_t member, size_t *bytes);

/* Returns the member after @member, 0 = the first, in the order of numbers; 0: there is none. */
EBBDSM_API uint32_t ebbdsm_next_member(const void *group, size_t size, uint32_t member);

#endif
