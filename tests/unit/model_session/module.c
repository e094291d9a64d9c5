// SPDX-License-Identifier: GPL-2.0-only
/* The module's sessions, with a hook wherever a mutant differs, and the device that uses them. */
#include "inside.h"

/* Threads have small stacks. */
#define snprintf(...) ((void)0)

#include "kmod-swap/state.c"
static unsigned int checked_step(struct ebb_state *s, enum ebb_event event, struct ebb_facts facts);
#define ebb_state_step checked_step
#include "kmod-swap/session.c"
#undef ebb_state_step

#include "wire_rdma.h"
static int checked_parse(const void *data, size_t length, enum wire_side end, struct wire_frame *f);
#define wire_parse checked_parse
#include "kmod-swap/call.c"
#undef wire_parse
#include "kmod-swap/loan.c"

#undef percpu_ref_reinit
#define percpu_ref_reinit(r) (may_preempt(), (r)->count++)
#define ebb_loans_settle(s) (mutant(MUTANT_NO_SETTLE) ? (void)0 : ebb_loans_settle(s))
#define ebb_call_release(s) (mutant(MUTANT_NO_RELEASE) ? 0 : ebb_call_release(s))
#define wait_for_completion(c) \
	((c) == &s->idle && mutant(MUTANT_NO_DRAIN) ? (void)0 : wait_for_completion(c))
#include "kmod-swap/lifecycle.c"
#undef wait_for_completion

static int checked_confirm(struct ebb_session *s, struct ebb_confirm *c, u32 count);
#define ebb_session_confirm checked_confirm
#include "kmod-swap/resume.c"
#undef ebb_session_confirm

bool is_back_lately(const struct ebb_session *s)
{
	return time_before(jiffies, s->back_at + BACK_LEAST);
}

/* --- what is replaced --- */

void ebb_proof_free(struct ebb_proof *p)
{
}

int ebb_key_set(struct ebb_key *k, const u8 *key, const u8 *number, const char **why)
{
	return 0;
}

void ebb_keepalive_work(struct work_struct *work)
{
}

void ebb_keepalive_probed(struct ib_cq *cq, struct ib_wc *wc)
{
}

void ebb_keepalive_start(struct ebb_session *s)
{
}

void ebb_recall_work(struct work_struct *work)
{
}

int ebb_connections_open(struct ebb_session *s, const char **why)
{
	struct thread *t = &W.thread[W.running];

	*why = "no connection";
	t->timed_out = false;
	block_on(ON_CONNECT, NULL);
	if (t->timed_out)
		return -ETIMEDOUT;
	s->send[0].data = kzalloc(EBB_REQUESTS * EBB_FRAME, 0);
	for (int i = 1; i < (int)EBB_REQUESTS; i++)
		s->send[i].data = s->send[0].data + i * EBB_FRAME;
	W.connection = ++W.connections;
	W.flushed = false;
	return ebb_call_hello(s, why);
}

void write_end(bool ok)
{
	struct ebb_session *s = W.s;
	u8 i = W.write.slab;

	if (!ok)
		ebb_session_fail(s, EBB_SWAP_CAUSE_UNREACHABLE, "a page");
	W.valid[i] = ok && ebb_session_live(s) && place_of(i)->session &&
		     place_of(i)->epoch == W.write.epoch;
	W.write.flies = false;
	if (!--s->ref.count)
		s->ref.release(&s->ref);
}

void ebb_connections_flush(struct ebb_session *s)
{
	if (W.write.flies && !mutant(MUTANT_NO_DRAIN))
		write_end(false);
	if (W.write.landing) {
		W.ghost.landing = true;
		W.ghost.remote = W.write.remote;
		W.ghost.version = W.write.version;
		W.write.landing = false;
	}
	W.flushed = true;
}

void ebb_connections_free(struct ebb_session *s)
{
	if (W.write.flies)
		wrong("the queue pairs are freed while a page is in flight");
	kfree(s->send[0].data);
	for (int i = 0; i < (int)EBB_REQUESTS; i++)
		s->send[i].data = NULL;
	W.connection = 0;
	if (mutant(MUTANT_NO_FORGET))
		return;
	ebb_call_forget(s);
}

/* A request before the last is answered, unless both confirm loans. */
static void check_order(const struct packet *p, u8 op)
{
	for (int i = 0; i < packets(p); i++)
		if (p[i].connection == W.connection &&
		    (op != WIRE_REMAP || p[i].f.op != WIRE_REMAP))
			wrong("a request before the last is answered");
}

int ebb_message_send(struct ebb_session *s, struct ebb_message *m, u32 length)
{
	struct wire_hello h;
	struct packet p;

	if (!W.connection || W.flushed)
		return 0;
	memset(&p, 0, sizeof(p));
	p.is = true;
	p.connection = W.connection;
	if (wire_parse(m->data, length, WIRE_AT_DONOR, &p.f) != 1)
		wrong("a malformed request");
	check_order(W.request, p.f.op);
	check_order(W.reply, p.f.op);
	if (p.f.op == WIRE_HELLO) {
		wire_parse_hello(m->data + WIRE_HEADER, WIRE_HELLO_SIZE, &h);
		p.resume = h.flags & WIRE_RESUME;
	}
	put_packet(W.request, &p);
	return 0;
}

