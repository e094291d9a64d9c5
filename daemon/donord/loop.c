// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "donord.h"
#include "donord/far/far_census.h"
#include "donord/session/far_requests.h"
#include "donord/session/requests.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/size.h"
#include "loop.h"

/* Connections with preallocated memory for TLS; further ones allocate. */
#define TLS_RESERVED 64
/*
 * The loop sleeps for all but this part of a delay: in a virtual machine, the latency of timer and
 * wake-up exceeds the shortest delays.
 */
#define AWAKE_NS 50000
/* Pause between two pieces to zero: this thread has real-time priority over others. */
#define ZERO_REST_NS 30000
/* As many as can be ready, so that no borrower waits for the connections of another one. */
#define EVENTS 512

/* Keys of the epoll set, above the numbers of connections.  connection_key() is above these. */
enum { KEY_SIGNAL = CONNECTIONS, KEY_WAKE, KEY_TIMER, KEY_RDMA, KEY_FAR, KEY_LISTEN,
       KEY_KERNELS = KEY_LISTEN + PLACES };

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns how many slabs borrowers may still release: arenas stay until the donor ends. */
static uint32_t to_release(const struct loop *l)
{
	return l->pool->in[LEND_LENT] - (l->far ? l->far->used : 0);
}

void loop_tick(struct loop *l, uint64_t now)
{
	__atomic_store_n(&l->still_lent, to_release(l), __ATOMIC_RELAXED);
	places_resume(&l->places);
	headroom_follow_second(&l->follow, now);
	connections_tick(&l->sessions, now);
}

void loop_drain(struct loop *l, enum loop_drain then)
{
	char wait[16];

	if (!l->pool->draining)
		donor_say(&l->log, LOG_LVL_INFO, "draining: %u slabs are lent", to_release(l));
	__atomic_store_n(&l->pool->draining, true, __ATOMIC_RELAXED);
	l->tick_due = true;
	if (then == LOOP_END && !l->ending) {
		l->drain_end = l->now + l->options.drain;
		__atomic_store_n(&l->ending, true, __ATOMIC_RELAXED);
		l->sessions.ending = true;
		if (l->kernels)
			l->kernels->ending = true;
		if (to_release(l) && l->options.drain)
			donor_say(&l->log, LOG_LVL_INFO, "ends when they are back, or in %s",
				   duration_format(l->options.drain, wait, sizeof(wait)));
	}
	donor_log_wake(&l->log);
}

void loop_undrain(struct loop *l)
{
	if (l->ending || !l->pool->draining)
		return;
	__atomic_store_n(&l->pool->draining, false, __ATOMIC_RELAXED);
	l->tick_due = true;
	donor_log_wake(&l->log);
	donor_say(&l->log, LOG_LVL_INFO, "lending again");
}

static int read_keys(const struct option_list *list, enum keyring_absence absence,
		     struct keyring *ring, struct error *e)
{
	int r = 0;

	for (int i = 0; i < list->n && !r; i++)
		r = keyring_add(ring, list->v[i], absence, e);
	if (r)
		keyring_free(ring);
	return r;
}

static void warn_shared(struct loop *l)
{
	const struct key *first;
	uint32_t n = keyring_shared(&l->sessions.keys, &first);

	if (n)
		donor_say(&l->log, LOG_LVL_WARN,
			  "key %s (%s): shared by donors, so each can act as the others; replace it by one of \"ebbctl key derive\" (%u of %u keys)",
			  first->name, first->fingerprint, n, l->sessions.keys.count);
}

static void read_keys_again(struct loop *l)
{
	struct keyring ring = { 0 };
	struct error e = { 0 };

	if (!l->options.keys.n)
		return;
	if (read_keys(&l->options.keys, KEYRING_MAY_BE_GONE, &ring, &e)) {
		donor_say(&l->log, LOG_LVL_ERR, "%s; the keys stay as they were", e.text);
		return;
	}
	keyring_free(&l->sessions.keys);
	l->sessions.keys = ring;
	if (ring.count)
		donor_say(&l->log, LOG_LVL_INFO, "%u keys", ring.count);
	else
		donor_say(&l->log, LOG_LVL_ERR,
			  "no key is left: no borrower on the network is accepted; add a key file and send SIGHUP");
	warn_shared(l);
	connections_keys(&l->sessions);
	if (l->kernels)
		kernel_accept_keys(l->kernels);
}

/* Returns true when the loop must end at once: at the second signal. */
static bool take_signal(struct loop *l)
{
	struct signalfd_siginfo info;
	bool again = l->ending;

	if (read(l->signal_fd, &info, sizeof(info)) != sizeof(info))
		return false;
	if (info.ssi_signo == SIGHUP) {
		read_keys_again(l);
		return false;
	}
	loop_drain(l, LOOP_END);
	return again;
}

