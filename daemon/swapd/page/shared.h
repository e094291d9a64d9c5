/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory that outlives a server.  It is mapped before the processes of a device are forked, and so
 * has one address in all of them: it may contain pointers into itself.  As shmem it can be swapped
 * out unless a process has it locked; the supervisor does.
 *
 * A server may be killed between any two instructions.  Its successor finds its stores in program
 * order: only the compiler could exchange two, which shared_order() between them prevents.
 */
#ifndef EBB_SHARED_H
#define EBB_SHARED_H

#include <stddef.h>

/* Returns @size bytes of zeroes; NULL with errno. */
void *shared_new(size_t size);
/* NULL is fine. */
void shared_free(void *p, size_t size);

static inline void shared_order(void)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

#endif
