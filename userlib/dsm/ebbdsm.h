/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * ebbdsm: objects with one owner, shared by processes of several machines in the memory of
 * ebb-donord (8), by libebbfar.
 *
 * A box is an object of 1 byte to EBBDSM_SIZE_MOST.  One process owns it and borrows it, shared by
 * many of its threads or mutably by one, as a lock for readers and writers, but without waiting.
 * Other processes
 *
 *	read it		ebbdsm_lend() returns a view, the name of the object's value at that time.
 *			Send it to any number of readers.  A value is read once, by one round trip,
 *			and then cached in the reader's memory: nothing ever has to be invalidated,
 *			since no other value has that name
 *	change it	ebbdsm_lend_mut() makes a loan for one borrower.  The object moves to the
 *			borrower's memory, and at the return to a new place of the owner's
 *	own it		ebbdsm_give() makes a parcel for one receiver
 *
 * Names are sent by channels of the program's own, or stored in objects: they are plain data.
 *
 * A name is a place and a stamp, and names one value for ever.  A view whose object was changed or
 * dropped is -ESTALE for readers that have no copy (but see Replicas); a reader that has one may go
 * on to use it, and gets the next value by the next view.  What a reader sees is never torn, and
 * never another object.
 *
 * Memory.  A space is one pool of each donor of a list, which all processes have in the same order.
 * A process's boxes lie at its home donor, unless that is full or the program says otherwise
 * (ebbdsm_task.h).  At a unix socket, usually of the process's own machine, the donor's memory is
 * mapped: the owner borrows without a copy and without messages.  The content of a new box is what
 * the program stores, or zeros.  The memory of a process that exits is freed, after ebb-donord's
 * grace period (--keep) if it is not mapped.
 *
 * Death.  When a process is killed, in any call, boxes of others and their content stay.  Its boxes
 * are lost: -EOWNERDEAD.  If it was the borrower of a loan, ebbdsm_reclaim() returns -EOWNERDEAD,
 * and the owner has the box as it was before the loan.  This is also so if the borrower dies after
 * its return, but before the owner's ebbdsm_reclaim(): a change by a borrower is final when the
 * owner has reclaimed the box.
 *
 * Replicas.  If options.replicas is 1, in all processes of the space, each value is also at a
 * second donor before it can be named, and survives the exit of one donor, also of a process's
 * connection to it:
 *
 *	views	read there, once the connection has ended (options.resume_ms).  When the owner has
 *		lost the donor, and changes or drops a box, processes that have not lost it may
 *		read the former value there, until the donor uses that memory again
 *	boxes	can be used as before.  A box that is changed, lent or given moves to another donor.
 *		ebbdsm_settle() copies the others for the exit of a next donor
 *	loans	that were made at the donor end as if the borrower had died, also if it had returned
 *		the object: ebbdsm_reclaim() returns -EOWNERDEAD; but if the owner has mapped the
 *		donor's memory, what no process has borrowed is withdrawn: 0.  The borrower's
 *		ebbdsm_return_loan() returns -EIO, or 0 without effect where it reaches the donor
 *	parcels  at the donor that were not accepted are lost: -EIO, and -ESTALE after
 *		ebbdsm_settle(); but if the giver has mapped the donor's memory, and they are not
 *		accepted, ebbdsm_reclaim() withdraws them
 *
 * What is at no donor, or at one whose memory was used up for a copy, is lost with its only donor:
 * -EIO; ebbdsm_counts says how much there is.  Words, mutexes, channels, references of shared
 * objects, and tasks have no copies.  ebbdsm_new(), ebbdsm_return_mut(), ebbdsm_accept(), and
 * ebbdsm_reclaim() of what was returned, wait for one round trip more if the second donor is over
 * TCP.  Calls that make or end places may wait for a silent donor that has their second copies,
 * until that connection ends.  Calls of other threads that send no message do not wait for them,
 * unless one of them waits for new memory at the donor of its place.  While a view's donor is
 * there, a value that only the second donor has may be -ESTALE, or -EOWNERDEAD if the donor has
 * fenced its owner, for half a second.
 *
 * Conventions.  Sizes are in bytes.  Functions return 0 or a negative errno, or a pointer, or NULL
 * with errno set; on failure they leave outputs unchanged.  Errors of every function with a handle,
 * unless noted:
 *
 *	-ESTALE  the box, view, loan or parcel is an old one: the object was changed, dropped, moved
 *		 or withdrawn.  Checked in all builds
 *	-EOWNERDEAD  the process that owns it has exited and its memory is freed.  -ESTALE in its
 *		 place: another process has that one's number at the donor by now
 *	-EBUSY   the box is borrowed, lent, or in transit
 *	-EINVAL  no such name is possible, or the pointer is not that of a borrow
 *	-EIO     the donor has exited, or this process is fenced there: ebbdsm_why() says which.
 *		 Without replicas, what lies there is lost to others; a process with a mapped home
 *		 may go on to borrow its boxes, to save what is in them
 *	-ENOSPC  the donor's far memory is used up (of functions that need a place)
 *	-ENOBUFS  the cache budget, or 32768 takes at one donor, are in use; return borrows
 *	-ENOMEM  this process has no memory
 *	-ECHILD  the handle is that of the process before fork(2)
 *
 * Threads.  Any thread may use a handle.  A box is used as a variable is: threads may call
 * ebbdsm_borrow(), ebbdsm_return() and ebbdsm_lend() with one box at the same time, other functions
 * need the box for themselves.  Calls that reach one donor wait for each other, in no order: of
 * threads that call all the time, one may wait for some hundred calls of others.  No call of this
 * file waits for another process, but for donors.  Not in signal handlers; no thread is cancelled
 * in a call.  ebbdsm_close() comes when all other calls have returned.
 *
 * The library has no thread.  A process calls ebbdsm_settle() every few seconds: it frees what
 * others have taken, and notices donors that have exited.
 *
 * Checks.  GCC's -fanalyzer finds borrows that are not returned, are returned twice or used after
 * the return, and results that are not checked for NULL.  Clang's -Wthread-safety finds the former
 * by paths, and what excludes borrows while there are some.  Both want each result checked for NULL
 * where it is obtained, and have one borrow of a variable at a time in a function.
 * EBBDSM_NO_CHECKS, defined before the header is included, leaves the attributes out.  A Rust
 * compiler proves what these find by chance: crate ebbdsm.
 *
 * EBBDSM_CHECK=abort in the environment, when the space is opened, has the library report what it
 * finds, say where in the program, and abort; EBBDSM_CHECK=report goes on.  It finds borrows that
 * are not returned by ebbdsm_close(), or wrongly; copies of boxes that are used; content that is
 * changed without a mutable borrow; and torn reads, by reading twice what it has no copy of.  Each
 * borrow then reads the whole object.
 *
 * Trust.  Processes of a space trust each other and the donors.  The pools are libebbdsm's alone.
 */
