// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "affinity.h"
#include "colocation.h"
#include "lib/base/clock.h"
#include "lib/base/lock.h"
#include "lib/base/log.h"
#include "lib/base/small_thread.h"
#include "lib/rules/colocate.h"

#define PERIOD_NS 250000000ULL
#define REST_PERIODS 16         /* between looks at programs that cannot be pinned */
#define IDLE_PERIODS 240        /* after which a cgroup that does not swap is forgotten */
#define AUTO_LOOKS 16           /* per period, at programs that placement=auto may pin */
#define BORN_NS 10000000        /* between releases of what inherited an affinity */
#define RESTS 4                 /* and times as long as a walk over all tasks or a release took */
#define MS_NS 1000000

/* A cgroup with placement=together or auto. */
struct job {
	uint64_t owner;
	uint32_t wishes, nexts; /* changes of the setting: in force, and as read in this round */
	bool wanted;            /* by the setting, in the present round */
	bool busy;              /* its programs swap, or did within 2 s */
	uint32_t idle;          /* periods without, of placement=auto */
	uint64_t prefetched, judged; /* pages prefetched so far, and at the last look */
	bool is_auto, next_auto; /* placement=auto: in force, and as read in this round */
	struct colocate_auto automatic;
	bool doubt;             /* a program seems to have changed its affinity */
	enum colocation_state given_up; /* why; or COLOCATION_OFF */
	uint32_t rest;          /* periods in which it is left alone, */
	enum colocation_state rests; /* and why */
	struct affinity affinity;
	struct colocation_report report;
};

struct colocation {
	struct attachments *attachments;
	struct pins *pins;      /* NULL while none is needed */
	struct job *job[EBB_MAX_CGROUPS];
	uint32_t jobs;
	uint64_t round_ns;      /* the last round */
	uint32_t looks;         /* that placement=auto may still take in this round */
	uint32_t turn;          /* the job with which a round begins */
	pthread_t thread;
	int wake;               /* eventfd: see .placed of the attachments, or .stop */
	atomic_bool stop;
};

const char *colocation_state_name(enum colocation_state state)
{
	static const char *const names[] = {
		[COLOCATION_OFF] = "off", [COLOCATION_IDLE] = "idle",
		[COLOCATION_TOGETHER] = "together", [COLOCATION_OWN] = "own affinity",
		[COLOCATION_REALTIME] = "real-time", [COLOCATION_MANY] = "many threads",
		[COLOCATION_SINGLE] = "one CPU", [COLOCATION_APART] = "apart",
		[COLOCATION_FAILED] = "failed", [COLOCATION_FULL] = "record full",
	};

	return names[state];
}

/* --- one cgroup ------------------------------------------------------------- */

/* Tells the executor where to execute the requests of @j, and others the state. */
static void tell(struct colocation *c, struct job *j)
{
	HOLD(&c->attachments->lock);
	struct attachment *t = attachments_find(c->attachments, j->owner);

	j->report.cpu = j->affinity.cpu;
	if (!t)
		return;
	t->colocation = j->report;
	t->placing = j->wanted;
	/* It may have become busy since collect(). */
	if (!j->wanted && attachment_wants_placing(t))
		attachments_wake_placing(c->attachments);
	budget_place(t->budget, j->affinity.cpu);
}

static void separate(struct colocation *c, struct job *j)
{
	if (j->affinity.cpu != AFFINITY_NONE)
		affinity_free(&j->affinity, c->pins);
}

/* Chooses a CPU for @j, or AFFINITY_NONE. */
static int choose(const struct colocation *c, const struct job *j)
{
	uint32_t sharers[CPU_SETSIZE] = { 0 };
	struct colocate_cpus cpus = {
		.allowed = j->affinity.allowed, .busiest = j->affinity.busiest, .sharers = sharers,
	};

	for (uint32_t i = 0; i < c->jobs; i++)
		if (c->job[i]->affinity.cpu != AFFINITY_NONE)
			sharers[c->job[i]->affinity.cpu]++;
	affinity_confined(&j->affinity, c->pins, &cpus.confined);
	/* Two would wait for each other. */
	for (int i = 0; j->is_auto && i < CPU_SETSIZE; i++)
		if (sharers[i])
			CPU_SET(i, &cpus.confined);
	return colocate_choose(&cpus);
}

static enum colocation_state give_up(struct colocation *c, struct job *j, const char *why)
{
	log_warn("%s: placement: %s", j->affinity.path, why);
	separate(c, j);
	j->given_up = COLOCATION_FAILED;
	return COLOCATION_FAILED;
}

