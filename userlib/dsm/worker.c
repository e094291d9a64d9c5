// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Functions, and tasks that this process executes. */
#include <errno.h>
#include <elf.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "task.h"

/* Between calls of ebbdsm_settle(), ms. */
#define SETTLE_MS 1000
/* Between attempts to give a box of a result, us. */
#define GIVE_US 10000

/* --- boxes of results ------------------------------------------------------------- */

/* Withdraws and drops what was not accepted; returns whether nothing is left. */
static bool drop_kept(ebbdsm_t *dsm, struct dsm_kept *k)
{
	bool left = false;

	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES; i++) {
		if (!k->box[i].stamp)
			continue;
		if (!ebbdsm_reclaim(dsm, &k->box[i]))
			ebbdsm_drop(dsm, &k->box[i]);
		left |= k->box[i].stamp != 0 && ebbdsm_size(dsm, &k->box[i]);
	}
	return !left;
}

/* Returns whether the joiner has accepted all: ebbdsm_settle() has freed their places. */
static bool is_accepted(ebbdsm_t *dsm, const struct dsm_kept *k)
{
	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES; i++)
		if (k->box[i].stamp && ebbdsm_size(dsm, &k->box[i]))
			return false;
	return true;
}

/* Boxes that joiners have accepted, or never will, are no longer kept. */
static void sweep(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;
	struct dsm_kept *all, *left = NULL, *k;

	pthread_mutex_lock(&t->lock);
	all = t->kept;
	t->kept = NULL;
	pthread_mutex_unlock(&t->lock);
	while ((k = all)) {
		all = k->next;
		if (is_accepted(dsm, k) ||
		    (!desk_lives(dsm, k->donor, k->member, &k->x) && drop_kept(dsm, k))) {
			free(k);
			continue;
		}
		k->next = left;
		left = k;
	}
	pthread_mutex_lock(&t->lock);
	while ((k = left)) {
		left = k->next;
		k->next = t->kept;
		t->kept = k;
	}
	pthread_mutex_unlock(&t->lock);
}

static void settle(ebbdsm_t *dsm)
{
	sweep(dsm);
	desk_update(dsm);
}

/* --- functions -------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4)))
static int say(struct ebbdsm_functions *f, int r, const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	vsnprintf(f->error, sizeof(f->error), fmt, list);
	va_end(list);
	return r;
}

/* Writes the build id of the notes from @at to @end, if there is one, in hexadecimal digits. */
static void read_notes(const uint8_t *at, const uint8_t *end, char build[static DESK_TEXT])
{
	while (at + sizeof(Elf64_Nhdr) <= end) {
		const Elf64_Nhdr *n = (const void *)at;
		const uint8_t *name = at + sizeof(*n), *id = name + ((n->n_namesz + 3) & ~3u);

		if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 && !memcmp(name, "GNU", 4))
			for (uint32_t i = 0; i < n->n_descsz && i < DESK_TEXT / 2 - 1; i++)
				sprintf(build + (size_t)2 * i, "%02x", id[i]);
		at = id + ((n->n_descsz + 3) & ~3u);
	}
}

/* Writes the executable's build id: "" without one. */
static void find_build(char build[static DESK_TEXT])
{
	const Elf64_Phdr *p = (const void *)getauxval(AT_PHDR);
	uint64_t n = p ? getauxval(AT_PHNUM) : 0, base = 0;

	for (uint64_t i = 0; i < n; i++)
		if (p[i].p_type == PT_PHDR)
			base = (uint64_t)p - p[i].p_vaddr;
	for (uint64_t i = 0; i < n && !*build; i++)
		if (p[i].p_type == PT_NOTE)
			read_notes((const uint8_t *)(base + p[i].p_vaddr),
				   (const uint8_t *)(base + p[i].p_vaddr + p[i].p_filesz), build);
}

static bool is_printable(const char *s)
{
	size_t n = 0;

	while (s[n] > ' ' && s[n] < 127)
		n++;
	return n && n < DESK_TEXT && !s[n];
}

