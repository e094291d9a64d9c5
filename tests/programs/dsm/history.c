// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * dsm_history MUTANT SEED STEPS KILLS DELAY_US DONORS...
 *
 * Members of a space, each a process, make boxes and read, change, lend and give them, and record
 * when each operation begins and ends.  Then the history of each box is checked for
 * linearizability; prints the verdict and counts as a line of JSON, and for a box that fails the
 * history before that.
 *
 * DONORS are lists as of the example kv, one for each kind of member; the n-th kind is at home at
 * donor n modulo their number.  Messages to and from donors over TCP are late by up to DELAY_US.
 * KILLS members are killed at any time, and replaced.  MUTANT is "none" or a fault of the library:
 *
 *	colours    numbers of a place begin again when it is used again
 *	late       the return of a loan ends before the owner's word has changed
 *	survives   a mutable borrow keeps the box's stamp
 *
 * Names travel by memory that the processes share.  An operation that reads begins before it looks
 * there for the newest name of the box.  Times are numbers of a counter.
 */
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "box_spec.h"
#include "userlib/dsm/dsm.h"

enum { MEMBERS = 4, MEMBERS_EVER = 60, BOXES = 64, NAMES = 4096, OPS = 6000, WORDS_MOST = 300,
       TRIES = 60, CONFIGURATIONS = 1 << 21 };

enum mutant { NONE, COLOURS, LATE, SURVIVES };
enum { LOAN = 1, PARCEL };

struct published {
	uint64_t at, stamp, number; /* number: of an offer */
	uint32_t kind;
};

/* What a member tells the others of a box.  Entries are written once, before .names is raised. */
struct shared_box {
	uint32_t names, offers, owner, lost; /* owner: the member's number plus 1 */
	struct published name[NAMES], offer[NAMES];
};

struct log {
	uint32_t n;
	uint32_t box[OPS];
	struct linear_op op[OPS];
};

static struct shared {
	uint64_t clock, number;
	uint32_t boxes;
	uint32_t done[MEMBERS]; /* that have made all their steps, and wait for the others */
	uint32_t borrowing[MEMBERS_EVER]; /* members that have borrowed a loan */
	struct shared_box box[BOXES];
	struct log log[MEMBERS_EVER + 1]; /* the last one: deaths */
} * shared;

/* This member's. */
static ebbdsm_t *dsm;
static uint32_t me, delay_us;
static enum mutant mutant;
static uint64_t values;
static struct {
	enum { NOT_MINE, OWNED, LENT, GIVEN } state;
	struct ebbdsm_box box;
	uint64_t offer;
	uint32_t offers_seen;
} mine[BOXES];
static struct {
	struct ebbdsm_loan loan;
	uint64_t *content;
	size_t size;
	uint32_t box;
} held;

static uint32_t random_below(uint32_t n)
{
	return (uint32_t)(random() % n);
}

static void pause_us(uint32_t most)
{
	if (most)
		usleep(random_below(most));
}

/* --- delays ----------------------------------------------------------------------- */

static int is_tcp(int fd)
{
	int domain = 0;
	socklen_t size = sizeof(domain);

	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET;
}

/* libebbfar's calls come here: the program's symbols precede those of libc. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (is_tcp(fd))
		pause_us(delay_us);
	return syscall(SYS_sendmsg, fd, m, flags);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_recvmsg, fd, m, flags);

	if (n > 0 && is_tcp(fd))
		pause_us(delay_us);
	return n;
}

/* --- mutants: the linker has the library call these ------------------------------- */

int __real_heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot);
uint64_t __real_heap_stamp(struct heap *h, uint64_t at);
int __real_link_run(struct link *l, struct dsm_op *op, struct content *content);
int __wrap_heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot);
uint64_t __wrap_heap_stamp(struct heap *h, uint64_t at);
int __wrap_link_run(struct link *l, struct dsm_op *op, struct content *content);

static struct {
	uint64_t place;
	uint32_t number;
} colour[4096];

