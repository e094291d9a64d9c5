/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * ebbfar: memory of an ebb-donord (8) that programs allocate, address and share.
 *
 * A pool has a name at its donor and belongs to the key of the program that created it.  A process
 * that opens a pool is a member of it.  Members allocate extents, of 4 KiB to 2 MiB, each by one
 * compare-and-swap of a word that holds its owner, after FineMem (Wang et al., OSDI 2025) without
 * its bitmaps and logs.  A member's extents are freed when it closes the pool, exits or is lost:
 * the donor reads the words.
 *
 * At a unix socket the donor's memory is mapped: all but opening and adding memory is done here, by
 * the processor's atomics.  Over TCP the donor executes each operation: one round trip.
 *
 * An extent's name says where it is and which allocation it is; no other allocation ever has the
 * same name.  Send a name to another member to hand the extent over (ebbfar_take()) or, in a shared
 * pool, to let it access the extent.  New extents hold anything: they are not zeroed.
 *
 * Conventions.  Sizes and places are in bytes.  Functions return 0 or a negative errno unless
 * noted; on failure they leave outputs unchanged.  Errors of every function with a handle:
 *
 *	-ESHUTDOWN  the connection has ended: the donor frees the member's extents
 *	-ETIMEDOUT  no reply within the timeout: the connection ends, and it is unknown whether the
 *		    operation took effect
 *	-EPROTO     the donor broke the protocol: the connection ends
 *	-ECHILD     the handle is that of the process before fork(2)
 *	-EINVAL     an extent, place or size that cannot be
 *	-EACCES     over TCP: the memory belongs to another member, or is free
 *
 * Threads.  Any thread may use a handle; operations other than accesses of mapped memory wait for
 * each other.  Aligned words of 8 bytes are read and written at once, nothing larger is: order
 * between members comes from ebbfar_cas(), ebbfar_add() and messages.
 *
 * Trust.  Members of a pool trust each other and the donor.  Over TCP the donor refuses accesses to
 * the extents of others, unless the pool is shared; it cannot refuse those of a mapping.
 */
#ifndef EBBFAR_H
#define EBBFAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EBBFAR_API __attribute__((visibility("default")))

#define EBBFAR_EXTENT_LEAST 4096u
#define EBBFAR_EXTENT_MOST (2u << 20)

/* This process's membership of a pool. */
typedef struct ebbfar ebbfar_t;

enum {
	EBBFAR_CREATE = 1, /* create the pool if there is none of that name */
	/* With CREATE: members may access the extents of others. */
	EBBFAR_SHARED = 2
};

/* Zero it, set what is needed. */
struct ebbfar_options {
	size_t size;          /* sizeof(struct ebbfar_options) */
	const char *donor;    /* "HOST:PORT" or "unix:/PATH" */
	const char *key;      /* key file, which a donor with keys requires over TCP; else NULL */
	const char *pool;     /* 1 to 31 printable characters without blanks */
	unsigned flags;
	unsigned timeout_ms;  /* for each reply; 0 = 10 s */
	char error[512];      /* set on failure: "THING: CAUSE; REMEDY" */
};

/*
 * Connects to the donor and joins the pool.  -ENOENT: no such pool; -EEXIST: with CREATE, it exists
 * and is shared where that was not asked for, or the other way round; -EUSERS: it has 256 members;
 * -EOPNOTSUPP: the donor has no far memory; -EACCES: the key was refused; other errno of sockets.
 */
EBBFAR_API int ebbfar_open(struct ebbfar_options *options, ebbfar_t **far);

/*
 * Leaves the pool and frees the handle.  The donor frees the extents that this member has.  Mapped
 * memory is unmapped.  NULL is fine.
 */
EBBFAR_API void ebbfar_close(ebbfar_t *far);

/*
 * Destroys a pool: its memory returns to the donor.  -EBUSY: it has members; others as
 * ebbfar_open().
 */
EBBFAR_API int ebbfar_destroy(struct ebbfar_options *options);

/* Returns this member's number, 1 to 256, which no other member has at the same time. */
EBBFAR_API uint32_t ebbfar_member(const ebbfar_t *far);

/* --- extents ------------------------------------------------------------------------------ */

/* A name.  Plain data: may be sent in messages, and stored in extents. */
struct ebbfar_extent {
	uint64_t place;      /* in the pool */
	uint64_t size;       /* a power of two */
	uint64_t generation; /* which allocation of that place */
};

/*
 * Allocates at least @size bytes, at most EBBFAR_EXTENT_MOST.  -ENOSPC: the pool's memory and the
 * donor's --far or --quota are used up; -EAGAIN: other members were faster each time.
 */
EBBFAR_API int ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *extent);

/* Frees an extent of this member.  -ESTALE: it is not this member's, such as after a first free. */
EBBFAR_API int ebbfar_free(ebbfar_t *far, const struct ebbfar_extent *extent);

/*
 * Hand-over.  The owner sends the name to another member, which takes the extent: it then has it
 * under the new name that is stored in *@extent.  The owner frees the old name if that member
 * reports failure or is dead (-ESTALE then says that it has been taken).  -ESTALE: freed, withdrawn
 * or taken by another member.
 */
EBBFAR_API int ebbfar_take(ebbfar_t *far, uint32_t owner, struct ebbfar_extent *extent);

/* Gives an extent of this member a new name, so that the old one cannot be taken. */
EBBFAR_API int ebbfar_withdraw(ebbfar_t *far, struct ebbfar_extent *extent);

/* --- access ------------------------------------------------------------------------------- */

/* Copy @size bytes at @offset of an extent. */
EBBFAR_API int ebbfar_read(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset,
			   void *to, size_t size);
EBBFAR_API int ebbfar_write(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset,
			    const void *from, size_t size);

/*
 * Compare the word at @offset, a multiple of 8, with @expect, and if it is equal replace it by
 * @desired; or add to it.  *@old is the word as it was.  Words are little-endian.
 */
EBBFAR_API int ebbfar_cas(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset,
			  uint64_t expect, uint64_t desired, uint64_t *old);
EBBFAR_API int ebbfar_add(ebbfar_t *far, const struct ebbfar_extent *extent, uint64_t offset,
			  uint64_t addend, uint64_t *old);

/*
 * Sets *@memory to the extent's memory, valid until ebbfar_close().  -EOPNOTSUPP over TCP.  A child
 * of fork(2) does not have the mapping.
 */
EBBFAR_API int ebbfar_map(ebbfar_t *far, const struct ebbfar_extent *extent, void **memory);

/* --- messages ----------------------------------------------------------------------------- */

/*
 * Sends a word to another member.  Of words that the donor has not passed on yet, the last one is
 * received.  -ESRCH: no such member.
 */
EBBFAR_API int ebbfar_notify(ebbfar_t *far, uint32_t member, uint64_t word);

/*
 * Waits up to @timeout_ms, -1 = without limit, for a word; *@member is its sender.  -EAGAIN: none
 * came.
 */
EBBFAR_API int ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word);

#ifdef __cplusplus
}
#endif

#endif
