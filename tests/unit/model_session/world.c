// SPDX-License-Identifier: GPL-2.0-only
#include <stdarg.h>
#include <ucontext.h>

#include "tests/fuzz/kmod_kernel.h"
#include "world.h"

/* Threads have small stacks. */
#define snprintf(...) ((void)0)

enum session_mutant session_mutant;
static bool mutant(enum session_mutant which)
{
	return session_mutant == which;
}

/* --- the module, with a hook wherever a mutant differs --- */

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

static void may_preempt(void);
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

/* --- the world --- */

enum { SLABS = 2, LENT = 3, CHUNK = 2560, CHUNKS = 9, STACK = 8 << 10, GRACE_MS = 60000 };
enum { PACKETS = SLABS };
enum { CLOSER, RELEASER, USER, THREADS };
enum block { IDLE, READY, ON_LOCK, ON_DONE, ON_REPLY, ON_WORK, ON_CONNECT };

struct thread {
	enum block block;
	const void *on;
	struct work_struct *work; /* that it runs */
	bool timed_out;
	u8 command, slab;
	_Alignas(8) const u8 *sp;
	ucontext_t context;
};

struct packet {
	bool is;
	u32 connection;
	struct wire_frame f;
	bool resume;
};

static struct world {
	const struct session_model *model;
	struct thread thread[THREADS];
	ucontext_t driver;
	int running;
	/* From here to now: in the fingerprint. */
	_Alignas(8) struct session_budget left;
	struct work_struct *pending[4];
	int works;
	/* the borrower */
	struct ebb_device device;
	struct ebb_session *s;
	struct ebb_slab slab[SLABS];
	u32 epoch;
	bool valid[SLABS];
	u8 newest[SLABS], versions;
	bool away_told, opened, freed;
	u32 connection;           /* 0 = none */
	bool flushed;             /* nothing arrives from it any more */
	u32 connections;
	/* a page in flight; landing: it may still reach the donor */
	struct {
		bool flies, landing;
		u8 slab, remote, version;
		u32 connection, epoch;
	} write;
	/* a page of old queue pairs that may still reach the donor */
	struct {
		bool landing;
		u8 remote, version;
	} ghost;
	/* the donor and the network */
	struct packet request[PACKETS], reply[PACKETS]; /* in order */
	struct {
		bool lent, claimed;
		u32 generation, key;
		u8 version;
	} lent[LENT];
	bool knows, leaves;       /* retains the session; has had a BYE */
	u32 at_donor;             /* connection whose queue pairs it has; 0 = none */
	u32 keys;
	_Alignas(8) unsigned long now;
	bool used[CHUNKS];
	_Alignas(16) u8 heap[CHUNKS][CHUNK];
	_Alignas(16) u8 stack[THREADS][STACK];
} W;

char session_wrong[160];
unsigned long jiffies;

static void wrong(const char *what)
{
	if (!*session_wrong)
		strncpy(session_wrong, what, sizeof(session_wrong) - 1);
}

size_t session_size(void)
{
	return sizeof(W);
}

void session_save(void *to)
{
	W.now = jiffies;
	memcpy(to, &W, sizeof(W));
}

void session_restore(const void *from)
{
	memcpy(&W, from, sizeof(W));
	jiffies = W.now;
}

static void mix(u64 *h, const void *data, size_t size)
{
	const u64 *word = data;

	for (; size >= sizeof(*word); size -= sizeof(*word)) {
		*h = (*h ^ *word++) * 0x9e3779b97f4a7c15ull;
		*h ^= *h >> 29;
	}
}

/* Of all that decides what may follow.  The clock counts only by what it is compared with. */
u64 session_fingerprint(void)
{
	u64 h = 1, clock = 0;
	_Alignas(8) u8 session[CHUNK];

	for (int i = 0; i < THREADS; i++) {
		const struct thread *t = &W.thread[i];

		mix(&h, t, offsetof(struct thread, sp));
		if (t->block == IDLE)
			continue;
		mix(&h, &t->context, sizeof(t->context));
		mix(&h, t->sp, (size_t)(W.stack[i] + STACK - t->sp));
	}
	mix(&h, &W.left, offsetof(struct world, now) - offsetof(struct world, left));
	for (int i = 1; i < CHUNKS; i++)
		if (W.used[i])
			mix(&h, W.heap[i], 64);
	if (W.s && !W.freed) {
		struct ebb_session *s = memcpy(session, W.s, sizeof(*s));

		clock = 1 + time_after(jiffies, s->away_at + msecs_to_jiffies(s->grace)) +
			2 * time_before(jiffies, s->back_at + BACK_LEAST);
		s->away_at = s->back_at = 0;
		mix(&h, session, sizeof(*s));
	}
	mix(&h, &clock, sizeof(clock));
	return h ? h : 1;
}

