// SPDX-License-Identifier: GPL-2.0-only
#include "keepalive.h"

/* Interval of probes. */
#define KEEPALIVE HZ

void ebb_keepalive_probed(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_session *s = container_of(wc->wr_cqe, struct ebb_session, probe);

	if (wc->status != IB_WC_SUCCESS)
		ebb_session_fail_wc(s, wc->status);
	WRITE_ONCE(s->probing, false);
}

static void probe(struct ebb_session *s)
{
	/* No bytes, so no address; the donor's network device acknowledges it. */
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = &s->probe, .opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	s->probed_at = jiffies;
	WRITE_ONCE(s->probing, true);
	if (ib_post_send(s->queue[0].id->qp, &wr.wr, NULL))
		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, "the queue pair refuses probes");
}

void ebb_keepalive_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, keepalive.work);

	if (READ_ONCE(s->life.broken))
		return;
	if (!READ_ONCE(s->probing)) {
		/* A queue in use detects the loss by itself; see internals.md for Soft-RoCE. */
		if (!atomic_read(&s->queue[0].transfers))
			probe(s);
	} else if (time_after(jiffies, s->probed_at + msecs_to_jiffies(s->device->deadline))) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_UNREACHABLE,
				 "a probe took longer than the deadline");
	}
	queue_delayed_work(ebb_closing, &s->keepalive, KEEPALIVE);
}

void ebb_keepalive_start(struct ebb_session *s)
{
	queue_delayed_work(ebb_closing, &s->keepalive, KEEPALIVE);
}
