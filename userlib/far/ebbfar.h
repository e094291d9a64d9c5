/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * ebbfar: memory of an ebb-donord (8) that programs allocate, address and share.
 *
 * A pool has a name at its donor and belongs to the key of the program that created it, at a unix
 * socket to no key.  It stays until it is destroyed or the donor exits.  Each handle is a member of
 * its pool.  Members allocate extents, of 4 KiB to 2 MiB, each by one compare-and-swap of a word
 * that holds its owner, after FineMem (Wang et al., OSDI 2025) without its bitmaps and logs.  When
 * a member closes the pool, exits or is lost, the donor finds its extents by these words and frees
 * them.
 *
 * At a unix socket the donor's memory is mapped: all but opening, adding memory and messages is
 * done here, by the processor's atomics.  Over TCP the donor executes each operation: one round
 * trip, or a few for an allocation that finds most memory used.
 *
 * An extent's name says where it is and which allocation it is; no other allocation ever has the
 * same name.  Send a name, and the number of its owner, to another member by a channel of your own,
 * or store it in an extent; the other member takes the extent (ebbfar_take()) or, in a shared pool,
 * accesses it.  New extents hold anything: they are not zeroed.
 *
 * Conventions.  Sizes and places are in bytes.  Functions return 0 or a negative errno unless
 * noted; on failure they leave outputs unchanged, except the buffer of ebbfar_read().  Errors of
 * every function with a handle:
 *
 *	-ESHUTDOWN  the member is fenced (the donor takes no more requests from it, and frees its
 *		    extents), or the donor has restarted or exited
 *	-ETIMEDOUT  the donor could not be reached or did not reply within timeout_ms and then
 *		    resume_ms: it is unknown whether this call's operation took effect
 *	-EPROTO     the donor broke the protocol: as -ETIMEDOUT
 *	-ECHILD     the handle is that of the process before fork(2)
 *	-EINVAL     the pool cannot have an extent of that name, or the extent no such offset
 *	-EACCES     over TCP: the memory belongs to another member, or is free
 *	-ENOMEM, -EMFILE  memory of the pool cannot be mapped here: a limit of this process or
 *		    machine is reached
 *	-ESRCH      memory of the pool cannot be mapped: the donor cannot watch this process, such
 *		    as one of another PID namespace before Linux 6.5; connect over TCP
 *
 * After the first three, all later calls but accesses of mapped memory return that error, and
 * ebbfar_why() says the reason; close the handle, and open the pool again as a new member.
 * Allocations and accesses of mapped memory do not use the connection, and so do not notice its
 * end: ebbfar_wait() does, also with a wait of 0.  After that, allocations fail, and accesses go
 * on.  When the donor has exited, they reach memory that no new member shares.
 *
 * Reconnection.  A connection that is cut, or on which the donor is silent for timeout_ms while a
 * call waits, is made again by that call or the next one.  If the donor has not fenced the member
 * meanwhile, all goes on: what was in flight takes effect exactly once, in its order, and the call
 * returns its result.  A call lasts at most 2 * timeout_ms + resume_ms, or 8 * timeout_ms from
 * reply to reply while bytes move; in addition, it waits for calls of other threads.
 *
 * The donor fences a member that is away for longer than its grace period (ebb-donord --keep,
 * 30 s); one that has exited without ebbfar_close() is away, too.  A member that has mapped memory
 * is fenced when its process exits, because a mapping cannot be revoked.  If its handle has failed,
 * the donor does not hear of ebbfar_close(): its extents stay until the process exits.  The library
 * has no thread, and connects again in calls alone: a program that makes no call for longer than
 * the grace period can be fenced after a short cut.  ebbfar_wait() with a wait of 0 prevents that.
 *
 * Names are checked when an extent is freed, taken or withdrawn, and by ebbfar_check().  An access
 * checks only that the place can be an extent, and over TCP that its owner is this member: a name
 * of an extent that has been freed accesses the extent that is there now.
 *
 * Threads.  Any thread may use a handle; operations other than accesses of mapped memory wait for
 * each other, but not for ebbfar_wait().  Call ebbfar_close() when all other calls have returned.
 * Do not cancel a thread in a call.  Aligned words of 8 bytes are read and written atomically,
 * nothing larger is.  A thread's calls take effect in their order, but in mapped memory
 * ebbfar_read() may overtake an ebbfar_write() before it: ebbfar_cas(), ebbfar_add() and messages
 * keep their places.  Order between members comes from these.  Accesses by a pointer of
 * ebbfar_map() have the order that the processor gives them.
 *
 * Signals and processes.  A signal handler must not call the library.  Calls go on after a signal:
 * none returns -EINTR, and none raises SIGPIPE.  After fork(2) the child has no mapping, and its
 * calls with the handle return -ECHILD; the child opens the pool itself.  Until it calls
 * ebbfar_close() or execve(2), it keeps the parent's connection open, so that over TCP the donor
 * does not notice the parent's exit.  A member closes its handles before it calls execve(2): else
 * the extents of a process that has mapped memory stay until that process exits.
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
	EBBFAR_SHARED = 2,
	/* The end of the connection fences this member at once: it does not return. */
	EBBFAR_NO_RESUME = 4,
	/* For heaps (ebbfar_heap_new()).  -EOPNOTSUPP: the donor has no --far-jobs. */
	EBBFAR_JOBS = 8
};

