// SPDX-License-Identifier: GPL-2.0-only
#include "session.h"

struct workqueue_struct *ebb_closing;

/* A session that fails sooner after its resumption was not back: its absence goes on. */
#define BACK_LEAST (5 * HZ)

void ebb_session_fail(struct ebb_session *s, enum ebb_swap_cause cause, const char *reason)
{
	bool resumes = cause != EBB_SWAP_CAUSE_COMMAND && cause != EBB_SWAP_CAUSE_PROTOCOL;
	unsigned long flags;
	int state;

	spin_lock_irqsave(&s->lock, flags);
	state = atomic_read(&s->state);
	WRITE_ONCE(s->broken, true);
	if (state == EBB_SWAP_LIVE && resumes && s->grace) {
		s->relapsed = s->was_back && time_before(jiffies, s->back_at + BACK_LEAST);
		if (!s->relapsed)
			WRITE_ONCE(s->away_at, jiffies);
		atomic_set(&s->state, EBB_SWAP_AWAY);
	} else if (state <= EBB_SWAP_LIVE || (state == EBB_SWAP_AWAY && !resumes)) {
		atomic_set(&s->state, EBB_SWAP_FAILED);
	} else {
		/* A failed attempt to resume it, or over already. */
		cause = EBB_SWAP_CAUSE_NONE;
	}
	if (cause != EBB_SWAP_CAUSE_NONE) {
		WRITE_ONCE(s->cause, cause);
		WRITE_ONCE(s->reason, reason);
	}
	/* ebb_session_open() closes a session that is still connecting. */
	if (cause != EBB_SWAP_CAUSE_NONE && state != EBB_SWAP_CONNECTING)
		mod_delayed_work(ebb_closing, &s->close, 0);
	/* Under the lock, so that a call of the next connections cannot take it for its reply. */
	complete(&s->replied);
	spin_unlock_irqrestore(&s->lock, flags);
}

void ebb_session_fail_wc(struct ebb_session *s, enum ib_wc_status status)
{
	enum ebb_swap_cause cause = EBB_SWAP_CAUSE_LOCAL;

	switch (status) {
	case IB_WC_RETRY_EXC_ERR:
	case IB_WC_RNR_RETRY_EXC_ERR:
	case IB_WC_RESP_TIMEOUT_ERR:
	/* Of a queue pair that was not disconnected: the connection broke. */
	case IB_WC_WR_FLUSH_ERR:
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
	ebb_session_fail(s, cause, ib_wc_status_msg(status));
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
