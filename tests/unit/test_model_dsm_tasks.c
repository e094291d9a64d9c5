// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of a spawner, a second one, and workers with userlib/dsm/task_step.c, crashes
 * and recoveries.  Parcels and loans are those of dsm_step.h, which test_model_dsm.c checks: here
 * each of their operations is one effect.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "userlib/dsm/task_step.h"

#include <cmocka.h>

enum { SPAWNERS = 2, WORKERS = 2, PROCESSES = SPAWNERS + WORKERS, BOXES = 2, STEPS = 32 };

/* Processes: spawners, then workers. */
enum { NO_OWNER = 0xff, FIRST_TICKET = 1 };

enum hold { HOLD_NONE, HOLD_OFFERED, HOLD_TAKEN, HOLD_RETURNED, HOLD_DONE };

/* A box of a task: which process has it, and whether a parcel of it is out. */
struct box {
	uint8_t owner, state; /* HOLD_NONE: the owner's; HOLD_OFFERED: by the owner */
};

struct job {
	struct box box[BOXES];
	uint8_t loan, taker, taker_desk; /* hold; worker */
	uint8_t runs, refused, done, result, boxes_out; /* of the returned object */
	uint8_t record; /* ticket + 1 that the record has; 0 = none */
	uint8_t spawned, ended, joins, cancels, given, worker, seat_ticket, left;
	uint8_t desk; /* that was chosen */
	int8_t verdict, ends_as, join_ended;
};

struct process {
	/* Active: 0 none, 1 spawn, 2 join, 3 cancel, 4 serve. */
	uint8_t alive, recovered, active, serving;
	uint8_t job; /* that a worker serves */
	uint8_t has, kept, rung;
	struct task_op op;
	struct task_verb v;
};

struct world {
	struct process p[PROCESSES];
	struct job job[SPAWNERS];
	struct {
		uint8_t free, ticket; /* free: 1; else the job + 2 whose record it names */
		uint8_t kept[SPAWNERS], desk, unused[3]; /* desk: counts processes */
	} seat[WORKERS];
	uint8_t crashes, spawns, rejoins, padding[5];
};

static struct world W;
static char tasks_wrong[160];
static const char *only;
static uint64_t reached[2];

/* Faults of the protocol or of a process, which the search must find. */
enum mutant {
	NO_MUTANT,
	TICKET_AGAIN,  /* a desk's tickets begin again when its memory is used again */
	LATE_TAKE,     /* a worker does not look whether the loan was withdrawn */
	LATE_RECORD,   /* the record is written after the seat */
	NO_WITHDRAWAL, /* a spawner that gives a task up leaves the loan */
	NO_KEEP,       /* a worker forgets the boxes of a result */
	NO_RETRIEVAL,  /* a spawner forgets the parcels of a task that was not begun */
};
static enum mutant mutant;

struct step {
	uint8_t process, kind;
};
enum { EFFECT, SPAWN, JOIN, CANCEL, SERVE, SETTLE, CRASH, RECOVER, REJOIN };

static void *const tasks_world = &W;
#define MODEL(name) tasks_##name
#define MODEL_STEP struct step
#define MODEL_STEPS STEPS
static int tasks_world_possible(struct step out[static STEPS]);
static uint32_t tasks_world_take(const struct step *s, uint32_t choice);
static void tasks_world_end(void);
static size_t tasks_world_size(void) { return sizeof(W); }
static uint64_t tasks_world_fingerprint(void);
static uint64_t tasks_world_end_fingerprint(void) { return tasks_world_fingerprint(); }
#include "model_search.h"

static uint64_t tasks_world_fingerprint(void)
{
	const uint8_t *at = (const uint8_t *)&W;
	uint64_t x = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < sizeof(W); i++) {
		x = (x ^ at[i]) * 0x9e3779b97f4a7c15ull;
		x ^= x >> 29;
	}
	return x | 1;
}

static void wrong(const char *what)
{
	if (!*tasks_wrong && (!only || !strcmp(only, what)))
		snprintf(tasks_wrong, sizeof(tasks_wrong), "%s", what);
}