/* Zero it, set what is needed.  Later releases add fields at the end. */
struct ebbfar_options {
	size_t size;          /* sizeof(struct ebbfar_options) */
	const char *donor;    /* "HOST:PORT" or "unix:/PATH" */
	const char *key;      /* key file, which a donor with keys requires over TCP; else NULL.  No
			       * effect at a unix socket: there pools belong to no key */
	const char *pool;     /* 1 to 31 printable characters without blanks */
	unsigned flags;
	unsigned timeout_ms;  /* longest silence of the donor while a call waits; 0 = 10 s */
	char error[512];      /* set on failure: "THING: CAUSE; REMEDY" */
	/* How long a call tries to connect again, at most 300 s; 0 = the donor's grace period. */
	unsigned resume_ms;
};

/*
 * Connects to the donor and joins the pool.  options->error says more than these: -ENOENT: no such
 * pool, socket or key file; -EEXIST: with CREATE, it exists and is shared where that was not asked
 * for, or the other way round; -ENOSPC: with CREATE, the key has 16 pools, or the donor 64;
 * -EUSERS: the pool has 256 members; -EOPNOTSUPP: the donor has no far memory; -EPROTONOSUPPORT: it
 * closed the connection, because it is too old or has too many (256; --peer-connections and
 * --key-connections of ebb-donord); -EACCES: the key was refused; -EPERM: the process at the unix
 * socket is another user's; -EINVAL: an option is wrong, or a later release's; -ENOMEM; other errno
 * of sockets.  The handle does not refer to *@options.
 */
EBBFAR_API int ebbfar_open(struct ebbfar_options *options, ebbfar_t **far);

/*
 * Leaves the pool and frees the handle.  The donor frees the extents that this member has.  Mapped
 * memory is unmapped: no pointer of ebbfar_map() may be used after that.  Waits up to timeout_ms
 * for the donor's reply, and as long for a cut connection.  In a child of fork(2), frees the
 * child's handle alone.  NULL is fine.
 */
EBBFAR_API void ebbfar_close(ebbfar_t *far);

/*
 * Destroys a pool: its memory returns to the donor, which zeroes it or makes it again before other
 * pools can have it.  -EBUSY: it has members, or the donor is still freeing the extents of one;
 * others as ebbfar_open().  Flags have no effect.
 */
EBBFAR_API int ebbfar_destroy(struct ebbfar_options *options);

/*
 * Returns this member's number, 1 to 256, which no other member has at the same time.  A later
 * member may have it when the donor has freed this one's extents.
 */
EBBFAR_API uint32_t ebbfar_member(const ebbfar_t *far);

/* Is the donor's memory mapped, so that reads and writes are copies?  Any thread. */
EBBFAR_API int ebbfar_maps(const ebbfar_t *far);

/*
 * Returns why all calls fail, as "THING: CAUSE; REMEDY", or "" while the handle can be used.  The
 * text stays until ebbfar_close(); it tells a fence from a donor that has restarted.  Does not wait
 * for other calls.
 */
EBBFAR_API const char *ebbfar_why(const ebbfar_t *far);

/* --- extents ------------------------------------------------------------------------------ */