static void take_wake(struct loop *l)
{
	eventfd_t ignored;
	int r;

	eventfd_read(l->wake_fd, &ignored);
	headroom_follow_woken(&l->follow, l->now);
	r = pool_settle(l->pool);
	if (r && !l->growth_failed)
		donor_say(&l->log, LOG_LVL_WARN,
			  "memory: no slab can be made now: %s; lending less until there is room",
			   strerror(-r));
	l->growth_failed = r != 0;
	if (l->woken)
		l->woken(l->woken_data);
}

static void take_timer(struct loop *l)
{
	uint64_t ignored;

	if (read(l->timer_fd, &ignored, sizeof(ignored)) == sizeof(ignored))
		l->tick_due = true;
}

static void take_rdma(struct loop *l)
{
	int fds[2];

	if (!rdma_place_event(l->sessions.rdma))
		return;
	rdma_place_fds(l->sessions.rdma, fds);
	epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fds[1], NULL);
}

static void wake_worker(struct loop *l)
{
	if (l->pool_thread.running && l->pool->tasks_put != l->pool_thread_knows) {
		l->pool_thread_knows = l->pool->tasks_put;
		pool_thread_wake(&l->pool_thread);
	}
}

/*
 * Goes on with requests that wait for this turn.  Connections and kernel modules share its MAPs:
 * they alternate in having the first, by turns with loans, as a slab may become clean in one of
 * many turns.  True = connections have more.
 */
static bool resume(struct loop *l)
{
	bool busy, kernels_last;

	pool_turn(l->pool, l->now);
	kernels_last = l->pool->lent_turns & 1;
	if (l->kernels && !kernels_last)
		kernel_accept_turn(l->kernels);
	busy = connections_resume(&l->sessions);
	if (l->kernels && kernels_last)
		kernel_accept_turn(l->kernels);
	return busy;
}

/* Counts extents for a status that waits for that.  True = there are more. */
static bool count_extents(struct loop *l)
{
	if (!l->far || !l->far->census.running)
		return false;
	if (!far_census_turn(l->far))
		return true;
	if (l->woken)
		l->woken(l->woken_data);
	far_count_end(l->far);
	return false;
}

/* Does the work that no event announces; returns ns until there is more. */
static uint64_t before_sleep(struct loop *l)
{
	bool busy = resume(l);
	uint64_t wait;

	if (l->tick_due)
		loop_tick(l, l->now);
	l->tick_due = false;
	wait = min64(eviction_turn(&l->eviction, l->now), headroom_follow_turn(&l->follow, l->now));
	if (l->kernels)
		wait = min64(wait, kernel_accept_wait(l->kernels, l->now));
	if (l->far && far_turn(l->far))
		busy = true;
	if (l->jobs && jobs_turn(l->jobs))
		busy = true;
	if (count_extents(l))
		busy = true;
	connections_flush(&l->sessions);
	if (l->far && l->far->words_due)
		busy = true;
	if (l->sessions.options.delay) {
		uint64_t due = connections_delayed(&l->sessions);

		wait = min64(wait, due > AWAKE_NS ? due - AWAKE_NS : 0);
	}
	wait = min64(wait, connections_throttled(&l->sessions));
	if (l->ending)
		wait = min64(wait, l->drain_end > l->now ? l->drain_end - l->now : 0);
	if (pool_zero_some(l->pool, l->follow.gives_back ? LEND_GIVE_UP : LEND_RENEW))
		wait = min64(wait, ZERO_REST_NS);
	wake_worker(l);
	return busy ? 0 : wait;
}

int loop_turn(struct loop *l, uint64_t wait_ns)
{
	struct epoll_event ev[EVENTS];
	uint64_t wait = min64(before_sleep(l), wait_ns);
	struct timespec ts = { wait / SECOND, wait % SECOND };
	bool told_twice = false;
	int n;

	if (l->ending && (!to_release(l) || l->now >= l->drain_end))
		return 1;
	/* A timeout costs a system call to set the timer: set none without need. */
	n = epoll_pwait2(l->epoll_fd, ev, EVENTS, wait != UINT64_MAX ? &ts : NULL, NULL);
	if (n < 0 && errno != EINTR)
		return -errno;
	l->now = l->sessions.now = now_ns();
	for (int i = 0; i < n; i++) {
		/* Of the data connections of a key, another one comes first in each turn. */
		const struct epoll_event *at = &ev[(i + l->pool->turn) % (unsigned)n];
		uint32_t key = (uint32_t)at->data.u64;

		if (key == KEY_SIGNAL)
			told_twice = take_signal(l) || told_twice;
		else if (key == KEY_WAKE)
			take_wake(l);
		else if (key == KEY_TIMER)
			take_timer(l);
		else if (key == KEY_RDMA)
			take_rdma(l);
		else if (key == KEY_FAR)
			far_exits(l->far);
		else if (key >= KEY_KERNELS)
			kernel_accept_event(l->kernels, key);
		else if (key >= KEY_LISTEN)
			places_accept(&l->places, (int)(key - KEY_LISTEN));
		else
			connections_event(&l->sessions, at->data.u64, at->events);
	}
	return told_twice;
}

