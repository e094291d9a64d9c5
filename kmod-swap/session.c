// SPDX-License-Identifier: GPL-2.0-only
#include "session.h"

struct workqueue_struct *ebb_closing;

/* A session that fails sooner after its resumption was not back: its absence goes on. */
#define BACK_LEAST (5 * HZ)

u32 ebb_session_step(struct ebb_session *s, enum ebb_event event)
{
	struct ebb_facts facts = {
		.retained = s->grace,
		.soon = time_before(jiffies, s->back_at + BACK_LEAST),
		.over = time_after(jiffies, s->away_at + msecs_to_jiffies(s->grace)),
	};
	bool was_live = s->life.now == EBB_SWAP_LIVE;
	u32 todo = ebb_state_step(&s->life, event, facts);

	atomic_add((s->life.now == EBB_SWAP_LIVE) - was_live, &s->device->live);
	if (todo & TO_DEPART)
		WRITE_ONCE(s->away_at, jiffies);
	if (todo & TO_USE && event == ON_RESUMED) {
		s->back_at = jiffies;
		s->cause = EBB_SWAP_CAUSE_NONE;
		WRITE_ONCE(s->reason, "");
	}
	atomic_set_release(&s->state, s->life.now);
	if (todo & TO_TURN)
		mod_delayed_work(ebb_closing, &s->close, 0);
	return todo;
}

u32 ebb_session_happens(struct ebb_session *s, enum ebb_event event)
{
	unsigned long flags;
	u32 todo;

	spin_lock_irqsave(&s->lock, flags);
	todo = ebb_session_step(s, event);
	spin_unlock_irqrestore(&s->lock, flags);
	return todo;
}

void ebb_session_fail(struct ebb_session *s, enum ebb_swap_cause cause, const char *reason)
{
	bool ends = cause == EBB_SWAP_CAUSE_COMMAND || cause == EBB_SWAP_CAUSE_PROTOCOL;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	if (ebb_session_step(s, ends ? ON_END : ON_FAILURE) & TO_RECORD) {
		WRITE_ONCE(s->cause, cause);
		WRITE_ONCE(s->reason, reason);
	}
	/* Under the lock, so that a call of the next connections cannot take it for its reply. */
	complete(&s->replied);
	spin_unlock_irqrestore(&s->lock, flags);
}

void ebb_session_fail_wc(struct ebb_session *s, enum ib_wc_status status)
{
	enum ebb_swap_cause cause = EBB_SWAP_CAUSE_LOCAL;
	const char *reason = ib_wc_status_msg(status);

	switch (status) {
	/* Of a queue pair that was not disconnected.  The cause may become known later. */
	case IB_WC_WR_FLUSH_ERR:
		reason = "the connection to the donor broke";
		fallthrough;
	case IB_WC_RETRY_EXC_ERR:
	case IB_WC_RNR_RETRY_EXC_ERR:
	case IB_WC_RESP_TIMEOUT_ERR:
		cause = EBB_SWAP_CAUSE_UNREACHABLE;
		break;
	case IB_WC_REM_ACCESS_ERR:
	case IB_WC_REM_INV_REQ_ERR:
	case IB_WC_REM_OP_ERR:
	case IB_WC_REM_ABORT_ERR:
		cause = EBB_SWAP_CAUSE_CLOSED;
		break;
	default:
		break;
	}
	ebb_session_fail(s, cause, reason);
}

int ebb_session_init(void)
{
	ebb_closing = alloc_workqueue("ebb_closing", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return ebb_closing ? 0 : -ENOMEM;
}

void ebb_session_exit(void)
{
	destroy_workqueue(ebb_closing);
}
