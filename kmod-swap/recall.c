// SPDX-License-Identifier: GPL-2.0-only
#include "message.h"
#include "recall.h"

void ebb_recall_take(struct ebb_session *s, const struct wire_frame *f)
{
	unsigned long flags;
	bool full;

	if (f->op != WIRE_EVICT) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL,
				 "the donor sent a request other than EVICT");
		return;
	}
	spin_lock_irqsave(&s->lock, flags);
	full = s->recalls == EBB_RECALLS;
	if (!full)
		s->recall[s->recalls++] = (struct ebb_recall){
			.tag = f->tag, .remote = f->slab, .generation = f->generation,
		};
	spin_unlock_irqrestore(&s->lock, flags);
	if (full)
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "the donor sent too many requests");
	else
		queue_work(ebb_closing, &s->answering);
}

/* Answers a recall; returns when the answer has left or the session has ended. */
static void answer_send(struct ebb_session *s, const struct ebb_recall *recall, u16 status)
{
	struct wire_frame f = {
		.op = WIRE_EVICT, .direction = WIRE_REPLY, .status = status, .tag = recall->tag,
		.slab = recall->remote, .generation = recall->generation,
	};

	ib_dma_sync_single_for_cpu(s->ib, s->answer.dma, EBB_FRAME, DMA_TO_DEVICE);
	wire_build(s->answer.data, &f);
	reinit_completion(&s->answered);
	/* Completes even if the session has ended: the queue pair outlives this work item. */
	if (!ebb_message_send(s, &s->answer, WIRE_HEADER))
		wait_for_completion(&s->answered);
}

/* Returns whether @s has an unanswered recall, the oldest in *@recall. */
static bool first_recall(struct ebb_session *s, struct ebb_recall *recall)
{
	unsigned long flags;
	bool found;

	spin_lock_irqsave(&s->lock, flags);
	found = s->recalls;
	if (found)
		*recall = s->recall[0];
	spin_unlock_irqrestore(&s->lock, flags);
	return found;
}

static void forget_first_recall(struct ebb_session *s)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	memmove(s->recall, s->recall + 1, --s->recalls * sizeof(*s->recall));
	spin_unlock_irqrestore(&s->lock, flags);
}

void ebb_recall_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, answering);
	struct ebb_recall recall;

	while (first_recall(s, &recall) && !READ_ONCE(s->life.broken)) {
		u16 status = s->ops->recalled(s, &recall);

		/* First: the donor may send another one as soon as it has the answer. */
		forget_first_recall(s);
		answer_send(s, &recall, status);
	}
}