static bool is_spawner(uint32_t p)
{
	return p < SPAWNERS;
}

/* Whether memory of @p can still be used by others: it lives, or the donor has not freed it. */
static bool has_memory(uint32_t p)
{
	return !W.p[p].recovered;
}

/* Whether the worker @p with desk @desk can still use its memory. */
static bool has_desk(uint32_t p, uint8_t desk)
{
	return has_memory(p) && W.seat[p - SPAWNERS].desk == desk;
}

/* --- effects of verbs ------------------------------------------------------------- */


static int give(uint32_t p, struct job *j, uint32_t i)
{
	if (j->box[i].owner != p || j->box[i].state)
		return -EBUSY;
	j->box[i].state = HOLD_OFFERED;
	return 0;
}

static int accept_box(uint32_t p, struct job *j, uint32_t i)
{
	struct box *b = &j->box[i];

	if (b->owner == NO_OWNER || !has_memory(b->owner))
		return -EOWNERDEAD;
	if (b->state != HOLD_OFFERED || b->owner == p)
		return -ESTALE;
	*b = (struct box){ .owner = (uint8_t)p };
	return 0;
}

/* Withdraws the parcel of box @i of @p; returns whether the box is @p's. */
static bool retrieve(uint32_t p, struct job *j, uint32_t i)
{
	if (j->box[i].owner != p || j->box[i].state != HOLD_OFFERED)
		return false;
	j->box[i].state = HOLD_NONE;
	return true;
}

static int withdraw(struct job *j)
{
	if (mutant == NO_WITHDRAWAL)
		return j->loan == HOLD_OFFERED ? 0 : -EBUSY;
	switch ((enum hold)j->loan) {
	case HOLD_OFFERED:
		j->loan = HOLD_NONE;
		return 0;
	case HOLD_TAKEN:
	case HOLD_RETURNED:
		return -EBUSY;
	default:
		return -EBUSY;
	}
}

static int probe(struct job *j)
{
	if (j->loan == HOLD_OFFERED)
		return -EAGAIN;
	if (j->loan == HOLD_RETURNED) {
		/* The memory of a worker is freed: the object is as it was before the loan. */
		if (!has_desk(j->taker, j->taker_desk)) {
			j->loan = HOLD_NONE;
			return -EOWNERDEAD;
		}
		j->loan = HOLD_NONE;
		return TASK_RETURNED;
	}
	if (j->loan == HOLD_TAKEN && !has_desk(j->taker, j->taker_desk)) {
		j->loan = HOLD_NONE;
		return -EOWNERDEAD;
	}
	return j->loan == HOLD_TAKEN ? -EBUSY : -EIO;
}

static int look(struct task_op *op, const struct job *j)
{
	if (!j->done)
		return -EIO;
	op->out = j->boxes_out;
	return j->verdict ? -ECANCELED : 0;
}

static int spawner_verb(uint32_t p, struct process *me, struct job *j)
{
	const struct task_verb *v = &me->v;
	uint32_t w = j->worker;

	switch (v->kind) {
	case TASK_CHOOSE:
		for (w = 0; w < WORKERS; w++)
			if (W.p[SPAWNERS + w].alive && W.seat[w].free == 1 && !(j->left >> w & 1))
				break;
		if (w == WORKERS)
			return -EAGAIN;
		/* Each is tried once. */
		j->left |= (uint8_t)(1u << w);
		j->worker = (uint8_t)w;
		j->seat_ticket = W.seat[w].ticket;
		j->desk = W.seat[w].desk;
		return 0;
	case TASK_GIVE:
		return give(p, j, v->i);
	case TASK_MAKE:
		j->loan = HOLD_OFFERED;
		return 0;
	case TASK_RECORD:
		if (mutant != LATE_RECORD)
			j->record = (uint8_t)(j->seat_ticket + 1);
		return 0;
	case TASK_POST:
		if (!has_memory(SPAWNERS + w) || W.seat[w].free != 1 ||
		    W.seat[w].ticket != j->seat_ticket)
			return -EAGAIN;
		if (W.seat[w].desk != j->desk)
			wrong("a word of another process changed");
		W.seat[w].free = (uint8_t)(p + 2);
		return 0;
	case TASK_RING:
		if (mutant == LATE_RECORD)
			j->record = (uint8_t)(j->seat_ticket + 1);
		return 0;
	case TASK_PROBE:
		return probe(j);
	case TASK_ALIVE:
		return has_desk(SPAWNERS + w, j->desk);
	case TASK_WITHDRAW:
		return withdraw(j);
	case TASK_LOOK:
		return look(&me->op, j);
	case TASK_RETRIEVE:
		if (mutant != NO_RETRIEVAL)
			retrieve(p, j, v->i);
		return 0;
	case TASK_ACCEPT:
		return accept_box(p, j, v->i);
	case TASK_DISCARD:
		j->record = 0;
		return 0;
	default:
		wrong("a spawner executes a worker's verb");
		return -EINVAL;
	}
}

