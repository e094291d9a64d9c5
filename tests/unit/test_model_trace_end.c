// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of the end of marking in a far cycle (daemon/lib/rules/far_cycle.c): donors
 * that trace, messages that are lost, repeated and late, a cycle that is abandoned for another, and
 * a mutator that overwrites references of local objects.  When the borrower ends marking, all that
 * was reachable when the cycle began is marked; and from every state, it ends.
 *
 * Object o is at donor o % (donors + 1), where the last number is the borrower itself.  A step is
 * the arrival, loss or sending of one message, or the visit of one local object.  A donor visits
 * one object in each of its turns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/lib/rules/far_cycle.h"

#include <cmocka.h>

enum { DONORS = 3, OBJECTS = 8, NET = 5, MODEL_STEPS = 48 };

struct budget {
	uint8_t lost, repeated, overwrites, abandoned;
};

struct model {
	const char *name;
	uint8_t donors, objects;
	uint8_t roots;
	uint8_t edges[OBJECTS]; /* of each object, a bit each */
	struct budget budget;
	uint32_t states;        /* at least as many are reached */
};

/* A message in the network; @more: of a reply. */
struct packet {
	uint8_t used, reply, donor, set, kind, more;
	uint32_t cycle, batch;
};

struct donor {
	struct far_cycle_donor_state at;
	uint8_t marked, grey, kept, more; /* kept, more: of the last reply */
};

/* Deviations of a caller, for mutants. */
struct deviation {
	bool ignore_unanswered; /* marking ends although a message is without a reply */
	bool ignore_queue;      /* ... although references are not sent yet */
	bool ignore_more;       /* ... although a donor has more to do */
	bool ignore_log;        /* ... although overwritten references are not traced */
	bool forget_reply;      /* a donor traces a repeated batch again */
	bool any_batch;         /* the borrower takes the reply to any batch */
	bool any_cycle;         /* ... of any cycle */
	bool old_cycle;         /* a donor takes requests of any cycle */
	bool begin_again;       /* a late, repeated BEGIN clears marks */
	bool forget_sent;       /* what was sent, and lost, is not sent again */
};

static struct world {
	struct donor d[DONORS];
	struct far_cycle c;
	struct packet net[NET];
	uint8_t edges[OBJECTS];
	uint8_t marked, grey, log;            /* local objects; overwritten references */
	uint8_t sent[DONORS], queue[DONORS], batch[DONORS]; /* batch: of the unanswered TRACE */
	uint8_t snapshot, ended;
	struct budget left;
} w;

static const struct model *model;
static struct deviation rule;
static char cycle_wrong[160];
static void *const cycle_world = &w;

enum { VISIT, LOG, SEND, AGAIN, ARRIVE, LOSE, REPEAT, OVERWRITE, ABANDON, END };

struct cycle_step {
	uint8_t kind, what;
};

static size_t cycle_world_size(void)
{
	return sizeof(w);
}

static uint8_t owned(uint32_t place)
{
	uint8_t mask = 0;

	for (uint32_t o = place; o < model->objects; o += model->donors + 1u)
		mask |= (uint8_t)(1u << o);
	return mask;
}

static uint8_t reachable(uint8_t from)
{
	uint8_t all = from, before = 0;

	while (all != before) {
		before = all;
		for (uint32_t o = 0; o < model->objects; o++)
			if (all & 1u << o)
				all |= w.edges[o];
	}
	return all;
}

/* References that the borrower has found: local ones to trace, the others to send. */
static void found(uint8_t set)
{
	uint8_t local = set & owned(model->donors) & (uint8_t)~w.marked;

	w.marked |= local;
	w.grey |= local;
	for (uint32_t i = 0; i < model->donors; i++) {
		uint8_t there = set & owned(i) & (uint8_t)~w.sent[i];

		w.sent[i] |= there;
		w.queue[i] |= there;
		if (there)
			far_cycle_queue(&w.c, i);
	}
}

static void begin(void)
{
	far_cycle_begin(&w.c, w.c.number + 1, model->donors);
	w.marked = w.grey = w.log = 0;
	memset(w.sent, 0, sizeof(w.sent));
	memset(w.queue, 0, sizeof(w.queue));
	memset(w.batch, 0, sizeof(w.batch));
	w.snapshot = reachable(model->roots);
	found(model->roots);
}