/* Opens the record of pinned threads.  Without one, none is pinned. */
static int need_pins(struct colocation *c, struct error *e)
{
	int r = c->pins ? 0 : pins_open(&c->pins, e);

	if (r)
		return r;
	r = pins_read(c->pins);
	return r ? fail(e, -r, "cannot read the record of pinned threads: %s", strerror(-r)) : 0;
}

/* Pins the programs, or those that appeared since. */
static enum colocation_state join(struct colocation *c, struct job *j)
{
	struct affinity *a = &j->affinity;
	struct error e = { 0 };
	char why[128];
	int r;

	if (a->cpu == AFFINITY_NONE) {
		if (need_pins(c, &e))
			return give_up(c, j, e.text);
		a->cpu = choose(c, j);
		if (a->cpu == AFFINITY_NONE)
			return COLOCATION_SINGLE;
	}
	r = affinity_pin(a, c->pins);
	if (!r)
		return COLOCATION_TOGETHER;
	separate(c, j);
	/* More processes or threads since the look. */
	if (r == -E2BIG)
		return COLOCATION_MANY;
	if (r == -ENOSPC)
		return COLOCATION_FULL;
	j->doubt = true;
	if (r == -EBUSY)
		return COLOCATION_OWN;
	if (r == -EPERM)
		return give_up(c, j, "cannot set the CPU affinity of its programs: grant "
				     "CAP_SYS_NICE or set placement=off");
	snprintf(why, sizeof(why), "cannot pin its threads, or record them: %s", strerror(-r));
	return give_up(c, j, why);
}

/* Looks at the threads.  Returns COLOCATION_IDLE if they may be pinned, or why not. */
static enum colocation_state look(struct colocation *c, struct job *j)
{
	static const enum colocation_state states[] = {
		[AFFINITY_IDLE] = COLOCATION_IDLE, [AFFINITY_FREE] = COLOCATION_IDLE,
		[AFFINITY_SINGLE] = COLOCATION_SINGLE, [AFFINITY_OWN] = COLOCATION_OWN,
		[AFFINITY_REALTIME] = COLOCATION_REALTIME, [AFFINITY_MANY] = COLOCATION_MANY,
	};
	enum affinity_state state = affinity_look(&j->affinity, c->pins);
	bool pinned = j->affinity.cpu != AFFINITY_NONE;

	/*
	 * Before Linux 6.2, only the second time is proof: while a CPU goes offline, affinities
	 * differ for a moment.
	 */
	if (state == AFFINITY_OWN && (j->doubt || (pinned && j->affinity.overridden)))
		j->given_up = COLOCATION_OWN;
	j->doubt = state == AFFINITY_OWN && pinned;
	return states[state];
}

/* Separates @j for the reason @why; the next look is after a rest, or never. */
static enum colocation_state stand_by(struct colocation *c, struct job *j,
				      enum colocation_state why)
{
	separate(c, j);
	j->rest = j->doubt || j->given_up != COLOCATION_OFF ? 0 : REST_PERIODS;
	j->rests = why;
	return why;
}

/* Looks, decides and acts. */
static enum colocation_state place(struct colocation *c, struct job *j)
{
	enum colocation_state why = look(c, j);

	j->affinity.look.prefetched = j->prefetched - j->judged;
	j->judged = j->prefetched;
	if (why != COLOCATION_IDLE)
		return stand_by(c, j, why);
	/* Its CPU went offline, or a cpuset lost it: join() chooses another one. */
	if (j->affinity.cpu != AFFINITY_NONE &&
	    (j->affinity.moved || !CPU_ISSET(j->affinity.cpu, &j->affinity.allowed)))
		separate(c, j);
	if (!j->affinity.threads) {
		separate(c, j);
		return COLOCATION_IDLE;
	}
	if (j->is_auto && !colocate_auto_step(&j->automatic, &j->affinity.look)) {
		separate(c, j);
		return COLOCATION_APART;
	}
	why = join(c, j);
	if (why == COLOCATION_TOGETHER || j->given_up != COLOCATION_OFF)
		return why;
	return stand_by(c, j, why);
}

/* Whether placement=auto may spend a look on @j now: among many that swap, not in each round. */
static bool may_look(struct colocation *c, const struct job *j)
{
	if (!j->is_auto || j->affinity.cpu != AFFINITY_NONE)
		return true;
	if (!c->looks)
		return false;
	c->looks--;
	return true;
}

