// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "affinity.h"
#include "colocation.h"
#include "lib/base/clock.h"
#include "lib/base/lock.h"
#include "lib/base/log.h"
#include "lib/rules/colocate.h"

#define CALLS 65                /* of the calibration; the median counts */
#define CALIBRATE_NS 10000000
#define CALIBRATIONS 100        /* attempts */

/* Placement of one cgroup, unless that is off. */
struct job {
	uint64_t owner;
	enum placement wish;
	bool seen;              /* in the present round */
	bool primed;            /* the counters below are of the previous round */
	bool measured;          /* .affinity is */
	bool doubt;             /* a program seems to have changed its affinity while pinned */
	enum colocation_state given_up; /* why; or COLOCATION_OFF */
	uint64_t out, used, prefetched;
	uint64_t round_out, round_used, round_prefetched; /* in the last period */
	struct colocate rule;
	struct affinity affinity;
	struct colocation_report report;
};

struct colocation {
	struct attachments *attachments;
	const struct executor *executor;
	struct job *job[EBB_MAX_CGROUPS];
	uint32_t jobs;
	uint64_t round_ns, executor_ns; /* at the last round */
	uint64_t interrupt_ns;  /* what an interrupt of another CPU costs */
	pthread_t thread;
	int wake;               /* eventfd: stop */
};

const char *colocation_state_name(enum colocation_state state)
{
	static const char *const names[] = {
		[COLOCATION_OFF] = "off", [COLOCATION_QUIET] = "few pages out",
		[COLOCATION_PARALLEL] = "parallel", [COLOCATION_TRIAL] = "trial",
		[COLOCATION_TOGETHER] = "together", [COLOCATION_NO_GAIN] = "no gain",
		[COLOCATION_OWN] = "own affinity", [COLOCATION_MANY] = "many threads",
		[COLOCATION_SINGLE] = "one CPU", [COLOCATION_FAILED] = "failed",
	};

	return names[state];
}

/* --- cost of an interrupt --------------------------------------------------- */

/* A thread that runs on another CPU. */
struct spin {
	int cpu;
	atomic_bool end;
	atomic_uint turns;
};

static int stay_on(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	return sched_setaffinity(0, sizeof(one), &one);
}

static void *spin(void *data)
{
	struct spin *s = data;

	stay_on(s->cpu);
	while (!atomic_load(&s->end))
		atomic_fetch_add(&s->turns, 1);
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static long barrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0);
}

/* Returns the median cost of membarrier(), which interrupts the CPU on which @s runs. */
static uint64_t interrupts(struct spin *s)
{
	uint64_t took[CALLS], until = now_ns() + CALIBRATE_NS, start;
	unsigned int before, turns;
	int n = 0;

	while (n < CALLS && now_ns() < until) {
		before = atomic_load(&s->turns);
		start = now_ns();
		barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
		took[n] = now_ns() - start;
		/* Without a turn in this time, another program has that CPU. */
		turns = atomic_load(&s->turns);
		n += before && turns != before;
	}
	if (n < CALLS)
		return 0;
	qsort(took, CALLS, sizeof(*took), by_value);
	return took[CALLS / 2];
}

/* Returns what an interrupt of another CPU costs, or 0 if that could not be measured. */
static uint64_t calibrate(void)
{
	struct spin s = { .cpu = -1 };
	cpu_set_t mask;
	pthread_t other;
	uint64_t ns;
	int own = -1;

	if (sched_getaffinity(0, sizeof(mask), &mask) || CPU_COUNT(&mask) < 2 ||
	    barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
		return 0;
	for (int i = 0; i < CPU_SETSIZE && s.cpu < 0; i++)
		if (CPU_ISSET(i, &mask)) {
			s.cpu = own < 0 ? -1 : i;
			own = own < 0 ? i : own;
		}
	stay_on(own);
	if (pthread_create(&other, NULL, spin, &s)) {
		sched_setaffinity(0, sizeof(mask), &mask);
		return 0;
	}
	ns = interrupts(&s);
	atomic_store(&s.end, true);
	pthread_join(other, NULL);
	sched_setaffinity(0, sizeof(mask), &mask);
	return ns;
}

/* --- one cgroup ------------------------------------------------------------- */

/* Tells the executor where to execute the requests of @j, and others the state. */
static void tell(struct colocation *c, struct job *j)
{
	HOLD(&c->attachments->lock);
	struct attachment *t = attachments_find(c->attachments, j->owner);

	j->report.cpu = j->affinity.cpu;
	j->report.trials = j->rule.trials;
	j->report.won = j->rule.won;
	j->report.used = j->rule.used;
	j->report.user = j->rule.user;
	j->report.interrupt_ns = c->interrupt_ns;
	if (!t)
		return;
	t->colocation = j->report;
	budget_place(t->budget, j->affinity.cpu);
}

static int record(const struct colocation *c)
{
	const struct affinity *a[EBB_MAX_CGROUPS];

	for (uint32_t i = 0; i < c->jobs; i++)
		a[i] = &c->job[i]->affinity;
	return affinity_record(a, c->jobs);
}

static void separate(struct colocation *c, struct job *j)
{
	if (j->affinity.cpu == AFFINITY_NONE)
		return;
	affinity_free(&j->affinity);
	record(c);
}

/* Returns how many other cgroups share @cpu with the executor. */
static uint32_t sharers(const struct colocation *c, const struct job *j, int cpu)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->jobs; i++)
		n += c->job[i] != j && c->job[i]->affinity.cpu == cpu;
	return n;
}