static void post(struct packet p)
{
	p.used = 1;
	for (int i = 0; i < NET; i++)
		if (!w.net[i].used) {
			w.net[i] = p;
			return;
		}
}

static bool has_room(void)
{
	for (int i = 0; i < NET; i++)
		if (!w.net[i].used)
			return true;
	return false;
}

/* The message that waits for a reply of @donor. */
static struct packet waiting(uint8_t donor)
{
	const struct far_cycle_donor *d = &w.c.donor[donor];

	return (struct packet){
		.donor = donor, .kind = (uint8_t)d->waits, .cycle = w.c.number,
		.batch = d->waits == FAR_CYCLE_TRACE ? d->batch : 0,
		.set = d->waits == FAR_CYCLE_TRACE ? w.batch[donor] : 0,
	};
}

/* Is it, or its reply, in the network? */
static bool in_flight(uint8_t donor)
{
	struct packet p = waiting(donor);

	for (int i = 0; i < NET; i++)
		if (w.net[i].used && w.net[i].donor == donor && w.net[i].cycle == p.cycle &&
		    w.net[i].kind == p.kind && w.net[i].batch == p.batch)
			return true;
	return false;
}

/* A turn: the donor takes @set and visits one object. */
static void turn(uint32_t i, uint8_t set)
{
	struct donor *d = &w.d[i];

	d->grey |= set & (uint8_t)~d->marked;
	d->kept = 0;
	if (d->grey) {
		uint32_t o = (uint32_t)__builtin_ctz(d->grey);

		d->marked |= (uint8_t)(1u << o);
		d->kept = w.edges[o] & (uint8_t)~owned(i);
		d->grey |= w.edges[o] & owned(i);
		d->grey &= (uint8_t)~d->marked;
	}
	d->more = d->grey != 0;
}

static void requested(const struct packet *p)
{
	struct donor *d = &w.d[p->donor];
	bool begin = p->kind == FAR_CYCLE_BEGIN;
	uint32_t number = rule.old_cycle && d->at.cycle && !begin ? d->at.cycle : p->cycle;
	enum far_cycle_verdict v = begin ? far_cycle_begins(&d->at, number) :
					   far_cycle_traces(&d->at, number, p->batch);

	if (v == FAR_CYCLE_STALE && !(begin && rule.begin_again && number == d->at.cycle))
		return;
	if (begin && v != FAR_CYCLE_AGAIN)
		d->marked = d->grey = d->kept = d->more = 0;
	if (!begin && (v == FAR_CYCLE_NEW || rule.forget_reply))
		turn(p->donor, p->set);
	post((struct packet){ .reply = 1, .donor = p->donor, .kind = p->kind, .cycle = p->cycle,
			      .batch = p->batch, .set = begin ? 0 : d->kept,
			      .more = begin ? 0 : d->more });
}

static void replied(const struct packet *p)
{
	uint32_t batch = rule.any_batch ? w.c.donor[p->donor].batch : p->batch;

	/* Replies have the cycle's number: the caller compares it. */
	if (p->cycle != w.c.number && !rule.any_cycle)
		return;
	if (far_cycle_replied(&w.c, p->donor, (enum far_cycle_message)p->kind, batch, p->more))
		found(p->set);
}

static void arrive(uint32_t i)
{
	struct packet p = w.net[i];

	memset(&w.net[i], 0, sizeof(p));
	if (p.reply)
		replied(&p);
	else
		requested(&p);
}

/* May marking end? */
static bool is_quiet(void)
{
	struct far_cycle c = w.c;

	for (uint32_t i = 0; i < model->donors; i++) {
		if (rule.ignore_unanswered && c.donor[i].begun)
			c.donor[i].waits = FAR_CYCLE_NONE;
		if (rule.ignore_queue)
			c.donor[i].queued = false;
		if (rule.ignore_more)
			c.donor[i].more = false;
	}
	return far_cycle_is_quiet(&c) && !w.grey && (!w.log || rule.ignore_log);
}

static void check_marked(void)
{
	uint8_t marked = w.marked;

	w.ended = 1;
	for (uint32_t i = 0; i < model->donors; i++)
		marked |= w.d[i].marked;
	if (w.snapshot & ~marked && !*cycle_wrong)
		snprintf(cycle_wrong, sizeof(cycle_wrong), "object %d is reachable and not marked",
			 __builtin_ctz(w.snapshot & ~marked));
}

