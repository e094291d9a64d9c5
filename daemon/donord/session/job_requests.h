/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Serves the frames of jobs, on connections with WIRE_JOBS in their HELLO.
 *
 * One request in a turn of the loop, of all connections; each is a bounded piece of work, and
 * borrowers of slabs wait for no more than that.  What TRACE and EVACUATE do beyond the member's
 * share of the processor is put off: the reply says for how long, and the member asks again.  Other
 * requests count, too; they, and members that ask again before, wait (connection_wait()).
 */
#ifndef EBB_JOB_REQUESTS_H
#define EBB_JOB_REQUESTS_H

#include "session.h"

/* Returns whether request @f must wait for the next turn. */
bool job_must_wait(const struct connection *c, const struct wire_frame *f);
/* Serves request @f, whose payload has arrived where far_begin() said.  Returns 0 or -EPROTO. */
int job_request(struct connection *c, const struct wire_frame *f);

#endif