/* Chooses the CPU with the fewest other cgroups: the one where the program runs, if possible. */
static int choose(const struct colocation *c, const struct job *j)
{
	const struct affinity *a = &j->affinity;
	int best = CPU_ISSET(a->busiest, &a->allowed) ? a->busiest : AFFINITY_NONE;
	uint32_t fewest = best == AFFINITY_NONE ? UINT32_MAX : sharers(c, j, best);

	for (int i = 0; i < CPU_SETSIZE && fewest; i++)
		if (CPU_ISSET(i, &a->allowed) && sharers(c, j, i) < fewest) {
			best = i;
			fewest = sharers(c, j, i);
		}
	return best;
}

/* Pins the programs, or those that appeared since. */
static enum colocation_state join(struct colocation *c, struct job *j)
{
	struct affinity *a = &j->affinity;
	int r = 0;

	if (a->cpu == AFFINITY_NONE) {
		a->cpu = choose(c, j);
		r = record(c);
		if (r)
			a->cpu = AFFINITY_NONE;
	}
	if (!r)
		r = affinity_pin(a);
	if (!r)
		return COLOCATION_TOGETHER;
	j->doubt = true;
	separate(c, j);
	if (r == -EBUSY)
		return COLOCATION_OWN;
	log_warn("%s: placement: cannot set the CPU affinity of its programs: %s; grant CAP_SYS_NICE or "
		 "set placement=off", a->path, strerror(-r));
	j->given_up = COLOCATION_FAILED;
	return COLOCATION_FAILED;
}

/* The states of the rule are those of the report, in order. */
static enum colocation_state named(enum colocate_state state)
{
	return (enum colocation_state)((int)state + COLOCATION_QUIET);
}
_Static_assert((int)COLOCATE_NO_GAIN + COLOCATION_QUIET == COLOCATION_NO_GAIN, "the same order");

/* Measures the threads.  Returns COLOCATION_QUIET if they may be pinned, or why not. */
static enum colocation_state look(struct job *j)
{
	enum affinity_state state = affinity_look(&j->affinity);

	/* The second time: while a CPU goes offline, affinities differ for a moment. */
	if (state == AFFINITY_OWN && j->doubt)
		j->given_up = COLOCATION_OWN;
	j->doubt = state == AFFINITY_OWN && j->affinity.cpu != AFFINITY_NONE;
	switch (state) {
	case AFFINITY_OWN:
		return COLOCATION_OWN;
	case AFFINITY_MANY:
		return COLOCATION_MANY;
	case AFFINITY_SINGLE:
		return COLOCATION_SINGLE;
	default:
		return COLOCATION_QUIET;
	}
}

/* Forgets a trial: it was not completed. */
static void reset(struct job *j)
{
	j->rule = (struct colocate){
		.seed = j->rule.seed, .trials = j->rule.trials, .won = j->rule.won,
		.used = j->rule.used, .user = j->rule.user,
	};
	j->measured = false;
}

static enum colocation_state work(struct colocation *c, struct job *j, struct colocate_sample *s)
{
	enum colocation_state why;
	bool together;

	if (j->affinity.cpu != AFFINITY_NONE)
		j->report.together_ns += s->wall_ns;
	if (j->given_up != COLOCATION_OFF) {
		separate(c, j);
		reset(j);
		return j->given_up;
	}
	if (j->wish == PLACEMENT_AUTO && !colocate_looks(&j->rule, s)) {
		j->measured = false;
		colocate_step(&j->rule, s);
		return named(j->rule.state);
	}
	why = look(j);
	if (why != COLOCATION_QUIET) {
		separate(c, j);
		reset(j);
		return why;
	}
	/* Its CPU went offline, or its cpuset lost it: join() chooses another one. */
	if (j->affinity.cpu != AFFINITY_NONE && !CPU_ISSET(j->affinity.cpu, &j->affinity.allowed))
		separate(c, j);
	s->running_ns = j->affinity.running_ns;
	s->queued_ns = j->affinity.queued_ns;
	s->user_ns = j->affinity.user_ns;
	if (j->wish == PLACEMENT_TOGETHER) {
		together = j->affinity.threads;
	} else {
		together = j->measured ? colocate_step(&j->rule, s) : j->rule.together;
		j->measured = true;
	}
	if (!together) {
		separate(c, j);
		return j->wish == PLACEMENT_AUTO ? named(j->rule.state) : COLOCATION_QUIET;
	}
	why = join(c, j);
	return why == COLOCATION_TOGETHER && j->rule.periods ? COLOCATION_TRIAL : why;
}

