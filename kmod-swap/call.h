/* SPDX-License-Identifier: GPL-2.0-only */
/* Calls: requests to the donor and their replies, one call at a time. */
#ifndef EBB_CALL_H
#define EBB_CALL_H

#include "session.h"

struct ebb_call {
	struct wire_frame request, reply;
	const void *payload;      /* of the request */
	struct ebb_loan *loan;    /* that it maps or unmaps */
	bool resumes;             /* of a session that is away */
};

/*
 * Sends the request and waits for its reply, a complete frame in s->reply.  s->calls is held.
 * -EBUSY: not sent, since the donor has not answered the last call.  -ETIMEDOUT: the session keeps
 * the call's loan until the donor answers.
 */
int ebb_call(struct ebb_session *s, struct ebb_call *c, const char **why);
/*
 * For a session that is being resumed: sends all requests of @b, then waits for the replies, whose
 * order is the donor's choice; the deadline begins again with each.  Returns 0 once all are taken.
 */
int ebb_call_batch(struct ebb_session *s, struct ebb_requests *b);
/* Returns what ebb_call() does for a reply of @status; @resumes as in struct ebb_call. */
int ebb_call_error(u16 status, bool resumes);
/* Takes the reply to the session's call; false = @f is another reply. */
bool ebb_call_replied(struct ebb_session *s, const struct wire_frame *f, const u8 *data,
		      u32 length);
/* Forgets the call without an answer: its connection has ended. */
void ebb_call_forget(struct ebb_session *s);

/* HELLO opens the session, or resumes it.  -ESTALE: the donor has not retained it. */
int ebb_call_hello(struct ebb_session *s, const char **why);
/* RELEASE ends all loans that have not been confirmed. */
int ebb_call_release(struct ebb_session *s);
/* BYE tells the donor that no resumption follows. */
void ebb_call_bye(struct ebb_session *s);

#endif
