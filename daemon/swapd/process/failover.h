/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Failover: a server has died, at any point, and another one continues.  It repeats all work that
 * was in flight, from shared memory (shared.h):
 *
 *	requests   those read from the kernel are in slots.  They are repeated in their order of
 *		   arrival, answered or not: the kernel takes one answer, and no later request
 *		   depends on one that is unanswered.  With ublk the kernel sends them again
 *		   later, and only those are answered.
 *	backup     answered writes that are still in slots go to the file again, in that order,
 *		   after the kernel has finished the dead server's I/O (backup_claim()).
 *	replicas   stay at their donors, which retain them for the grace period.  Resuming the
 *		   session ends the old connections, so that no WRITE of the dead server can come
 *		   behind ours.  Replicas that a donor does not confirm are lost; it reclaims slabs
 *		   that the table does not have.
 *	repair     starts again; pages that it was copying count as lacking.  Only a RESYNC that has
 *		   the last content of a page continues.
 *
 * If this server dies, too, the next one starts over.
 */
#ifndef EBB_FAILOVER_H
#define EBB_FAILOVER_H

#include <stdint.h>

struct swapd;

/*
 * Loop thread, in a process that has not served yet; @s is as the supervisor made it.  Waits for
 * donors that have our slabs, for two seconds or two deadlines; then serve_run() can start, while
 * others may still be away.
 * -errno when an only replica cannot be reached from this process, its donor cannot be used, or the
 * kernel does not take its answers: the process has to end, and another one may do better.
 * shared.last_words has the cause.
 */
int failover(struct swapd *s);

/* The parts of failover(), in order; donors_prepare() and donors_take_over() come before. */
void failover_slabs(struct swapd *s);
int failover_donors(struct swapd *s);
/* Takes over @slots slots; returns the frontend's result. */
int failover_slots(struct swapd *s, uint32_t slots);

/*
 * For a frontend that waits for the kernel: sends to donors and takes their answers, for up to @ms
 * or until an event has come.
 */
void failover_tend(struct swapd *s, int ms);

/*
 * Sets the exit reason of a process that cannot take over.  The supervisor logs it: a write to the
 * log may wait for a swapped-out page, and so for this server.
 */
void failover_last_words(struct swapd *s, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
