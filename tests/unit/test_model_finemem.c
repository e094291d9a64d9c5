// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of FineMem's clients (daemon/sim/finemem.c), of crashes and of recovery, by
 * the search that also checks far memory's protocol (test_model_far.c).  One section has two spans
 * of two chunks.  A step is the effect of one verb; a READ of several words is one effect, which is
 * better than RDMA's.
 *
 * What it finds is FineMem's; each fault is expected, with the rules that have it and those that do
 * not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FINEMEM_SPANS 2
#define FINEMEM_SPAN_ORDER 1
#define FINEMEM_SECTION_ORDER 2
#define FINEMEM_DRAW(seed, below) draw(below)

static unsigned draw(unsigned below);

#include "daemon/sim/finemem.c"

#include <cmocka.h>

enum { MEMBERS = 2, HOLDS = 2, CHUNKS = FINEMEM_SPANS * FINEMEM_CHUNKS,
       WORDS = 1 + FINEMEM_SPANS + CHUNKS };
enum { LIVE, CRASHED, GONE }; /* gone: recovered */

struct hold {
	uint8_t has, order, span, chunk;
};

struct member {
	uint8_t life, busy;
	struct finemem_op op;
	struct finemem_verb verb;
	struct finemem_view view;
	struct hold hold[HOLDS];
};

/* How often each may happen, still. */
struct budget {
	uint8_t chunks, spans; /* allocations of 4 KiB, of 128 KiB */
	uint8_t frees, crashes;
};

struct model {
	const char *name;
	struct finemem_rule rule;
	bool fence;         /* nothing of a member takes effect once its recovery has begun */
	bool full;          /* at first, member 1 has the first two chunks */
	bool maps;          /* only what the maps of spans say is checked in the end, not states */
	struct budget budget;
	const char *wrong;  /* begins what is found; NULL: nothing is */
	uint32_t states;    /* at least as many are reached */
};

static struct world {
	uint64_t words[WORDS];
	struct budget left;
	uint8_t recovering; /* number of the member, or 0 */
	struct finemem_recovery recovery;
	struct finemem_verb verb; /* of the recovery */
	struct member m[MEMBERS];
} w;

static const struct model *model;
static char finemem_wrong[160];
static void *const finemem_world = &w;
static uint32_t drawn_choice, drawn_choices;

enum { MODEL_STEPS = 32 };
enum { ALLOCATE_CHUNK, ALLOCATE_SPAN, FREE, STEP, CRASH, LATE, RECOVER, RECOVER_STEP };

struct finemem_world_step {
	uint8_t kind, member, hold;
};

static unsigned draw(unsigned below)
{
	unsigned r = drawn_choice % below;

	drawn_choice /= below;
	drawn_choices *= below;
	return r;
}

static void wrong(const char *what, uint32_t member, uint32_t chunk)
{
	if (!*finemem_wrong)
		snprintf(finemem_wrong, sizeof(finemem_wrong), "%s: member %u, chunk %u", what,
			 member + 1, chunk);
}

static size_t finemem_world_size(void)
{
	return sizeof(w);
}

/* --- memory ----------------------------------------------------------------------- */

/* Returns the chunks of @h, a bit each. */
static uint32_t chunks_of(const struct hold *h)
{
	uint32_t first = h->span * FINEMEM_CHUNKS + h->chunk;

	return h->has ? ((1u << (1 << h->order)) - 1) << first : 0;
}

/* What live members have: nothing twice. */
static uint32_t check_holds(void)
{
	uint32_t all = 0;

	for (uint32_t i = 0; i < MEMBERS; i++)
		for (int k = 0; k < HOLDS; k++) {
			uint32_t chunks = w.m[i].life == LIVE ? chunks_of(&w.m[i].hold[k]) : 0;

			if (all & chunks)
				wrong("two members have a chunk", i,
				      (uint32_t)__builtin_ctz(all & chunks));
			all |= chunks;
		}
	return all;
}

/* Executes @v; returns its result. */
static const uint64_t *execute(const struct finemem_verb *v)
{
	static uint64_t result[WORDS];

	switch (v->kind) {
	case FINEMEM_READ:
		memcpy(result, &w.words[v->at], v->words * sizeof(*result));
		break;
	case FINEMEM_WRITE:
		w.words[v->at] = v->desired;
		break;
	case FINEMEM_SWAP:
		result[0] = w.words[v->at];
		if (result[0] == v->expect)
			w.words[v->at] = v->desired;
		break;
	case FINEMEM_DONE:
		break;
	}
	return result;
}