#ifndef EBBDSM_H
#define EBBDSM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EBBDSM_API __attribute__((visibility("default")))

#if defined(__clang__) && !defined(EBBDSM_NO_CHECKS)
#define EBBDSM_CAPABILITY __attribute__((capability("box")))
#define EBBDSM_SHARES(box) __attribute__((try_acquire_shared_capability(1, box)))
#define EBBDSM_RETURNS_SHARED(box) __attribute__((release_shared_capability(box)))
#define EBBDSM_EXCLUDES(box) __attribute__((try_acquire_capability(1, box)))
#define EBBDSM_RETURNS(box) __attribute__((release_capability(box)))
#define EBBDSM_UNBORROWED(box) __attribute__((locks_excluded(box)))
#define EBBDSM_LOAN __attribute__((capability("loan")))
#else
#define EBBDSM_CAPABILITY
#define EBBDSM_LOAN
#define EBBDSM_SHARES(box)
#define EBBDSM_RETURNS_SHARED(box)
#define EBBDSM_EXCLUDES(box)
#define EBBDSM_RETURNS(box)
#define EBBDSM_UNBORROWED(box)
#endif
/* A borrow that @function ends, whose third argument is its pointer. */
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__) && !defined(EBBDSM_NO_CHECKS)
#define EBBDSM_ENDED_BY(function) __attribute__((malloc(function, 3), warn_unused_result))
#else
#define EBBDSM_ENDED_BY(function) __attribute__((warn_unused_result))
#endif
#define EBBDSM_CHECKED __attribute__((warn_unused_result))
/* Arguments that are not NULL; the one that has a value before the call; that is set by it. */
#if defined(__GNUC__) && !defined(EBBDSM_NO_CHECKS)
#define EBBDSM_NONNULL(...) __attribute__((nonnull(__VA_ARGS__)))
#else
#define EBBDSM_NONNULL(...)
#endif
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__) && !defined(EBBDSM_NO_CHECKS)
#define EBBDSM_CHANGES(argument) __attribute__((access(read_write, argument)))
#define EBBDSM_SETS(argument) __attribute__((access(write_only, argument)))
#else
#define EBBDSM_CHANGES(argument)
#define EBBDSM_SETS(argument)
#endif

