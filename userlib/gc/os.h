/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Services of the operating system, except files and locks.  Any thread. */
#ifndef EBBGC_OS_H
#define EBBGC_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Returns CLOCK_MONOTONIC in ns. */
uint64_t os_now(void);
/* Returns the processor time of the calling thread, in ns. */
uint64_t os_thread_ns(void);

void os_sleep(uint64_t ns);

/* Initialises a condition for os_wait(). */
void os_cond_init(pthread_cond_t *cond);

/* Waits for @cond at most @ns; returns false on time-out.  Lock held, released while waiting. */
bool os_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns);

/* Returns the bytes of the kernel's pages. */
size_t os_page_bytes(void);

/* Returns the bytes of the machine's memory. */
size_t os_memory(void);

/* Maps @bytes of zeroed private memory, for munmap(); NULL on failure. */
void *os_map(size_t bytes);

/* Is the calling process a child of fork() of the process @creator? */
bool os_forked(pid_t creator);

/* Returns the calling thread's page faults that waited for a read, so far. */
uint64_t os_major_faults(void);

/* Has the kernel swapped out any page of this process? */
bool os_swapped(void);

#endif
