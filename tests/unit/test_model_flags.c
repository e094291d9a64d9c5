// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of Mako's memory servers, their messages, the CPU server's polls and a mutator
 * that overwrites references (daemon/sim/mako_flags.c): when the CPU server ends tracing, all that
 * was reachable when it began is marked; and from every state, it ends.
 *
 * An object is a number; its server is that number modulo the servers.  A step is the arrival of
 * one message, the visit of one object, or a message that a server sends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/sim/mako_flags.h"

#include <cmocka.h>

enum { SERVERS = 3, OBJECTS = 9, QUEUE = 4, MODEL_STEPS = 32 };
enum { POLL = 1 << 14, SECOND = 1 << 15 }; /* in a queue, besides sets of references */
enum { TRACING, FINAL, ENDED };            /* final: the mutator is stopped, after the first end */

struct model {
	const char *name;
	uint8_t servers, objects, overwrites;
	uint16_t roots;
	uint16_t edges[OBJECTS]; /* of each object, a bit each */
	uint32_t states;         /* at least as many are reached */
};

struct server {
	struct mako_agent agent;
	uint16_t marked, grey, roots, landed;
	uint16_t ghosts[SERVERS], sent[SERVERS]; /* sent: with .acknowledge_early, not landed */
	uint8_t acknowledgements;                /* in flight to this server */
};

static struct world {
	struct server s[SERVERS];
	struct mako_poller poller;
	uint16_t queue[SERVERS][QUEUE]; /* from the CPU server */
	uint8_t queued[SERVERS];
	uint8_t reply[SERVERS];         /* in flight; 0x80: there is one */
	uint16_t edges[OBJECTS];
	uint16_t snapshot, log;         /* reachable when tracing began; overwritten since */
	uint8_t phase, left;
} w;

static const struct model *model;
static struct mako_rule rule;
static char flags_wrong[160];
static void *const flags_world = &w;

enum { VISIT, TAKE, SEND, DELIVER, LAND, ACKNOWLEDGE, ASK, REPLY, LOG, OVERWRITE };

struct flags_step {
	uint8_t kind, server, to;
};

static size_t flags_world_size(void)
{
	return sizeof(w);
}

static uint16_t owned(uint32_t server)
{
	uint16_t mask = 0;

	for (uint32_t o = server; o < model->objects; o += model->servers)
		mask |= (uint16_t)(1u << o);
	return mask;
}

static uint16_t reachable(uint16_t from)
{
	uint16_t all = from, before = 0;

	while (all != before) {
		before = all;
		for (uint32_t o = 0; o < model->objects; o++)
			if (all & 1u << o)
				all |= w.edges[o];
	}
	return all;
}

static uint32_t count(uint16_t set)
{
	return (uint32_t)__builtin_popcount(set);
}

static void put(uint32_t server, uint16_t what)
{
	assert_true(w.queued[server] < QUEUE);
	w.queue[server][w.queued[server]++] = what;
}

static void poll_all(void)
{
	for (uint32_t i = 0; i < model->servers; i++)
		put(i, w.poller.round ? POLL | SECOND : POLL);
}

static void send_log(void)
{
	for (uint32_t i = 0; i < model->servers; i++)
		if (w.log & owned(i))
			put(i, w.log & owned(i));
	w.log = 0;
}

/* --- steps ------------------------------------------------------------------------ */

static void receive(struct server *s, uint16_t set)
{
	uint16_t fresh = set & (uint16_t)~(s->marked | s->roots);

	s->roots |= fresh;
	mako_receive(&s->agent, &rule, count(fresh));
}

static void take(struct server *s)
{
	/* What was marked since it came. */
	mako_drop(&s->agent, &rule, count(s->roots & s->marked));
	s->roots &= (uint16_t)~s->marked;
	s->grey |= s->roots;
	s->marked |= s->roots;
	s->roots = 0;
	mako_take(&s->agent, &rule);
}