int loop_run(struct loop *l)
{
	int r = 0;

	while (!r)
		r = loop_turn(l, UINT64_MAX);
	if (to_release(l))
		donor_say(&l->log, LOG_LVL_WARN, "ends with %u slabs lent", to_release(l));
	return r < 0 ? r : 0;
}

/* --- start and end ------------------------------------------------------------- */

static int watch_fd(struct loop *l, int fd, uint64_t key)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = key };

	if (fd < 0)
		return -errno;
	return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int make_loop(struct loop *l)
{
	struct itimerspec each_second = { { 1, 0 }, { 1, 0 } };
	sigset_t set;
	int r;

	/* The donor survives the reader of its log and its terminal. */
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	timerfd_settime(l->timer_fd, 0, &each_second, NULL);
	r = watch_fd(l, l->signal_fd, KEY_SIGNAL);
	if (!r)
		r = watch_fd(l, l->timer_fd, KEY_TIMER);
	return r ? r : watch_fd(l, l->wake_fd, KEY_WAKE);
}

static int use_keys(struct loop *l, struct error *e)
{
	struct sessions *s = &l->sessions;
	int r = read_keys(&l->options.keys, KEYRING_NEEDED, &s->keys, e);

	if (r || !s->keys.count)
		return r;
	/* Keeps keys out of core dumps. */
	prctl(PR_SET_DUMPABLE, 0);
	warn_shared(l);
	r = tls_donor(&s->tls, &s->keys, e);
	return r ? r : tls_reserve(TLS_RESERVED, e);
}

static int make_identity(struct loop *l, struct error *e)
{
	uint32_t machine = machine_number(&l->follow.machine), half[2] = { 0 };

	/* A half of 0 means none. */
	while (!half[0] || !half[1])
		if (getrandom(half, sizeof(half), 0) != sizeof(half))
			return fail(e, errno, "getrandom: %m");
	l->follow.identity = (uint64_t)(machine ?: half[1]) << 32 | half[0];
	return 0;
}

int loop_new(struct loop **out, struct pool *pool, const struct lending_options *o,
	     struct error *e)
{
	struct loop *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return fail(e, ENOMEM, "out of memory");
	l->pool = pool;
	l->options = *o;
	l->now = now_ns();
	donor_log_init(&l->log);
	l->follow = (struct headroom_follow){
		.pool = pool, .eviction = &l->eviction, .log = &l->log, .headroom = o->headroom,
		.no_emergency = o->eviction.no_emergency,
	};
	l->eviction = (struct eviction){ .pool = pool, .log = &l->log, .options = o->eviction };
	machine_find(&l->follow.machine, o->machine ?: "/proc");
	l->sessions = (struct sessions){
		.options = o->sessions, .pool = pool, .eviction = &l->eviction,
		.follow = &l->follow, .log = &l->log, .requests = &requests,
		.stream = { .ops = &export_stream }, .shared = { .ops = &export_shared },
		.now = l->now,
	};
	l->places = (struct places){ .sessions = &l->sessions, .first_key = KEY_LISTEN };
	l->signal_fd = l->timer_fd = l->wake_fd = l->epoll_fd = -1;
	r = make_loop(l);
	l->sessions.epoll_fd = l->epoll_fd;
	if (!r)
		r = sessions_init(&l->sessions);
	if (r)
		fail(e, r, "event loop: %s", strerror(-r));
	if (!r)
		r = make_identity(l, e);
	if (!r)
		r = use_keys(l, e);
	if (r) {
		loop_free(&l);
		return r;
	}
	*out = l;
	return 0;
}

int loop_listen(struct loop *l, struct address *a, struct error *e)
{
	return places_listen(&l->places, a, e);
}

static int need_keys(const struct loop *l, const char *option, struct error *e)
{
	return l->sessions.tls ? 0 :
	       fail_exit(e, EXIT_REFUSED, EACCES,
			 "%s: authentication required; pass --keys FILE, made by \"ebbctl key derive\" at the borrower",
			 option);
}