/* A name.  Plain data without pointers: may be sent, and stored in extents. */
struct ebbfar_extent {
	uint64_t place;      /* in the pool, a multiple of the size */
	uint64_t size;       /* a power of two */
	uint64_t generation; /* which allocation of that place */
};

/*
 * Allocates @size bytes, rounded up to a power of two from EBBFAR_EXTENT_LEAST on.  -EINVAL: @size
 * is 0 or above EBBFAR_EXTENT_MOST; -ENOSPC: the pool's memory and the donor's --far or --quota are
 * used up, or the pool has 4096 slabs of the donor.  -EAGAIN: other members were faster each time,
 * try again.
 *
 * Before -ENOSPC the library looks at all of the pool: over TCP a few round trips for each slab of
 * the donor, and then, for empty memory that no hint shows, one or more for each 2 MiB.  If that
 * search takes longer than 200 ms and finds nothing, the next one is made after ten times as long.
 */
EBBFAR_API int ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *extent);

/*
 * Frees an extent of this member.  -ESTALE: it is not this member's, such as after a first free.
 * With mapped memory, the member keeps up to 64 KiB of freed extents of each size up to 64 KiB for
 * its next allocations; others cannot allocate those.
 */
EBBFAR_API int ebbfar_free(ebbfar_t *far, const struct ebbfar_extent *extent);

/*
 * Hand-over.  The owner sends the name to another member, which takes the extent: it then has it
 * under the new name that is stored in *@extent.  @owner is the sender's number (ebbfar_member()).
 * The owner frees the old name if that member reports failure or is dead (-ESTALE then says that it
 * has been taken).  -ESTALE: freed, withdrawn or taken, or the owner is dead and the donor has
 * freed it; -EINVAL: @owner is this member, or no number of a member.
 */
EBBFAR_API int ebbfar_take(ebbfar_t *far, uint32_t owner, struct ebbfar_extent *extent);

/*
 * Gives an extent of this member a new name, so that the old one cannot be taken.  -ESTALE: it has
 * been taken or freed.
 */
EBBFAR_API int ebbfar_withdraw(ebbfar_t *far, struct ebbfar_extent *extent);

/*
 * Returns 0 if member @owner has the extent under this name now; -ESTALE: it is freed, taken or
 * withdrawn, or the owner is dead and the donor has freed it.  After a read of another member's
 * extent, 0 says that all of what was read was the extent's.  Over TCP: one round trip.
 */
EBBFAR_API int ebbfar_check(ebbfar_t *far, uint32_t owner, const struct ebbfar_extent *extent);

/* --- access ------------------------------------------------------------------------------- */

/*
 * Copy @size bytes at @offset of an extent; 0 bytes are fine.  When a call fails, some of them may
 * have been copied.
 */
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
 * Sets *@memory to the extent's memory.  The pointer may be used until the extent is freed: after
 * that another extent is there, and after ebbfar_close() no memory.  -EOPNOTSUPP over TCP.
 */
EBBFAR_API int ebbfar_map(ebbfar_t *far, const struct ebbfar_extent *extent, void **memory);

/* --- batches ------------------------------------------------------------------------------ */

enum {
	EBBFAR_READ = 1, /* .extent, .offset, .memory, .size */
	EBBFAR_WRITE,
	EBBFAR_CAS,      /* .extent, .offset, .expect, .desired; sets .old */
	EBBFAR_ADD,      /* .extent, .offset, .desired, which is added; sets .old */
	EBBFAR_ALLOC,    /* .size; sets .extent */
	EBBFAR_FREE      /* .extent */
};

/* Zero it, set what is needed.  Its layout stays as it is. */
struct ebbfar_request {
	uint32_t op;
	int result;                  /* 0 or a negative errno, as of the function */
	struct ebbfar_extent extent;
	uint64_t offset;
	void *memory;                /* WRITE only reads it */
	size_t size;
	uint64_t expect, desired, old;
	void *data;                  /* the program's */
	/* Of the library, until completion. */
	ebbfar_t *far;
	struct ebbfar_request *next;
	uint32_t parts, unused;
};

