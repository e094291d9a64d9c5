/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * What EBBDSM_CHECK asks for: the borrows that are not returned, and a sum of each value's content
 * by its name.  A name is one value for ever, so that two sums of one name are a change without a
 * mutable borrow, or a torn read.
 *
 * With the handle's lock held, but check_new() and check_free().  A NULL check does nothing.
 */
#ifndef EBBDSM_CHECK_H
#define EBBDSM_CHECK_H

#include <stddef.h>
#include <stdint.h>

struct check;

enum check_kind { CHECK_SHARED, CHECK_MUTABLE, CHECK_VIEW, CHECK_LOAN };

/* Sets *@check to what the environment asks for, NULL if that is nothing.  0 or -ENOMEM. */
int check_new(struct check **check);
/* Reports borrows that are left. */
void check_free(struct check *c);

/* The address of the program's call of a function of the interface. */
#define CHECK_CALLER __builtin_return_address(0)

/* The content of the value named @at, @stamp, which is not borrowed mutably. */
void check_value(struct check *c, uint64_t at, uint64_t stamp, const void *content, size_t size);

/* A borrow begins.  Without memory, it is not recorded. */
void check_borrow(struct check *c, enum check_kind kind, uint64_t at, uint64_t stamp,
		  const void *content, size_t size, const void *caller);

/*
 * A call ends the borrow of @content, if it is one of that name.  Before the library does: then the
 * content is there.
 */
void check_return(struct check *c, enum check_kind kind, uint64_t at, uint64_t stamp,
		  const void *content, const void *caller);

/* A call uses a box that is not this process's, @at and @stamp, as a call for its owner. */
void check_stale(struct check *c, uint64_t at, uint64_t stamp, const void *caller);

/* Two reads of the value named @at, @stamp, both valid. */
void check_torn(struct check *c, uint64_t at, uint64_t stamp, const void *first,
		const void *second, size_t size);

#endif
