// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
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
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/size.h"
#include "lib/wire/local.h"

/* Connections whose TLS finds its memory ready; more of them take what there is. */
#define TLS_RESERVED 64
/*
 * A delay is slept but for its last part: what a timer and a core that wakes
 * up add to a sleep, in a virtual machine, is more than the shortest delays.
 */
#define AWAKE_NS 50000
/* Between two pieces that are zeroed, for who else wants the core: we have priority. */
#define ZERO_REST_NS 30000

enum { KEY_SIGNAL = CONNECTIONS, KEY_WAKE, KEY_TIMER, KEY_RDMA, KEY_LISTEN };

void lender_tell(struct lender *l, enum log_event event, enum log_level level, const char *fmt,
		 ...)
{
	uint64_t more = (l->now - l->log_at) / (SECOND / LOG_RATE);
	char text[240];
	va_list ap;

	if (more) {
		l->log_left = l->log_left + more < LOG_BURST ? l->log_left + (uint32_t)more :
			      LOG_BURST;
		l->log_at = l->now;
	}
	if (!l->log_left) {
		l->log_dropped++;
		return;
	}
	l->log_left--;
	if (l->log_dropped)
		note(&l->notes, LOG_LVL_WARN, "%u lines were not logged", l->log_dropped);
	l->log_dropped = 0;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	note_event(&l->notes, event, level, "%s", text);
	donor_control_wake(&l->control);
}

static void listen_to(struct lender *l, uint32_t events)
{
	for (int i = 0; i < l->place_count; i++) {
		struct epoll_event ev = { .events = events,
					  .data.u64 = KEY_LISTEN + (uint64_t)i };

		epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, l->listen_fds[i], &ev);
	}
	l->deaf = !events;
}

void lender_deafen(struct lender *l)
{
	listen_to(l, 0);
}

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* --- once a second ---------------------------------------------------------- */

static void look_at_machine(struct lender *l, uint64_t now)
{
	struct error e = { 0 };
	struct rdma_lent kernels;
	bool is_short;

	if (machine_sample(&l->machine, &l->sample, &e)) {
		if (!l->sample_failed)
			lender_say(l, LOG_LVL_WARN, "%s", e.text);
		l->sample_failed = true;
		return;
	}
	l->sample_failed = false;
	if (!l->options.headroom)
		return;
	kernels = lender_kernels(l);
	l->room.before = kernels.lent;
	headroom_sample(&l->room, &l->rule, &l->sample, lender_allocated(l) + kernels.present);
	is_short = l->sample.available < l->rule.headroom / 2;
	if (!is_short)
		l->short_since = 0;
	else if (!l->short_since)
		l->short_since = now;
}

static void follow_headroom(struct lender *l, uint64_t now)
{
	const struct lend_pool *p = l->pool;
	struct headroom_plan plan;

	/* What is on its way here is as good as here, what is on its way back as good as back. */
	headroom_plan(&l->room, &l->rule, lend_free_slabs(p) + p->in[LEND_COMING],
		      p->in[LEND_LENT] - eviction_expected(l), &plan);
	lend_grow(l->pool, plan.allocate);
	lend_shrink(l->pool, plan.release);
	eviction_start(l, plan.evict, now);
	l->gives_back = plan.release || plan.evict || eviction_expected(l);
}

/*
 * Free slabs of theirs make room for ours and programs; lent ones are asked back, E at a time,
 * when there is no room for them alone, or the machine is short of memory for all that we asked
 * back.  They get more as ours do: of what is available now, and not while programs wait.
 */
static uint32_t most_for_kernels(const struct lender *l)
{
	const struct headroom_rule *rule = &l->rule;
	const struct headroom *h = &l->room;
	struct rdma_lent k = lender_kernels(l);
	uint32_t room = headroom_room(h, rule), ours = lender_allocated(l);
	uint32_t left = room > ours ? room - ours : 0;
	uint32_t least = k.lent > rule->evict ? k.lent - rule->evict : 0;
	uint64_t now;

	if (!l->options.headroom || !h->seen)
		return k.count;
	if (left > k.present) {
		now = h->available > rule->headroom ?
		      (h->available - rule->headroom) / rule->slab_size : 0;
		now = h->pressure < HEADROOM_PRESSURE ? min64(now, rule->evict) : 0;
		return k.present + (uint32_t)min64(left - k.present, now);
	}
	if (left < k.lent && !l->short_since)
		left = room < k.lent ? room : k.lent;
	return left > least ? left : least;
}

