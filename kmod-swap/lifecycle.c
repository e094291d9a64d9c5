// SPDX-License-Identifier: GPL-2.0-only
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "call.h"
#include "connection.h"
#include "keepalive.h"
#include "lifecycle.h"
#include "loan.h"
#include "recall.h"

/* Pause between two attempts to resume a session. */
#define RESUME_PAUSE DIV_ROUND_UP(HZ, 5)

/* Waits for everything in flight, then closes the connections; once before each AWAY or CLOSED. */
static void session_suspend(struct ebb_session *s)
{
	percpu_ref_kill(&s->ref);
	if (ebb_session_ended(s))
		s->ops->failed(s);
	cancel_delayed_work_sync(&s->keepalive);
	ebb_connections_flush(s);
	/* Wait for calls that saw the session live; later calls fail at once. */
	mutex_lock(&s->calls);
	mutex_unlock(&s->calls);
	wait_for_completion(&s->idle);
	cancel_work_sync(&s->release);
	ebb_connections_free(s);
}

/*
 * Tries to resume the session.  Returns 0: live; -ESTALE: the donor has not retained it; -errno:
 * try again.
 */
static int session_resume(struct ebb_session *s)
{
	const char *why;
	unsigned long flags;
	bool refused;
	int r;

	spin_lock_irqsave(&s->lock, flags);
	s->broken = ebb_session_ended(s);
	spin_unlock_irqrestore(&s->lock, flags);
	if (READ_ONCE(s->broken))
		return -ENOTCONN;
	s->resuming = true;
	ebb_loans_doubt(s);
	r = ebb_connections_open(s, &why);
	/* Only the donor's answer to HELLO means this. */
	refused = r == -ESTALE || r == -EPROTONOSUPPORT;
	if (!r)
		r = s->ops->resume(s);
	if (!r)
		r = ebb_call_release(s);
	s->resuming = false;
	if (r)
		goto fail;
	ebb_loans_settle(s);
	reinit_completion(&s->idle);
	percpu_ref_reinit(&s->ref);
	spin_lock_irqsave(&s->lock, flags);
	/* A failure from here on suspends the session again, or ends it. */
	s->suspended = false;
	r = s->broken ? -ENOTCONN : 0;
	if (!r) {
		s->was_back = true;
		s->back_at = jiffies;
		s->cause = EBB_SWAP_CAUSE_NONE;
		WRITE_ONCE(s->reason, "");
		atomic_set_release(&s->state, EBB_SWAP_LIVE);
		ebb_keepalive_start(s);
	}
	spin_unlock_irqrestore(&s->lock, flags);
	if (!r)
		queue_work(ebb_closing, &s->release);
	return r;
fail:
	ebb_connections_flush(s);
	ebb_connections_free(s);
	return refused ? -ESTALE : -ENOTCONN;
}

/* Ends a session that is away, for the reason of its absence. */
static void away_end(struct ebb_session *s, const char *why)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	if (atomic_read(&s->state) == EBB_SWAP_AWAY) {
		pr_warn("ebb%u: session %u: %s\n", s->device->index, s->index, why);
		atomic_set(&s->state, EBB_SWAP_FAILED);
	}
	spin_unlock_irqrestore(&s->lock, flags);
}

/* Suspends the session, or tries to resume it.  On return it is AWAY, LIVE or FAILED. */
static void away_turn(struct ebb_session *s)
{
	unsigned int flags;
	int r;

	if (!s->suspended) {
		pr_warn("ebb%u: session %u away: %s\n", s->device->index, s->index, s->reason);
		session_suspend(s);
		s->suspended = true;
		s->ops->drained(s);
		s->ops->away(s);
		if (s->relapsed) {
			queue_delayed_work(ebb_closing, &s->close, RESUME_PAUSE);
			return;
		}
	}
	if (time_after(jiffies, s->away_at + msecs_to_jiffies(s->grace))) {
		away_end(s, "its donor did not return within the grace period");
		return;
	}
	/* It lets swap-out go on, which frees memory: it may use the reserves for that. */
	flags = memalloc_noreclaim_save();
	r = session_resume(s);
	memalloc_noreclaim_restore(flags);
	if (!r) {
		pr_info("ebb%u: session %u resumed\n", s->device->index, s->index);
		s->ops->back(s);
	} else if (r == -ESTALE) {
		away_end(s, "its donor has not retained it");
	} else {
		queue_delayed_work(ebb_closing, &s->close, RESUME_PAUSE);
	}
}

