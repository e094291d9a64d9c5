// SPDX-License-Identifier: GPL-2.0-or-later
/* What members, the donor and the network do in the world of world.h. */
#include <string.h>

#include "inside.h"

/* --- members ---------------------------------------------------------------------- */

static struct hold *empty_hold(struct member *m)
{
	for (int i = 0; i < HOLDS; i++)
		if (!m->hold[i].n)
			return &m->hold[i];
	return NULL;
}

static void drop(struct hold *h)
{
	memset(h, 0, sizeof(*h));
}

/* FineMem: after a free, the section is made free when no slot seems in use. */
static void free_last(struct member *m)
{
	for (uint32_t s = 0; s < SECTIONS && mutant(FAR_LAST_FREE) && !m->f.busy; s++)
		m->f.busy = begin_last_free(m, s);
}

/* The operation of @m has ended. */
static void ended(struct member *m)
{
	struct flight f = m->f;
	struct hold *h = &m->hold[f.hold];

	far_reached_results[f.op.kind] |= far_result_bit(f.op.result);
	memset(&m->f, 0, sizeof(m->f));
	m->view.hint = 0;
	switch (f.op.kind) {
	case FAR_ALLOCATE:
	case FAR_TAKE:
		if (f.op.result)
			break;
		h->n = (uint8_t)f.op.n;
		memcpy(h->name, m->fresh, sizeof(h->name));
		for (int i = 0; i < h->n && mutant(FAR_MOVE_GENERATION) && f.op.kind == FAR_TAKE;
		     i++)
			h->name[i].generation--;
		break;
	case FAR_FREE:
		if (f.stale)
			break;
		if (f.op.result && !h->offered)
			wrong("a member could not free its extent", number_of(m), 0);
		m->freed = *h;
		m->freed.offered = 0;
		drop(h);
		free_last(m);
		break;
	case FAR_WITHDRAW:
		h->offered = f.op.result ? h->offered : 0;
		for (int i = 0; i < h->n && mutant(FAR_WITHDRAW_GENERATION) && !f.op.result; i++)
			h->name[i].generation--;
		break;
	default:
		break;
	}
	memset(m->fresh, 0, sizeof(m->fresh));
	for (int i = 0; i < HOLDS; i++)
		m->hold[i].name[0].held = m->hold[i].name[1].held = 0;
	m->freed.name[0].held = m->freed.name[1].held = 0;
}

static void started(struct member *m)
{
	m->f.op.holds = holds;
	m->f.op.context = m;
	m->f.busy = true;
	if (!go_on(&m->f, FAR_OK))
		ended(m);
}

static bool is_live(uint32_t number)
{
	return W.m[number - 1].life == LIVE;
}

enum kind { SLOT, BIG, RUN, PAIR, TRIM, FREE, STALE, OFFER, WITHDRAW, TAKE, LOSE, WRITE,
	    WRITTEN, EFFECT, CUT, LATE, CRASH, FENCE, RECOVER, DONOR, JOIN, KINDS };

static const char *const names_of_kinds[KINDS] = {
	"slot", "big slot", "run", "pair", "trim", "free", "stale free", "offer", "withdraw",
	"take", "lose", "write", "written", "effect", "cut", "late", "crash", "fence",
	"recover", "donor", "join",
};

const char *far_world_name(const struct far_world_step *step)
{
	return names_of_kinds[step->kind];
}

static void allocate(struct member *m, const struct far_world_step *t, uint32_t class, uint32_t n)
{
	m->f.hold = (uint8_t)(empty_hold(m) - m->hold);
	far_allocate(&m->f.op, &m->view, number_of(m), class, m->fresh, n);
	/* what: 1 = may format, 2 = hints are empty */
	m->f.op.may_format = t->what & 1;
	m->f.lies = t->what >> 1;
	W.left.formats -= t->what & 1;
	W.left.lies -= t->what >> 1;
	started(m);
}

