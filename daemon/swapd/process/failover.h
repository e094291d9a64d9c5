/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A server has died, anywhere in its work: another one goes on.  Nothing that the
 * first one had under way is trusted to be half done; it is done again, from what is
 * in shared memory (shared.h):
 *
 *	requests   those read from the kernel are in slots.  Whether they were answered
 *		   or not, they are done again in their order of arrival: the kernel
 *		   takes one answer and has asked nothing that depends on another.
 *		   A frontend that is asked again (ublk) answers only what comes then.
 *	backup     writes that were answered and are still in slots go to the file again,
 *		   in that order.  What the kernel had of them is written before
 *		   that, and what it was reading has come (backup_claim()).
 *	copies     stay at their donors, who keep them for a while.  Each is asked to
 *		   resume the session, which ends the old connections: a WRITE of the
 *		   dead server cannot come behind one of ours.  Copies that it does not
 *		   confirm are lost.  What it lends and our table does not have, it
 *		   takes back.
 *	repair     begins anew; what it was copying counts as lacking.
 *
 * All of it can be interrupted by death, and be done by the next one.
 */
#ifndef EBB_FAILOVER_H
#define EBB_FAILOVER_H

#include <stdint.h>

struct swapd;

/*
 * The loop thread's, in a process that has not served yet; @s is as the supervisor made
 * it.  Waits for donors that have something of ours, for two seconds or two deadlines;
 * then serve_run() can go on.  -errno when there is something that this process cannot
 * reach, and that is nowhere else, or the kernel does not take its answers: the process
 * is to end, and another one may do better.  Why is in shared.last_words.
 */
int failover(struct swapd *s);

/* Its parts, in their order; before them donors_take_over(). */
void failover_slabs(struct swapd *s);
int failover_donors(struct swapd *s);
/* Of @slots slots; what the frontend says of it. */
int failover_slots(struct swapd *s, uint32_t slots);

/*
 * For a frontend that waits for the kernel meanwhile: sends what donors are to have, and takes
 * what they answer, for up to @ms or until something has come.
 */
void failover_tend(struct swapd *s, int ms);

/*
 * Who writes to the log may wait for who is swapped out, and so for us: what a process
 * has to say that cannot take over, the supervisor logs after its end.
 */
void failover_last_words(struct swapd *s, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