/* Returns the place's number; its name without the size. */
static uint32_t *colour_of(uint64_t at)
{
	uint64_t place = at >> 9;
	uint32_t i = (uint32_t)(place * 0x9e3779b97f4a7c15ull >> 52);

	while (colour[i].place && colour[i].place != place)
		i = (i + 1) % 4096;
	colour[i].place = place;
	return &colour[i].number;
}

int __wrap_heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot)
{
	int r = __real_heap_new(h, donor, size, at, slot);

	if (!r && mutant == COLOURS)
		*colour_of(*at) = 0;
	return r;
}

static int borrowing, returning;

uint64_t __wrap_heap_stamp(struct heap *h, uint64_t at)
{
	uint64_t stamp = __real_heap_stamp(h, at);

	if (mutant == COLOURS)
		return dsm_stamp(dsm_generation(stamp), ++*colour_of(at));
	if (mutant == SURVIVES && borrowing)
		return heap_find(h, at)->stamp;
	return stamp;
}

/* The last verb of a return, and after how many steps it is executed. */
static struct {
	struct link *link;
	struct dsm_op op;
	uint32_t steps;
} late;

static void execute_late(void)
{
	if (late.link && !late.steps--) {
		__real_link_run(late.link, &late.op, NULL);
		late.link = NULL;
	}
}

int __wrap_link_run(struct link *l, struct dsm_op *op, struct content *content)
{
	if (mutant != LATE || !returning)
		return __real_link_run(l, op, content);
	late.link = l;
	late.op = *op;
	late.steps = 1 + random_below(3);
	return 0;
}

/* --- the history ------------------------------------------------------------------ */

static uint64_t tick(void)
{
	return __atomic_add_fetch(&shared->clock, 1, __ATOMIC_SEQ_CST);
}

static struct linear_op *begin_of(uint32_t member, uint32_t by, uint32_t box, enum box_op kind,
				  uint64_t in)
{
	struct log *l = &shared->log[member];
	struct linear_op *op = &l->op[l->n];

	if (l->n == OPS)
		errx(2, "too many steps; give fewer");
	*op = (struct linear_op){ .kind = kind, .by = by, .in = in, .to = LINEAR_PENDING };
	l->box[l->n] = box;
	op->from = tick();
	__atomic_store_n(&l->n, l->n + 1, __ATOMIC_RELEASE);
	return op;
}

static struct linear_op *begin(uint32_t box, enum box_op kind, uint64_t in)
{
	return begin_of(me, me, box, kind, in);
}

static void end(struct linear_op *op, int result, uint64_t out)
{
	op->result = result;
	op->out = out;
	/* A process that is killed in between has no response. */
	__atomic_store_n(&op->to, tick(), __ATOMIC_RELEASE);
}

static _Noreturn void fatal(const char *what, int error)
{
	errx(2, "member %u: %s: %s; %s", me, what, strerror(error), ebbdsm_why(dsm));
}

static void check(const char *what, int r)
{
	if (r)
		fatal(what, -r);
}

/* --- values ----------------------------------------------------------------------- */

static uint64_t new_value(void)
{
	return (uint64_t)(me + 1) << 32 | ++values;
}

static void fill(uint64_t *words, size_t size, uint64_t value)
{
	for (size_t i = 0; i < size / sizeof(*words); i++)
		words[i] = value;
}

/* All words of a content are its value. */
static uint64_t value_in(const uint64_t *words, size_t size)
{
	for (size_t i = 0; i < size / sizeof(*words); i++)
		if (words[i] != words[0])
			errx(1, "member %u: a torn value: %lx, %lx", me, words[0], words[i]);
	return words[0];
}

/* --- an owner --------------------------------------------------------------------- */

static void publish(struct published *list, uint32_t *n, const struct published *p)
{
	if (*n == NAMES)
		errx(2, "too many names; give fewer steps");
	list[*n] = *p;
	__atomic_store_n(n, *n + 1, __ATOMIC_RELEASE);
}

static void publish_name(uint32_t i)
{
	struct ebbdsm_view v = ebbdsm_lend(&mine[i].box);
	const struct published p = { .at = v.at, .stamp = v.stamp };

	publish(shared->box[i].name, &shared->box[i].names, &p);
}

