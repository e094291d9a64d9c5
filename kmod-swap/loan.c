// SPDX-License-Identifier: GPL-2.0-only
#include <linux/slab.h>

#include "call.h"
#include "loan.h"
#include "wire_rdma.h"

/* Moves @loan to @list, from another list or none. */
static void loan_move(struct ebb_session *s, struct ebb_loan *loan, struct list_head *list)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	list_move_tail(&loan->node, list);
	spin_unlock_irqrestore(&s->lock, flags);
}

/* Reads the grant behind the reply to MAP or REMAP. */
static int read_grant(const struct ebb_session *s, const u8 *data, u32 length,
		      struct wire_rdma_grant *g)
{
	if (length == WIRE_RDMA_GRANT_SIZE &&
	    !wire_parse_rdma_grant(data, WIRE_RDMA_GRANT_SIZE, g) &&
	    g->length >= (u64)s->device->slab_pages << PAGE_SHIFT)
		return 0;
	return -EPROTO;
}

static const char malformed[] = "the donor's grant is malformed";

static int map_locked(struct ebb_session *s, struct ebb_place *place, struct ebb_loan *loan,
		      const char **why)
{
	u8 payload[WIRE_MAP_SIZE];
	struct ebb_call c = {
		.request = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE }, .payload = payload,
		.loan = loan,
	};
	struct wire_rdma_grant g;
	int r;

	wire_build_map(payload, WIRE_CLASS_SWAP);
	r = ebb_call(s, &c, why);
	if (r)
		return r;
	r = read_grant(s, s->reply + WIRE_HEADER, s->reply_length - WIRE_HEADER, &g);
	if (r) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, malformed);
		*why = "session: the donor's grant is malformed";
		return r;
	}
	loan->remote = c.reply.slab;
	loan->generation = c.reply.generation;
	*place = (struct ebb_place){
		.session = s, .address = g.address, .rkey = g.key, .loan = loan,
	};
	s->donor_free -= min(s->donor_free, s->donor_slab);
	return 0;
}

int ebb_session_map(struct ebb_session *s, struct ebb_place *place, const char **why)
{
	struct ebb_loan *loan = kzalloc(sizeof(*loan), GFP_KERNEL);
	int r;

	*why = "session: out of memory";
	if (!loan)
		return -ENOMEM;
	INIT_LIST_HEAD(&loan->node);
	mutex_lock(&s->calls);
	r = map_locked(s, place, loan, why);
	/* Before the session can be resumed, which marks loans that its slabs do not have. */
	if (!r)
		loan_move(s, loan, &s->loans);
	mutex_unlock(&s->calls);
	if (r && r != -ETIMEDOUT)
		kfree(loan);
	return r == -EBUSY ? -ETIMEDOUT : r;
}

/* Unmaps @loan, which is in no list and invalid on return. */
static int unmap(struct ebb_session *s, struct ebb_loan *loan, const char **why)
{
	struct ebb_call c = {
		.request = {
			.op = WIRE_UNMAP, .slab = loan->remote, .generation = loan->generation,
		},
		.loan = loan,
	};
	int r;

	mutex_lock(&s->calls);
	/* A loan may have been released when the session was resumed. */
	r = READ_ONCE(loan->gone) ? 0 : ebb_call(s, &c, why);
	if (!r && !loan->gone)
		s->donor_free += s->donor_slab;
	mutex_unlock(&s->calls);
	if (r == -EBUSY || r == -ENOTCONN) {
		loan_move(s, loan, &s->releasing);
		/* It may have been answered, or resumed, before that. */
		if (ebb_session_live(s) && READ_ONCE(s->call) == CALL_NONE)
			queue_work(ebb_closing, &s->release);
	} else if (r != -ETIMEDOUT) {
		kfree(loan);
	}
	return r == -EBUSY ? -ETIMEDOUT : r;
}

static struct ebb_loan *first_releasing(struct ebb_session *s)
{
	struct ebb_loan *loan;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	loan = list_first_entry_or_null(&s->releasing, struct ebb_loan, node);
	if (loan)
		list_del_init(&loan->node);
	spin_unlock_irqrestore(&s->lock, flags);
	return loan;
}

void ebb_loans_release_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, release);
	struct ebb_loan *loan;
	const char *why;
	int r = 0;

	while (r != -ETIMEDOUT && r != -ENOTCONN && (loan = first_releasing(s)))
		r = unmap(s, loan, &why);
}

int ebb_session_unmap(struct ebb_session *s, struct ebb_loan *loan, const char **why)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	list_del_init(&loan->node);
	spin_unlock_irqrestore(&s->lock, flags);
	return unmap(s, loan, why);
}

void ebb_session_release(struct ebb_session *s, struct ebb_loan *loan)
{
	loan_move(s, loan, &s->releasing);
	queue_work(ebb_closing, &s->release);
}

void ebb_loans_settle(struct ebb_session *s)
{
	struct ebb_loan *loan, *next;
	unsigned long flags;
	LIST_HEAD(released);

	spin_lock_irqsave(&s->lock, flags);
	list_for_each_entry_safe(loan, next, &s->releasing, node)
		if (!loan->confirmed)
			list_move_tail(&loan->node, &released);
	/* Others may still refer to those that were in use: they stay until the session ends. */
	list_for_each_entry(loan, &s->loans, node)
		if (!loan->confirmed)
			WRITE_ONCE(loan->gone, true);
	spin_unlock_irqrestore(&s->lock, flags);
	list_for_each_entry_safe(loan, next, &released, node)
		kfree(loan);
}

void ebb_loans_doubt(struct ebb_session *s)
{
	struct ebb_loan *loan;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	list_for_each_entry(loan, &s->loans, node)
		loan->confirmed = false;
	list_for_each_entry(loan, &s->releasing, node)
		loan->confirmed = false;
	spin_unlock_irqrestore(&s->lock, flags);
}

struct confirms {
	struct ebb_requests batch;
	const struct ebb_session *session;
	struct ebb_confirm *all;
	bool malformed;           /* a grant */
};

static void confirm_request(const struct ebb_requests *b, u32 i, struct wire_frame *f)
{
	const struct ebb_loan *loan = container_of(b, struct confirms, batch)->all[i].loan;

	f->slab = loan->remote;
	f->generation = loan->generation;
}

static void confirm_replied(struct ebb_requests *b, u32 i, const struct wire_frame *f,
			    const u8 *data, u32 length)
{
	struct confirms *cs = container_of(b, struct confirms, batch);
	struct ebb_confirm *c = &cs->all[i];
	struct wire_rdma_grant g;

	c->result = ebb_call_error(f->status, true);
	if (c->result)
		return;
	c->result = read_grant(cs->session, data, length, &g);
	if (c->result) {
		cs->malformed = true;
		return;
	}
	c->address = g.address;
	c->rkey = g.key;
	/* Even if the slab has lost the place meanwhile: RELEASE does not end the loan any more. */
	c->loan->confirmed = true;
}

int ebb_session_confirm(struct ebb_session *s, struct ebb_confirm *c, u32 count)
{
	struct confirms cs = {
		.batch = {
			.op = WIRE_REMAP, .count = count, .request = confirm_request,
			.replied = confirm_replied,
		},
		.session = s, .all = c,
	};
	int r;

	mutex_lock(&s->calls);
	r = ebb_call_batch(s, &cs.batch);
	mutex_unlock(&s->calls);
	if (cs.malformed)
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, malformed);
	for (u32 i = 0; !r && i < count; i++)
		r = c[i].result == -ESTALE ? 0 : c[i].result;
	return r;
}