static void take_offer(struct member *m, struct offer *o)
{
	struct hold *h = empty_hold(m);
	uint8_t from = o->from, n = o->hold.n;

	memcpy(m->fresh, o->hold.name, sizeof(m->fresh));
	if (W.left.duplicates)
		W.left.duplicates--; /* it arrives once more */
	else
		memset(o, 0, sizeof(*o));
	m->f.hold = (uint8_t)(h - m->hold);
	if (!mutant(FAR_GIVER_MOVES)) {
		far_take(&m->f.op, SECTIONS, number_of(m), from, m->fresh, n);
		started(m);
		return;
	}
	h->n = n;
	memcpy(h->name, m->fresh, sizeof(h->name));
	memset(&m->f, 0, sizeof(m->f));
	memset(m->fresh, 0, sizeof(m->fresh));
}

/* The giver takes the step of the receiver. */
static void give(struct hold *h, uint32_t to)
{
	for (int i = 0; i < h->n; i++) {
		uint64_t at = name_at(&h->name[i]), *word = word_at(at);

		h->name[i].generation++;
		*word = name_word(&h->name[i], to);
		check_name(at, *word);
	}
}

static struct offer *empty_offer(void)
{
	for (int i = 0; i < OFFERS; i++)
		if (!W.offer[i].to)
			return &W.offer[i];
	return NULL;
}

static void offer(struct member *m, struct hold *h, uint32_t to)
{
	struct offer *o = empty_offer();

	W.left.offers--;
	if (mutant(FAR_GIVER_MOVES))
		give(h, to);
	o->from = (uint8_t)number_of(m);
	o->to = (uint8_t)to;
	o->hold = *h;
	o->hold.offered = 0;
	h->offered = (uint8_t)to;
	if (mutant(FAR_GIVER_MOVES))
		drop(h);
}

static void crash(struct member *m)
{
	uint32_t number = number_of(m);

	m->life = CRASHED;
	if (!m->f.busy || m->f.done >= m->f.op.last.swaps)
		memset(&m->f, 0, sizeof(m->f));
	memset(m->fresh, 0, sizeof(m->fresh));
	memset(&m->view, 0, sizeof(m->view));
	drop(&m->freed);
	/* A member that gets its number may receive the message. */
	for (int i = 0; i < OFFERS && !W.left.rejoins; i++)
		if (W.offer[i].to == number)
			memset(&W.offer[i], 0, sizeof(W.offer[i]));
}

static void vacate(struct member *m)
{
	struct flight f = m->f;
	struct hold wrote = m->wrote;

	memset(m, 0, sizeof(*m));
	if (mutant(FAR_NO_FENCE)) {
		m->f = f;
		m->wrote = wrote;
	}
	m->joined = true;
}

static void step_donor(void)
{
	struct flight *f = &W.donor;

	effect(f, EBB_FAR_DONOR);
	if (f->done < effects(&f->op) || go_on(f, FAR_OK))
		return;
	memset(f, 0, sizeof(*f));
	vacate(&W.m[W.recovering - 1]);
	W.recovering = 0;
}

static void recover(struct member *m)
{
	W.recovering = (uint8_t)number_of(m);
	far_recover(&W.donor.op, SECTIONS, W.recovering);
	W.donor.busy = true;
	go_on(&W.donor, FAR_OK);
}

static void fence(struct member *m)
{
	if (m->life != CRASHED)
		return;
	m->life = FENCED;
	memset(&m->f, 0, sizeof(m->f));
	memset(&m->late, 0, sizeof(m->late));
	drop(&m->wrote);
}

/* The next effect of what @m has in flight; nothing follows it when @m has crashed. */
static void step_effect(struct member *m)
{
	struct flight *f = &m->f;

	effect(f, number_of(m));
	if (m->life != LIVE) {
		if (f->done >= f->op.last.swaps)
			memset(f, 0, sizeof(*f));
		return;
	}
	if (f->done >= effects(&f->op) && !go_on(f, FAR_OK))
		ended(m);
}

static void join(struct member *m)
{
	memset(m, 0, sizeof(*m));
	m->life = LIVE;
	m->joined = true;
	far_view_init(&m->view, SECTIONS, 1);
}