static uint64_t value_of(uint32_t i)
{
	const uint64_t *p = ebbdsm_borrow(dsm, &mine[i].box);
	uint64_t value;

	if (!p)
		fatal("borrow", errno);
	value = value_in(p, ebbdsm_size(dsm, &mine[i].box));
	check("return", ebbdsm_return(dsm, &mine[i].box, p));
	return value;
}

static void make(uint32_t i, uint64_t value, size_t size)
{
	uint64_t words[WORDS_MOST];

	fill(words, size, value);
	check("new", ebbdsm_new(dsm, words, size, &mine[i].box));
	mine[i].state = OWNED;
}

static void own(uint32_t i)
{
	mine[i].state = OWNED;
	publish_name(i);
	__atomic_store_n(&shared->box[i].owner, me + 1, __ATOMIC_RELEASE);
}

static void do_new(void)
{
	uint32_t i = __atomic_fetch_add(&shared->boxes, 1, __ATOMIC_ACQ_REL);
	uint64_t value = new_value();
	struct linear_op *op;

	if (i >= BOXES)
		errx(2, "too many boxes; give fewer kills");
	op = begin(i, BOX_NEW, value);
	make(i, value, 8 * (1 + random_below(WORDS_MOST)));
	own(i);
	end(op, 0, 0);
}

static void do_write(uint32_t i)
{
	uint64_t value = new_value();
	struct linear_op *op = begin(i, BOX_WRITE, value);
	size_t size = ebbdsm_size(dsm, &mine[i].box);

	if (random_below(3)) {
		uint64_t *p;

		borrowing = 1;
		p = ebbdsm_borrow_mut(dsm, &mine[i].box);
		borrowing = 0;
		if (!p)
			fatal("mutable borrow", errno);
		fill(p, size, value);
		check("return", ebbdsm_return_mut(dsm, &mine[i].box, p));
	} else {
		check("drop", ebbdsm_drop(dsm, &mine[i].box));
		make(i, value, size);
	}
	publish_name(i);
	end(op, 0, 0);
}

static void do_offer(uint32_t i, enum box_op kind)
{
	struct shared_box *s = &shared->box[i];
	struct published p = { .kind = kind == BOX_LEND ? LOAN : PARCEL };
	struct linear_op *op;

	p.number = __atomic_add_fetch(&shared->number, 1, __ATOMIC_RELAXED);
	op = begin(i, kind, p.number);
	if (kind == BOX_LEND) {
		struct ebbdsm_loan loan;

		check("lend", ebbdsm_lend_mut(dsm, &mine[i].box, &loan));
		p.at = loan.at;
		p.stamp = loan.stamp;
	} else {
		struct ebbdsm_parcel parcel;

		check("give", ebbdsm_give(dsm, &mine[i].box, &parcel));
		p.at = parcel.at;
		p.stamp = parcel.stamp;
	}
	mine[i].state = kind == BOX_LEND ? LENT : GIVEN;
	mine[i].offer = p.number;
	publish(s->offer, &s->offers, &p);
	end(op, 0, 0);
}

static void do_reclaim(uint32_t i)
{
	struct linear_op *op = begin(i, BOX_RECLAIM, mine[i].offer);
	uint64_t value = 0;
	int r = ebbdsm_reclaim(dsm, &mine[i].box);

	if (!r || r == -EOWNERDEAD) {
		mine[i].state = OWNED;
		value = value_of(i);
		publish_name(i);
	} else if (r == -ESTALE && mine[i].state == GIVEN) {
		mine[i].state = NOT_MINE;
	} else if (r != -EBUSY) {
		fatal("reclaim", -r);
	}
	end(op, r, value);
}

/* --- others ----------------------------------------------------------------------- */