static int check_functions(const ebbdsm_t *dsm, struct ebbdsm_functions *f, char *build)
{
	if (f->size < sizeof(*f))
		return -EINVAL;
	if (!f->table || !f->count)
		return say(f, -EINVAL, "functions: the table is empty; give at least one");
	if (f->waiting > EBBDSM_TASKS_WAITING)
		return say(f, -EINVAL, "functions: %u tasks waiting; give up to %u", f->waiting,
			   EBBDSM_TASKS_WAITING);
	if (f->build && !is_printable(f->build))
		return say(f, -EINVAL,
			   "functions: build: give 1 to %u printable characters without blanks",
			   DESK_TEXT - 1);
	if (!dsm->tasks.x.size)
		return say(f, -EOPNOTSUPP, "functions: donor %u is too old for tasks; update it",
			   dsm->home->number);
	if (f->build)
		strcpy(build, f->build);
	else
		find_build(build);
	if (!*build)
		return say(f, -ENOEXEC,
			   "functions: the executable has no build id; link it with --build-id, or set build");
	return 0;
}

/* Offers seat @i with a ticket that it has not had, or closes it. */
static uint64_t next_ticket(struct dsm_tasks *t, uint32_t i)
{
	if (++t->number[i] >= SEAT_NUMBERS) {
		t->ticket[i] = 0;
		return SEAT_CLOSED;
	}
	t->ticket[i] = seat_ticket(t->x.generation, t->number[i]);
	return t->ticket[i] | SEAT_FREE;
}

/* Shows what the process executes: the build before the seats. */
static int show(ebbdsm_t *dsm, uint32_t seats)
{
	struct dsm_tasks *t = &dsm->tasks;
	uint64_t seat[DESK_SEATS] = { 0 };
	int r = desk_write(dsm, offsetof(struct desk, build), t->build, sizeof(t->build));

	for (uint32_t i = 0; i < seats; i++)
		seat[i] = next_ticket(t, i);
	if (!r)
		r = desk_write(dsm, offsetof(struct desk, seat), seat, sizeof(seat));
	return r ?: desk_write(dsm, offsetof(struct desk, seats), &seats, sizeof(seats));
}

int ebbdsm_register(ebbdsm_t *dsm, struct ebbdsm_functions *f)
{
	struct dsm_tasks *t = &dsm->tasks;
	char build[DESK_TEXT] = "";
	int r;

	if (!*dsm->alive)
		return -ECHILD;
	r = check_functions(dsm, f, build);
	if (r)
		return r;
	pthread_mutex_lock(&t->lock);
	if (t->registered) {
		r = say(f, -EALREADY, "functions: registered already; close the handle first");
	} else {
		t->table = f->table;
		t->count = f->count;
		memcpy(t->build, build, sizeof(build));
		t->registered = true;
		t->seats = f->waiting;
		t->settle = settle;
	}
	pthread_mutex_unlock(&t->lock);
	if (r)
		return r;
	r = show(dsm, f->waiting);
	return !r ? 0 : say(f, r, "functions: cannot show them: %s; see ebbdsm_why()",
			    strerror(-r));
}

/* --- execution -------------------------------------------------------------------- */

/* A seat that is served. */
struct turn {
	ebbdsm_t *dsm;
	uint32_t seat;
	struct seat_record from;
	struct desk_record record;
	struct ebbdsm_loan loan;
	struct task_object *object;
	size_t size;
	struct ebbdsm_call call;
	struct dsm_kept *kept;
};

/* Reads the record that the seat names. */
static int read_record(struct turn *u)
{
	struct dsm_tasks *t = &u->dsm->tasks;
	struct ebbfar_request q = { .op = EBBFAR_READ, .memory = &u->record,
				    .size = sizeof(u->record) };
	int r;

	u->from = seat_parse(t->word[u->seat]);
	if (u->from.donor >= u->dsm->donors)
		return -ESTALE;
	q.extent = (struct ebbfar_extent){ .place = u->from.desk, .size = DESK_BYTES };
	q.offset = u->from.offset;
	r = link_submit(&u->dsm->link[u->from.donor], &q, 1);
	if (r)
		return link_error(r);
	u->loan = (struct ebbdsm_loan){ u->record.at, u->record.stamp };
	return u->record.ticket == t->ticket[u->seat] ? 0 : -ESTALE;
}