/*
 * Submits @n requests, and does not wait for the donor, except while other calls do.  The requests
 * and their memory are the library's until ebbfar_complete() has returned them, or ebbfar_close()
 * has returned.  Any number may be submitted.  -EINVAL: a request has no such operation, and
 * none is submitted.  Other errors are results.  Call ebbfar_complete() within seconds: a donor
 * whose replies are not received for 10 s cuts the connection, and its grace period begins.
 *
 * Order.  Requests of a handle take effect in the order of submission, with one exception: after a
 * connection was cut, a READ may also see changes that were submitted after it and before its
 * completion.  A request that fails does not stop others.  Other calls may overtake requests: they
 * do not wait for those that are not sent yet.
 */
EBBFAR_API int ebbfar_submit(ebbfar_t *far, struct ebbfar_request *requests, size_t n);

/*
 * Waits up to @timeout_ms, -1 = without limit, for the completion of a request, and sets *@request
 * to it; it is the program's again.  Executes ALLOC and FREE of this handle, and looks up memory
 * that its other requests name and the handle does not know yet: both wait for the donor, also with
 * @timeout_ms 0, for as long as a call may last.
 * Several threads may wait: each gets other requests.  -EAGAIN: none is complete; -ENOENT: none is
 * submitted.  When the handle fails for good, all requests complete with that error.
 */
EBBFAR_API int ebbfar_complete(ebbfar_t *far, int timeout_ms, struct ebbfar_request **request);

/* --- small objects ------------------------------------------------------------------------ */

#define EBBFAR_SMALL_MOST 4095u

/*
 * A name of an object, which no other object of the pool ever has.  Access the object by its extent
 * and offset: ebbfar_write(far, &object.extent, object.offset, ...), or the pointer of ebbfar_map()
 * plus .offset.  Do not access what is beside it.
 */
struct ebbfar_object {
	struct ebbfar_extent extent; /* of 64 KiB; other objects are there, too */
	uint32_t offset;             /* a multiple of 16 */
	uint32_t stamp;
};

/*
 * Allocates an object of @size bytes, 1 to EBBFAR_SMALL_MOST, else -EINVAL; it is not zeroed.
 * Sizes are 16, 32, 48, 64, 80, 96, 112, 128, 160, 192 and so on: above 64 bytes, less than a fifth
 * of an object is unused.  Objects whose size is a power of two have places that are multiples of
 * it.
 *
 * The library divides extents of 64 KiB, each for objects of one size, and remembers in this
 * process what is in use: 1 KiB, and 2 bytes for each object that fits, of each extent.  So
 * allocating and freeing take no round trip, except to add an extent or to free an empty one.  One
 * empty extent is kept, and freed when the pool is full.
 *
 * -ENOSPC, -EAGAIN: as ebbfar_alloc(); -ENOMEM: this process has no memory.
 */
EBBFAR_API int ebbfar_small_alloc(ebbfar_t *far, size_t size, struct ebbfar_object *object);

/*
 * Frees an object that this handle has allocated; only it can.  A member that is done with another
 * one's object tells the owner, such as by ebbfar_notify().  When the owner closes the pool, exits
 * or is fenced, its objects are freed with their extents.
 *
 * -ESTALE: it is not allocated by this handle, or freed already; -EINVAL: a name that was changed.
 * ebbfar_free() and ebbfar_withdraw() of an object's extent return -EBUSY; other members must not
 * take it.
 */
EBBFAR_API int ebbfar_small_free(ebbfar_t *far, const struct ebbfar_object *object);

/* --- heaps: objects that donors trace ------------------------------------------------------- */

/*
 * A garbage-collected heap whose far objects lie in extents of one or more pools.  The donors mark
 * what lives there, by the layouts of its types as data, so that the program reads nothing; they
 * run no code of the program.  A program that frees what has no mark trusts the donors.
 *
 * The heap's addresses are divided into regions of 64 KiB, and a region into slots of one size, a
 * multiple of 16 bytes up to 8192.  An extent has a region's slots that are in use, in their order,
 * each with a header of 8 bytes, whose lower half is the object's type, and the object.  A granule
 * is 16 bytes of a region; an object is named by that where its slot begins.
 *
 * A cycle: ebbfar_heap_region() for all regions in the pools; then ebbfar_heap_push() and
 * ebbfar_heap_trace(), as often as there is more; ebbfar_heap_end().  From the first
 * ebbfar_heap_region() on no extent of these changes or is freed.  One thread at a time; calls of
 * the handles by other threads wait for a message and its reply.
 */