static void take(const struct far_world_step *t)
{
	struct member *m = &W.m[t->member];

	switch ((enum kind)t->kind) {
	case SLOT:
		W.left.slots--;
		m->joined = true;
		allocate(m, t, 0, 1);
		break;
	case BIG:
		W.left.big--;
		m->joined = true;
		allocate(m, t, 1, 1);
		break;
	case RUN:
		W.left.runs--;
		m->joined = true;
		allocate(m, t, EBB_FAR_WHOLE_CLASS, 1);
		break;
	case PAIR:
		W.left.pairs--;
		m->joined = true;
		allocate(m, t, EBB_FAR_WHOLE_CLASS, 2);
		break;
	case TRIM:
		W.left.trims--;
		far_trim(&m->f.op, SECTIONS, number_of(m), t->what);
		started(m);
		break;
	case FREE:
		m->f.hold = t->what;
		far_free(&m->f.op, &m->view, SECTIONS, number_of(m), m->hold[t->what].name,
			 m->hold[t->what].n);
		started(m);
		break;
	case STALE:
		W.left.stale--;
		m->f.stale = true;
		far_free(&m->f.op, NULL, SECTIONS, number_of(m), m->freed.name, m->freed.n);
		started(m);
		break;
	case OFFER:
		offer(m, &m->hold[t->what], t->other + 1u);
		break;
	case WITHDRAW:
		W.left.withdrawals--;
		m->f.hold = t->what;
		far_withdraw(&m->f.op, SECTIONS, number_of(m), m->hold[t->what].name,
			     m->hold[t->what].n);
		started(m);
		break;
	case TAKE:
		take_offer(m, &W.offer[t->what]);
		break;
	case LOSE:
		memset(&W.offer[t->what], 0, sizeof(W.offer[t->what]));
		break;
	case WRITE:
		W.left.writes--;
		m->wrote = m->hold[t->what];
		m->wrote.offered = 0;
		break;
	case WRITTEN:
		write_bytes(m);
		drop(&m->wrote);
		break;
	case EFFECT:
		step_effect(m);
		break;
	case LATE:
		swap_late(m);
		break;
	case CUT:
		/* Nothing of the old connection takes effect after the resumption. */
		W.left.cuts--;
		if (mutant(FAR_LATE_REPEAT) && m->f.done < m->f.op.last.swaps)
			m->late = m->f.op.swap[m->f.done];
		if (mutant(FAR_UNKNOWN_IS_LOST)) {
			for (uint32_t i = 0; i < m->f.op.last.swaps; i++)
				m->f.op.old[i] = ~m->f.op.swap[i].expect;
			if (!go_on(&m->f, FAR_OK))
				ended(m);
			break;
		}
		go_on(&m->f, FAR_UNKNOWN);
		break;
	case CRASH:
		W.left.crashes--;
		crash(m);
		break;
	case FENCE:
		fence(m);
		break;
	case RECOVER:
		recover(m);
		break;
	case DONOR:
		step_donor();
		break;
	case JOIN:
		W.left.rejoins--;
		join(m);
		break;
	case KINDS:
		break;
	}
}

uint32_t far_world_take(const struct far_world_step *step, uint32_t choice)
{
	drawn.choice = choice;
	drawn.choices = 1;
	/* What the step changes: of members, only its own, or the one that the donor recovers. */
	W.printed &= ~(1ull << step->member);
	if (step->kind == DONOR)
		W.printed &= ~(1ull << (W.recovering - 1));
	if (step->kind == DONOR || step->kind == RECOVER)
		W.printed &= ~(uint64_t)PRINT_DONOR;
	take(step);
	check();
	return drawn.choices;
}

/* --- which steps are possible ----------------------------------------------------- */

static int add(struct far_world_step *out, int n, enum kind kind, int member, int what, int other)
{
	out[n] = (struct far_world_step){ (uint8_t)kind, (uint8_t)member, (uint8_t)what,
					  (uint8_t)other };
	return n + 1;
}

/* Members are alike at first: number i begins after number i - 1. */
static bool may_begin(int member)
{
	return !member || W.m[member - 1].joined;
}

static int add_allocations(struct far_world_step *out, int n, int i)
{
	for (int what = 0; what < 4; what++) {
		if (((what & 1) && !W.left.formats) || ((what & 2) && !W.left.lies))
			continue;
		if (W.left.slots)
			n = add(out, n, SLOT, i, what, 0);
		if (W.left.big && EBB_FAR_SECTION_ORDER > 1)
			n = add(out, n, BIG, i, what, 0);
	}
	if (W.left.runs)
		n = add(out, n, RUN, i, 0, 0);
	if (W.left.pairs)
		n = add(out, n, PAIR, i, 0, 0);
	return n;
}