void lender_tick(struct lender *l, uint64_t now)
{
	struct lend_pool *p = l->pool;

	__atomic_store_n(&l->still_lent, p->in[LEND_LENT] + lender_kernels(l).lent,
			 __ATOMIC_RELAXED);
	if (l->deaf)
		listen_to(l, EPOLLIN);
	look_at_machine(l, now);
	l->gives_back = l->draining;
	if (l->draining)
		lend_shrink(p, lend_free_slabs(p));
	else if (l->options.headroom)
		follow_headroom(l, now);
	else
		lend_grow(p, p->in[LEND_ABSENT]);
	if (l->kernels)
		rdma_lender_follow(l->kernels, most_for_kernels(l), l->draining);
	eviction_second(l, now);
	connections_tick(l, now);
}

void lender_drain(struct lender *l, enum lender_drain then)
{
	char wait[16];

	if (!l->draining)
		lender_say(l, LOG_LVL_INFO, "draining: %u slabs are lent",
			   l->pool->in[LEND_LENT] + lender_kernels(l).lent);
	__atomic_store_n(&l->draining, true, __ATOMIC_RELAXED);
	l->tick_due = true;
	if (then == LENDER_END && !l->ending) {
		l->drain_end = l->now + l->options.drain;
		__atomic_store_n(&l->ending, true, __ATOMIC_RELAXED);
		if (l->pool->in[LEND_LENT] && l->options.drain)
			lender_say(l, LOG_LVL_INFO, "ends when they are back, or in %s",
				   duration_format(l->options.drain, wait, sizeof(wait)));
	}
	donor_control_wake(&l->control);
}

void lender_undrain(struct lender *l)
{
	if (l->ending || !l->draining)
		return;
	__atomic_store_n(&l->draining, false, __ATOMIC_RELAXED);
	l->tick_due = true;
	donor_control_wake(&l->control);
	lender_say(l, LOG_LVL_INFO, "lending again");
}

/* --- the loop ------------------------------------------------------------------ */

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

/*
 * Keys that are gone let nobody in, and nobody stay, whatever he has here: who takes a
 * key away wants him out.  The last one is no exception.
 */
static void read_keys_again(struct lender *l)
{
	struct keyring ring = { 0 };
	struct error e = { 0 };

	if (!l->options.keys.n)
		return;
	if (read_keys(&l->options.keys, KEYRING_MAY_BE_GONE, &ring, &e)) {
		lender_say(l, LOG_LVL_ERR, "%s; the keys stay as they were", e.text);
		return;
	}
	keyring_free(&l->keys);
	l->keys = ring;
	if (ring.count)
		lender_say(l, LOG_LVL_INFO, "%u keys", ring.count);
	else
		lender_say(l, LOG_LVL_ERR,
			   "no key is left: nobody may borrow by the network any more; add a key file and send SIGHUP");
	if (l->keys_call && l->keys_call(l->keys_data, &l->keys))
		lender_say(l, LOG_LVL_ERR, "keys: not told to --rdma-kernel, where they stay as they were; send SIGHUP again");
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];
		const char *name = c->kept_until ? c->key : c->access.tls.name;
		const char *fingerprint = c->kept_until ? c->fingerprint : c->access.tls.fingerprint;
		char identity[KEY_IDENTITY];

		if (connection_is_free(c) || !*name)
			continue;
		snprintf(identity, sizeof(identity), "%s:%s", name, fingerprint);
		if (keyring_find(&l->keys, identity, strlen(identity)))
			continue;
		lender_say(l, LOG_LVL_WARN, "key %s (%s) is gone: who came with it is hung up on, %u slabs taken back",
			   name, fingerprint, lend_owned(l->pool, c->number));
		connection_drop(c, "its key was taken away");
	}
}

/* True when the loop is to end at once: it was told twice. */
static bool take_signal(struct lender *l)
{
	struct signalfd_siginfo info;
	bool again = l->ending;

	if (read(l->signal_fd, &info, sizeof(info)) != sizeof(info))
		return false;
	if (info.ssi_signo == SIGHUP) {
		read_keys_again(l);
		return false;
	}
	lender_drain(l, LENDER_END);
	return again;
}

static void take_wake(struct lender *l)
{
	eventfd_t ignored;
	int r;

	eventfd_read(l->wake_fd, &ignored);
	r = lend_settle(l->pool);
	if (r && !l->growth_failed)
		lender_say(l, LOG_LVL_WARN,
			   "memory: no slab can be made now: %s; lending less until there is room",
			   strerror(-r));
	l->growth_failed = r != 0;
	donor_control_answer(l);
}

static void take_timer(struct lender *l)
{
	uint64_t ignored;

	if (read(l->timer_fd, &ignored, sizeof(ignored)) == sizeof(ignored))
		l->tick_due = true;
}