typedef struct ebbfar_heap ebbfar_heap_t;

#define EBBFAR_HEAP_POOLS 16u

/* Zero it, set what is needed.  Later releases add fields at the end. */
struct ebbfar_heap_options {
	size_t size;            /* sizeof(struct ebbfar_heap_options) */
	/* Handles of different donors, opened with EBBFAR_JOBS, for one heap each. */
	ebbfar_t *const *pools;
	unsigned count;
	uint64_t base;          /* address of region 0, a multiple of 64 KiB */
	uint64_t mask;          /* bits of a reference that are an address */
	uint32_t regions;       /* at most 2^24 */
	/*
	 * A live object in a pool refers to this object, which the donor of that one does not have;
	 * called once or more.  Returns 1 if its donor is to mark it: the region is one of the
	 * cycle's, and the object has not come back; else 0, and the program marks it; or a
	 * negative errno, with which the cycle fails: there can be no such reference.
	 */
	int (*found)(void *data, uint32_t region, uint32_t granule);
	/* By ebbfar_heap_end(), for each region: which slots live, and which of them are named. */
	void (*marks)(void *data, uint32_t region, const uint64_t *marks, const uint64_t *named);
	void *data;
	/*
	 * Asked about each ms that a call waits: returns whether it is to fail with -EAGAIN now,
	 * before its @wait_ms.  NULL: never.
	 */
	int (*late)(void *data);
};

/* References at offset, offset + stride, ...: bytes from the object's first one. */
struct ebbfar_run {
	uint32_t offset, stride;
	uint32_t count;         /* UINT32_MAX: one in each element */
};

#define EBBFAR_RUNS 8u

/* A type: a fixed part and, with a length field, as many elements. */
struct ebbfar_layout {
	uint32_t size;          /* bytes of the fixed part */
	uint32_t element_size;
	uint32_t length_offset, length_width; /* of the field: 4 or 8 bytes, 0 = none */
	uint64_t bitmap;        /* bit i: a reference at byte 8 * i of the fixed part */
	uint32_t runs;
	struct ebbfar_run run[EBBFAR_RUNS];
};

/* A region in a pool; what it points to stays until ebbfar_heap_end(). */
struct ebbfar_region {
	uint32_t region;
	uint32_t slot_bytes;
	unsigned pool;          /* number in options.pools */
	int leaf;               /* no object of it has references */
	struct ebbfar_extent extent;
	const uint64_t *live;   /* slots that are there, lowest bit first */
	/*
	 * 64 words: granules.  An object of .live whose granule is here has come back, or is dead;
	 * other bits say nothing.
	 */
	const uint64_t *gone;
};

/* Does not use the handles yet.  -EINVAL: an option is wrong; -ENOMEM. */
EBBFAR_API int ebbfar_heap_new(const struct ebbfar_heap_options *options, ebbfar_heap_t **heap);
/*
 * Before the handles are closed.  A cycle that has not ended is over without a message to the
 * donors.  NULL is fine.  In a child of fork() frees nothing: a thread of the parent may have been
 * changing it.
 */
EBBFAR_API void ebbfar_heap_free(ebbfar_heap_t *heap);
/* Describes type @type, below 2^16, before a cycle with such objects; it stays as it is. */
EBBFAR_API int ebbfar_heap_type(ebbfar_heap_t *heap, uint32_t type,
				const struct ebbfar_layout *layout);
/*
 * Before the first ebbfar_heap_region() of a cycle: the pool's donor has no part in it, and gets no
 * message.  So it is without this call if the handle has failed for good.
 */
EBBFAR_API int ebbfar_heap_leave_out(ebbfar_heap_t *heap, unsigned pool);
/* -ESHUTDOWN, -EINVAL: the donor has no part in the cycle. */
EBBFAR_API int ebbfar_heap_region(ebbfar_heap_t *heap, const struct ebbfar_region *region);
/* The objects of the region at granules 64 * @word + i of @bits are to be marked. */
EBBFAR_API int ebbfar_heap_push(ebbfar_heap_t *heap, uint32_t region, uint32_t word, uint64_t bits);