/* --- all of them ------------------------------------------------------------ */

static struct job *job_of(struct colocation *c, const struct attachment *t)
{
	struct job *j;

	for (uint32_t i = 0; i < c->jobs; i++)
		if (c->job[i]->owner == t->cgroup.id)
			return c->job[i];
	j = c->jobs < EBB_MAX_CGROUPS ? calloc(1, sizeof(*j)) : NULL;
	if (!j)
		return NULL;
	j->owner = t->cgroup.id;
	j->rule.seed = now_ns() | 1;
	if (affinity_init(&j->affinity, t->cgroup.path, c->attachments->plane)) {
		free(j);
		return NULL;
	}
	c->job[c->jobs++] = j;
	return j;
}

static void job_end(struct colocation *c, uint32_t i)
{
	struct job *j = c->job[i];

	separate(c, j);
	j->report.state = COLOCATION_OFF;
	tell(c, j);
	affinity_close(&j->affinity);
	c->job[i] = c->job[--c->jobs];
	free(j);
}

/* Reads the counters of the cgroup; the caller holds the lock. */
static void count(struct attachments *a, const struct attachment *t, struct job *j)
{
	uint64_t prefetched = budget_prefetched(t->budget), used;
	struct ebb_counters k;

	plane_counters(a->plane, t->cgroup.id, &k);
	used = k.misses + k.hits + k.late;
	j->round_out = j->primed ? k.swapped_out - j->out : 0;
	j->round_used = j->primed ? used - j->used : 0;
	j->round_prefetched = j->primed ? prefetched - j->prefetched : 0;
	j->out = k.swapped_out;
	j->used = used;
	j->prefetched = prefetched;
	j->primed = true;
}

/* Updates the jobs from the attachments; returns the pages prefetched for all of them. */
static uint64_t collect(struct colocation *c)
{
	struct attachments *a = c->attachments;
	uint64_t prefetched = 0;

	for (uint32_t i = 0; i < c->jobs; i++)
		c->job[i]->seen = false;
	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i];
		struct job *j = t->placement != PLACEMENT_OFF ? job_of(c, t) : NULL;

		if (!j)
			continue;
		count(a, t, j);
		prefetched += j->round_prefetched;
		j->wish = t->placement;
		j->seen = true;
	}
	pthread_mutex_unlock(&a->lock);
	for (uint32_t i = c->jobs; i-- > 0;)
		if (!c->job[i]->seen)
			job_end(c, i);
	return prefetched;
}

static void round_of(struct colocation *c)
{
	uint64_t now = now_ns(), executor = executor_cpu_ns(c->executor);
	uint64_t spent = executor - c->executor_ns, wall = now - c->round_ns;
	uint64_t prefetched = collect(c);

	c->round_ns = now;
	c->executor_ns = executor;
	for (uint32_t i = 0; i < c->jobs; i++) {
		struct job *j = c->job[i];
		struct colocate_sample s = {
			.wall_ns = wall, .out = j->round_out, .used = j->round_used,
			.interrupt_ns = c->interrupt_ns,
			.executor_ns = prefetched ? spent * j->round_prefetched / prefetched : 0,
		};

		j->report.state = work(c, j, &s);
		tell(c, j);
	}
}

static void *run(void *data)
{
	struct colocation *c = data;
	struct pollfd wake = { .fd = c->wake, .events = POLLIN };
	int attempts = 0;

	pthread_setname_np(pthread_self(), "ebbd-placement");
	c->round_ns = now_ns();
	while (poll(&wake, 1, (int)(COLOCATE_PERIOD_NS / 1000000)) <= 0) {
		/* Again while the machine is too busy for it. */
		if (c->jobs && !c->interrupt_ns && attempts < CALIBRATIONS) {
			c->interrupt_ns = calibrate();
			attempts++;
		}
		round_of(c);
	}
	return NULL;
}

int colocation_start(struct colocation **out, struct attachments *a, const struct executor *x,
		     struct error *e)
{
	struct colocation *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return fail(e, ENOMEM, "placement: out of memory");
	affinity_recover(a->plane);
	c->attachments = a;
	c->executor = x;
	c->wake = eventfd(0, EFD_CLOEXEC);
	r = c->wake < 0 ? errno : pthread_create(&c->thread, NULL, run, c);
	if (r) {
		if (c->wake >= 0)
			close(c->wake);
		free(c);
		return fail(e, r, "placement: cannot start its thread: %s", strerror(r));
	}
	*out = c;
	return 0;
}

void colocation_stop(struct colocation **pc)
{
	struct colocation *c = *pc;
	uint64_t one = 1;

	if (!c)
		return;
	if (write(c->wake, &one, sizeof(one)) < 0)
		log_err("placement: cannot stop: %m");
	pthread_join(c->thread, NULL);
	while (c->jobs)
		job_end(c, c->jobs - 1);
	close(c->wake);
	free(c);
	*pc = NULL;
}