static void run(uint32_t p, struct process *me, struct job *j)
{
	j->runs++;
	if (j->runs > 1)
		wrong("a task is executed twice");
	if (j->ends_as == -ECANCELED)
		wrong("a task that was not begun is executed");
	/* It drops box 0 and returns box 1. */
	for (int i = 0; i < BOXES; i++)
		if (j->box[i].owner != p)
			wrong("a task lacks a box");
	j->box[0].owner = NO_OWNER;
	me->op.boxes = 2;
}

static int worker_verb(uint32_t p, struct process *me)
{
	uint32_t w = p - SPAWNERS;
	struct job *j = &W.job[me->job];
	const struct task_verb *v = &me->v;

	switch (v->kind) {
	case TASK_SEAT:
		me->job = (uint8_t)(W.seat[w].free - 2);
		return W.seat[w].free >= 2;
	case TASK_READ:
		if (!has_memory(me->job))
			return -ESTALE;
		return j->record == W.seat[w].ticket + 1 ? 0 : -ESTALE;
	case TASK_TAKE:
		if (!has_memory(me->job))
			return -EOWNERDEAD;
		if (mutant != LATE_TAKE && j->loan != HOLD_OFFERED)
			return -ESTALE;
		if (mutant == LATE_TAKE && j->loan == HOLD_NONE)
			j->loan = HOLD_OFFERED;
		j->loan = HOLD_TAKEN;
		j->taker = (uint8_t)p;
		j->taker_desk = W.seat[w].desk;
		return 0;
	case TASK_UNSEAT:
		W.seat[w].free = 1;
		W.seat[w].ticket += mutant != TICKET_AGAIN;
		return 0;
	case TASK_CHECK:
		me->op.boxes = 3;
		return 0;
	case TASK_ACCEPT:
		return accept_box(p, j, v->i);
	case TASK_RUN:
		run(p, me, j);
		return 0;
	case TASK_GIVE:
		return give(p, j, v->i);
	case TASK_RETURN:
		if (!has_memory(me->job) || j->loan != HOLD_TAKEN)
			return -EOWNERDEAD;
		j->loan = HOLD_RETURNED;
		j->done = 1;
		j->verdict = me->op.verdict != 0;
		j->boxes_out = me->op.out;
		return 0;
	case TASK_KEEP:
		if (mutant != NO_KEEP)
			W.seat[w].kept[me->job] |= me->op.out;
		return 0;
	case TASK_DROP:
		if (retrieve(p, j, v->i))
			j->box[v->i].owner = NO_OWNER;
		return 0;
	case TASK_RING:
		me->rung = 1;
		return 0;
	default:
		wrong("a worker executes a spawner's verb");
		return -EINVAL;
	}
}

/* --- operations ------------------------------------------------------------------- */