static enum colocation_state work(struct colocation *c, struct job *j, uint64_t wall_ns)
{
	if (j->affinity.cpu != AFFINITY_NONE)
		j->report.together_ns += wall_ns;
	if (j->given_up != COLOCATION_OFF) {
		separate(c, j);
		return j->given_up;
	}
	if (j->rest) {
		j->rest--;
		return j->rests;
	}
	if (j->idle)
		return COLOCATION_IDLE;
	return may_look(c, j) ? place(c, j) : j->report.state;
}

/* --- all of them ------------------------------------------------------------ */

static struct job *job_with(const struct colocation *c, uint64_t owner)
{
	for (uint32_t i = 0; i < c->jobs; i++)
		if (c->job[i]->owner == owner)
			return c->job[i];
	return NULL;
}

static struct job *job_of(struct colocation *c, const struct attachment *t)
{
	struct job *j = job_with(c, t->cgroup.id);

	if (j)
		return j;
	j = c->jobs < EBB_MAX_CGROUPS ? calloc(1, sizeof(*j)) : NULL;
	if (!j)
		return NULL;
	j->owner = t->cgroup.id;
	j->report.together_ns = t->colocation.together_ns;
	if (affinity_init(&j->affinity, t->cgroup.id, t->cgroup.path, c->attachments->plane)) {
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

/* A new setting starts afresh. */
static void take_wish(struct colocation *c, struct job *j)
{
	if (j->wishes == j->nexts && j->is_auto == j->next_auto)
		return;
	separate(c, j);
	j->wishes = j->nexts;
	j->doubt = false;
	j->given_up = COLOCATION_OFF;
	j->rest = 0;
	j->is_auto = j->next_auto;
	j->automatic = (struct colocate_auto){ 0 };
}

/* Reads the setting and the activity of @j's cgroup. */
static void read_wish(struct colocation *c, struct job *j)
{
	const struct attachment *t = attachments_find(c->attachments, j->owner);

	j->wanted = t && t->placement != PLACEMENT_OFF;
	if (!t)
		return;
	j->nexts = t->placements;
	j->next_auto = t->placement == PLACEMENT_AUTO;
	j->busy = t->busy_ticks != 0;
	j->prefetched = budget_prefetched(t->budget);
}

/* Counts how long placement=auto has had nothing to do for @j. */
static void count_idle(struct job *j)
{
	if (!j->is_auto || j->busy || j->affinity.cpu != AFFINITY_NONE)
		j->idle = 0;
	else if (++j->idle >= IDLE_PERIODS && j->given_up == COLOCATION_OFF)
		j->wanted = false;
}

/* Updates the jobs from the attachments. */
static void collect(struct colocation *c)
{
	struct attachments *a = c->attachments;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i];

		if (!t->placing && attachment_wants_placing(t))
			t->placing = job_of(c, t) != NULL;
	}
	for (uint32_t i = 0; i < c->jobs; i++)
		read_wish(c, c->job[i]);
	pthread_mutex_unlock(&a->lock);
	for (uint32_t i = c->jobs; i-- > 0;) {
		take_wish(c, c->job[i]);
		count_idle(c->job[i]);
		if (!c->job[i]->wanted)
			job_end(c, i);
	}
}

/*
 * Returns whether @t is a process that inherited an affinity, whatever cgroup it is in, or a thread
 * that started while its cgroup was separated or could not be restored then.
 */
static bool is_stray(const struct colocation *c, const struct ebb_pin *t)
{
	const struct job *j = job_with(c, t->e.owner);

	return t->e.flags & EBB_PINNED_BORN || !j || j->affinity.cpu != t->e.cpu;
}

/* Reads the record, which is a walk over all tasks: once in a round. */
static void release_strays(struct colocation *c)
{
	const struct ebb_pin *t;

	if (!c->pins || pins_read(c->pins))
		return;
	for (uint32_t i = 0; (t = pins_at(c->pins, i)); i++)
		if (is_stray(c, t))
			pins_release(c->pins, t);
}

/* Separates cgroups of which so many threads start that the record would not have all of them. */
static void unpin_crowds(struct colocation *c)
{
	for (uint32_t i = 0; i < c->jobs; i++) {
		struct job *j = c->job[i];

		if (j->affinity.cpu == AFFINITY_NONE || !pins_crowded(c->pins, j->owner))
			continue;
		j->report.state = stand_by(c, j, COLOCATION_MANY);
		tell(c, j);
	}
}

/* Releases new threads, without a walk.  Returns how long that took, ns. */
static uint64_t release_born(struct colocation *c)
{
	uint64_t begun = now_ns();
	struct ebb_pin t;

	pins_born(c->pins);
	unpin_crowds(c);
	while (pins_next_born(c->pins, &t))
		if (is_stray(c, &t) && pins_look(c->pins, &t))
			pins_release(c->pins, &t);
	return now_ns() - begun;
}