/* --- members ---------------------------------------------------------------------- */

static struct hold *vacant(struct member *m)
{
	for (int k = 0; k < HOLDS; k++)
		if (!m->hold[k].has)
			return &m->hold[k];
	return NULL;
}

/* Issues the next verb; what ends has its outcome. */
static void next(uint32_t i, const uint64_t *result)
{
	struct member *m = &w.m[i];

	m->verb = finemem_next(&m->op, &model->rule, &m->view, result);
	/* Of no influence, but states would differ by them. */
	m->op.swaps = m->op.failed = m->op.reads = m->op.writes = 0;
	if (m->verb.kind != FINEMEM_DONE)
		return;
	m->busy = 0;
	if (m->op.kind == FINEMEM_FREE && m->op.result)
		wrong("what a member has is free", i,
		      m->op.span * FINEMEM_CHUNKS + m->op.chunk);
	if (m->op.kind == FINEMEM_ALLOCATE && !m->op.result)
		*vacant(m) = (struct hold){ 1, m->op.order, m->op.span, m->op.chunk };
	memset(&m->op, 0, sizeof(m->op));
	memset(&m->verb, 0, sizeof(m->verb));
}

static void begin_allocate(uint32_t i, uint32_t order)
{
	w.m[i].busy = 1;
	finemem_allocate(&w.m[i].op, &model->rule, (uint16_t)(i + 1), order);
	next(i, NULL);
}

static void begin_free(uint32_t i, uint32_t k)
{
	struct hold h = w.m[i].hold[k];

	memset(&w.m[i].hold[k], 0, sizeof(h));
	w.m[i].busy = 1;
	finemem_free(&w.m[i].op, &model->rule, (uint16_t)(i + 1), h.order, 0, h.span, h.chunk);
	next(i, NULL);
}

static void end_recovery(void)
{
	struct member *m = &w.m[w.recovering - 1];

	m->life = GONE;
	memset(m->hold, 0, sizeof(m->hold));
	w.recovering = 0;
	memset(&w.recovery, 0, sizeof(w.recovery));
	memset(&w.verb, 0, sizeof(w.verb));
}

static void recovery_issues(const uint64_t *result)
{
	struct finemem_op *op = &w.recovery.op;

	w.verb = finemem_recover_next(&w.recovery, &model->rule, result);
	op->swaps = op->failed = op->reads = op->writes = 0;
	w.recovery.recovered = 0;
	if (w.verb.kind == FINEMEM_DONE)
		end_recovery();
}

static void begin_recovery(uint32_t i)
{
	w.recovering = (uint8_t)(i + 1);
	if (model->fence)
		w.m[i].busy = 0;
	finemem_recover(&w.recovery, (uint16_t)(i + 1));
	recovery_issues(NULL);
}

/* --- steps ------------------------------------------------------------------------ */

static int finemem_world_possible(struct finemem_world_step out[static MODEL_STEPS])
{
	int n = 0;

	for (uint8_t i = 0; i < MEMBERS; i++) {
		struct member *m = &w.m[i];

		if (m->life == LIVE && m->busy)
			out[n++] = (struct finemem_world_step){ STEP, i, 0 };
		if (m->life == LIVE && w.left.crashes)
			out[n++] = (struct finemem_world_step){ CRASH, i, 0 };
		if (m->life != LIVE && m->busy)
			out[n++] = (struct finemem_world_step){ LATE, i, 0 };
		if (m->life == CRASHED && !w.recovering)
			out[n++] = (struct finemem_world_step){ RECOVER, i, 0 };
		if (m->life != LIVE || m->busy)
			continue;
		if (w.left.chunks && vacant(m))
			out[n++] = (struct finemem_world_step){ ALLOCATE_CHUNK, i, 0 };
		if (w.left.spans && vacant(m))
			out[n++] = (struct finemem_world_step){ ALLOCATE_SPAN, i, 0 };
		for (uint8_t k = 0; k < HOLDS && w.left.frees; k++)
			if (m->hold[k].has)
				out[n++] = (struct finemem_world_step){ FREE, i, k };
	}
	if (w.recovering)
		out[n++] = (struct finemem_world_step){ RECOVER_STEP, 0, 0 };
	return n;
}