static void joined(uint32_t p, struct job *j, int result)
{
	uint32_t w = SPAWNERS + j->worker;

	if (result == -EAGAIN) {
		j->joins++;
		return;
	}
	j->ends_as = (int8_t)result;
	j->ended = 1;
	if (result == 0 && (j->runs != 1 || !j->done))
		wrong("a task that was not executed has ended");
	if (result == 0 && j->box[1].owner != p)
		wrong("a box of a result is lost");
	if (result == -ECANCELED && (j->runs || (j->loan == HOLD_TAKEN)))
		wrong("a task that was begun counts as not begun");
	if (result == -EOWNERDEAD && W.p[w].alive && W.seat[j->worker].desk == j->desk)
		wrong("a live worker counts as dead");
	if (result == -ECANCELED)
		for (int i = 0; i < BOXES; i++)
			if (j->box[i].owner != p || j->box[i].state)
				wrong("a box of a task that was not begun is lost");
}

/* Returns the bit in .reached of a result of an operation. */
static uint32_t place_of(uint8_t what, int result)
{
	return (what == 4 ? 0 : 16 * (what - 1u)) + ((uint32_t)-result & 15);
}

static void ended(uint32_t p, int result)
{
	struct process *me = &W.p[p];
	struct job *j = &W.job[is_spawner(p) ? p : me->job];
	uint8_t what = me->active;

	reached[what == 4] |= 1ull << place_of(what, result);
	if (what == 1) {
		j->spawned = !result;
		j->ended = result != 0;
		for (int i = 0; i < BOXES && result; i++)
			if (j->box[i].owner != p || j->box[i].state)
				wrong("a box of a task that was not spawned is lost");
		j->given = 3;
	} else if (what == 2) {
		joined(p, j, result);
	} else if (what == 3 && !result) {
		j->join_ended = -ECANCELED;
	} else if (what == 4 && !result && j->loan == HOLD_RETURNED && !me->rung) {
		wrong("a spawner is not rung");
	}
	memset(&me->op, 0, sizeof(me->op));
	memset(&me->v, 0, sizeof(me->v));
	me->active = me->job = me->rung = 0;
}

static void go_on(uint32_t p, int status)
{
	struct process *me = &W.p[p];
	struct task_verb v = task_next(&me->op, status);

	me->v = (struct task_verb){ 0 };
	me->v.kind = v.kind;
	me->v.i = v.i;
	if (v.kind == TASK_ENDED)
		ended(p, me->op.result);
}

static void begin(uint32_t p, uint8_t what)
{
	struct process *me = &W.p[p];
	struct job *j = &W.job[p % SPAWNERS];

	me->active = what;
	if (what == 1)
		task_spawn(&me->op, 3);
	else if (what == 2)
		task_join(&me->op, j->given, j->join_ended);
	else if (what == 3)
		task_cancel(&me->op);
	else
		task_serve(&me->op);
	go_on(p, 0);
}

/* A worker drops what dead spawners have not accepted. */
static void settle(uint32_t p)
{
	uint32_t w = p - SPAWNERS;

	for (uint32_t s = 0; s < SPAWNERS; s++)
		for (uint32_t i = 0; i < BOXES; i++)
			if (W.seat[w].kept[s] >> i & 1 && !has_memory(s) &&
			    retrieve(p, &W.job[s], i))
				W.job[s].box[i].owner = NO_OWNER;
}

static void recover(uint32_t p)
{
	struct process *me = &W.p[p];

	me->recovered = 1;
	memset(&me->op, 0, sizeof(me->op));
	memset(&me->v, 0, sizeof(me->v));
	me->active = 0;
	for (uint32_t s = 0; s < SPAWNERS; s++)
		for (uint32_t i = 0; i < BOXES; i++)
			if (W.job[s].box[i].owner == p)
				W.job[s].box[i].owner = NO_OWNER;
	if (is_spawner(p))
		W.job[p].record = 0;
	else
		memset(W.seat[p - SPAWNERS].kept, 0, SPAWNERS);
}

/* Another process has the memory, and a desk at the same place. */
static void rejoin(uint32_t p)
{
	uint32_t w = p - SPAWNERS;

	W.rejoins--;
	memset(&W.p[p], 0, sizeof(W.p[p]));
	W.p[p].alive = 1;
	W.seat[w].desk++;
	W.seat[w].free = 1;
	W.seat[w].ticket = (uint8_t)(mutant == TICKET_AGAIN ? FIRST_TICKET : 16 * W.seat[w].desk);
}