/* Reads by the newest name, until that is not old. */
static void do_read(uint32_t i)
{
	const struct shared_box *s = &shared->box[i];
	struct linear_op *op = begin(i, BOX_READ, 0);

	for (uint32_t tries = 0; tries < TRIES && !__atomic_load_n(&s->lost, __ATOMIC_ACQUIRE);
	     tries++) {
		uint32_t n = __atomic_load_n(&s->names, __ATOMIC_ACQUIRE);
		struct ebbdsm_view view = { s->name[n - 1].at, s->name[n - 1].stamp };
		const uint64_t *p;
		size_t size;

		pause_us(delay_us);
		p = ebbdsm_borrow_view(dsm, &view, &size);
		if (p) {
			end(op, 0, value_in(p, size));
			check("return", ebbdsm_return_view(dsm, &view, p));
			return;
		}
		if (errno != ESTALE && errno != EOWNERDEAD)
			fatal("read", errno);
		pause_us(1000);
	}
	/* The owner is dead: no response. */
}

static void do_take(uint32_t i)
{
	const struct shared_box *s = &shared->box[i];
	uint32_t n = __atomic_load_n(&s->offers, __ATOMIC_ACQUIRE);
	const struct published *p = &s->offer[n - 1];
	struct linear_op *op;
	int r;

	mine[i].offers_seen = n;
	pause_us(delay_us);
	op = begin(i, p->kind == LOAN ? BOX_BORROW : BOX_ACCEPT, p->number);
	if (p->kind == LOAN) {
		struct ebbdsm_loan loan = { p->at, p->stamp };

		held.content = ebbdsm_borrow_loan(dsm, &loan, &held.size);
		r = held.content ? 0 : -errno;
		held.loan = loan;
		held.box = i;
	} else {
		r = ebbdsm_accept(dsm, &(struct ebbdsm_parcel){ p->at, p->stamp }, &mine[i].box);
	}
	/* Of a dead owner: no response, and the box is lost. */
	if (r == -EOWNERDEAD)
		return;
	if (r && r != -ESTALE)
		fatal("take", -r);
	if (r) {
		if (!__atomic_load_n(&s->lost, __ATOMIC_ACQUIRE))
			end(op, r, 0);
		return;
	}
	if (p->kind == LOAN) {
		__atomic_store_n(&shared->borrowing[me], 1, __ATOMIC_RELAXED);
		end(op, 0, value_in(held.content, held.size));
		return;
	}
	own(i);
	end(op, 0, value_of(i));
}

static void do_return(void)
{
	uint64_t value = new_value();
	struct linear_op *op = begin(held.box, BOX_RETURN, value);
	int r;

	fill(held.content, held.size, value);
	returning = 1;
	r = ebbdsm_return_loan(dsm, &held.loan, held.content);
	returning = 0;
	held.content = NULL;
	__atomic_store_n(&shared->borrowing[me], 0, __ATOMIC_RELAXED);
	if (r && r != -EOWNERDEAD)
		fatal("return", -r);
	if (!r)
		end(op, 0, 0);
}

static void step_of_owner(uint32_t i)
{
	uint32_t what = random_below(10);

	if (mine[i].state != OWNED)
		do_reclaim(i);
	else if (what < 4)
		do_write(i);
	else if (what < 7)
		do_offer(i, BOX_LEND);
	else if (what < 8)
		do_offer(i, BOX_GIVE);
	else
		do_read(i);
}

static void step(void)
{
	uint32_t n = __atomic_load_n(&shared->boxes, __ATOMIC_ACQUIRE);
	uint32_t i = random_below(n < BOXES ? n : BOXES);
	const struct shared_box *s;

	/* What was borrowed from a dead member is looked at, too, before the run ends. */
	for (uint32_t k = random_below(8) * BOXES; k < BOXES; k++)
		if (mine[k].state == LENT)
			i = k;
	s = &shared->box[i];
	execute_late();
	if (held.content && !random_below(6))
		do_return();
	else if (mine[i].state)
		step_of_owner(i);
	else if (!__atomic_load_n(&s->names, __ATOMIC_ACQUIRE) ||
		 __atomic_load_n(&s->lost, __ATOMIC_ACQUIRE))
		return;
	else if (!held.content && random_below(2) &&
		 __atomic_load_n(&s->offers, __ATOMIC_ACQUIRE) > mine[i].offers_seen)
		do_take(i);
	else
		do_read(i);
}