#define EBBDSM_SIZE_MOST ((2u << 20) - 32u)
#define EBBDSM_DONORS 8u

/* This process's part of a space. */
typedef struct ebbdsm ebbdsm_t;

/* Zero it, set what is needed.  Later releases add fields at the end. */
struct ebbdsm_options {
	size_t size;               /* sizeof(struct ebbdsm_options) */
	const char *const *donors; /* "HOST:PORT" or "unix:/PATH", the same donors in all processes */
	unsigned donor_count;      /* 1 to EBBDSM_DONORS */
	unsigned home;             /* index of the donor of this process's boxes */
	const char *pool;          /* 1 to 31 printable characters, no blanks; created if needed */
	const char *key;           /* key file for donors over TCP, or NULL */
	size_t cache;              /* bytes of copies at most, headers included; 0 = 64 MiB */
	unsigned timeout_ms;       /* of ebbfar_open() */
	unsigned resume_ms;        /* of ebbfar_open() */
	char error[512];           /* set on failure: "THING: CAUSE; REMEDY" */
	unsigned replicas;         /* 0, or, with two donors or more, 1: see above */
	unsigned unused;
};

/* An owner's.  Zero it to begin; move it by ebbdsm_move(), never copy it. */
struct EBBDSM_CAPABILITY ebbdsm_box {
	uint64_t at, stamp;
};

/* Names to send; may be copied. */
struct ebbdsm_view {
	uint64_t at, stamp;
};

struct EBBDSM_LOAN ebbdsm_loan {
	uint64_t at, stamp;
};

struct ebbdsm_parcel {
	uint64_t at, stamp;
};

/*
 * Connects to all donors.  options->error says more than -EINVAL, an option is wrong, and the
 * errors of ebbfar_open() (3): such as -EUSERS, the space has 256 handles, those included whose
 * processes were killed within the donors' grace period.  The handle does not refer to *@options.
 */
EBBDSM_API int ebbdsm_open(struct ebbdsm_options *options, ebbdsm_t **dsm)
	EBBDSM_NONNULL(1, 2) EBBDSM_CHANGES(1) EBBDSM_SETS(2);

/*
 * Leaves the space: this process's boxes are lost, its borrows end, and copies are freed.  Waits
 * for donors as ebbfar_close() does.  In a child of fork(2) it frees the child's copy of the
 * handle, and the parent goes on.  NULL is fine.
 */
EBBDSM_API void ebbdsm_close(ebbdsm_t *dsm);

/*
 * Returns why a donor cannot be used any more, "THING: CAUSE; REMEDY", or "".  Valid until close.
 */
EBBDSM_API const char *ebbdsm_why(const ebbdsm_t *dsm) EBBDSM_NONNULL(1);

/* --- boxes -------------------------------------------------------------------------------- */

/*
 * Makes a box of @size bytes: a copy of @content, or zeros if that is NULL.  *@box was zero.
 * -EINVAL: the size.  Over TCP: one round trip, and some more for each 64 KiB of boxes.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_new(ebbdsm_t *dsm, const void *content, size_t size,
					 struct ebbdsm_box *box)
	EBBDSM_NONNULL(1, 4) EBBDSM_CHANGES(4);

/* Returns the size of the box's object, or 0 if the box is not this process's. */
EBBDSM_API size_t ebbdsm_size(ebbdsm_t *dsm, const struct ebbdsm_box *box)
	EBBDSM_NONNULL(1, 2);