/* --- the search ------------------------------------------------------------------- */

static int add(struct step *out, int n, uint32_t p, uint8_t kind)
{
	out[n] = (struct step){ .process = (uint8_t)p, .kind = kind };
	return n + 1;
}

static int tasks_world_possible(struct step out[static STEPS])
{
	int n = 0;

	for (uint32_t p = 0; p < PROCESSES; p++) {
		const struct process *me = &W.p[p];
		const struct job *j = &W.job[p % SPAWNERS];

		if (me->alive && me->active)
			n = add(out, n, p, EFFECT);
		if (me->alive && W.crashes)
			n = add(out, n, p, CRASH);
		if (!me->alive && !me->recovered)
			n = add(out, n, p, RECOVER);
		if (me->recovered && W.rejoins && !is_spawner(p))
			n = add(out, n, p, REJOIN);
		if (!me->alive || me->active)
			continue;
		if (!is_spawner(p)) {
			if (W.seat[p - SPAWNERS].free >= 2)
				n = add(out, n, p, SERVE);
			n = add(out, n, p, SETTLE);
		} else if (!j->spawned && !j->ended && W.spawns) {
			n = add(out, n, p, SPAWN);
		} else if (j->spawned && !j->ended) {
			if (j->joins < 2)
				n = add(out, n, p, JOIN);
			if (!j->cancels)
				n = add(out, n, p, CANCEL);
		}
	}
	return n;
}

static void effect(uint32_t p)
{
	struct process *me = &W.p[p];

	go_on(p, is_spawner(p) ? spawner_verb(p, me, &W.job[p]) : worker_verb(p, me));
}

static uint32_t tasks_world_take(const struct step *s, uint32_t choice)
{
	uint32_t p = s->process;

	switch (s->kind) {
	case EFFECT:
		effect(p);
		break;
	case SPAWN:
		W.spawns--;
		begin(p, 1);
		break;
	case JOIN:
		begin(p, 2);
		break;
	case CANCEL:
		W.job[p].cancels = 1;
		begin(p, 3);
		break;
	case SERVE:
		begin(p, 4);
		break;
	case SETTLE:
		settle(p);
		break;
	case CRASH:
		W.crashes--;
		W.p[p].alive = 0;
		break;
	case RECOVER:
		recover(p);
		break;
	default:
		rejoin(p);
		break;
	}
	return 1;
}

static void finish(uint32_t p)
{
	for (int i = 0; i < 100 && W.p[p].alive && W.p[p].active; i++)
		effect(p);
	if (W.p[p].alive && W.p[p].active)
		wrong("an operation does not end");
}

static void tasks_world_end(void)
{
	for (uint32_t p = 0; p < PROCESSES; p++)
		finish(p);
	for (uint32_t p = 0; p < PROCESSES; p++)
		if (!W.p[p].alive && !W.p[p].recovered)
			recover(p);
	for (int turn = 0; turn < 2; turn++) {
		for (uint32_t p = SPAWNERS; p < PROCESSES; p++)
			if (W.p[p].alive && W.seat[p - SPAWNERS].free >= 2) {
				begin(p, 4);
				finish(p);
			}
		for (uint32_t p = 0; p < SPAWNERS; p++)
			if (W.p[p].alive && W.job[p].spawned && !W.job[p].ended) {
				begin(p, 2);
				finish(p);
			}
	}
	for (uint32_t p = SPAWNERS; p < PROCESSES; p++)
		if (W.p[p].alive) {
			settle(p);
			if (W.seat[p - SPAWNERS].free != 1)
				wrong("a seat is lost");
		}
	for (uint32_t p = 0; p < SPAWNERS; p++) {
		const struct job *j = &W.job[p];

		if (W.p[p].alive && j->spawned && !j->ended)
			wrong("a task is neither executed nor given up");
		if (W.p[p].alive && j->record)
			wrong("a record is lost");
		for (uint32_t i = 0; i < BOXES; i++) {
			if (j->box[i].owner == NO_OWNER)
				continue;
			if (j->box[i].state == HOLD_OFFERED)
				wrong("a parcel is left");
			if (j->box[i].owner != p)
				wrong("a box is left at a worker");
		}
	}
}

