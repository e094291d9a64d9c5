/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a borrower has survives its process (docs/protocol.md, "A successor").  The
 * connection of one that wants that (WIRE_KEEP) may end without a word: its loans
 * then keep their contents and their place in connections[] for options.keep.  Its
 * successor greets with the same number, and the same key where there are keys,
 * takes them over, and says which of them it knows.
 */
#ifndef EBB_RESUME_H
#define EBB_RESUME_H

#include <stdbool.h>
#include <stdint.h>

struct connection;

/* @c ended because of @why: it waits for its successor, or is dropped if none is to come. */
void resume_wait(struct connection *c, const char *why);

/*
 * What @old, of the same borrower, has is @c's from here on; @old, whose connection
 * ends, is to be dropped.  False when it has nothing.
 */
bool resume_take(struct connection *c, struct connection *old);

/* Whether @c, which waits for its successor, has waited long enough. */
bool resume_given_up(const struct connection *c, uint64_t now);

/* @c has named all that it knows: the rest comes back. */
void resume_settle(struct connection *c);

#endif