static uint32_t finemem_world_take(const struct finemem_world_step *step, uint32_t choice)
{
	struct member *m = &w.m[step->member];

	drawn_choice = choice;
	drawn_choices = 1;
	switch (step->kind) {
	case ALLOCATE_CHUNK:
		w.left.chunks--;
		begin_allocate(step->member, 0);
		break;
	case ALLOCATE_SPAN:
		w.left.spans--;
		begin_allocate(step->member, FINEMEM_SPAN_ORDER);
		break;
	case FREE:
		w.left.frees--;
		begin_free(step->member, step->hold);
		break;
	case STEP:
		next(step->member, execute(&m->verb));
		break;
	case CRASH:
		w.left.crashes--;
		m->life = CRASHED;
		break;
	case LATE:
		execute(&m->verb);
		m->busy = 0;
		break;
	case RECOVER:
		begin_recovery(step->member);
		break;
	case RECOVER_STEP:
		recovery_issues(execute(&w.verb));
		break;
	}
	check_holds();
	return drawn_choices;
}

/* What is allocated has a member. */
static void check_maps(uint32_t has)
{
	uint32_t all = 0;

	for (uint32_t i = 0; i < FINEMEM_SPANS; i++)
		all |= finemem_unpack(w.words[finemem_span_word(1, 0, i)]).map
		       << i * FINEMEM_CHUNKS;
	if (all & ~has)
		wrong("no member has an allocated chunk", 0, (uint32_t)__builtin_ctz(all & ~has));
}

/* One new client can allocate all that no member has, a chunk at a time. */
static void check_free(void)
{
	uint32_t has = check_holds();
	struct finemem_view view = { .section = 0 };
	struct finemem_op op;

	check_maps(has);
	while (!model->maps && !*finemem_wrong) {
		struct finemem_verb v;
		const uint64_t *result = NULL;

		finemem_allocate(&op, &model->rule, MEMBERS + 1, 0);
		while ((v = finemem_next(&op, &model->rule, &view, result)).kind != FINEMEM_DONE)
			result = execute(&v);
		if (op.result)
			break;
		if (has & 1u << (op.span * FINEMEM_CHUNKS + op.chunk))
			wrong("what a member has is allocated again", 0,
			      op.span * FINEMEM_CHUNKS + op.chunk);
		has |= 1u << (op.span * FINEMEM_CHUNKS + op.chunk);
	}
	if (!model->maps && has != (1u << CHUNKS) - 1)
		wrong("a free chunk cannot be allocated", 0, (uint32_t)__builtin_ctz(~has));
}

/* With crashes: all crash now, and are recovered one after the other. */
static void finemem_world_end(void)
{
	drawn_choice = 0;
	for (uint32_t i = 0; i < MEMBERS; i++) {
		if (!model->budget.crashes && w.m[i].busy)
			return;
		if (model->budget.crashes && w.m[i].life == LIVE)
			w.m[i].life = CRASHED;
		w.m[i].busy &= w.m[i].life == LIVE;
	}
	while (w.recovering)
		recovery_issues(execute(&w.verb));
	for (uint32_t i = 0; i < MEMBERS; i++) {
		if (w.m[i].life != CRASHED)
			continue;
		begin_recovery(i);
		while (w.recovering)
			recovery_issues(execute(&w.verb));
	}
	check_free();
}

static uint64_t mix(uint64_t print, uint64_t word)
{
	print = (print ^ word) * 0x9E3779B97F4A7C15ull;
	return print ^ print >> 32;
}

static uint64_t mix_verb(uint64_t x, const struct finemem_verb *v)
{
	x = mix(x, (uint64_t)v->at << 32 | v->words << 8 | (uint64_t)v->kind);
	return mix(mix(x, v->expect), v->desired);
}