static const struct {
	const char *name;
	uint8_t spawns, crashes, rejoins;
	uint32_t states; /* fewer are a fault of the search */
} models[] = {
	{ "two tasks", 2, 0, 0, 500000 },
	{ "a task, two processes die", 1, 2, 0, 36000 },
	{ "a task, memory of a worker is used again", 1, 1, 1, 11000 },
};

static void world_begin(uint32_t model)
{
	memset(&W, 0, sizeof(W));
	*tasks_wrong = '\0';
	W.spawns = models[model].spawns;
	W.crashes = models[model].crashes;
	W.rejoins = models[model].rejoins;
	for (uint32_t p = 0; p < PROCESSES; p++)
		W.p[p].alive = 1;
	for (uint32_t w = 0; w < WORKERS; w++) {
		W.seat[w].free = 1;
		W.seat[w].ticket = FIRST_TICKET;
	}
	for (uint32_t s = 0; s < SPAWNERS; s++)
		for (uint32_t i = 0; i < BOXES; i++)
			W.job[s].box[i].owner = (uint8_t)s;
}

static void every_interleaving(void **state)
{
	mutant = NO_MUTANT;
	only = NULL;
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++) {
		world_begin((uint32_t)i);
		uint32_t states = search_all();

		printf("%s: %u states\n", models[i].name, states);
		for (int k = 0; *tasks_wrong && k < search.deepest; k++)
			printf("%3d process %d step %d\n", k, search.path[k].process,
			       search.path[k].kind);
		assert_string_equal(tasks_wrong, "");
		assert_true(states >= models[i].states);
	}
}

static void all_is_reached(void **state)
{
	static const struct {
		uint8_t what;
		int result;
		const char *text;
	} all[] = {
		{ 1, 0, "a task that is spawned" }, { 1, -EAGAIN, "a spawn without a seat" },
		{ 2, 0, "a join" }, { 2, -EAGAIN, "a join of what goes on" },
		{ 2, -ECANCELED, "a task that was not begun" }, { 2, -EOWNERDEAD, "a dead worker" },
		{ 3, 0, "a cancellation" }, { 3, -EBUSY, "a late cancellation" },
		{ 4, 0, "a task that is served" }, { 4, -ESTALE, "a task that is no more" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!(reached[all[i].what == 4] >> place_of(all[i].what, all[i].result) & 1))
			fail_msg("no model has %s", all[i].text);
}

static const struct {
	enum mutant mutant;
	uint8_t model;
	const char *wrong;
} faults[] = {
	{ TICKET_AGAIN, 2, "a word of another process changed" },
	{ LATE_TAKE, 0, "a task that was not begun is executed" },
	{ LATE_RECORD, 0, "a task is neither executed nor given up" },
	{ NO_WITHDRAWAL, 0, "a task that was not begun is executed" },
	{ NO_KEEP, 1, "a parcel is left" },
	{ NO_RETRIEVAL, 1, "a parcel is left" },
};

static void faults_are_found(void **state)
{
	int missed = 0;

	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		mutant = faults[i].mutant;
		only = faults[i].wrong;
		world_begin(faults[i].model);
		search_all();
		printf("fault %d: %s (%u states)\n", (int)mutant,
		       *tasks_wrong ? tasks_wrong : "nothing", search.states);
		missed += !*tasks_wrong;
	}
	mutant = NO_MUTANT;
	only = NULL;
	assert_int_equal(missed, 0);
}

static int allocate(void **state)
{
	return search_new(1u << 20) ? 0 : -1;
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
		cmocka_unit_test(all_is_reached),
		cmocka_unit_test(faults_are_found),
	};

	return cmocka_run_group_tests_name("dsm task model", tests, allocate, release);
}
