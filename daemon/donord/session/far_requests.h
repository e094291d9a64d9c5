/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Serves the frames of far memory, on connections with WIRE_FAR in their HELLO. */
#ifndef EBB_FAR_REQUESTS_H
#define EBB_FAR_REQUESTS_H

#include "session.h"

/* For far_pools_new(); the connections are the members'. */
extern const struct far_ops far_requests_ops;

/* Prepares @c for far memory before its HELLO is accepted.  Returns the status of the reply. */
uint16_t far_greet(struct connection *c);
/*
 * Ends @old, an earlier connection of the same number, and makes @c that of its member.  Returns
 * whether there is one that can return; the caller drops @old.
 */
bool far_succeed(struct connection *c, struct connection *old);
/*
 * Prepares @c for request @f: to send its reply and, if it is a WRITE or a job, to receive its
 * payload at *@payload.  Returns false without memory.
 */
bool far_begin(struct connection *c, const struct wire_frame *f, void **payload);
/*
 * Replies to @f with the @n bytes at far_buffer->bytes + far_used, or, unless @st is WIRE_OK, with
 * a refusal.
 */
void far_reply_copy(struct connection *c, const struct wire_frame *f, uint16_t st, uint32_t n);
/* Serves request @f; far_begin() was called, and its payload has arrived.  Returns 0 or -EPROTO. */
int far_request(struct connection *c, const struct wire_frame *f);

#endif