/* Ends a shared borrow.  @content is the pointer of ebbdsm_borrow(), not valid after that. */
EBBDSM_API int ebbdsm_return(ebbdsm_t *dsm, struct ebbdsm_box *box, const void *content)
	EBBDSM_RETURNS_SHARED(box) EBBDSM_NONNULL(1, 2, 3);

/*
 * Borrows the box for reading.  The content does not change until ebbdsm_return().  Its alignment
 * is 16.  Over TCP it is a copy, in the cache or by one round trip.
 */
EBBDSM_API EBBDSM_ENDED_BY(ebbdsm_return) const void *ebbdsm_borrow(ebbdsm_t *dsm,
								    struct ebbdsm_box *box)
	EBBDSM_SHARES(box) EBBDSM_NONNULL(1, 2);

/*
 * Ends a mutable borrow, also if it fails, unless by -EINVAL or -ESTALE: @content is not that of a
 * borrow of this box.  The box has a new stamp: views from before are old.  Over TCP: one round
 * trip, and the change is not to be relied on after -EIO.
 */
EBBDSM_API int ebbdsm_return_mut(ebbdsm_t *dsm, struct ebbdsm_box *box, void *content)
	EBBDSM_RETURNS(box) EBBDSM_NONNULL(1, 2, 3);

/* Borrows the box for reading and writing.  Over TCP as ebbdsm_borrow(). */
EBBDSM_API EBBDSM_ENDED_BY(ebbdsm_return_mut) void *ebbdsm_borrow_mut(ebbdsm_t *dsm,
								      struct ebbdsm_box *box)
	EBBDSM_EXCLUDES(box) EBBDSM_NONNULL(1, 2);

/* Ends the object's life.  *@box becomes zero.  A zero box is fine. */
EBBDSM_API int ebbdsm_drop(ebbdsm_t *dsm, struct ebbdsm_box *box) EBBDSM_UNBORROWED(box)
	EBBDSM_NONNULL(1, 2);

/* Moves a box within the process: *@from becomes zero. */
static inline void ebbdsm_move(struct ebbdsm_box *to, struct ebbdsm_box *from)
{
	to->at = from->at;
	to->stamp = from->stamp;
	from->at = from->stamp = 0;
}

/* --- readers ------------------------------------------------------------------------------ */

/* Returns the name of the box's value.  Not during a mutable borrow: that value is over. */
static inline struct ebbdsm_view ebbdsm_lend(const struct ebbdsm_box *box)
{
	struct ebbdsm_view v;

	v.at = box->at;
	v.stamp = box->stamp;
	return v;
}

/* Ends the borrow of a view. */
EBBDSM_API int ebbdsm_return_view(ebbdsm_t *dsm, const struct ebbdsm_view *view,
				  const void *content) EBBDSM_NONNULL(1, 2, 3);

/*
 * Borrows a value for reading, in any process of the space.  *@size, unless @size is NULL, is its
 * size; the alignment is 16.  A copy in the cache: no message; else one round trip if the value
 * lies at a donor over TCP.  A copy without borrows stays in the cache until its budget is needed
 * for others, the one used least recently first.  -EBUSY: the copy has 2^32 - 1 borrows.
 */
EBBDSM_API EBBDSM_ENDED_BY(ebbdsm_return_view) const void *
ebbdsm_borrow_view(ebbdsm_t *dsm, const struct ebbdsm_view *view, size_t *size)
	EBBDSM_NONNULL(1, 2) EBBDSM_SETS(3);

/* --- loans -------------------------------------------------------------------------------- */

/*
 * Makes a loan of the box for one borrower.  Until ebbdsm_reclaim() the box cannot be used here;
 * views of its value stay valid.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_lend_mut(ebbdsm_t *dsm, struct ebbdsm_box *box,
					      struct ebbdsm_loan *loan) EBBDSM_UNBORROWED(box)
	EBBDSM_NONNULL(1, 2, 3) EBBDSM_SETS(3);

/*
 * Ends the borrow of a loan, also if it fails, unless by -EINVAL: @content is not that of a borrow
 * of this loan.  The owner has the new content when it reclaims the box.  One round trip if the
 * owner's memory is over TCP, else none.  -EOWNERDEAD: the object is lost with its owner.
 */