/* --- memory --- */

void *kzalloc(size_t size, int flags)
{
	for (int i = 0; size <= CHUNK && i < CHUNKS; i++) {
		if (W.used[i])
			continue;
		W.used[i] = true;
		return memset(W.heap[i], 0, size);
	}
	wrong("the heap is full: something leaks");
	return NULL;
}

void kfree(void *p)
{
	size_t i = p ? (size_t)((u8 *)p - W.heap[0]) / CHUNK : 0;

	if (!p)
		return;
	if (p != W.heap[i] || !W.used[i])
		wrong("freed twice");
	W.used[i] = false;
	memset(p, 0xdd, 64);
}

static bool is_allocated(const void *p)
{
	return W.used[(size_t)((const u8 *)p - W.heap[0]) / CHUNK];
}

void get_random_bytes(void *to, size_t n)
{
	memset(to, 1, n);
}

u64 get_random_u64(void)
{
	return 1;
}

/* --- threads --- */

static void block_on(enum block block, const void *on)
{
	struct thread *t = &W.thread[W.running];

	t->block = block;
	t->on = on;
	t->sp = __builtin_frame_address(0);
	swapcontext(&t->context, &W.driver);
}

static void may_preempt(void)
{
	block_on(READY, NULL);
}

void world_lock(bool *held, bool spin)
{
	if (W.running < 0)
		return;
	if (W.model->preempt)
		may_preempt();
	while (*held)
		block_on(ON_LOCK, held);
	*held = true;
}

void world_unlock(bool *held, bool spin)
{
	*held = false;
}

unsigned long wait_for_completion_timeout(struct completion *c, unsigned long timeout)
{
	struct thread *t = &W.thread[W.running];

	t->timed_out = false;
	while (!c->done && !t->timed_out)
		block_on(ON_REPLY, c);
	if (!c->done)
		return 0;
	c->done--;
	return 1;
}

void wait_for_completion(struct completion *c)
{
	while (!c->done)
		block_on(ON_DONE, c);
	c->done--;
}

void world_queue(struct work_struct *work)
{
	if (work->pending)
		return;
	work->pending = true;
	W.pending[W.works++] = work;
}

static void unqueue(struct work_struct *work)
{
	int n = 0;

	for (int i = 0; i < W.works; i++)
		if (W.pending[i] != work)
			W.pending[n++] = W.pending[i];
	W.works = n;
	work->pending = false;
}

static bool is_run(const struct work_struct *work)
{
	return W.thread[CLOSER].work == work || W.thread[RELEASER].work == work;
}

