/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Tells which pages of shared memory are in swap.  Page tables do not: a BPF program looks into the
 * kernel's page cache (bpf/shared.bpf.h), for all pages in one call.  Belongs to the executor's
 * thread.
 */
#ifndef EBB_SHARED_H
#define EBB_SHARED_H

#include <stdint.h>

#include <ebb/abi.h>

#include "ebbd/plane/plane.h"
#include "program.h"

struct shared_pages {
	struct ebb_look *look;   /* mapped: the question, and the answer */
	struct program program;  /* look_shared() */
};

struct shared_pages shared_pages_of(struct plane *p);

/* Begins a question without pages. */
void shared_pages_begin(struct shared_pages *s);
/* Adds page @index of @file, as in struct ebb_memory; at most EBB_BATCH_MAX. */
void shared_pages_add(struct shared_pages *s, uint64_t file, uint64_t index);
/*
 * Returns for each page, in the sequence of the question, type and slot of the swap that it is in,
 * or type EBB_LOOK_NOT_SWAPPED, also where that cannot be told.
 */
const struct ebb_look *shared_pages_answer(struct shared_pages *s);

#endif