static void visit(uint32_t i)
{
	struct server *s = &w.s[i];
	uint32_t o = (uint32_t)__builtin_ctz(s->grey), remote = 0;
	uint16_t local = w.edges[o] & owned(i) & (uint16_t)~s->marked;

	s->grey = (uint16_t)((s->grey & ~(1u << o)) | local);
	s->marked |= local;
	for (uint32_t k = 0; k < model->servers; k++) {
		uint16_t there = k == i ? 0 : w.edges[o] & owned(k) & (uint16_t)~s->ghosts[k];

		s->ghosts[k] |= there;
		remote += count(there);
	}
	mako_visit(&s->agent, &rule, count(local), remote);
}

static void deliver(uint32_t from, uint32_t to)
{
	uint16_t set = w.s[from].sent[to];

	w.s[from].sent[to] = 0;
	w.s[from].acknowledgements++;
	if (rule.acknowledge_early)
		w.s[to].landed |= set;
	else
		receive(&w.s[to], set);
}

static void ask(uint32_t i)
{
	uint16_t what = w.queue[i][0];

	memmove(w.queue[i], w.queue[i] + 1, (QUEUE - 1) * sizeof(what));
	w.queue[i][--w.queued[i]] = 0;
	if (what & POLL)
		w.reply[i] = 0x80 | mako_reply(&w.s[i].agent, &rule, !!(what & SECOND));
	else
		receive(&w.s[i], what);
}

static void check_marked(void)
{
	uint16_t marked = 0;

	for (uint32_t i = 0; i < model->servers; i++)
		marked |= w.s[i].marked;
	if (w.snapshot & ~marked && !*flags_wrong)
		snprintf(flags_wrong, sizeof(flags_wrong), "object %d is reachable and not marked",
			 __builtin_ctz(w.snapshot & ~marked));
}

static void ended(void)
{
	if (w.phase == TRACING && (w.log || !rule.trust_empty)) {
		w.phase = FINAL;
		send_log();
		mako_poll(&w.poller, model->servers);
		poll_all();
		return;
	}
	w.phase = ENDED;
	check_marked();
}

static void replied(uint32_t i)
{
	uint8_t flags = w.reply[i] & MAKO_FLAGS;

	w.reply[i] = 0;
	switch (mako_replied(&w.poller, &rule, (uint8_t)i, flags)) {
	case MAKO_WAIT:
		break;
	case MAKO_POLL:
		poll_all();
		break;
	case MAKO_POLL_ONE:
		put(i, POLL | SECOND);
		break;
	case MAKO_ENDED:
		ended();
		break;
	}
}

/* The mutator overwrites the first reference of an object that it can reach. */
static void overwrite(uint32_t o)
{
	uint16_t lost = w.edges[o] & (uint16_t)-w.edges[o];

	w.left--;
	w.edges[o] &= (uint16_t)~lost;
	w.log |= lost;
}

static int flags_world_possible(struct flags_step out[static MODEL_STEPS])
{
	int n = 0;

	if (w.phase == ENDED)
		return 0;
	for (uint8_t i = 0; i < model->servers; i++) {
		struct server *s = &w.s[i];

		if (s->grey)
			out[n++] = (struct flags_step){ VISIT, i, 0 };
		if (s->roots)
			out[n++] = (struct flags_step){ TAKE, i, 0 };
		if (s->landed)
			out[n++] = (struct flags_step){ LAND, i, 0 };
		if (s->acknowledgements)
			out[n++] = (struct flags_step){ ACKNOWLEDGE, i, 0 };
		for (uint8_t k = 0; k < model->servers; k++) {
			if (s->ghosts[k] && !s->sent[k])
				out[n++] = (struct flags_step){ SEND, i, k };
			if (s->sent[k])
				out[n++] = (struct flags_step){ DELIVER, i, k };
		}
		if (w.queued[i])
			out[n++] = (struct flags_step){ ASK, i, 0 };
		if (w.reply[i])
			out[n++] = (struct flags_step){ REPLY, i, 0 };
	}
	if (w.log && w.phase == TRACING)
		out[n++] = (struct flags_step){ LOG, 0, 0 };
	for (uint8_t o = 0; w.left && w.phase == TRACING && o < model->objects; o++)
		if (w.edges[o] && reachable(model->roots) & 1u << o)
			out[n++] = (struct flags_step){ OVERWRITE, 0, o };
	return n;
}