void cancel_work_sync(struct work_struct *work)
{
	unqueue(work);
	while (is_run(work))
		block_on(ON_WORK, work);
	unqueue(work);
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

static struct ebb_place *place_of(int i)
{
	return &W.slab[i].hold.at[AT_DONOR];
}

/* Ends the page in flight. */
static void write_end(bool ok)
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

static int packets(const struct packet *p)
{
	int n = 0;

	while (n < PACKETS && p[n].is)
		n++;
	return n;
}

static struct packet take_packet(struct packet *p, int i)
{
	struct packet taken = p[i];

	for (; i < PACKETS - 1; i++)
		p[i] = p[i + 1];
	memset(&p[i], 0, sizeof(p[i]));
	return taken;
}

/* Drops those of older connections. */
static void put_packet(struct packet *p, const struct packet *new)
{
	for (int i = 0; i < PACKETS && p[i].is;) {
		if (p[i].connection == new->connection)
			i++;
		else
			take_packet(p, i);
	}
	if (packets(p) == PACKETS)
		wrong("more requests than the device has slabs");
	else
		memcpy(&p[packets(p)], new, sizeof(*new));
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

enum { OPEN, MAP, UNMAP, RELEASE, FREE };

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

static void user_runs(void)
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

static void thread_main(int which)
{
	struct thread *t = &W.thread[which];

	if (which == USER)
		user_runs();
	else
		t->work->run(t->work);
	t->work = NULL;
	block_on(IDLE, NULL);
}

static void run(int which)
{
	W.running = which;
	swapcontext(&W.driver, &W.thread[which].context);
	W.running = -1;
	if (W.stack[which][0])
		wrong("a stack overflows");
}

static void start(int which)
{
	struct thread *t = &W.thread[which];

	memset(W.stack[which], 0, STACK);
	getcontext(&t->context);
	t->context.uc_stack.ss_sp = W.stack[which];
	t->context.uc_stack.ss_size = STACK;
	t->context.uc_link = &W.driver;
	makecontext(&t->context, (void (*)(void))thread_main, 1, which);
	run(which);
}

/* --- the donor --- */

static void donor_ends(int i)
{
	W.lent[i].lent = W.lent[i].claimed = false;
}

/* Returns the loan that @f names, or -1. */
static int donor_loan(const struct wire_frame *f)
{
	if (f->slab >= LENT || !W.lent[f->slab].lent || W.lent[f->slab].generation != f->generation)
		return -1;
	return (int)f->slab;
}

static u16 donor_hello(const struct packet *request)
{
	if (request->resume && !W.knows)
		return WIRE_NO_SESSION;
	if (!mutant(MUTANT_LATE_WRITE))
		W.ghost.landing = false;
	W.knows = true;
	W.leaves = false;
	W.at_donor = request->connection;
	for (int i = 0; i < LENT; i++)
		W.lent[i].claimed = false;
	return WIRE_OK;
}

/* The donor takes the first request and sends its reply. */
static void donor_takes(void)
{
	struct packet p = take_packet(W.request, 0);
	struct wire_frame f = p.f;
	int i = donor_loan(&f);

	f.direction = WIRE_REPLY;
	f.length = 0;
	if (f.op == WIRE_HELLO)
		f.status = donor_hello(&p);
	else if (p.connection != W.at_donor)
		return;
	switch (f.op) {
	case WIRE_MAP:
		for (i = 0; i < LENT && W.lent[i].lent; i++)
			;
		f.status = i == LENT ? WIRE_NO_SPACE : WIRE_OK;
		if (i == LENT)
			break;
		W.lent[i].lent = true;
		W.lent[i].version = 0;
		f.slab = (u32)i;
		f.generation = ++W.lent[i].generation;
		fallthrough;
	case WIRE_REMAP:
		if (i < 0) {
			f.status = WIRE_NO_SLAB;
			break;
		}
		W.lent[i].claimed = true;
		W.lent[i].key = ++W.keys;
		break;
	case WIRE_UNMAP:
		f.status = i < 0 ? WIRE_NO_SLAB : WIRE_OK;
		if (i >= 0)
			donor_ends(i);
		break;
	case WIRE_RELEASE:
		for (i = 0; i < LENT; i++)
			if (!W.lent[i].claimed)
				donor_ends(i);
		break;
	case WIRE_BYE:
		W.leaves = true;
		break;
	default:
		break;
	}
	p.resume = false;
	p.f = f;
	put_packet(W.reply, &p);
}

static void donor_forgets(void)
{
	W.knows = false;
	W.at_donor = 0;
	W.write.landing = W.ghost.landing = false;
	for (int i = 0; i < LENT; i++)
		donor_ends(i);
}

/* Reply @i arrives: the donor may answer REMAPs in any order. */
static void delivered(int i)
{
	struct packet p = take_packet(W.reply, i);
	u8 data[EBB_FRAME] = { 0 };
	struct wire_frame *f = &p.f;
	u32 n = 0;

	if (f->op == WIRE_HELLO && !f->status) {
		struct wire_donor donor = {
			.version = WIRE_VERSION, .slab_size = 1 << 20, .total = 1 << 30,
			.free = 1 << 29, .grace = GRACE_MS,
		};

		n = f->length = wire_build_donor(data + WIRE_HEADER, &donor);
	}
	if ((f->op == WIRE_MAP || f->op == WIRE_REMAP) && !f->status) {
		struct wire_rdma_grant grant = { .length = 1 << 20, .key = W.lent[f->slab].key };

		wire_build_rdma_grant(data + WIRE_HEADER, &grant);
		n = WIRE_RDMA_GRANT_SIZE;
	}
	wire_build(data, f);
	if (!ebb_call_replied(W.s, f, data, WIRE_HEADER + n))
		wrong("a reply is not expected");
}

/* --- steps --- */

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
