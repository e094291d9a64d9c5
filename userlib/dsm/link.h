/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* A donor of the space: verbs of dsm_step.h as batches of libebbfar, and this member's claims. */
#ifndef EBBDSM_LINK_H
#define EBBDSM_LINK_H

#include <pthread.h>

#include "bell.h"
#include "dsm_step.h"
#include "name.h"

/* Claims of an extent; extents at most: as many claims as all members of a pool have tasks. */
#define LINK_CLAIMS (NAME_CLAIMS / (uint32_t)sizeof(struct dsm_record))
#define LINK_CLAIM_EXTENTS EBBFAR_MEMBERS

struct ebbdsm_options;
struct post;

struct link_claims {
	struct link_claims *next;
	struct ebbfar_extent x;
	uint64_t used[LINK_CLAIMS / 64];
};

struct link {
	ebbfar_t *far;
	bool maps;
	uint32_t number, donors; /* index of this donor; how many there are */
	uint32_t member;         /* this process's number there */
	pthread_mutex_t lock;    /* of batches, and what follows */
	struct link_claims *claims;
	uint32_t claim_extents;
	uint32_t posted;         /* requests that are not complete */
	struct post *later;      /* of link_later(), the last one first; atomic */
	uint64_t round_trips, requests, posts;
	struct bell bell;
};

/* What a verb reads to, or fills from: a header and the content. */
struct content {
	struct dsm_head head;
	uint8_t bytes[];
};

/* Opens the pool of donor @number.  Returns 0 or -errno with options->error. */
int link_open(struct link *l, struct ebbdsm_options *options, uint32_t number);
void link_close(struct link *l);
/* Makes the locks of a link: by link_open(), and again in a child of fork(2). */
void link_begin(struct link *l);

/* Returns whether the donor cannot be used any more, as far as this process knows. */
bool link_is_lost(const struct link *l);

/* Returns the error of the interface for one of libebbfar. */
int link_error(int error);

/*
 * Executes @op to its end.  @content has room for what is to be read of op->at.  Returns
 * op->result, or -EIO, -EINVAL, -ENOMEM, -ECHILD: then parts of it may not have taken effect.
 */
int link_run(struct link *l, struct dsm_op *op, struct content *content);

/* ... at @x, the extent of a twin of the place's extent, which this donor has. */
int link_run_at(struct link *l, struct dsm_op *op, struct content *content,
		const struct ebbfar_extent *x);

/* Writes @bytes of @from to place @at, which is this member's, at the donor, as one round trip. */
int link_write(struct link *l, uint64_t at, const struct content *from, size_t bytes);

/* Writes zeros to an extent, before all that follows, without waiting. */
int link_zero(struct link *l, const struct ebbfar_extent *x, uint32_t offset, size_t bytes);

/* ... bytes that the function copies; -ENOMEM. */
int link_post(struct link *l, const struct ebbfar_extent *x, uint32_t offset, const void *from,
	      size_t bytes);

/*
 * Posts a request, of link_post() or EBBFAR_FREE, for link_flush(), before all that is submitted
 * later: never waits, for a donor or for another thread.  -ENOMEM.
 */
int link_later(struct link *l, uint32_t op, const struct ebbfar_extent *x, uint32_t offset,
	       const void *from, size_t bytes);
/* Sends what link_later() has posted. */
void link_flush(struct link *l);

/* Returns 1 if @member has the extent under that name, 0 or -errno. */
int link_has(struct link *l, uint32_t member, const struct ebbfar_extent *x);

/* Frees an extent, without waiting. */
void link_free(struct link *l, const struct ebbfar_extent *x);

/*
 * Tells the giver that what was taken with @claim is copied, without waiting; releases the claim.
 */
void link_finish(struct link *l, uint64_t at, uint64_t claim);

/* Returns whether the owner of place @at is alive, and has the extent that a stamp of its named. */
enum link_owner { LINK_DEAD, LINK_ALIVE, LINK_OWNS };
int link_owner(struct link *l, uint64_t at, uint64_t stamp, enum link_owner *owner);

/*
 * Sets *@claim to one, and *@generation to that of its extent.  -ENOSPC, -ENOMEM, -EIO; -ENOBUFS:
 * all are in use.
 */
int link_claim(struct link *l, uint64_t *claim, uint64_t *generation);
/* Returns the generation of the extent of a claim of this member. */
uint64_t link_claim_generation(struct link *l, uint64_t claim);
/* The claim can be used again: the record is cleared. */
void link_unclaim(struct link *l, uint64_t claim);

/* Submits @n requests and waits for them, as one round trip.  Errors are those of libebbfar. */
int link_submit(struct link *l, struct ebbfar_request *q, uint32_t n);

/* Sends a word to a member; errors are those of libebbfar. */
int link_notify(struct link *l, uint32_t member);

/* Wakes what waits in this process for words of the donor; errors are those of libebbfar. */
int link_ring(struct link *l);

/* Returns 1 if the member of @claim has the extent of its claims as @generation, 0, or -errno. */
int link_claim_lives(struct link *l, uint64_t claim, uint64_t generation);

/* Completes what was posted, as far as it is; notices that the donor has exited. */
int link_settle(struct link *l);

#endif