static void wake_worker(struct lender *l)
{
	if (l->worker.running && l->pool->to_do.put != l->worker_knows) {
		l->worker_knows = l->pool->to_do.put;
		worker_wake(&l->worker);
	}
}

/* What is to be done without being asked; ns until there is more of it. */
static uint64_t before_sleep(struct lender *l)
{
	bool busy = connections_resume(l);
	uint64_t wait;

	if (l->tick_due)
		lender_tick(l, l->now);
	l->tick_due = false;
	wait = eviction_turn(l, l->now);
	if (l->options.delay) {
		uint64_t due = connections_delayed(l);

		wait = min64(wait, due > AWAKE_NS ? due - AWAKE_NS : 0);
	}
	if (l->ending)
		wait = min64(wait, l->drain_end > l->now ? l->drain_end - l->now : 0);
	if (lend_zero_some(l->pool, l->gives_back ? LEND_GIVE_UP : LEND_RENEW))
		wait = min64(wait, ZERO_REST_NS);
	wake_worker(l);
	return busy ? 0 : wait;
}

int lender_turn(struct lender *l, uint64_t wait_ns)
{
	struct epoll_event ev[16];
	uint64_t wait = min64(before_sleep(l), wait_ns);
	struct timespec ts = { wait / SECOND, wait % SECOND };
	bool told_twice = false;
	int n;

	if (l->ending && (!l->pool->in[LEND_LENT] || l->now >= l->drain_end))
		return 1;
	/* A timeout is a timer to be set: not for each request. */
	n = epoll_pwait2(l->epoll_fd, ev, 16, wait != UINT64_MAX ? &ts : NULL, NULL);
	if (n < 0 && errno != EINTR)
		return -errno;
	l->now = now_ns();
	for (int i = 0; i < n; i++) {
		uint64_t key = ev[i].data.u64;

		if (key == KEY_SIGNAL)
			told_twice = take_signal(l) || told_twice;
		else if (key == KEY_WAKE)
			take_wake(l);
		else if (key == KEY_TIMER)
			take_timer(l);
		else if (key == KEY_RDMA)
			rdma_place_event(l);
		else if (key >= KEY_LISTEN)
			connection_accept(l, (int)(key - KEY_LISTEN));
		else
			/* An earlier event of this turn may have dropped it. */
			connection_event(&l->connections[key], ev[i].events);
	}
	return told_twice;
}

int lender_run(struct lender *l)
{
	int r = 0;

	while (!r)
		r = lender_turn(l, UINT64_MAX);
	if (l->pool->in[LEND_LENT])
		lender_say(l, LOG_LVL_WARN, "ends with %u slabs lent", l->pool->in[LEND_LENT]);
	return r < 0 ? r : 0;
}

/* --- its life ------------------------------------------------------------------ */

static int watch_fd(struct lender *l, int fd, uint64_t key)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = key };

	if (fd < 0)
		return -errno;
	return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int make_loop(struct lender *l)
{
	struct itimerspec each_second = { { 1, 0 }, { 1, 0 } };
	sigset_t set;
	int r;

	/* A reader of the log or a terminal that ends must not end the donor. */
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

static int use_keys(struct lender *l, struct error *e)
{
	int r = read_keys(&l->options.keys, KEYRING_NEEDED, &l->keys, e);

	if (r || !l->keys.count)
		return r;
	/* Keys are not for core dumps. */
	prctl(PR_SET_DUMPABLE, 0);
	r = tls_donor(&l->tls, &l->keys, e);
	return r ? r : tls_reserve(TLS_RESERVED, e);
}

void lender_heed_kernels(struct lender *l, struct rdma_lender *kernels)
{
	l->kernels = kernels;
}

int lender_tell_keys(struct lender *l, lender_keys_call *call, void *data)
{
	l->keys_call = call;
	l->keys_data = data;
	return call(data, &l->keys);
}

static int make_identity(struct lender *l, struct error *e)
{
	uint32_t machine = machine_number(&l->machine), half[2] = { 0 };

	/* 0 stands for none. */
	while (!half[0] || !half[1])
		if (getrandom(half, sizeof(half), 0) != sizeof(half))
			return fail(e, errno, "getrandom: %m");
	l->identity = (uint64_t)(machine ?: half[1]) << 32 | half[0];
	return 0;
}

int lender_new(struct lender **out, struct lend_pool *pool, const struct lender_options *o,
	       struct error *e)
{
	struct lender *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return fail(e, ENOMEM, "out of memory");
	l->pool = pool;
	l->options = *o;
	machine_find(&l->machine, l->options.machine ?: "/proc");
	l->now = l->log_at = now_ns();
	l->log_left = LOG_BURST;
	l->control.listen_fd = l->signal_fd = l->timer_fd = l->wake_fd = l->epoll_fd = -1;
	l->connections = calloc(CONNECTIONS, sizeof(*l->connections));
	r = l->connections ? make_loop(l) : -ENOMEM;
	for (uint32_t i = 0; l->connections && i < CONNECTIONS; i++) {
		l->connections[i].lender = l;
		l->connections[i].number = i;
		l->connections[i].fd = -1;
	}
	if (r) {
		lender_free(&l);
		return fail(e, r, "event loop: %s", strerror(-r));
	}
	r = make_identity(l, e);
	if (!r)
		r = use_keys(l, e);
	if (r) {
		lender_free(&l);
		return r;
	}
	*out = l;
	return 0;
}

int lender_listen(struct lender *l, struct address *a, struct error *e)
{
	int fd, r;

	if (l->place_count == LENDER_PLACES)
		return fail_exit(e, EXIT_USAGE, E2BIG, "listen %s: at most %d addresses; leave one out",
				 a->text, LENDER_PLACES);
	if (address_is_local(a) && l->options.delay)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "listen %s: borrowers read there by themselves, which --delay cannot hold back; listen on HOST:PORT",
				 a->text);
	fd = address_listen(a, l->tls ? ADDRESS_EVERYWHERE : ADDRESS_LOOPBACK, e);
	if (fd < 0)
		return fd;
	r = watch_fd(l, fd, KEY_LISTEN + (uint64_t)l->place_count);
	if (r) {
		close(fd);
		return fail(e, r, "event loop: %s", strerror(-r));
	}
	l->places[l->place_count] = *a;
	l->listen_fds[l->place_count++] = fd;
	return 0;
}

