// SPDX-License-Identifier: GPL-2.0-only
/* The steps that are possible, and what is always true. */
#include "inside.h"

enum { STEP_RUN, STEP_START, STEP_COMMAND, STEP_TAKE, STEP_DELIVER, STEP_BREAK, STEP_CRIME,
       STEP_LATE, STEP_NO_CONNECT, STEP_RESTART, STEP_WRITE, STEP_LAND, STEP_WRITTEN, STEP_TICK,
       STEP_KINDS };

const char *session_step_name(const struct session_step *step)
{
	static const char *const names[STEP_KINDS] = {
		"run", "start", "command", "take", "deliver", "break", "crime", "late", "no connection",
		"restart", "write", "land", "written", "tick",
	};

	return names[step->kind];
}

static bool can_run(int which)
{
	const struct thread *t = &W.thread[which];

	switch (t->block) {
	case READY:
	case ON_CONNECT:
		return true;
	case ON_LOCK:
		return !*(const bool *)t->on;
	case ON_DONE:
	case ON_REPLY:
		return ((const struct completion *)t->on)->done || t->timed_out;
	case ON_WORK:
		return !is_run(t->on);
	default:
		return false;
	}
}

/* While ebb_session_open() runs, its session is known only here. */
static void find_session(void)
{
	if (!W.s && W.used[0])
		W.s = (struct ebb_session *)W.heap[0];
}

static int thread_of(const struct work_struct *work)
{
	return work == &W.s->close.work ? CLOSER : RELEASER;
}

static bool connected(void)
{
	return W.s && !W.freed && W.connection && !W.flushed;
}

int session_possible(struct session_step out[static SESSION_STEPS])
{
	int n = 0;
	bool idle = W.thread[USER].block == IDLE;

#define MAY(kind, which) (out[n++] = (struct session_step){ kind, (uint8_t)(which) })
	for (int i = 0; i < THREADS; i++)
		if (can_run(i))
			MAY(STEP_RUN, i);
	for (int i = 0; i < W.works; i++)
		if (W.thread[thread_of(W.pending[i])].block == IDLE)
			MAY(STEP_START, i);
	if (packets(W.request))
		MAY(STEP_TAKE, 0);
	for (int i = 0; connected() && i < packets(W.reply); i++)
		if (W.reply[i].connection == W.connection)
			MAY(STEP_DELIVER, i);
	if (connected() && !W.s->life.broken && W.left.breaks)
		MAY(STEP_BREAK, 0);
	if (connected() && W.left.crimes)
		MAY(STEP_CRIME, 0);
	for (int i = 0; i < THREADS; i++) {
		if (W.thread[i].block == ON_REPLY && !can_run(i) && W.left.lates)
			MAY(STEP_LATE, i);
		if (W.thread[i].block == ON_CONNECT && W.left.breaks)
			MAY(STEP_NO_CONNECT, i);
	}
	if (W.left.restarts && W.knows)
		MAY(STEP_RESTART, 0);
	if (W.left.ticks && W.opened)
		MAY(STEP_TICK, 0);
	if (W.write.landing)
		MAY(STEP_LAND, 0);
	if (W.ghost.landing)
		MAY(STEP_LAND, 1);
	if (W.write.flies && !W.write.landing && connected())
		MAY(STEP_WRITTEN, 0);
	for (int i = 0; i < SLABS; i++)
		if (W.opened && !W.freed && W.left.writes && !W.write.flies && !W.write.landing &&
		    place_of(i)->session && ebb_session_live(W.s))
			MAY(STEP_WRITE, i);
	if (idle && W.opened && !W.freed) {
		for (int i = 0; W.left.commands && i < SLABS; i++) {
			if (!place_of(i)->session && ebb_session_live(W.s)) {
				MAY(STEP_COMMAND, MAP << 4 | i);
				break;
			}
		}
		for (int i = 0; W.left.commands && i < SLABS; i++) {
			if (!place_of(i)->session || (W.write.flies && W.write.slab == i))
				continue;
			MAY(STEP_COMMAND, UNMAP << 4 | i);
			MAY(STEP_COMMAND, RELEASE << 4 | i);
		}
		MAY(STEP_COMMAND, FREE << 4);
	}
#undef MAY
	return n;
}

static void take_write(int i)
{
	W.left.writes--;
	W.s->ref.count++;
	W.write.flies = W.write.landing = true;
	W.write.slab = (u8)i;
	W.write.remote = (u8)place_of(i)->loan->remote;
	W.write.connection = W.connection;
	W.write.epoch = place_of(i)->epoch;
	W.write.version = W.newest[i] = ++W.versions;
	W.valid[i] = false;
}