/* --- checks of the module's calls --- */

static unsigned int checked_step(struct ebb_state *s, enum ebb_event event, struct ebb_facts facts)
{
	struct ebb_state old = *s;
	unsigned int todo;

	if (atomic_read(&W.device.live) != (old.now == EBB_SWAP_LIVE))
		wrong("the live sessions are miscounted");
	if (mutant(MUTANT_END_IGNORED) && event == ON_END && s->now == EBB_SWAP_AWAY)
		return 0;
	todo = ebb_state_step(s, event, facts);
	if (mutant(MUTANT_BROKEN_LIVE) && todo == TO_DISCONNECT && s->now == EBB_SWAP_AWAY) {
		s->now = EBB_SWAP_LIVE;
		s->suspended = false;
		todo = TO_USE;
	}
	if (mutant(MUTANT_UNDEAD) && todo == TO_DISCONNECT && s->now == EBB_SWAP_FAILED) {
		s->now = EBB_SWAP_LIVE;
		todo = TO_USE;
	}
	if (mutant(MUTANT_NO_TURN))
		todo &= ~(unsigned int)TO_TURN;
	if ((old.now == EBB_SWAP_CLOSED && s->now != EBB_SWAP_CLOSED) ||
	    (old.now == EBB_SWAP_FAILED && s->now != EBB_SWAP_FAILED && s->now != EBB_SWAP_CLOSED))
		wrong("an ended session goes on");
	if (s->now == EBB_SWAP_LIVE && s->broken)
		wrong("a session is live without connections");
	return todo;
}

/* The module takes the reply in *@data for its call. */
static int checked_parse(const void *data, size_t length, enum wire_side end, struct wire_frame *f)
{
	int r = wire_parse(data, length, end, f);

	if (r != 1 || f->tag != W.s->tag || f->op != W.s->op)
		wrong("a reply to another call is taken");
	return r;
}

/* --- the borrower's slabs --- */

static void detach(int i)
{
	place_of(i)->session = NULL;
	W.valid[i] = false;
}

void ebb_slab_detach(struct ebb_device *d, struct ebb_slab *slab, const struct ebb_session *s)
{
	detach((int)(slab - W.slab));
}

static void ops_failed(struct ebb_session *s)
{
	for (int i = 0; i < SLABS; i++)
		detach(i);
}

static void ops_away(struct ebb_session *s)
{
	if (W.away_told)
		wrong("AWAY is sent twice");
	W.away_told = true;
}

static void ops_back(struct ebb_session *s)
{
	if (!W.away_told)
		wrong("BACK is sent without AWAY");
	W.away_told = false;
}

/* Returns the slab that has the loan, or -1. */
static int slab_with(const struct ebb_loan *loan)
{
	for (int i = 0; i < SLABS; i++)
		if (place_of(i)->session && place_of(i)->loan == loan)
			return i;
	return -1;
}

static int checked_confirm(struct ebb_session *s, struct ebb_confirm *c, u32 count)
{
	u32 asked = count - (count > 1 && mutant(MUTANT_LAST_UNCONFIRMED));
	int r = ebb_session_confirm(s, c, asked);

	for (u32 k = 0; !r && k < count; k++) {
		int i = slab_with(c[k].loan);

		if (mutant(MUTANT_STALE_KEY) && i >= 0)
			c[k].rkey = place_of(i)->rkey;
		if (mutant(MUTANT_LOST_CONFIRM) && i < 0 && is_allocated(c[k].loan))
			c[k].loan->confirmed = false;
	}
	return r;
}

static void ops_drained(struct ebb_session *s)
{
	if (W.write.flies)
		wrong("drained while a page is in flight");
}

static const struct ebb_session_ops ops = {
	.failed = ops_failed, .away = ops_away, .resume = ebb_resume_slabs, .back = ops_back,
	.drained = ops_drained, .closed = ops_drained,
};

static void user_map(struct ebb_session *s, int i)
{
	struct ebb_place place = { 0 };
	const char *why;

	if (ebb_session_map(s, &place, &why))
		return;
	may_preempt();
	/* As give() does, under the slab's lock. */
	if (!ebb_session_live(s) || place.loan->gone)
		return;
	place.epoch = ++W.epoch;
	*place_of(i) = place;
	W.valid[i] = false;
}

void user_runs(void)
{
	struct thread *t = &W.thread[USER];
	static const struct ebb_donor donor;
	struct ebb_loan *loan = t->command == OPEN ? NULL : place_of(t->slab)->loan;
	const char *why;

	switch (t->command) {
	case OPEN:
		W.opened = !ebb_session_open(&W.device, &donor, 0, &ops, &W.s, &why);
		W.freed = !W.opened;
		break;
	case MAP:
		user_map(W.s, t->slab);
		break;
	case UNMAP:
		detach(t->slab);
		ebb_session_unmap(W.s, loan, &why);
		break;
	case RELEASE:
		detach(t->slab);
		ebb_session_release(W.s, loan);
		break;
	default:
		ebb_session_free(W.s, "the end");
		W.freed = true;
	}
}