static bool all_done(void)
{
	for (uint32_t k = 0; k < MEMBERS; k++)
		if (!__atomic_load_n(&shared->done[k], __ATOMIC_ACQUIRE))
			return false;
	return true;
}

static bool any_done(void)
{
	for (uint32_t k = 0; k < MEMBERS; k++)
		if (__atomic_load_n(&shared->done[k], __ATOMIC_ACQUIRE))
			return true;
	return false;
}

/* The @k-th member. */
static _Noreturn void run_member(uint32_t k, char *donors, uint32_t home, uint32_t steps)
{
	const char *list[EBBDSM_DONORS];
	struct ebbdsm_options o = { .size = sizeof(o), .donors = list, .pool = "history",
				    .timeout_ms = 20000 };

	for (char *d = strtok(donors, ","); d && o.donor_count < EBBDSM_DONORS; d = strtok(NULL, ","))
		list[o.donor_count++] = d;
	o.home = home % o.donor_count;
	if (ebbdsm_open(&o, &dsm))
		errx(2, "%s", o.error);
	do_new();
	do_new();
	for (uint32_t i = 0; i < steps; i++) {
		step();
		pause_us(200);
		if (i % 16 == 0)
			check("settle", ebbdsm_settle(dsm));
	}
	/* Boxes of a process that exits are lost: wait for the others, which read them. */
	__atomic_store_n(&shared->done[k], 1, __ATOMIC_RELEASE);
	while (!all_done())
		usleep(1000);
	_exit(0);
}

/* --- all members ------------------------------------------------------------------ */

struct run {
	uint32_t seed, steps, kills, kinds;
	char **donors;
	pid_t pid[MEMBERS];
	uint32_t number[MEMBERS], numbers;
};

static void spawn(struct run *run, uint32_t k)
{
	pid_t pid;

	if (run->numbers == MEMBERS_EVER)
		errx(2, "too many kills; give fewer");
	run->number[k] = run->numbers++;
	pid = fork();
	if (pid < 0)
		err(2, "fork");
	run->pid[k] = pid;
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	me = run->number[k];
	srandom(run->seed * 1000 + me);
	run_member(k, run->donors[k % run->kinds], k % run->kinds, run->steps);
}

static void kill_one(struct run *run)
{
	uint32_t k = random_below(MEMBERS), number;
	int status;

	/* Rather a borrower than another. */
	for (int tries = 0; tries < 2 * MEMBERS; tries++)
		if (!__atomic_load_n(&shared->borrowing[run->number[k]], __ATOMIC_RELAXED))
			k = random_below(MEMBERS);
	number = run->number[k];
	begin_of(MEMBERS_EVER, number, 0, BOX_DIE, 0);
	kill(run->pid[k], SIGKILL);
	waitpid(run->pid[k], &status, 0);
	if (!WIFSIGNALED(status))
		errx(WEXITSTATUS(status) ?: 2, "member %u has ended", number);
	for (uint32_t i = 0; i < BOXES; i++)
		if (__atomic_load_n(&shared->box[i].owner, __ATOMIC_ACQUIRE) == number + 1)
			__atomic_store_n(&shared->box[i].lost, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&shared->done[k], 0, __ATOMIC_RELEASE);
	spawn(run, k);
}

static void run_all(struct run *run)
{
	int status;

	for (uint32_t k = 0; k < MEMBERS; k++)
		spawn(run, k);
	for (uint32_t n = 0; n < run->kills; n++) {
		usleep(5000 + random_below(30000));
		if (any_done())
			break;
		kill_one(run);
	}
	for (uint32_t k = 0; k < MEMBERS; k++) {
		pid_t pid = wait(&status);

		if (status)
			errx(WIFEXITED(status) ? WEXITSTATUS(status) : 2, "process %d: status %x",
			     (int)pid, (unsigned)status);
	}
}

/* --- the verdict ------------------------------------------------------------------ */