int lender_listen_rdma(struct lender *l, const struct address *a, struct error *e)
{
	int fds[2], r;

	if (!l->tls)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "rdma: without keys nobody is known who comes; give --keys FILE, made by ebbctl key create");
	r = rdma_place_open(&l->rdma, l, a, e);
	if (r)
		return r;
	rdma_place_fds(l->rdma, fds);
	r = watch_fd(l, fds[0], KEY_RDMA);
	if (!r)
		r = watch_fd(l, fds[1], KEY_RDMA);
	return r ? fail(e, r, "event loop: %s", strerror(-r)) : 0;
}

/*
 * Gigabytes take seconds to touch, and a terabyte minutes: SIGTERM, which is blocked for
 * signal_fd, does not wait for that, nor does the end wait for the worker.
 */
static bool told_to_end(void *data)
{
	struct lender *l = data;
	sigset_t pending;

	if (l->filled)
		return __atomic_load_n(&l->worker.stop, __ATOMIC_ACQUIRE);
	sigpending(&pending);
	return sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT);
}

int lender_start(struct lender *l, struct error *e)
{
	struct headroom_plan plan = { .allocate = l->pool->count };
	int r = machine_sample(&l->machine, &l->sample, l->options.headroom ? e : NULL);

	if (r && l->options.headroom)
		return r;
	if (l->options.headroom) {
		l->rule = headroom_rule_default(l->sample.memory, l->pool->slab_size);
		l->rule.headroom = l->options.headroom;
		l->rule.most = l->pool->count * l->pool->slab_size;
		l->room.before = lender_kernels(l).lent;
		headroom_sample(&l->room, &l->rule, &l->sample, lender_kernels(l).present);
		headroom_plan(&l->room, &l->rule, 0, 0, &plan);
	}
	l->pool->patience = (struct patience){ told_to_end, l };
	r = lend_fill(l->pool, plan.allocate, e);
	if (r)
		return r;
	l->filled = true;
	r = eviction_init(l);
	if (!r)
		r = worker_start(&l->worker, l->pool, l->wake_fd);
	return r ? fail(e, r, "memory thread: %s", strerror(-r)) : donor_control_start(l, e);
}

void lender_free(struct lender **lp)
{
	struct lender *l = *lp;

	if (!l)
		return;
	connections_free(l);
	donor_control_stop(l);
	worker_stop(&l->worker);
	eviction_free(l);
	close_fdp(&l->signal_fd);
	close_fdp(&l->timer_fd);
	close_fdp(&l->wake_fd);
	close_fdp(&l->epoll_fd);
	for (int i = 0; i < l->place_count; i++) {
		close(l->listen_fds[i]);
		if (address_is_local(&l->places[i]))
			unlink(local_path(&l->places[i]));
	}
	rdma_place_close(&l->rdma);
	tls_context_free(&l->tls);
	keyring_free(&l->keys);
	free(l);
	*lp = NULL;
}