/* Returns whether a WRITE to the bytes of @h is in flight, which must end before @h is released. */
static bool is_written(const struct member *m, const struct hold *h)
{
	return m->wrote.n && m->wrote.name[0].section == h->name[0].section &&
	       m->wrote.name[0].word == h->name[0].word &&
	       m->wrote.name[0].class == h->name[0].class;
}

static int add_idle(struct far_world_step *out, int n, int i)
{
	struct member *m = &W.m[i];

	if (!may_begin(i))
		return n;
	if (empty_hold(m))
		n = add_allocations(out, n, i);
	for (int o = 0; o < OFFERS; o++)
		if (W.offer[o].to == i + 1 && empty_hold(m))
			n = add(out, n, TAKE, i, o, 0);
	for (int s = 0; s < SECTIONS && W.left.trims; s++)
		n = add(out, n, TRIM, i, s, 0);
	if (W.left.stale && m->freed.n)
		n = add(out, n, STALE, i, 0, 0);
	for (int h = 0; h < HOLDS; h++) {
		if (!m->hold[h].n || is_written(m, &m->hold[h]))
			continue;
		if (W.left.writes && !m->wrote.n &&
		    (!m->hold[h].offered || mutant(FAR_GIVER_WRITES)))
			n = add(out, n, WRITE, i, h, 0);
		n = add(out, n, FREE, i, h, 0);
		if (m->hold[h].offered && W.left.withdrawals)
			n = add(out, n, WITHDRAW, i, h, 0);
		if (m->hold[h].offered || !W.left.offers || !empty_offer())
			continue;
		for (int to = 0; to < W.members; to++)
			if (to != i && is_live((uint32_t)to + 1))
				n = add(out, n, OFFER, i, h, to);
	}
	return n;
}

static int add_dead(struct far_world_step *out, int n, int i)
{
	struct member *m = &W.m[i];
	bool fenced = m->life == FENCED || mutant(FAR_NO_FENCE) || mutant(FAR_LATE_FENCE);
	bool reusable = m->life == VACANT || (mutant(FAR_EARLY_REUSE) && m->life == FENCED);

	if (m->life == CRASHED && !mutant(FAR_NO_FENCE) && !mutant(FAR_LATE_FENCE))
		n = add(out, n, FENCE, i, 0, 0);
	if (m->life != VACANT && fenced && !W.recovering)
		n = add(out, n, RECOVER, i, 0, 0);
	if (reusable && W.left.rejoins)
		n = add(out, n, JOIN, i, 0, 0);
	return n;
}

int far_world_possible(struct far_world_step out[static FAR_WORLD_STEPS])
{
	int n = 0;

	for (int i = 0; i < W.members; i++) {
		struct member *m = &W.m[i];

		if (m->f.busy)
			n = add(out, n, EFFECT, i, 0, 0);
		if (m->wrote.n)
			n = add(out, n, WRITTEN, i, 0, 0);
		if (m->late.at)
			n = add(out, n, LATE, i, 0, 0);
		if (m->f.busy && m->life == LIVE && W.left.cuts && m->f.op.last.swaps &&
		    m->f.op.kind != FAR_RECOVER)
			n = add(out, n, CUT, i, 0, 0);
		if (!m->f.busy && m->life == LIVE)
			n = add_idle(out, n, i);
		if (m->life == LIVE && W.left.crashes && may_begin(i))
			n = add(out, n, CRASH, i, 0, 0);
		if (m->life != LIVE)
			n = add_dead(out, n, i);
	}
	for (int o = 0; o < OFFERS; o++)
		if (W.offer[o].to && !(mutant(FAR_GIVER_MOVES) && is_live(W.offer[o].from)))
			n = add(out, n, LOSE, 0, o, 0);
	if (W.donor.busy)
		n = add(out, n, DONOR, 0, 0, 0);
	return n;
}

/* --- beginning and end ------------------------------------------------------------ */