int loop_listen_rdma(struct loop *l, const struct address *a, struct error *e)
{
	const struct rdma_host host = { &l->sessions, requests_prove, requests_joined };
	int fds[2], r = need_keys(l, "--rdma", e);

	if (!r)
		r = rdma_place_open(&l->sessions.rdma, l->pool, &l->log, &host, a, e);
	if (r)
		return r;
	rdma_place_fds(l->sessions.rdma, fds);
	r = watch_fd(l, fds[0], KEY_RDMA);
	if (!r)
		r = watch_fd(l, fds[1], KEY_RDMA);
	return r ? fail(e, r, "event loop: %s", strerror(-r)) : 0;
}

int loop_listen_kernels(struct loop *l, const struct address *a, struct error *e)
{
	int r = need_keys(l, "--rdma-kernel", e);

	if (r)
		return r;
	l->kernels = calloc(1, sizeof(*l->kernels));
	if (!l->kernels)
		return fail(e, ENOMEM, "out of memory");
	l->kernels->env = (struct kernel_env){
		.pool = l->pool, .eviction = &l->eviction, .follow = &l->follow, .log = &l->log,
		.quota = l->options.sessions.quota, .keep = l->options.sessions.keep,
	};
	l->kernels->keys = &l->sessions.keys;
	l->kernels->key_connections = l->options.sessions.key_connections;
	l->kernels->epoll_fd = l->epoll_fd;
	l->kernels->first_key = KEY_KERNELS;
	return kernel_accept_open(l->kernels, a, e);
}

/*
 * Ends the touching of memory, which takes minutes for a terabyte, on SIGTERM (which is blocked for
 * signal_fd) and at the end of the pool thread.
 */
static bool told_to_end(void *data)
{
	struct loop *l = data;
	sigset_t pending;

	if (l->filled)
		return __atomic_load_n(&l->pool_thread.stop, __ATOMIC_ACQUIRE);
	sigpending(&pending);
	return sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT);
}

static int start_far(struct loop *l, struct error *e)
{
	int r = far_pools_new(&l->far, l->pool, &l->log, &far_requests_ops, l->options.far,
			      l->options.sessions.quota);

	if (!r)
		r = watch_fd(l, l->far->epoll_fd, KEY_FAR);
	l->sessions.far = l->far;
	if (!r && l->options.far_jobs)
		r = jobs_new(&l->jobs, l->options.far_jobs, l->options.far_jobs_cpu);
	l->sessions.jobs = l->jobs;
	return r ? fail(e, r, "far memory: %s", strerror(-r)) : 0;
}

int loop_start(struct loop *l, struct error *e)
{
	uint32_t slabs;
	int r = headroom_follow_start(&l->follow, &slabs, e);

	if (r)
		return r;
	l->pool->patience = (struct patience){ told_to_end, l };
	r = pool_fill(l->pool, slabs, e);
	if (r)
		return r;
	l->filled = true;
	r = eviction_init(&l->eviction);
	if (!r)
		r = pool_thread_start(&l->pool_thread, l->pool, l->wake_fd);
	if (!r)
		r = machine_watch_start(&l->follow.watch, &l->follow.machine, l->wake_fd);
	if (r)
		return fail(e, r, "memory thread: %s", strerror(-r));
	return l->options.far ? start_far(l, e) : 0;
}

void loop_free(struct loop **lp)
{
	struct loop *l = *lp;

	if (!l)
		return;
	sessions_free(&l->sessions);
	while (l->jobs && jobs_turn(l->jobs))
		;
	jobs_free(&l->jobs);
	far_pools_free(&l->far);
	if (l->kernels)
		kernel_accept_end(l->kernels);
	machine_watch_stop(&l->follow.watch);
	pool_thread_stop(&l->pool_thread);
	/* Runs the remaining tasks; told_to_end() prevents it from making slabs. */
	l->pool_thread.stop = true;
	do
		pool_settle(l->pool);
	while (l->filled && pool_work(l->pool));
	if (l->kernels)
		kernel_accept_close(l->kernels);
	free(l->kernels);
	eviction_free(&l->eviction);
	places_free(&l->places);
	close_fdp(&l->signal_fd);
	close_fdp(&l->timer_fd);
	close_fdp(&l->wake_fd);
	close_fdp(&l->epoll_fd);
	rdma_place_close(&l->sessions.rdma);
	tls_context_free(&l->sessions.tls);
	keyring_free(&l->sessions.keys);
	notes_log(&l->log.notes);
	free(l);
	*lp = NULL;
}