static uint32_t flags_world_take(const struct flags_step *step, uint32_t choice)
{
	struct server *s = &w.s[step->server];

	switch (step->kind) {
	case VISIT:
		visit(step->server);
		break;
	case TAKE:
		take(s);
		break;
	case SEND:
		s->sent[step->to] = s->ghosts[step->to];
		mako_send(&s->agent, &rule, count(s->ghosts[step->to]));
		s->ghosts[step->to] = 0;
		break;
	case DELIVER:
		deliver(step->server, step->to);
		break;
	case LAND:
		receive(s, s->landed);
		s->landed = 0;
		break;
	case ACKNOWLEDGE:
		s->acknowledgements--;
		mako_acknowledged(&s->agent, &rule);
		break;
	case ASK:
		ask(step->server);
		break;
	case REPLY:
		replied(step->server);
		break;
	case LOG:
		send_log();
		break;
	case OVERWRITE:
		overwrite(step->to);
		break;
	}
	return 1;
}

/* Without the mutator, work before polls: tracing ends. */
static void flags_world_end(void)
{
	struct flags_step steps[MODEL_STEPS];

	for (int k = 0; k < 1000 && w.phase != ENDED && !*flags_wrong; k++) {
		int n = flags_world_possible(steps), at = 0;

		while (at < n && (steps[at].kind == OVERWRITE || steps[at].kind == ASK ||
				  steps[at].kind == REPLY))
			at++;
		for (int i = 0; at == n && i < n; i++)
			if (steps[i].kind != OVERWRITE)
				at = i;
		if (at == n)
			break;
		flags_world_take(&steps[at], 0);
	}
	if (w.phase != ENDED && !*flags_wrong)
		snprintf(flags_wrong, sizeof(flags_wrong), "tracing does not end");
}

static uint64_t flags_world_fingerprint(void)
{
	const unsigned char *bytes = (const unsigned char *)&w;
	uint64_t x = 1;

	for (size_t i = 0; i < sizeof(w); i++) {
		x = (x ^ bytes[i]) * 0x9E3779B97F4A7C15ull;
		x ^= x >> 32;
	}
	return x ? x : 1;
}

static uint64_t flags_world_end_fingerprint(void)
{
	return flags_world_fingerprint();
}

#define MODEL(name) flags_##name
#define MODEL_STEP struct flags_step
#define MODEL_DEPTH 4000
#include "model_search.h"

#define EDGE(o) (uint16_t)(1u << (o))

static const struct model models[] = {
	{ .name = "two servers, a chain", .servers = 2, .objects = 7, .roots = EDGE(1),
	  .edges = { 0, EDGE(2), EDGE(3), EDGE(4), EDGE(5), EDGE(6) }, .states = 46000 },
	{ .name = "two servers, a circle, an overwritten reference", .servers = 2, .objects = 4,
	  .overwrites = 1, .roots = EDGE(0),
	  .edges = { EDGE(1), EDGE(2), EDGE(3), EDGE(0) }, .states = 300000 },
	{ .name = "three servers, a chain", .servers = 3, .objects = 5, .roots = EDGE(2),
	  .edges = { EDGE(1), 0, EDGE(0), 0, 0 }, .states = 10000 },
};

/* In `long` only. */
static const struct model long_models[] = {
	{ .name = "two servers, two overwritten references", .servers = 2, .objects = 4,
	  .overwrites = 2, .roots = EDGE(0) | EDGE(1),
	  .edges = { EDGE(3), EDGE(2), 0, EDGE(2) }, .states = 100000 },
	{ .name = "three servers, a fan", .servers = 3, .objects = 4, .roots = EDGE(0),
	  .edges = { EDGE(1) | EDGE(2), EDGE(3), 0, 0 }, .states = 100000 },
	{ .name = "three servers, a longer chain", .servers = 3, .objects = 6, .roots = EDGE(2),
	  .edges = { EDGE(1), EDGE(5), EDGE(0), 0, 0, 0 }, .states = 80000 },
	{ .name = "three servers, an overwritten reference", .servers = 3, .objects = 3,
	  .overwrites = 1, .roots = EDGE(0), .edges = { EDGE(1), EDGE(2), 0 },
	  .states = 100000 },
};