static void round_of(struct colocation *c)
{
	uint64_t now = now_ns(), wall = now - c->round_ns;
	uint32_t turn = c->turn;

	release_strays(c);
	collect(c);
	c->round_ns = now;
	c->looks = AUTO_LOOKS;
	for (uint32_t i = 0; i < c->jobs; i++) {
		uint32_t k = (turn + i) % c->jobs;
		struct job *j = c->job[k];

		/* The next round begins with the first one that may have to wait. */
		c->turn = c->looks ? k + 1 : c->turn;
		j->report.state = work(c, j, wall);
		tell(c, j);
	}
	if (!c->jobs && c->pins && pins_empty(c->pins))
		pins_close(&c->pins);
}

/* Returns whether there is work, or the thread is to stop, within @ms; -1 = without limit. */
static bool woken(struct colocation *c, int ms, bool *born)
{
	struct pollfd fd[2] = { { .fd = c->wake, .events = POLLIN }, { .events = POLLIN } };
	eventfd_t n;

	fd[1].fd = born && c->pins ? pins_fd(c->pins) : -1;
	if (poll(fd, 2, ms) <= 0)
		return false;
	if (born)
		*born = fd[1].revents != 0;
	return fd[0].revents && !eventfd_read(c->wake, &n);
}

/* Waits for the next round: without a job and a pinned thread, until there is one. */
static void wait_round(struct colocation *c)
{
	uint64_t now = now_ns(), until = c->round_ns + PERIOD_NS, rest, took;

	while (!c->jobs && !c->pins)
		if (woken(c, -1, NULL))
			return;
	rest = c->pins ? RESTS * pins_walk_ns(c->pins) : 0;
	if (until < now + rest)
		until = now + rest;
	while ((now = now_ns()) < until) {
		bool born = false;

		if (woken(c, (int)((until - now) / MS_NS) + 1, &born))
			return;
		if (!born)
			continue;
		took = release_born(c);
		/* A process that starts many: not for each. */
		rest = RESTS * took > BORN_NS ? RESTS * took : BORN_NS;
		if (woken(c, (int)(rest / MS_NS), NULL))
			return;
	}
}

static void *run(void *data)
{
	struct colocation *c = data;

	pthread_setname_np(pthread_self(), "ebbd-placement");
	c->round_ns = now_ns();
	while (!atomic_load(&c->stop)) {
		round_of(c);
		wait_round(c);
	}
	return NULL;
}

void colocation_recover(void)
{
	uint32_t kept;
	int n = pins_recover(&kept);

	if (n > 0)
		log_info("placement: restored the CPU affinity of pinned threads: %d", n);
	if (kept)
		log_warn("placement: cannot restore the CPU affinity of pinned threads now: %u; run "
			 "\"ebbd --restore\" later", kept);
	if (n < 0 && n != -ENOENT)
		log_warn("placement: cannot restore the CPU affinity that a previous ebbd set: %s; "
			 "run \"taskset -p\" for programs that have one CPU", strerror(-n));
}

int colocation_start(struct colocation **out, struct attachments *a, struct error *e)
{
	struct colocation *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return fail(e, ENOMEM, "placement: out of memory");
	c->attachments = a;
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = c->wake < 0 ? errno : small_thread_create(&c->thread, plane_stack(a->plane), run, c);
	if (r) {
		if (c->wake >= 0)
			close(c->wake);
		free(c);
		return fail(e, r, "placement: cannot start its thread: %s", strerror(r));
	}
	pthread_mutex_lock(&a->lock);
	a->placed = c->wake;
	pthread_mutex_unlock(&a->lock);
	eventfd_write(c->wake, 1);
	*out = c;
	return 0;
}

void colocation_stop(struct colocation **pc)
{
	struct colocation *c = *pc;
	struct attachments *a;

	if (!c)
		return;
	a = c->attachments;
	pthread_mutex_lock(&a->lock);
	a->placed = -1;
	pthread_mutex_unlock(&a->lock);
	atomic_store(&c->stop, true);
	if (eventfd_write(c->wake, 1))
		log_err("placement: cannot stop: %m");
	pthread_join(c->thread, NULL);
	while (c->jobs)
		job_end(c, c->jobs - 1);
	if (c->pins)
		pins_release_all(c->pins);
	pins_close(&c->pins);
	close(c->wake);
	free(c);
	*pc = NULL;
}