static int unseat(struct turn *u)
{
	struct dsm_tasks *t = &u->dsm->tasks;
	uint64_t word;
	int r;

	pthread_mutex_lock(&t->lock);
	word = next_ticket(t, u->seat);
	pthread_mutex_unlock(&t->lock);
	r = desk_write(u->dsm, (uint32_t)(offsetof(struct desk, seat) + 8 * u->seat), &word,
		       sizeof(word));
	pthread_mutex_lock(&t->lock);
	t->word[u->seat] = word;
	t->serving &= ~(1ull << u->seat);
	/* Another task may have been in that read, and its ring is the read's. */
	if (t->unread >> u->seat & 1)
		t->read_rings = 0;
	t->unread &= ~(1ull << u->seat);
	pthread_mutex_unlock(&t->lock);
	return r;
}

/* Returns 0 and the boxes of the arguments, or -ENOEXEC. */
static int check_object(struct turn *u, uint8_t *boxes)
{
	const struct dsm_tasks *t = &u->dsm->tasks;
	struct task_object *o = u->object;
	bool fits = u->size >= sizeof(*o) && o->args_size <= EBBDSM_TASK_BYTES &&
		    o->result_most <= EBBDSM_TASK_BYTES &&
		    task_bytes(o->args_size, o->result_most) == u->size;

	if (!fits || o->function >= t->count || memcmp(o->build, t->build, sizeof(o->build)))
		return -ENOEXEC;
	*boxes = 0;
	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES; i++)
		*boxes |= (uint8_t)((o->in[i].stamp != 0) << i);
	return 0;
}

static uint8_t execute(struct turn *u)
{
	struct dsm_tasks *t = &u->dsm->tasks;
	struct task_object *o = u->object;
	uint64_t most = o->result_most;
	uint8_t boxes = 0;

	u->call.function = o->function;
	u->call.args = task_args(o);
	u->call.args_size = o->args_size;
	u->call.result = task_result(o);
	u->call.result_size = most;
	o->status = t->table[o->function](u->dsm, &u->call);
	o->result_size = u->call.result_size < most ? u->call.result_size : most;
	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES; i++)
		boxes |= (uint8_t)((u->call.box[i].stamp != 0) << i);
	return boxes;
}

/*
 * Offers box @i of the result.  It is the spawner's: while there is no memory for the offer, waits,
 * as long as the spawner is alive.
 */
static int give(struct turn *u, uint32_t i)
{
	const struct ebbfar_extent desk = { .place = u->from.desk, .size = DESK_BYTES,
					    .generation = u->record.generation };
	struct ebbdsm_box *box = &u->call.box[i];
	int r;

	for (;;) {
		r = ebbdsm_give(u->dsm, box, &u->object->out[i]);
		if (r != -ENOSPC && r != -ENOBUFS && r != -ENOMEM)
			return r;
		if (desk_lives(u->dsm, u->from.donor, u->from.member, &desk) != 1)
			return ebbdsm_drop(u->dsm, box) ?: r;
		ebbdsm_settle(u->dsm);
		usleep(GIVE_US);
	}
}

static int give_back(struct turn *u, const struct task_op *op)
{
	const struct dsm_tasks *t = &u->dsm->tasks;
	struct task_object *o = u->object;

	if (u->size >= sizeof(*o)) {
		o->verdict = op->verdict ?: TASK_EXECUTED;
		if (op->verdict) {
			memcpy(o->build, t->build, sizeof(o->build));
			o->functions[0] = t->count;
		}
	}
	return ebbdsm_return_loan(u->dsm, &u->loan, o);
}