static const struct {
	const char *name;
	struct mako_rule rule;
} mutants[] = {
	{ "one round of polls", { .one_round = true } },
	{ "no TracingInProgress", { .without = MAKO_TRACING } },
	{ "no RootsNotEmpty", { .without = MAKO_ROOTS } },
	{ "no GhostNotEmpty", { .without = MAKO_GHOSTS } },
	{ "no Changed", { .without = MAKO_CHANGED } },
	{ "the second round overlaps the first", { .overlap = true } },
	{ "Changed compares the flags of two polls", { .compare = true } },
	{ "GhostNotEmpty is cleared when the message is sent", { .clear_on_send = true } },
	{ "messages are acknowledged before they are roots", { .acknowledge_early = true } },
	{ "the pause trusts an empty log", { .trust_empty = true } },
};

static uint64_t total;

static uint32_t explore_model(const struct model *m)
{
	uint32_t states;

	model = m;
	memset(&w, 0, sizeof(w));
	*flags_wrong = 0;
	memcpy(w.edges, m->edges, sizeof(w.edges));
	w.left = m->overwrites;
	w.snapshot = reachable(m->roots);
	w.log = m->roots;
	send_log();
	mako_poll(&w.poller, m->servers);
	poll_all();
	states = search_all();
	total += states;
	return states;
}

static void print_path(void)
{
	static const char *const names[] = { "visits an object", "takes its roots", "sends ghosts",
		"'s ghosts arrive", "uses what has landed", "is acknowledged", "gets a message",
		"'s reply arrives", "(CPU server) sends its log", "(mutator) overwrites" };

	for (int k = 0; k < search.deepest; k++)
		printf("%3d server %d %s %d\n", k, search.path[k].server,
		       names[search.path[k].kind], search.path[k].to);
}

static void check(const struct model *m)
{
	uint32_t states = explore_model(m);

	printf("%s: %u states%s%s\n", m->name, states, *flags_wrong ? ", " : "", flags_wrong);
	fflush(stdout);
	if (*flags_wrong)
		print_path();
	assert_false(*flags_wrong);
	assert_true(states >= m->states);
}

static void every_interleaving(void **state)
{
	rule = (struct mako_rule){ 0 };
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		check(&models[i]);
	printf("%llu states\n", (unsigned long long)total);
}

static void mutants_are_found(void **state)
{
	for (size_t k = 0; k < sizeof(mutants) / sizeof(*mutants); k++) {
		size_t i = 0;

		rule = mutants[k].rule;
		*flags_wrong = 0;
		for (; i < sizeof(models) / sizeof(*models) && !*flags_wrong; i++)
			explore_model(&models[i]);
		printf("%s: %s%s%s\n", mutants[k].name, *flags_wrong ? flags_wrong : "not found",
		       *flags_wrong ? ", in " : "", *flags_wrong ? models[i - 1].name : "");
		assert_true(*flags_wrong);
	}
}

static void larger_models(void **state)
{
	search_free();
	assert_true(search_new(1u << 26));
	rule = (struct mako_rule){ 0 };
	total = 0;
	for (size_t i = 0; i < sizeof(long_models) / sizeof(*long_models); i++)
		check(&long_models[i]);
	printf("%llu states\n", (unsigned long long)total);
	search_free();
	assert_true(search_new(1u << 22));
}

/* All graphs of four objects with at most four references. */
static void every_graph(void **state)
{
	rule = (struct mako_rule){ 0 };
	total = 0;
	for (uint32_t graph = 0; graph < 1u << 16; graph++) {
		struct model m = { .name = "a graph", .servers = 2, .objects = 4, .roots = 1,
				   .overwrites = 1 };

		if (__builtin_popcount(graph) > 4 || graph & 0x8421)
			continue;
		for (uint32_t o = 0; o < 4; o++)
			m.edges[o] = graph >> 4 * o & 15;
		explore_model(&m);
		if (*flags_wrong)
			print_path();
		assert_false(*flags_wrong);
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
		return cmocka_run_group_tests_name("Mako's flags, long", tests, allocate, release);
	return cmocka_run_group_tests_name("Mako's flags", shorter, allocate, release);
}
