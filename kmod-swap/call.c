// SPDX-License-Identifier: GPL-2.0-only
#include <linux/slab.h>
#include <linux/utsname.h>

#include "call.h"
#include "message.h"

/* ms that calls which resume a session may take, even if the device's deadline is shorter; */
#define RESUME_CALL 5000u
/* and most that BYE may take. */
#define BYE_CALL 500u

/* Handles the answer to a call that has failed by the deadline; s->lock is held. */
static void answered_late(struct ebb_session *s, const struct wire_frame *f)
{
	struct ebb_loan *loan = s->loan;

	s->loan = NULL;
	if (loan && f->op == WIRE_MAP && !f->status) {
		loan->remote = f->slab;
		loan->generation = f->generation;
		list_add_tail(&loan->node, &s->releasing);
		return;
	}
	if (f->op == WIRE_UNMAP && !f->status)
		s->donor_free += s->donor_slab;
	kfree(loan);
}

bool ebb_call_replied(struct ebb_session *s, const struct wire_frame *f, const u8 *data, u32 length)
{
	bool expected, late;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	expected = s->call != CALL_NONE && f->tag == s->tag && f->op == s->op;
	late = s->call == CALL_LATE;
	if (expected) {
		s->call = CALL_NONE;
		if (late) {
			answered_late(s, f);
		} else {
			memcpy(s->reply, data, length);
			s->reply_length = length;
			complete(&s->replied);
		}
	}
	spin_unlock_irqrestore(&s->lock, flags);
	if (expected && late)
		queue_work(ebb_closing, &s->release);
	return expected;
}

void ebb_call_forget(struct ebb_session *s)
{
	s->call = CALL_NONE;
	/* Of a MAP or UNMAP: RELEASE ends it. */
	kfree(s->loan);
	s->loan = NULL;
}

/* Returns ms. */
static u32 call_deadline(const struct ebb_session *s, const struct ebb_call *c)
{
	u32 deadline = s->device->deadline;

	if (c->resumes)
		return max(deadline, RESUME_CALL);
	return c->request.op == WIRE_BYE ? min(deadline, BYE_CALL) : deadline;
}

/* Begins a call, unless one is without an answer. */
static bool call_begin(struct ebb_session *s, struct ebb_call *c)
{
	unsigned long flags;
	bool may;

	reinit_completion(&s->replied);
	spin_lock_irqsave(&s->lock, flags);
	may = s->call == CALL_NONE;
	if (may) {
		s->call = CALL_WAITED;
		s->op = c->request.op;
		c->request.tag = ++s->tag;
	}
	spin_unlock_irqrestore(&s->lock, flags);
	return may;
}

/* Leaves the call to its late answer, unless that has just arrived. */
static bool call_expire(struct ebb_session *s, struct ebb_call *c)
{
	unsigned long flags;
	bool late;

	spin_lock_irqsave(&s->lock, flags);
	late = s->call == CALL_WAITED;
	if (late) {
		s->call = CALL_LATE;
		s->loan = c->loan;
	}
	spin_unlock_irqrestore(&s->lock, flags);
	return late;
}

/* A session that is away takes no call but those that resume it. */
static bool may_call(const struct ebb_session *s, const struct ebb_call *c)
{
	return !READ_ONCE(s->life.broken) &&
	       (atomic_read(&s->state) <= EBB_SWAP_LIVE || c->resumes);
}

int ebb_call(struct ebb_session *s, struct ebb_call *c, const char **why)
{
	*why = "session: the donor does not answer";
	/* The messages are freed once no call is in here. */
	if (!may_call(s, c))
		return -ENOTCONN;
	if (!call_begin(s, c))
		return -EBUSY;
	ib_dma_sync_single_for_cpu(s->ib, s->send.dma, EBB_FRAME, DMA_TO_DEVICE);
	wire_build(s->send.data, &c->request);
	memcpy(s->send.data + WIRE_HEADER, c->payload, c->request.length);
	/*
	 * Check after call_begin(): ebb_session_fail() sets `broken`, then completes.  Otherwise
	 * its completion could be lost, and the wait would last until the deadline.
	 */
	smp_mb();
	if (READ_ONCE(s->life.broken) ||
	    ebb_message_send(s, &s->send, WIRE_HEADER + c->request.length))
		return -ENOTCONN;
	if (!wait_for_completion_timeout(&s->replied, msecs_to_jiffies(call_deadline(s, c))) &&
	    call_expire(s, c))
		return -ETIMEDOUT;
	if (READ_ONCE(s->life.broken))
		return -ENOTCONN;
	/* Parsed once already, when it was received. */
	wire_parse(s->reply, s->reply_length, WIRE_AT_BORROWER, &c->reply);
	if (c->reply.status) {
		*why = wire_status_text(c->reply.status);
		return c->reply.status == WIRE_NO_SPACE || c->reply.status == WIRE_OVER_QUOTA ?
		       -ENOSPC :
		       c->resumes && (c->reply.status == WIRE_NO_SLAB ||
				      c->reply.status == WIRE_STALE ||
				      c->reply.status == WIRE_NO_SESSION) ? -ESTALE :
		       c->reply.status == WIRE_BAD_VERSION ? -EPROTONOSUPPORT : -EPROTO;
	}
	return 0;
}

static int hello_as(struct ebb_session *s, u32 version, const char **why)
{
	struct wire_hello h = {
		.version = version,
		.borrower = s->id,
		.slab_size = (u64)s->device->slab_pages << PAGE_SHIFT,
		.flags = version < 4 ? 0 : WIRE_KEEP | (s->resuming ? WIRE_RESUME : 0),
	};
	u8 payload[WIRE_HELLO_SIZE];
	struct ebb_call c = {
		.request = { .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE }, .payload = payload,
		.resumes = s->resuming,
	};
	struct wire_donor donor;
	int r;

	snprintf(h.name, sizeof(h.name), "%.16s/ebb%u", init_utsname()->nodename,
		 s->device->index);
	wire_build_hello(payload, &h);
	mutex_lock(&s->calls);
	r = ebb_call(s, &c, why);
	mutex_unlock(&s->calls);
	if (r)
		return r;
	/* No other call can be in progress before the session is open. */
	if (s->reply_length != WIRE_HEADER + c.reply.length ||
	    wire_parse_donor(s->reply + WIRE_HEADER, c.reply.length, &donor)) {
		*why = "session: the donor's answer to HELLO is malformed";
		return -EPROTO;
	}
	s->donor_free = donor.free;
	s->donor_slab = donor.slab_size;
	/* Longer than any that makes sense, and than jiffies can tell apart. */
	s->grace = min_t(u32, donor.grace, 3600 * MSEC_PER_SEC);
	return 0;
}

int ebb_call_hello(struct ebb_session *s, const char **why)
{
	u32 version = WIRE_VERSION;
	int r;

	/* Only version 4 has RESUME. */
	do
		r = hello_as(s, version, why);
	while (r == -EPROTONOSUPPORT && version-- > WIRE_VERSION_OLDEST && !s->resuming);
	return r;
}

int ebb_call_release(struct ebb_session *s)
{
	struct ebb_call c = { .request = { .op = WIRE_RELEASE }, .resumes = true };
	const char *why;
	int r;

	mutex_lock(&s->calls);
	r = ebb_call(s, &c, &why);
	mutex_unlock(&s->calls);
	return r;
}

void ebb_call_bye(struct ebb_session *s)
{
	struct ebb_call c = { .request = { .op = WIRE_BYE } };
	const char *why;

	mutex_lock(&s->calls);
	ebb_call(s, &c, &why);
	mutex_unlock(&s->calls);
}