static void session_close(struct ebb_session *s)
{
	if (s->suspended)
		s->ops->failed(s);
	else
		session_suspend(s);
	s->ops->drained(s);
	atomic_set(&s->state, EBB_SWAP_CLOSED);
}

static void close_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, close.work);
	/* Allocations must not wait for swap-out to this session. */
	unsigned int flags = memalloc_noio_save();

	if (atomic_read(&s->state) == EBB_SWAP_AWAY)
		away_turn(s);
	if (atomic_read(&s->state) == EBB_SWAP_FAILED) {
		pr_warn("ebb%u: session %u ended: %s\n", s->device->index, s->index, s->reason);
		session_close(s);
		s->ops->closed(s);
		complete(&s->closed);
	}
	memalloc_noio_restore(flags);
}

static void ref_zero(struct percpu_ref *ref)
{
	struct ebb_session *s = container_of(ref, struct ebb_session, ref);

	complete(&s->idle);
}

static void session_release(struct ebb_session *s)
{
	struct ebb_loan *loan, *next;

	cancel_work_sync(&s->release);
	list_splice(&s->releasing, &s->loans);
	list_for_each_entry_safe(loan, next, &s->loans, node)
		kfree(loan);
	kfree(s->loan);
	percpu_ref_exit(&s->ref);
	ebb_proof_free(&s->proof);
	kfree(s);
}

int ebb_session_open(struct ebb_device *d, const struct ebb_donor *donor, u32 class,
		     const struct ebb_session_ops *ops, struct ebb_session **out, const char **why)
{
	struct ebb_session *s = kzalloc(struct_size(s, queue, d->queues), GFP_KERNEL);
	unsigned long irqs;
	int r;

	*why = "session: out of memory";
	if (!s)
		return -ENOMEM;
	r = percpu_ref_init(&s->ref, ref_zero, PERCPU_REF_ALLOW_REINIT, GFP_KERNEL);
	if (r) {
		kfree(s);
		return r;
	}
	s->device = d;
	s->ops = ops;
	s->to = donor->to;
	s->class = class;
	s->id = get_random_u64();
	s->reason = "";
	atomic_set(&s->state, EBB_SWAP_CONNECTING);
	init_completion(&s->idle);
	init_completion(&s->replied);
	init_completion(&s->answered);
	spin_lock_init(&s->lock);
	INIT_LIST_HEAD(&s->loans);
	INIT_LIST_HEAD(&s->releasing);
	INIT_WORK(&s->release, ebb_loans_release_work);
	INIT_DELAYED_WORK(&s->keepalive, ebb_keepalive_work);
	s->probe.done = ebb_keepalive_probed;
	INIT_WORK(&s->answering, ebb_recall_work);
	init_completion(&s->closed);
	mutex_init(&s->calls);
	mutex_init(&s->sending);
	INIT_DELAYED_WORK(&s->close, close_work);
	/* Before LIVE: from then on the session's end may be reported. */
	s->index = d->next_session;
	s->proof.key = donor->key ? &s->proof.own : &d->key;
	if (donor->key)
		r = ebb_key_set(&s->proof.own, donor->key, donor->key_number, why);
	if (!r)
		r = ebb_connections_open(s, why);
	if (!r) {
		spin_lock_irqsave(&s->lock, irqs);
		if (s->broken) {
			*why = "session: it ended during the handshake";
			r = -ENOTCONN;
		} else {
			atomic_set_release(&s->state, EBB_SWAP_LIVE);
			ebb_keepalive_start(s);
		}
		spin_unlock_irqrestore(&s->lock, irqs);
	}
	if (r) {
		unsigned int noio = memalloc_noio_save();

		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, *why);
		session_close(s);
		memalloc_noio_restore(noio);
		session_release(s);
		return r;
	}
	d->next_session++;
	mutex_lock(&d->sessions_lock);
	list_add_tail(&s->node, &d->sessions);
	mutex_unlock(&d->sessions_lock);
	*out = s;
	return 0;
}

void ebb_session_free(struct ebb_session *s, const char *reason)
{
	if (ebb_session_live(s) && s->grace)
		ebb_call_bye(s);
	ebb_session_fail(s, EBB_SWAP_CAUSE_COMMAND, reason);
	wait_for_completion(&s->closed);
	cancel_delayed_work_sync(&s->close);
	mutex_lock(&s->device->sessions_lock);
	list_del(&s->node);
	mutex_unlock(&s->device->sessions_lock);
	session_release(s);
}