static int cycle_world_possible(struct cycle_step out[static MODEL_STEPS])
{
	int n = 0;

	if (w.ended)
		return 0;
	if (w.grey)
		out[n++] = (struct cycle_step){ VISIT, 0 };
	if (w.log)
		out[n++] = (struct cycle_step){ LOG, 0 };
	if (w.left.abandoned)
		out[n++] = (struct cycle_step){ ABANDON, 0 };
	if (is_quiet())
		out[n++] = (struct cycle_step){ END, 0 };
	for (uint8_t i = 0; has_room() && i < model->donors; i++) {
		if (far_cycle_next(&w.c, i))
			out[n++] = (struct cycle_step){ SEND, i };
		if (w.c.donor[i].waits && !in_flight(i) && !rule.forget_sent)
			out[n++] = (struct cycle_step){ AGAIN, i };
		/* The mutant gives up after a loss, and goes on. */
		if (w.c.donor[i].waits && !in_flight(i) && rule.forget_sent)
			w.c.donor[i].waits = FAR_CYCLE_NONE;
	}
	for (uint8_t i = 0; i < NET; i++) {
		if (!w.net[i].used)
			continue;
		out[n++] = (struct cycle_step){ ARRIVE, i };
		if (w.left.lost)
			out[n++] = (struct cycle_step){ LOSE, i };
		if (w.left.repeated && has_room())
			out[n++] = (struct cycle_step){ REPEAT, i };
	}
	for (uint8_t o = 0; w.left.overwrites && o < model->objects; o++)
		if (w.edges[o] && reachable(model->roots) & owned(model->donors) & 1u << o)
			out[n++] = (struct cycle_step){ OVERWRITE, o };
	return n;
}

static void overwrite(uint32_t o)
{
	uint8_t lost = w.edges[o] & (uint8_t)-w.edges[o];

	w.left.overwrites--;
	w.edges[o] &= (uint8_t)~lost;
	w.log |= lost;
}

static void visit(void)
{
	uint32_t o = (uint32_t)__builtin_ctz(w.grey);

	w.grey &= (uint8_t)~(1u << o);
	found(w.edges[o]);
}

/* Sends the next message to @donor; a TRACE has all that is queued. */
static void send_next(uint8_t donor)
{
	enum far_cycle_message m = far_cycle_next(&w.c, donor);

	if (m == FAR_CYCLE_TRACE) {
		w.batch[donor] = w.queue[donor];
		w.queue[donor] = 0;
	}
	far_cycle_sent(&w.c, donor, m, false);
	post(waiting(donor));
}

static uint32_t cycle_world_take(const struct cycle_step *step, uint32_t choice)
{
	switch (step->kind) {
	case VISIT:
		visit();
		break;
	case LOG:
		found(w.log);
		w.log = 0;
		break;
	case SEND:
		send_next(step->what);
		break;
	case AGAIN:
		post(waiting(step->what));
		break;
	case ARRIVE:
		arrive(step->what);
		break;
	case LOSE:
		w.left.lost--;
		memset(&w.net[step->what], 0, sizeof(*w.net));
		break;
	case REPEAT:
		w.left.repeated--;
		post(w.net[step->what]);
		break;
	case OVERWRITE:
		overwrite(step->what);
		break;
	case ABANDON:
		w.left.abandoned--;
		begin();
		break;
	case END:
		check_marked();
		break;
	}
	return 1;
}

/* Without the mutator and failures, it ends. */
static void cycle_world_end(void)
{
	struct cycle_step steps[MODEL_STEPS];

	for (int k = 0; k < 1000 && !w.ended && !*cycle_wrong; k++) {
		int n = cycle_world_possible(steps), at = 0;

		while (at < n && (steps[at].kind == LOSE || steps[at].kind == REPEAT ||
				  steps[at].kind == OVERWRITE || steps[at].kind == ABANDON))
			at++;
		if (at == n)
			break;
		cycle_world_take(&steps[at], 0);
	}
	if (!w.ended && !*cycle_wrong)
		snprintf(cycle_wrong, sizeof(cycle_wrong), "tracing does not end");
}

static uint64_t mix(uint64_t x, uint64_t word)
{
	x = (x ^ word) * 0x9E3779B97F4A7C15ull;
	return x ^ x >> 32;
}