/* Member by member: structs have gaps. */
static uint64_t mix_op(uint64_t x, const struct finemem_op *o)
{
	x = mix(x, (uint64_t)o->kind << 56 | (uint64_t)o->phase << 48 | (uint64_t)o->order << 40 |
			   (uint64_t)o->span << 32 | (uint64_t)o->chunk << 24 |
			   (uint64_t)o->state << 16 | (uint64_t)o->old_retry << 8 | o->from_mask);
	x = mix(x, (uint64_t)o->id << 48 | (uint64_t)o->opened << 33 | (uint64_t)o->flushed << 32 |
			   o->section);
	x = mix(x, (uint64_t)o->tried << 32 | o->failures);
	x = mix(mix(x, o->image), finemem_log_pack(&o->log));
	x = mix(mix(x, o->old_log), (uint64_t)o->log_at << 32 | o->at);
	return mix_verb(mix(x, (uint64_t)o->result), &o->verb);
}

static uint64_t mix_member(uint64_t x, const struct member *m)
{
	const struct finemem_view *v = &m->view;

	x = mix_op(mix(x, (uint64_t)m->life << 8 | m->busy), &m->op);
	x = mix_verb(x, &m->verb);
	x = mix(x, (uint64_t)v->section << 2 | (uint64_t)v->has_states << 1 | v->has_spans);
	x = mix(x, v->states);
	for (uint32_t i = 0; i < FINEMEM_SPANS; i++)
		x = mix(x, v->spans[i]);
	for (int k = 0; k < HOLDS; k++)
		x = mix(x, (uint64_t)m->hold[k].has << 24 | (uint64_t)m->hold[k].order << 16 |
				   (uint64_t)m->hold[k].span << 8 | m->hold[k].chunk);
	return x;
}

static uint64_t finemem_world_fingerprint(void)
{
	uint64_t x = 1;

	for (uint32_t i = 0; i < WORDS; i++)
		x = mix(x, w.words[i]);
	x = mix(x, (uint64_t)w.left.chunks << 24 | (uint64_t)w.left.spans << 16 |
			   (uint64_t)w.left.frees << 8 | w.left.crashes);
	x = mix(x, (uint64_t)w.recovering << 56 | (uint64_t)w.recovery.dead << 40 |
			   (uint64_t)w.recovery.frees << 32 | w.recovery.at);
	x = mix_verb(mix_op(x, &w.recovery.op), &w.verb);
	for (uint32_t i = 0; i < MEMBERS; i++)
		x = mix_member(x, &w.m[i]);
	return x ? x : 1;
}

static uint64_t finemem_world_end_fingerprint(void)
{
	return finemem_world_fingerprint();
}

#define MODEL(name) finemem_##name
#define MODEL_STEP struct finemem_world_step
#include "model_search.h"

static const char *name_of(const struct finemem_world_step *s)
{
	static const char *const names[] = {
		"allocates a chunk", "allocates a span", "frees", "goes on", "crashes",
		"has a late effect", "is being recovered", "recovery goes on",
	};

	return names[s->kind];
}

static void set_up(void)
{
	struct finemem_header span = {
		.map = FINEMEM_FULL_MAP, .in_use = 1, .offset = 1, .id = 1,
	};
	struct finemem_header section = { .map = FINEMEM_FULL };
	struct finemem_log log = { .id = 1 };

	memset(&w, 0, sizeof(w));
	*finemem_wrong = 0;
	w.left = model->budget;
	if (!model->full)
		return;
	w.words[finemem_section_word(0)] = finemem_pack(&section);
	w.words[finemem_span_word(1, 0, 0)] = finemem_pack(&span);
	w.words[finemem_log_word(1, 0, 0)] = finemem_log_pack(&log);
	for (uint8_t k = 0; k < FINEMEM_CHUNKS; k++)
		w.m[0].hold[k] = (struct hold){ .has = 1, .chunk = k };
}

#define RULE(how, logs) { .sections = 1, .update = how, .flush = logs, .high = FINEMEM_HIGH, \
			  .low = FINEMEM_LOW }