static struct {
	uint32_t ops, kinds[BOX_OPS], restored;
} told;

/* Returns the number of operations of box @i. */
static uint32_t collect(uint32_t i, struct linear_op *out)
{
	uint32_t n = 0;

	for (uint32_t m = 0; m <= MEMBERS_EVER; m++) {
		const struct log *l = &shared->log[m];

		for (uint32_t k = 0; k < l->n; k++) {
			const struct linear_op *op = &l->op[k];
			bool pending = op->to == LINEAR_PENDING;

			if ((m < MEMBERS_EVER && l->box[k] != i) ||
			    (op->kind == BOX_READ && pending))
				continue;
			out[n++] = *op;
			if (m == MEMBERS_EVER || pending)
				continue;
			told.ops++;
			told.kinds[op->kind]++;
			told.restored += op->result == -EOWNERDEAD;
		}
	}
	return n;
}

static int earlier(const void *a, const void *b)
{
	const struct linear_op *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

/* Prints the operations from some time before @stuck on. */
static void show(uint32_t box, struct linear_op *ops, uint32_t n, struct linear_op stuck)
{
	fprintf(stderr, "box %u: no order up to the response to a %s, at %lu\n", box,
		box_op_name(stuck.kind), stuck.to);
	qsort(ops, n, sizeof(*ops), earlier);
	for (uint32_t i = 0; i < n; i++)
		if (ops[i].from < stuck.to && (ops[i].to == LINEAR_PENDING ||
					       ops[i].to + 2000 > stuck.from))
			fprintf(stderr, "%6lu %6ld member %2u %-8s in %lx out %lx result %ld\n",
				ops[i].from, (long)ops[i].to, ops[i].by, box_op_name(ops[i].kind),
				ops[i].in, ops[i].out, (long)ops[i].result);
}

static enum linear_verdict check_all(void)
{
	struct linear_op *ops = calloc((size_t)(MEMBERS_EVER + 1) * OPS, sizeof(*ops));
	enum linear_verdict worst = LINEAR_YES;
	uint32_t boxes = shared->boxes < BOXES ? shared->boxes : BOXES;

	if (!ops)
		err(2, "memory");
	for (uint32_t i = 0; i < boxes; i++) {
		uint32_t n = collect(i, ops), stuck = 0;
		enum linear_verdict v = linear_check(&box_spec, ops, n, CONFIGURATIONS, &stuck);

		if (v == LINEAR_NO && worst != LINEAR_NO)
			show(i, ops, n, ops[stuck]);
		if (worst != LINEAR_NO && v != LINEAR_YES)
			worst = v;
	}
	free(ops);
	return worst;
}

int main(int argc, char **argv)
{
	static const char *const mutants[] = { "none", "colours", "late", "survives" };
	static const char *const verdicts[] = { "linearizable", "not linearizable", "unknown" };
	struct run run = { .kinds = (uint32_t)(argc - 6), .donors = argv + 6 };
	uint32_t m = 0;

	while (argc > 6 && m < 4 && strcmp(argv[1], mutants[m]))
		m++;
	if (argc < 7 || m == 4)
		errx(2, "usage: dsm_history none|colours|late|survives SEED STEPS KILLS DELAY_US DONORS...");
	mutant = (enum mutant)m;
	run.seed = (uint32_t)atoi(argv[2]);
	run.steps = (uint32_t)atoi(argv[3]);
	run.kills = (uint32_t)atoi(argv[4]);
	delay_us = (uint32_t)atoi(argv[5]);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		err(2, "memory");
	srandom(run.seed);
	run_all(&run);
	printf("{\"verdict\": \"%s\", ", verdicts[check_all()]);
	printf("\"boxes\": %u, \"members\": %u, \"operations\": %u, \"restored\": %u", shared->boxes,
	       run.numbers, told.ops, told.restored);
	for (uint32_t k = 0; k < BOX_DIE; k++)
		printf(", \"%s\": %u", box_op_name(k), told.kinds[k]);
	printf("}\n");
	return 0;
}