static void check(void)
{
	if (W.freed && (W.works || W.thread[CLOSER].block != IDLE ||
			W.thread[RELEASER].block != IDLE))
		wrong("work of a session that was freed");
	if (!W.opened || W.freed)
		return;
	for (int i = 0; i < SLABS; i++) {
		const struct ebb_place *p = place_of(i);
		u32 remote;

		if (!p->session)
			continue;
		if (!is_allocated(p->loan)) {
			wrong("a slab has a loan that was freed");
			continue;
		}
		remote = p->loan->remote;
		/* A donor that forgot the session ends it at the next attempt. */
		if (!ebb_session_live(W.s) || !W.knows || W.at_donor != W.connection)
			continue;
		if (p->loan->gone)
			wrong("a slab has a loan that was released");
		if (!W.lent[remote].lent || W.lent[remote].generation != p->loan->generation)
			wrong("the donor has ended a loan that is in use");
		else if (W.lent[remote].key != p->rkey)
			wrong("a slab has an old key");
		else if (W.valid[i] && W.lent[remote].version != W.newest[i])
			wrong("an old page is valid");
	}
}

/* Returns whether nothing is left to do, except what is in the budgets. */
static bool is_quiet(void)
{
	return !W.works && W.thread[CLOSER].block == IDLE && W.thread[RELEASER].block == IDLE &&
	       W.thread[USER].block == IDLE && !packets(W.request) && !packets(W.reply) &&
	       !W.write.flies;
}

static void check_quiet(void)
{
	u32 used = 0;

	if (!W.opened || W.freed || !is_quiet() || !W.knows)
		return;
	if (atomic_read(&W.s->state) != EBB_SWAP_LIVE) {
		if (atomic_read(&W.s->state) != EBB_SWAP_CLOSED)
			wrong("a session is neither live nor closed, and nothing runs");
		return;
	}
	if (W.away_told)
		wrong("no BACK is sent");
	if (W.at_donor != W.connection)
		return;
	for (int i = 0; i < LENT; i++)
		used += W.lent[i].lent;
	for (int i = 0; i < SLABS; i++)
		used -= place_of(i)->session != NULL;
	if (used)
		wrong("a slab stays lent that no slab of the device has");
	if (!list_empty(&W.s->releasing) || W.s->call != CALL_NONE)
		wrong("a loan is never released");
}

void session_take(const struct session_step *step)
{
	int i = step->which;
	struct work_struct *work;

	switch (step->kind) {
	case STEP_RUN:
		run(i);
		break;
	case STEP_START:
		work = W.pending[i];
		unqueue(work);
		i = thread_of(work);
		W.thread[i].work = work;
		start(i);
		break;
	case STEP_COMMAND:
		W.left.commands -= i >> 4 != FREE;
		W.thread[USER].command = (u8)(i >> 4);
		W.thread[USER].slab = i & 15;
		start(USER);
		break;
	case STEP_TAKE:
		donor_takes();
		break;
	case STEP_DELIVER:
		delivered(i);
		break;
	case STEP_BREAK:
		W.left.breaks--;
		ebb_session_fail(W.s, EBB_SWAP_CAUSE_UNREACHABLE, "broken");
		break;
	case STEP_CRIME:
		W.left.crimes--;
		ebb_session_fail(W.s, EBB_SWAP_CAUSE_PROTOCOL, "a crime");
		break;
	case STEP_LATE:
		W.left.lates--;
		W.thread[i].timed_out = true;
		break;
	case STEP_NO_CONNECT:
		W.left.breaks--;
		W.thread[i].timed_out = true;
		run(i);
		break;
	case STEP_RESTART:
		W.left.restarts--;
		donor_forgets();
		if (connected())
			ebb_session_fail(W.s, EBB_SWAP_CAUSE_CLOSED, "restarted");
		break;
	case STEP_WRITE:
		take_write(i);
		break;
	case STEP_LAND:
		if (i)
			W.lent[W.ghost.remote].version = W.ghost.version;
		else
			W.lent[W.write.remote].version = W.write.version;
		*(i ? &W.ghost.landing : &W.write.landing) = false;
		break;
	case STEP_WRITTEN:
		write_end(true);
		break;
	default:
		jiffies += W.left.ticks-- > 1 ? 6 * HZ : GRACE_MS / 4 + 1;
	}
	find_session();
	check();
	check_quiet();
}

void session_end(void)
{
	if (!W.freed)
		wrong("a thread waits for ever");
	for (int i = 0; i < CHUNKS; i++)
		if (W.used[i])
			wrong("memory is left");
	if (W.works || !list_empty(&W.device.sessions))
		wrong("work or a session is left");
}

/* Opens the session and maps its first slabs, without any failure. */
static void begin_mapped(const struct session_model *model)
{
	struct session_step steps[SESSION_STEPS], step;

	W.left = (struct session_budget){ .commands = model->mapped };
	while (session_possible(steps) && (steps[0].kind != STEP_COMMAND || W.left.commands)) {
		step = steps[0];
		session_take(&step);
	}
	W.left = model->budget;
}

void session_begin(const struct session_model *model)
{
	memset(&W, 0, sizeof(W));
	*session_wrong = 0;
	jiffies = 1000;
	W.model = model;
	W.left = model->budget;
	W.running = -1;
	W.device.queues = 1;
	W.device.deadline = 500;
	W.device.slab_pages = 256;
	W.device.slabs = W.slab;
	W.device.slab_count = SLABS;
	INIT_LIST_HEAD(&W.device.sessions);
	W.thread[USER].command = OPEN;
	start(USER);
	find_session();
	if (model->mapped)
		begin_mapped(model);
}
