/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Members of far pools, their fence and their recovery.
 *
 *	VACANT --join--> LIVE <--return-- AWAY
 *	                  |  --lost-->     |
 *	                  +------> DEAD <--+    --fence--> recovered --> VACANT
 *
 * A dead member is fenced when nothing of it can take effect any more: it has no connection, and
 * the process that mapped an arena has exited (pidfd_open(2)), because a mapping cannot be revoked.
 * A process that is stopped stays dead and unfenced, and is reported.  Then the donor reads the
 * words of all arenas and frees what the member had (far_recover()), in pieces, so that no borrower
 * waits.  Its number is given to another member after that.
 */
#ifndef EBB_FAR_MEMBERS_H
#define EBB_FAR_MEMBERS_H

#include "far_pools.h"

/*
 * Makes @connection a member of @fp, and sets *@out to it if that returns WIRE_OK.  @peer_fd is a
 * unix socket, of which the peer may map arenas, or -1.
 */
uint16_t far_join(struct far_pool *fp, void *connection, int peer_fd, struct far_member **out);
/* Returns WIRE_OK if the member's process can be fenced after it has mapped an arena. */
uint16_t far_will_map(struct far_member *m);

/* The member says that it has unmapped all arenas, and maps none again. */
void far_unmapped(struct far_member *m);

/* The member's connection has ended, and none of its requests can arrive. */
void far_lost(struct far_member *m); /* it may return */
void far_left(struct far_member *m); /* it may not: @m is not the session's any more */
/*
 * The member returns by @connection; @peer_fd as for far_join().  Returns false if it cannot: it
 * maps arenas, and this is another process.
 */
bool far_return(struct far_member *m, void *connection, int peer_fd);

/* Stores a word for member @w->member of @m's pool, which gets the last one. */
uint16_t far_notify(struct far_member *m, const struct wire_far_word *w);
/* Ends member @number of @m's pool, another one than @m. */
uint16_t far_kill(struct far_member *m, uint32_t number);

/* Takes note of processes that have exited: far->epoll_fd is readable. */
void far_exits(struct far *far);

/*
 * Does a piece of the recovery of fenced members, and passes words on.  Returns whether recovery
 * has more to do.
 */
bool far_turn(struct far *far);

#endif