/* Of the network, the order of messages has no meaning. */
static uint64_t cycle_world_fingerprint(void)
{
	uint64_t x = 1, net = 0;

	for (uint32_t i = 0; i < model->donors; i++) {
		const struct far_cycle_donor *l = &w.c.donor[i];

		x = mix(x, (uint64_t)w.d[i].at.cycle << 48 | (uint64_t)w.d[i].at.active << 47 |
				   (uint64_t)w.d[i].at.batch << 32 | (uint64_t)w.d[i].marked << 24 |
				   (uint64_t)w.d[i].grey << 16 | (uint64_t)w.d[i].kept << 8 |
				   w.d[i].more);
		x = mix(x, (uint64_t)l->batch << 40 | (uint64_t)l->waits << 32 |
				   (uint64_t)l->begun << 26 | (uint64_t)l->more << 25 |
				   (uint64_t)l->queued << 24 | (uint64_t)w.sent[i] << 16 |
				   (uint64_t)w.queue[i] << 8 | w.batch[i]);
	}
	for (int i = 0; i < NET; i++) {
		const struct packet *p = &w.net[i];

		if (p->used)
			net += mix(mix(3, (uint64_t)p->cycle << 32 | p->batch),
				   (uint64_t)p->kind << 40 | (uint64_t)p->more << 32 |
					   (uint64_t)p->reply << 16 |
					   (uint64_t)p->donor << 8 | p->set);
	}
	for (uint32_t o = 0; o < model->objects; o++)
		x = mix(x, w.edges[o]);
	x = mix(mix(x, net), (uint64_t)w.c.number << 32 | (uint64_t)w.marked << 24 |
				     (uint64_t)w.grey << 16 | (uint64_t)w.log << 8 | w.ended);
	x = mix(x, (uint64_t)w.left.lost << 32 | (uint64_t)w.left.repeated << 24 |
			   (uint64_t)w.left.overwrites << 16 | (uint64_t)w.left.abandoned << 8 |
			   w.snapshot);
	return x ? x : 1;
}

static uint64_t cycle_world_end_fingerprint(void)
{
	return cycle_world_fingerprint();
}

#define MODEL(name) cycle_##name
#define MODEL_STEP struct cycle_step
#include "model_search.h"

#define EDGE(o) (uint8_t)(1u << (o))

/* With two donors: objects 0, 3, 6 and 1, 4, 7 are far, 2 and 5 local. */
static const struct model models[] = {
	{ .name = "two donors, a chain", .donors = 2, .objects = 8, .roots = EDGE(2),
	  .edges = { EDGE(4), EDGE(3), EDGE(1), EDGE(5), EDGE(6), EDGE(0), EDGE(7) },
	  .budget = { .lost = 2, .repeated = 2 }, .states = 11000 },
	{ .name = "two donors, overwritten references", .donors = 2, .objects = 6,
	  .roots = EDGE(2),
	  .edges = { EDGE(1), EDGE(3), EDGE(0) | EDGE(5), EDGE(4), 0, EDGE(4) },
	  .budget = { .lost = 1, .repeated = 1, .overwrites = 2 }, .states = 60000 },
	{ .name = "two donors, an abandoned cycle", .donors = 2, .objects = 6, .roots = EDGE(2),
	  .edges = { EDGE(1), EDGE(3), EDGE(0) | EDGE(5), EDGE(4), 0, 0 },
	  .budget = { .lost = 1, .repeated = 1, .abandoned = 1, .overwrites = 1 },
	  .states = 350000 },
	{ .name = "three donors", .donors = 3, .objects = 7, .roots = EDGE(0),
	  .edges = { EDGE(1) | EDGE(2), EDGE(4), EDGE(5), 0, EDGE(6) },
	  .budget = { .lost = 1, .repeated = 2 }, .states = 70000 },
};

/* In `long` only. */
static const struct model long_models[] = {
	{ .name = "two donors, two abandoned cycles", .donors = 2, .objects = 6, .roots = EDGE(2),
	  .edges = { EDGE(1), EDGE(3), EDGE(0) | EDGE(5), EDGE(4), 0, 0 },
	  .budget = { .lost = 1, .repeated = 1, .abandoned = 2 },
	  .states = 100000 },
	{ .name = "three donors, an abandoned cycle", .donors = 3, .objects = 7, .roots = EDGE(3),
	  .edges = { EDGE(1) | EDGE(2), EDGE(4), EDGE(5), EDGE(0), EDGE(6) },
	  .budget = { .lost = 1, .abandoned = 1 }, .states = 100000 },
};

