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

/* Connects, confirms the session's loans and releases all others; *@refused = none is left. */
static int connect_again(struct ebb_session *s, bool *refused)
{
	const char *why;
	int r;

	s->resuming = true;
	ebb_loans_doubt(s);
	r = ebb_connections_open(s, &why);
	/* Only the donor's answer to HELLO means this. */
	*refused = r == -ESTALE || r == -EPROTONOSUPPORT;
	if (!r)
		r = s->ops->resume(s);
	if (!r)
		r = ebb_call_release(s);
	s->resuming = false;
	return r;
}

/* Lets I/O use the session from the moment that it is LIVE; returns enum ebb_todo bits. */
static u32 resumed(struct ebb_session *s)
{
	unsigned long flags;
	u32 todo;

	ebb_loans_settle(s);
	reinit_completion(&s->idle);
	percpu_ref_reinit(&s->ref);
	spin_lock_irqsave(&s->lock, flags);
	todo = ebb_session_step(s, ON_RESUMED);
	if (todo & TO_USE)
		ebb_keepalive_start(s);
	spin_unlock_irqrestore(&s->lock, flags);
	if (todo & TO_DISCONNECT) {
		percpu_ref_kill(&s->ref);
		wait_for_completion(&s->idle);
	}
	return todo;
}

/* Tries once to resume the session; returns enum ebb_todo bits. */
static u32 session_resume(struct ebb_session *s)
{
	bool refused;
	u32 todo = TO_DISCONNECT;

	if (!connect_again(s, &refused))
		todo = resumed(s);
	if (todo & TO_DISCONNECT) {
		ebb_connections_flush(s);
		ebb_connections_free(s);
		if (refused)
			pr_warn("ebb%u: session %u: its donor has not retained it\n",
				s->device->index, s->index);
		return ebb_session_happens(s, refused ? ON_REFUSED : ON_MISSED);
	}
	queue_work(ebb_closing, &s->release);
	pr_info("ebb%u: session %u resumed\n", s->device->index, s->index);
	s->ops->back(s);
	return todo;
}

static void session_close(struct ebb_session *s)
{
	if (s->life.suspended)
		s->ops->failed(s);
	else
		session_suspend(s);
	s->ops->drained(s);
	ebb_session_happens(s, ON_CLOSED);
}

/* Does what ebb_state_step() says, up to its next pause. */
static void close_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, close.work);
	/* Allocations must not wait for swap-out to this session. */
	unsigned int noio = memalloc_noio_save(), flags;
	u32 todo = ebb_session_happens(s, ON_TURN);

	if (todo & TO_SUSPEND) {
		pr_warn("ebb%u: session %u away: %s\n", s->device->index, s->index, s->reason);
		session_suspend(s);
		s->ops->drained(s);
		s->ops->away(s);
		todo = ebb_session_happens(s, ON_SUSPENDED);
	}
	if (todo & TO_RESUME) {
		/* It lets swap-out go on, which frees memory: it may use the reserves for that. */
		flags = memalloc_noreclaim_save();
		todo = session_resume(s);
		memalloc_noreclaim_restore(flags);
	}
	if (todo & TO_PAUSE)
		queue_delayed_work(ebb_closing, &s->close, RESUME_PAUSE);
	if (todo & TO_EXPIRE)
		pr_warn("ebb%u: session %u: its donor did not return within the grace period\n",
			s->device->index, s->index);
	if (todo & TO_CLOSE) {
		pr_warn("ebb%u: session %u ended: %s\n", s->device->index, s->index, s->reason);
		session_close(s);
		s->ops->closed(s);
		complete(&s->closed);
	}
	memalloc_noio_restore(noio);
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
		if (ebb_session_step(s, ON_OPENED) & TO_USE) {
			ebb_keepalive_start(s);
		} else {
			*why = "session: it ended during the handshake";
			r = -ENOTCONN;
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