static void keep(struct turn *u, uint8_t out)
{
	struct dsm_tasks *t = &u->dsm->tasks;
	struct dsm_kept *k = u->kept;

	u->kept = NULL;
	*k = (struct dsm_kept){ .donor = u->from.donor, .member = u->from.member,
				.x = { .place = u->from.desk, .size = DESK_BYTES,
				       .generation = u->record.generation } };
	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES; i++)
		if (out >> i & 1)
			k->box[i] = u->call.box[i];
	pthread_mutex_lock(&t->lock);
	k->next = t->kept;
	t->kept = k;
	pthread_mutex_unlock(&t->lock);
}

static int serve_verb(struct turn *u, struct task_op *op, const struct task_verb *v)
{
	struct dsm_tasks *t = &u->dsm->tasks;

	switch (v->kind) {
	case TASK_SEAT:
		return (t->word[u->seat] & SEAT_BITS) == SEAT_TAKEN;
	case TASK_READ:
		return read_record(u);
	case TASK_TAKE:
		u->object = ebbdsm_borrow_loan(u->dsm, &u->loan, &u->size);
		return u->object ? 0 : -errno;
	case TASK_UNSEAT:
		return unseat(u);
	case TASK_CHECK:
		return check_object(u, &op->boxes);
	case TASK_ACCEPT:
		return ebbdsm_accept(u->dsm, &u->object->in[v->i], &u->call.box[v->i]);
	case TASK_RUN:
		op->boxes = execute(u);
		return 0;
	case TASK_GIVE:
		return give(u, v->i);
	case TASK_RETURN:
		return give_back(u, op);
	case TASK_KEEP:
		keep(u, op->out);
		return 0;
	case TASK_DROP:
		return ebbdsm_reclaim(u->dsm, &u->call.box[v->i]) ?:
			       ebbdsm_drop(u->dsm, &u->call.box[v->i]);
	case TASK_RING:
		dsm_ring(u->dsm, u->from.donor, u->from.member);
		return 0;
	default:
		return -EINVAL;
	}
}

/* Executes the task of @u->seat. */
static int run_turn(struct turn *u)
{
	struct task_op op;
	struct task_verb v;

	task_serve(&op);
	v = task_next(&op, 0);
	while (v.kind != TASK_ENDED)
		v = task_next(&op, serve_verb(u, &op, &v));
	return op.result;
}

static int serve(ebbdsm_t *dsm, uint32_t seat)
{
	struct dsm_tasks *t = &dsm->tasks;
	/* Before the task begins: then its end needs no memory. */
	struct turn u = { .dsm = dsm, .seat = seat, .kept = malloc(sizeof(*u.kept)) };
	int r = u.kept ? run_turn(&u) : -ENOMEM;

	free(u.kept);
	pthread_mutex_lock(&t->lock);
	/* Unless it was offered again, and another thread serves it. */
	if (r && r != -ESTALE)
		t->serving &= ~(1ull << seat);
	pthread_mutex_unlock(&t->lock);
	return r;
}

/* Reads the seats, if a ring may have said that there are tasks. */
static int read_seats(ebbdsm_t *dsm, uint32_t rings)
{
	struct dsm_tasks *t = &dsm->tasks;
	uint64_t word[DESK_SEATS], number[DESK_SEATS], serving;
	bool served;
	int r = 0;

	pthread_mutex_lock(&t->lock);
	while (!r && (dsm->home->maps || t->read_rings != rings + 1ull)) {
		memcpy(number, t->number, sizeof(number));
		serving = t->serving;
		pthread_mutex_unlock(&t->lock);
		r = desk_read(dsm, offsetof(struct desk, seat), word, sizeof(word));
		pthread_mutex_lock(&t->lock);
		/*
		 * What a thread serves is changed by that alone.  Of a seat that was served
		 * meanwhile the old word may have been read, and a task that is there now not.
		 */
		served = false;
		for (uint32_t i = 0; i < DESK_SEATS && !r; i++) {
			if (t->serving >> i & 1)
				t->unread |= 1ull << i;
			else if (serving >> i & 1 || t->number[i] != number[i])
				served = true;
			else
				t->word[i] = word[i];
		}
		t->read_rings = r ? 0 : rings + 1ull;
		if (!served)
			break;
		t->read_rings = 0;
	}
	pthread_mutex_unlock(&t->lock);
	return r;
}