static const struct {
	const char *name;
	struct deviation rule;
} mutants[] = {
	{ "an unanswered TRACE is ignored", { .ignore_unanswered = true } },
	{ "references to send are ignored", { .ignore_queue = true } },
	{ "a donor's rest is ignored", { .ignore_more = true } },
	{ "the log is ignored", { .ignore_log = true } },
	{ "the reply is not kept", { .forget_reply = true } },
	{ "the reply to another batch is taken", { .any_batch = true } },
	{ "the reply of another cycle is taken", { .any_cycle = true } },
	{ "a request of another cycle is taken", { .old_cycle = true } },
	{ "a late BEGIN clears marks", { .begin_again = true } },
	{ "a lost message is not sent again", { .forget_sent = true } },
};

static uint64_t total;

static uint32_t explore_model(const struct model *m)
{
	uint32_t states;

	model = m;
	memset(&w, 0, sizeof(w));
	*cycle_wrong = 0;
	memcpy(w.edges, m->edges, sizeof(w.edges));
	w.left = m->budget;
	begin();
	states = search_all();
	total += states;
	return states;
}

static void print_path(void)
{
	static const char *const names[] = { "visits", "logs", "sends to", "sends again to",
		"message arrives", "message is lost", "message is repeated", "overwrites",
		"abandons", "ends" };

	for (int k = 0; k < search.deepest; k++)
		printf("%3d %s %d\n", k, names[search.path[k].kind], search.path[k].what);
}

static void check(const struct model *m)
{
	uint32_t states = explore_model(m);

	printf("%s: %u states%s%s\n", m->name, states, *cycle_wrong ? ", " : "", cycle_wrong);
	fflush(stdout);
	if (*cycle_wrong)
		print_path();
	assert_false(*cycle_wrong);
	assert_true(states >= m->states);
}

static void every_interleaving(void **state)
{
	rule = (struct deviation){ 0 };
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		check(&models[i]);
	printf("%llu states\n", (unsigned long long)total);
}

static void mutants_are_found(void **state)
{
	for (size_t k = 0; k < sizeof(mutants) / sizeof(*mutants); k++) {
		size_t i = 0;

		rule = mutants[k].rule;
		*cycle_wrong = 0;
		for (; i < sizeof(models) / sizeof(*models) && !*cycle_wrong; i++)
			explore_model(&models[i]);
		printf("%s: %s%s%s\n", mutants[k].name, *cycle_wrong ? cycle_wrong : "not found",
		       *cycle_wrong ? ", in " : "", *cycle_wrong ? models[i - 1].name : "");
		assert_true(*cycle_wrong);
	}
}

static void larger_models(void **state)
{
	search_free();
	assert_true(search_new(1u << 26));
	rule = (struct deviation){ 0 };
	total = 0;
	for (size_t i = 0; i < sizeof(long_models) / sizeof(*long_models); i++)
		check(&long_models[i]);
	printf("%llu states\n", (unsigned long long)total);
	search_free();
	assert_true(search_new(1u << 22));
}

/* All graphs of three far objects and a local one, with at most four references. */
static void every_graph(void **state)
{
	rule = (struct deviation){ 0 };
	total = 0;
	for (uint32_t graph = 0; graph < 1u << 16; graph++) {
		struct model m = { .name = "a graph", .donors = 2, .objects = 4, .roots = EDGE(2),
				   .budget = { .lost = 1, .overwrites = 1 } };

		if (__builtin_popcount(graph) > 4 || graph & 0x8421)
			continue;
		for (uint32_t o = 0; o < 4; o++)
			m.edges[o] = graph >> 4 * o & 15;
		explore_model(&m);
		if (*cycle_wrong)
			print_path();
		assert_false(*cycle_wrong);
	}
	printf("%llu states\n", (unsigned long long)total);
}

static int allocate(void **state)
{
	return search_new(1u << 22) ? 0 : -1;
}

static int release(void **state)
{
	search_free();
	return 0;
}

/* `long` checks more graphs. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(mutants_are_found),
		cmocka_unit_test(larger_models),
		cmocka_unit_test(every_graph),
	};
	const struct CMUnitTest shorter[] = { tests[0], tests[1] };

	if (argc > 1 && !strcmp(argv[1], "long"))
		return cmocka_run_group_tests_name("far cycle, long", tests, allocate, release);
	return cmocka_run_group_tests_name("far cycle", shorter, allocate, release);
}