EBBDSM_API int ebbdsm_return_loan(ebbdsm_t *dsm, const struct ebbdsm_loan *loan, void *content)
	EBBDSM_RETURNS(loan) EBBDSM_NONNULL(1, 2, 3);

/*
 * Borrows what a loan names, for reading and writing: the object moves to this process's home.  One
 * round trip if the owner's memory is over TCP.  -ESTALE: another process has borrowed it, or the
 * owner has reclaimed the box.
 */
EBBDSM_API EBBDSM_ENDED_BY(ebbdsm_return_loan) void *
ebbdsm_borrow_loan(ebbdsm_t *dsm, const struct ebbdsm_loan *loan, size_t *size)
	EBBDSM_EXCLUDES(loan) EBBDSM_NONNULL(1, 2) EBBDSM_SETS(3);

/*
 * Gets a box back that was lent by ebbdsm_lend_mut() or given by ebbdsm_give().  0: the box can be
 * used again, with the borrower's changes if it was borrowed; -EBUSY: the borrower has it, try
 * again when it says that it has returned it; -EOWNERDEAD: the borrower is dead, and the box can be
 * used again, as it was before; -ESTALE: the parcel was accepted, and the box is no more.  One
 * round trip if the borrower's memory is over TCP.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_reclaim(ebbdsm_t *dsm, struct ebbdsm_box *box)
	EBBDSM_UNBORROWED(box) EBBDSM_NONNULL(1, 2);

/* --- parcels ------------------------------------------------------------------------------ */

/*
 * Offers the box to one receiver.  The box cannot be used here any more, except that
 * ebbdsm_reclaim() withdraws what was not accepted.  If the box is forgotten, ebbdsm_settle() frees
 * its memory when the parcel has been accepted.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_give(ebbdsm_t *dsm, struct ebbdsm_box *box,
					  struct ebbdsm_parcel *parcel) EBBDSM_UNBORROWED(box)
	EBBDSM_NONNULL(1, 2, 3) EBBDSM_SETS(3);

/*
 * Accepts a parcel: the object moves to this process's home, and *@box, which was zero, owns it.
 * One round trip if the giver's memory is over TCP, and one if the home is.  -ESTALE: accepted by
 * another, or withdrawn; -EOWNERDEAD: the giver has died before.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_accept(ebbdsm_t *dsm, const struct ebbdsm_parcel *parcel,
					    struct ebbdsm_box *box)
	EBBDSM_UNBORROWED(box) EBBDSM_NONNULL(1, 2, 3) EBBDSM_CHANGES(3);

/*
 * Frees the places of objects that others have taken, and keeps connections up.  Call it every few
 * seconds; without a mapped home, one round trip for each parcel and return that is pending.  -EIO:
 * a donor has exited; what is at others is freed nevertheless.
 */
EBBDSM_API int ebbdsm_settle(ebbdsm_t *dsm) EBBDSM_NONNULL(1);

/* --- counts ------------------------------------------------------------------------------- */

/* Zero it, set .size to its size.  Since ebbdsm_open().  Later releases add fields at the end. */
struct ebbdsm_counts {
	size_t size;
	uint64_t hits, misses; /* of borrows that need a copy */
	uint64_t round_trips;  /* waits for a donor over TCP, without libebbfar's allocations */
	uint64_t requests;     /* sent to donors over TCP and waited for */
	uint64_t posted;       /* ... and not waited for */
	uint64_t cached;       /* bytes in the cache now */
	uint64_t places;       /* of this process's objects, at all donors, now */
	uint64_t at_twins;     /* values that were read at twins */
	uint64_t lost;         /* ... that were looked for there, and are lost */
	uint64_t bare;         /* bytes of this process's memory that has no twin now */
};

EBBDSM_API void ebbdsm_count(ebbdsm_t *dsm, struct ebbdsm_counts *counts) EBBDSM_NONNULL(1, 2)
	EBBDSM_CHANGES(2);

/* Atomics, mutexes, channels, shared ownership, groups. */
#include "ebbdsm_sync.h"

#ifdef __cplusplus
}
#endif

#include "ebbdsm_task.h"

#endif