void far_world_begin(const struct far_model *model)
{
	memset(&W, 0, sizeof(W));
	*far_wrong = 0;
	W.left = model->budget;
	if (mutant(FAR_GIVER_MOVES))
		W.left.duplicates = 0;
	W.members = model->members;
	W.late = model->late;
	for (uint32_t s = 0; s < SECTIONS; s++) {
		bool open = s < model->opened;

		W.section[s] = ebb_far_section(open ? EBB_FAR_OPEN : EBB_FAR_FREE, 0, 0,
					       model->late ? EBB_FAR_SECTION_LAST - 3 : 0);
		for (int i = 0; i < PAGES; i++)
			W.slot[s][i] = ebb_far_slot(open ? EBB_FAR_NONE : EBB_FAR_CLOSED, 0,
						    model->late ? EBB_FAR_SLOT_LAST - 1 : 0);
	}
	for (int i = 0; i < W.members; i++) {
		W.m[i].life = LIVE;
		far_view_init(&W.m[i].view, SECTIONS, 1);
	}
}

void far_world_end(void)
{
	for (int i = 0; i < W.members; i++) {
		struct member *m = &W.m[i];

		while (W.donor.busy)
			step_donor();
		if (m->life == VACANT)
			continue;
		if (m->life == LIVE)
			crash(m);
		fence(m);
		recover(m);
	}
	while (W.donor.busy)
		step_donor();
	check_sections();
	for (int s = 0; s < SECTIONS; s++) {
		uint32_t state = ebb_far_section_state(W.section[s]);

		if (state != EBB_FAR_FREE && state != EBB_FAR_OPEN)
			wrong("a section is leaked", (uint32_t)s, W.section[s]);
		for (int i = 0; i < PAGES; i++)
			if (owner_in(UINT64_MAX, W.slot[s][i]))
				wrong("a slot is leaked", (uint32_t)s, W.slot[s][i]);
	}
}

size_t far_world_size(void)
{
	return sizeof(W);
}

static uint64_t hash(const void *from, size_t size, uint64_t sum)
{
	const uint64_t *p = from;
	/* Lanes that a processor computes at the same time. */
	uint64_t h[4] = { 1, 2, 3, 4 };

	for (size_t i = 0; i < size / 8; i++) {
		h[i % 4] = (h[i % 4] ^ p[i]) * 0xff51afd7ed558ccdull;
		h[i % 4] ^= h[i % 4] >> 32;
	}
	for (int i = 0; i < 4; i++) {
		sum = (sum ^ h[i]) * 0x9e3779b97f4a7c15ull;
		sum ^= sum >> 29;
	}
	return sum ? sum : 1;
}

_Static_assert(!(sizeof(struct flight) % 8) && !(sizeof(struct member) % 8) &&
		       !(offsetof(struct world, donor) % 8) && !(sizeof(W.offer) % 8),
	       "whole words");

/* Hashes what the last step may have changed, and all now and then, to check that. */
static void hash_parts(void)
{
	static uint32_t calls;
	uint64_t before[MEMBERS + 1], known = W.printed;

	memcpy(before, W.print, sizeof(before));
	if (!(++calls % 256))
		W.printed = 0;
	for (int i = 0; i < W.members; i++)
		if (!(W.printed >> i & 1))
			W.print[i] = hash(&W.m[i], sizeof(W.m[i]), 0);
	if (!(W.printed & PRINT_DONOR))
		W.print[MEMBERS] = hash(&W.donor, sizeof(W.donor), 0);
	W.printed = PRINT_DONOR | ((1ull << W.members) - 1);
	for (uint32_t i = 0; i <= MEMBERS; i++)
		if ((known >> i & 1) && before[i] != W.print[i])
			wrong("the model missed a change", i, 0);
}

uint64_t far_world_fingerprint(void)
{
	uint64_t sum = hash(&W, offsetof(struct world, donor), 0);

	hash_parts();
	sum = hash(W.offer, sizeof(W.offer), sum);
	return hash(W.print, sizeof(W.print), sum);
}

uint64_t far_world_end_fingerprint(void)
{
	uint64_t lives = (uint64_t)W.recovering << 56;

	for (int i = 0; i < W.members; i++)
		lives |= (W.m[i].life != VACANT ? 1ull : 0) << i;
	if (W.recovering && is_live(W.recovering))
		lives |= 1ull << MEMBERS;
	hash_parts();
	return hash(&W, offsetof(struct world, section_names), lives ^ W.print[MEMBERS]);
}
