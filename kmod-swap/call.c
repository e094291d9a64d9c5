// SPDX-License-Identifier: GPL-2.0-only
#include <linux/slab.h>
#include <linux/utsname.h>

#include "call.h"
#include "message.h"

static_assert(EBB_REQUESTS < 32);

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
	u64 i;

	spin_lock_irqsave(&s->lock, flags);
	i = f->tag - s->tag;
	expected = i < EBB_REQUESTS && s->unanswered & BIT(i) && f->op == s->op;
	late = s->call == CALL_LATE;
	if (expected) {
		s->unanswered &= ~BIT(i);
		if (!s->unanswered)
			s->call = CALL_NONE;
		if (late) {
			answered_late(s, f);
		} else if (s->batch) {
			s->batch->replied(s->batch, i, f, data + WIRE_HEADER, length - WIRE_HEADER);
			complete(&s->replied);
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
	s->unanswered = 0;
	/* Of a MAP or UNMAP: RELEASE ends it. */
	kfree(s->loan);
	s->loan = NULL;
}

/* Returns ms. */
static u32 call_deadline(const struct ebb_session *s, u8 op, bool resumes)
{
	u32 deadline = s->device->deadline;

	if (resumes)
		return max(deadline, RESUME_CALL);
	return op == WIRE_BYE ? min(deadline, BYE_CALL) : deadline;
}

/* Returns false after the deadline. */
static bool call_wait(struct ebb_session *s, u8 op, bool resumes)
{
	return wait_for_completion_timeout(&s->replied,
					   msecs_to_jiffies(call_deadline(s, op, resumes)));
}

/* Begins a call of @count requests, unless one is without an answer. */
static bool call_begin(struct ebb_session *s, u8 op, u32 count, struct ebb_requests *batch)
{
	unsigned long flags;
	bool may;

	reinit_completion(&s->replied);
	spin_lock_irqsave(&s->lock, flags);
	may = s->call == CALL_NONE;
	if (may) {
		s->call = CALL_WAITED;
		s->tag += EBB_REQUESTS;
		s->unanswered = BIT(count) - 1;
		s->op = op;
		s->batch = batch;
	}
	spin_unlock_irqrestore(&s->lock, flags);
	return may;
}

/* Leaves the call to its late answers, unless the last has just arrived. */
static bool call_expire(struct ebb_session *s, struct ebb_loan *loan)
{
	unsigned long flags;
	bool late;

	spin_lock_irqsave(&s->lock, flags);
	late = s->call == CALL_WAITED;
	if (late) {
		s->call = CALL_LATE;
		s->loan = loan;
	}
	s->batch = NULL;
	spin_unlock_irqrestore(&s->lock, flags);
	return late;
}

/* Sends request @i of the call. */
static int call_send(struct ebb_session *s, u32 i, struct wire_frame *request, const void *payload)
{
	struct ebb_message *m = &s->send[i];

	request->tag = s->tag + i;
	ib_dma_sync_single_for_cpu(s->ib, m->dma, EBB_FRAME, DMA_TO_DEVICE);
	wire_build(m->data, request);
	memcpy(m->data + WIRE_HEADER, payload, request->length);
	/*
	 * Check after call_begin(): ebb_session_fail() sets `broken`, then completes.  Otherwise
	 * its completion could be lost, and the wait would last until the deadline.
	 */
	smp_mb();
	return READ_ONCE(s->life.broken) ||
	       ebb_message_send(s, m, WIRE_HEADER + request->length) ? -ENOTCONN : 0;
}

/* A session that is away takes no call but those that resume it. */
static bool may_call(const struct ebb_session *s, bool resumes)
{
	return !READ_ONCE(s->life.broken) &&
	       (atomic_read(&s->state) <= EBB_SWAP_LIVE || resumes);
}

int ebb_call_error(u16 status, bool resumes)
{
	switch (status) {
	case WIRE_OK:
		return 0;
	case WIRE_NO_SPACE:
	case WIRE_OVER_QUOTA:
		return -ENOSPC;
	case WIRE_NO_SLAB:
	case WIRE_STALE:
	case WIRE_NO_SESSION:
		return resumes ? -ESTALE : -EPROTO;
	case WIRE_BAD_VERSION:
		return -EPROTONOSUPPORT;
	default:
		return -EPROTO;
	}
}

int ebb_call(struct ebb_session *s, struct ebb_call *c, const char **why)
{
	*why = "session: the donor does not answer";
	/* The messages are freed once no call is in here. */
	if (!may_call(s, c->resumes))
		return -ENOTCONN;
	if (!call_begin(s, c->request.op, 1, NULL))
		return -EBUSY;
	if (call_send(s, 0, &c->request, c->payload))
		return -ENOTCONN;
	if (!call_wait(s, c->request.op, c->resumes) && call_expire(s, c->loan))
		return -ETIMEDOUT;
	if (READ_ONCE(s->life.broken))
		return -ENOTCONN;
	/* Parsed once already, when it was received. */
	wire_parse(s->reply, s->reply_length, WIRE_AT_BORROWER, &c->reply);
	if (c->reply.status)
		*why = wire_status_text(c->reply.status);
	return ebb_call_error(c->reply.status, c->resumes);
}

int ebb_call_batch(struct ebb_session *s, struct ebb_requests *b)
{
	int r = 0;

	if (!may_call(s, true))
		return -ENOTCONN;
	if (!call_begin(s, b->op, b->count, b))
		return -EBUSY;
	for (u32 i = 0; !r && i < b->count; i++) {
		struct wire_frame f = { .op = b->op };

		b->request(b, i, &f);
		r = call_send(s, i, &f, NULL);
	}
	for (u32 i = 0; !r && i < b->count; i++) {
		if (!call_wait(s, b->op, true))
			r = -ETIMEDOUT;
		else if (READ_ONCE(s->life.broken))
			r = -ENOTCONN;
	}
	/* From here on no reply is taken for @b. */
	if (!call_expire(s, NULL) && r == -ETIMEDOUT)
		r = 0;
	return r;
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