/*
 * Waits until the donors have traced all that was pushed and found.  The first call of a cycle also
 * tells them what has changed since the last one.  Donors that have no region of the cycle have no
 * part in it.  -EAGAIN: that takes longer than @wait_ms, or options.late says so; what a donor has
 * not replied to is left to its handle, whose next call waits for the reply, too.  All donors are
 * then told that the cycle is over, which takes up to the longest timeout_ms of the handles more if
 * other threads use them.  -EOPNOTSUPP: a handle without EBBFAR_JOBS; -ENOSPC: a donor's --far-jobs
 * is used up; -EINVAL: a layout or region is none; -EBADMSG: a donor has other objects than the
 * heap.  After a failure ebbfar_heap_end() is to be called, and all but 0 of that, too, says that
 * no mark may be used.
 */
EBBFAR_API int ebbfar_heap_trace(ebbfar_heap_t *heap, unsigned wait_ms);

/*
 * Ends the cycle.  With @commit, after ebbfar_heap_trace() without a failure, calls options.marks;
 * 0: each region's marks are here, and are of slots that it has.  -EAGAIN as above.  Else returns
 * -ECANCELED.
 */
EBBFAR_API int ebbfar_heap_end(ebbfar_heap_t *heap, int commit, unsigned wait_ms);

/*
 * In no cycle: has the donor copy slots of a region to a new extent of the pool, and nothing else:
 * those of @keep, which are some of region->live, behind one another.  The old extent stays as it
 * is; the program may read it meanwhile, and frees it.  It takes several calls to the donor.
 * -EAGAIN: the donor has it wait for longer than @wait_ms; that does not limit a call itself, which
 * lasts as long as any.  -ENOSPC: there is no memory, -EBADMSG, -EPROTO: the donor says what cannot
 * be; others as ebbfar_heap_trace().  When it fails, there is no new extent.
 */
EBBFAR_API int ebbfar_heap_evacuate(ebbfar_heap_t *heap, const struct ebbfar_region *region,
				    const uint64_t *keep, unsigned wait_ms,
				    struct ebbfar_extent *to);

/*
 * Returns, after ebbfar_heap_end(), bits of the pools whose donors the cycle has failed for: they
 * refused, were slow, or said what cannot be.  With @commit 0 after a call that used up its
 * @wait_ms, that is the one that was waited for longest.
 */
EBBFAR_API uint32_t ebbfar_heap_faults(const ebbfar_heap_t *heap);

/* --- messages ----------------------------------------------------------------------------- */

/*
 * Sends a word to a member: a doorbell, not a queue.  Of words that the donor has not passed on yet
 * the last one is received, of those that no ebbfar_wait() has returned the last 16.  -ESRCH: no
 * such member; one that is away counts, and receives the word if it returns.
 */
EBBFAR_API int ebbfar_notify(ebbfar_t *far, uint32_t member, uint64_t word);

/*
 * Waits up to @timeout_ms, -1 = without limit, for a word; *@member is its sender.  -EAGAIN: none
 * came.  Other errors, also with a wait of 0: the handle has failed for good.
 */
EBBFAR_API int ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word);

/* --- finding others ----------------------------------------------------------------------- */

#define EBBFAR_MEMBERS 256u

/*
 * Shows @word to all members, in the place of the last one, until this member closes the pool or is
 * lost: such as the place of an extent that describes it.  0 shows none, as at first.  -EACCES: the
 * donor is too old; -ENOSPC: it has no memory for the pool.
 */
EBBFAR_API int ebbfar_publish(ebbfar_t *far, uint64_t word);

/* Sets words[i] to what member i + 1 shows, 0 if it does not, or is none.  One round trip. */
EBBFAR_API int ebbfar_published(ebbfar_t *far, uint64_t words[EBBFAR_MEMBERS]);

/* Zero it, set .size to its size.  Later releases add fields at the end. */
struct ebbfar_memory {
	size_t size;
	uint64_t total;        /* bytes that the donor lends as far memory (--far) */
	uint64_t free;         /* ... and that this pool can have now: free, within the quota */
	uint64_t pool;         /* bytes that this pool has, in use or not */
	uint64_t memory, used; /* bytes of the donor's machine; 0 = it does not report them */
};

/* Asks the donor: one message and its reply, also with mapped memory. */
EBBFAR_API int ebbfar_room(ebbfar_t *far, struct ebbfar_memory *room);

#ifdef __cplusplus
}
#endif

#endif
