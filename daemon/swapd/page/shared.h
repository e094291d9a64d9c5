/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory that outlives a server.  It is mapped before the processes of a device are
 * forked, and so is at one address in all of them: what is in it may point into it.
 * Being shared it is shmem, which can be swapped out unless a process has it locked;
 * the supervisor does.
 *
 * A server may be killed between any two instructions.  What it has stored by then is
 * what its successor finds, in the order of the program: only the compiler could
 * exchange two stores, and shared_order() between them keeps it from that.
 */
#ifndef EBB_SHARED_H
#define EBB_SHARED_H

#include <stddef.h>

/* @size bytes of zeroes; NULL with errno. */
void *shared_new(size_t size);
/* NULL is fine. */
void shared_free(void *p, size_t size);

static inline void shared_order(void)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

#endif