/* Returns a seat that is taken, and that no other thread serves from now on, or -1. */
static int next_seat(struct dsm_tasks *t)
{
	int seat = -1;

	pthread_mutex_lock(&t->lock);
	for (uint32_t i = 0; i < t->seats && seat < 0; i++) {
		uint32_t at = (t->next + i) % t->seats;

		if ((t->word[at] & SEAT_BITS) != SEAT_TAKEN || t->serving >> at & 1)
			continue;
		t->serving |= 1ull << at;
		t->next = at + 1;
		seat = (int)at;
	}
	pthread_mutex_unlock(&t->lock);
	return seat;
}

/* Counts a task that begins or, with @executed, ends; spawners choose by what is shown at once. */
static void count(ebbdsm_t *dsm, uint32_t running, uint32_t executed)
{
	struct dsm_tasks *t = &dsm->tasks;
	uint32_t shown;

	pthread_mutex_lock(&t->lock);
	t->running += running;
	t->executed += executed;
	shown = t->written.running = t->running;
	/* With the lock: the last one that is posted is the last count. */
	link_post(dsm->home, &t->x, offsetof(struct desk, load.running), &shown, sizeof(shown));
	pthread_mutex_unlock(&t->lock);
	desk_update(dsm);
}

/* With replicas, work goes on at the home donor when others are lost. */
static int settle_home(ebbdsm_t *dsm)
{
	int r = ebbdsm_settle(dsm);

	return r == -EIO && dsm->heap.replicas && !link_is_lost(dsm->home) ? 0 : r;
}

static int settle_now_and_then(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;
	int64_t now = bell_now();
	bool due;

	pthread_mutex_lock(&t->lock);
	due = now - t->settled_at >= SETTLE_MS;
	if (due)
		t->settled_at = now;
	pthread_mutex_unlock(&t->lock);
	if (due)
		desk_update(dsm);
	return due ? settle_home(dsm) : 0;
}

/* Executes a task if there is one.  @full: the last one could not be taken. */
static int try_work(ebbdsm_t *dsm, uint32_t rings, bool *full)
{
	int seat, r = read_seats(dsm, rings);

	*full = false;
	while (!r && (seat = next_seat(&dsm->tasks)) >= 0) {
		count(dsm, 1, 0);
		r = serve(dsm, (uint32_t)seat);
		count(dsm, UINT32_MAX, !r);
		if (r != -ESTALE && r != -EAGAIN) {
			*full = r != 0;
			return r;
		}
		r = 0;
	}
	return r ?: -EAGAIN;
}

/* ... and frees what joiners have taken of tasks before, if that is in its way. */
static int settle_and_work(ebbdsm_t *dsm, uint32_t rings)
{
	bool full;
	int r = try_work(dsm, rings, &full);

	if (!full)
		return r;
	r = settle_home(dsm);
	return r ?: try_work(dsm, rings, &full);
}

int ebbdsm_work(ebbdsm_t *dsm, int timeout_ms)
{
	struct dsm_tasks *t = &dsm->tasks;
	int64_t until = task_until(timeout_ms), now;
	int r;

	if (!*dsm->alive)
		return -ECHILD;
	if (!t->seats)
		return -EINVAL;
	for (;;) {
		uint32_t rings = bell_rings(&dsm->home->bell);

		r = settle_now_and_then(dsm) ?: settle_and_work(dsm, rings);
		now = bell_now();
		if (r != -EAGAIN || now >= until)
			return r;
		r = bell_wait(&dsm->home->bell, dsm->home->far, rings,
			      until - now > SETTLE_MS ? now + SETTLE_MS : until);
		if (r)
			return link_error(r);
	}
}