static const struct model models[] = {
	/* Of one size, with compare-and-swaps alone: correct, with logs and without. */
	{ .name = "chunks",
	  .rule = RULE(FINEMEM_SWAPS, false),
	  .budget = { .chunks = 4, .frees = 3 },
	  .states = 300000 },
	{ .name = "chunks, logs",
	  .rule = RULE(FINEMEM_SWAPS, true),
	  .budget = { .chunks = 3, .frees = 3 },
	  .states = 100000 },
	{ .name = "spans",
	  .rule = RULE(FINEMEM_PAPER, false),
	  .budget = { .spans = 4, .frees = 4 },
	  .states = 5000 },
	/* A WRITE of an old image undoes a state that another has set: its span is not found. */
	{ .name = "chunks, states by WRITE",
	  .rule = RULE(FINEMEM_PAPER, false),
	  .budget = { .chunks = 3, .frees = 2 },
	  .wrong = "a free chunk cannot be allocated" },
	{ .name = "chunks, states as released",
	  .rule = RULE(FINEMEM_RELEASED, false),
	  .full = true,
	  .budget = { .chunks = 2, .frees = 3 },
	  .wrong = "a free chunk cannot be allocated" },
	/* ... or undoes an allocation. */
	{ .name = "chunks and spans, states by WRITE",
	  .rule = RULE(FINEMEM_PAPER, false),
	  .full = true,
	  .budget = { .spans = 2, .frees = 1 },
	  .wrong = "what a member has is allocated again" },
	{ .name = "chunks and spans, states as released",
	  .rule = RULE(FINEMEM_RELEASED, false),
	  .full = true,
	  .budget = { .spans = 2, .frees = 1 },
	  .wrong = "what a member has is allocated again" },
	/* Two layers are two words: a span becomes empty in which others have allocated since. */
	{ .name = "chunks and spans",
	  .rule = RULE(FINEMEM_SWAPS, false),
	  .budget = { .chunks = 2, .spans = 1, .frees = 1 },
	  .wrong = "two members have a chunk" },
	/* Recovery by the logs: what a dead member had is free. */
	{ .name = "crashes",
	  .rule = RULE(FINEMEM_SWAPS, true),
	  .fence = true,
	  .maps = true,
	  .budget = { .chunks = 2, .frees = 2, .crashes = 1 },
	  .states = 100000 },
	{ .name = "two crashes",
	  .rule = RULE(FINEMEM_PAPER, true),
	  .fence = true,
	  .full = true,
	  .maps = true,
	  .budget = { .chunks = 1, .frees = 2, .crashes = 2 },
	  .states = 100000 },
	{ .name = "spans, two crashes",
	  .rule = RULE(FINEMEM_SWAPS, true),
	  .fence = true,
	  .budget = { .spans = 2, .frees = 2, .crashes = 2 },
	  .states = 80000 },
	/* Without the logs, it is not; */
	{ .name = "a crash, no logs",
	  .rule = RULE(FINEMEM_SWAPS, false),
	  .fence = true,
	  .maps = true,
	  .budget = { .chunks = 2, .frees = 1, .crashes = 1 },
	  .wrong = "no member has an allocated chunk" },
	/* nor if the member is slow and not dead, against which FineMem has stamps but no fence; */
	{ .name = "a crash, no fence",
	  .rule = RULE(FINEMEM_SWAPS, true),
	  .maps = true,
	  .budget = { .chunks = 2, .frees = 1, .crashes = 1 },
	  .wrong = "no member has an allocated chunk" },
	/* and no log has the state that a dead member has not set. */
	{ .name = "a crash between the layers",
	  .rule = RULE(FINEMEM_SWAPS, true),
	  .fence = true,
	  .budget = { .chunks = 2, .frees = 1, .crashes = 1 },
	  .wrong = "a free chunk cannot be allocated" },
};

static void print_path(void)
{
	for (int k = 0; k < search.deepest; k++)
		printf("%3d member %u %s\n", k, search.path[k].member + 1,
		       name_of(&search.path[k]));
}

static void check(const struct model *m)
{
	uint32_t states;
	bool right;

	model = m;
	set_up();
	states = search_all();
	printf("%s: %u states%s%s\n", m->name, states, *finemem_wrong ? ", " : "", finemem_wrong);
	fflush(stdout);
	right = m->wrong ? !strncmp(finemem_wrong, m->wrong, strlen(m->wrong)) : !*finemem_wrong;
	if (!right)
		print_path();
	assert_true(right);
	assert_true(states >= m->states);
}

static void every_interleaving(void **state)
{
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		check(&models[i]);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
	};

	return cmocka_run_group_tests_name("FineMem's model", tests, allocate, release);
}
