// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "serve.h"
#include "swapd.h"
#include "swapd/replicas/donor_asks.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/reservation.h"

#define TICK_NS 100000000l
#define TICKS (1000000000l / TICK_NS)
/* Late ticks that show that this process had no processor, or much else to do. */
#define TICKS_SLEPT 3
/* Requests per read, before donors get the queued frames. */
#define BATCH 16
/* Requests before the loop handles other events: requests answered at once never run out. */
#define ROUND 128
/* Pieces of replies before the loop handles other events. */
#define PIECES 256
/* Rounds of one request after which more are tried: 1/16 of a read(2) per request. */
#define LOOK_EVERY 16
/* Free slots below which the loop is notified of every backed one. */
#define LOW_SLOTS 16

/*
 * Answered writes are submitted to the backup thread when this many have gathered, or at the next
 * tick: waking it for each costs more than the write, and adjacent ones go to the disk as one.
 */
#define BACKUP_BATCH 32

enum { KEY_FRONTEND = MAX_DONORS, KEY_TIMER, KEY_SIGNAL, KEY_BACKUP, KEY_COMMAND };

static int add(struct swapd *s, int fd, uint64_t key)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = key };

	return epoll_ctl(s->donors.env.epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

void serve_signals(void)
{
	sigset_t set;

	/* A closed log or terminal, or a resource limit, must not end the server. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

int serve_init(struct swapd *s, struct error *e)
{
	struct itimerspec tick = { { 0, TICK_NS }, { 0, TICK_NS } };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	s->donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->donors.env.epoll_fd < 0 || s->timer_fd < 0 || s->signal_fd < 0 ||
	    timerfd_settime(s->timer_fd, 0, &tick, NULL) < 0 ||
	    add(s, s->timer_fd, KEY_TIMER) || add(s, s->signal_fd, KEY_SIGNAL))
		return fail(e, errno, "event loop: %m");
	return 0;
}

void serve_free(struct swapd *s)
{
	int *fds[] = { &s->donors.env.epoll_fd, &s->timer_fd, &s->signal_fd };

	for (int i = 0; i < 3; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

static void drain(int fd)
{
	uint64_t n;

	while (read(fd, &n, sizeof(n)) > 0)
		;
}

static void tick(struct swapd *s)
{
	uint64_t periods = 0, now = now_ns();

	if (read(s->timer_fd, &periods, sizeof(periods)) != sizeof(periods))
		return;
	if (periods > TICKS_SLEPT)
		s->donors.awake_since = now;
	donors_tick(&s->donors, now);
	engine_tick(&s->engine, now);
	/* A late tick counts as those it missed. */
	s->ticks += (uint32_t)periods;
	if (s->ticks >= TICKS) {
		donor_asks_tick(&s->replicas, s->ticks / TICKS);
		s->ticks %= TICKS;
	}
	/* Donors may have gone away since. */
	now = now_ns();
	repair_tick(&s->replicas, now);
	reservation_tick(&s->replicas, now);
}

/*
 * Returns whether the file is unmounted and not open; ignores copies of the mount in other
 * namespaces.
 */
static bool left_alone(const struct swapd *s)
{
	const struct frontend_shared *f = &s->shared->frontend;

	return __atomic_load_n(&f->unmounted, __ATOMIC_RELAXED) && !f->opened;
}

static void reap(struct swapd *s)
{
	struct slot *slot;

	while ((slot = backup_reap(&s->engine.backup)))
		engine_backed(&s->engine, slot);
}

void serve_take_signals(struct swapd *s)
{
	struct signalfd_siginfo si;

	while (read(s->signal_fd, &si, sizeof(si)) == sizeof(si))
		want_stop(s);
}

void serve_tend(struct swapd *s)
{
	drain(s->timer_fd);
	serve_take_signals(s);
}

/*
 * Reads requests while they arrive; donors get theirs after each batch.  After a single request it
 * tries no other, because there would be none: epoll reports the next one at once.  Whether several
 * arrive at a time is known from those in flight or, where requests are answered at once, from an
 * occasional try.
 */
static int take_requests(struct swapd *s)
{
	bool look = ++s->rounds % LOOK_EVERY == 0;
	int n, total = 0, most = s->burst ? BATCH : 1 + look;

	do {
		n = s->frontend->receive(&s->host, most);
		if (n < 0)
			return n;
		donors_flush(&s->donors);
		total += n;
	} while (n == BATCH && total < ROUND);
	s->burst = total > 1 || (most == 1 && s->engine.slots.active_count > 1);
	return 0;
}

/* Log lines are written by the control thread. */
static void wake_for_notes(struct swapd *s)
{
	if (s->noted == s->notes.put)
		return;
	s->noted = s->notes.put;
	eventfd_write(s->wake_fd, 1);
}

/* Without free slots, leaves requests to the kernel. */
static void watch_frontend(struct swapd *s)
{
	bool want = s->engine.slots.free_count > 0;
	struct epoll_event ev = { .events = want ? EPOLLIN : 0, .data.u64 = KEY_FRONTEND };

	if (want != s->watched)
		epoll_ctl(s->donors.env.epoll_fd, EPOLL_CTL_MOD, s->frontend->fd(&s->host), &ev);
	s->watched = want;
}

/* Returns whether a request waits for the backup thread. */
static bool backup_urgent(const struct swapd *s)
{
	return s->engine.need_backup || s->engine.slots.free_count < LOW_SLOTS;
}

/*
 * Waits for events, up to @patience ms (-1: forever); polls for options.spin microseconds before it
 * sleeps.
 */
static int wait_events(struct swapd *s, struct epoll_event *ev, int most, int patience)
{
	int n;

	if (patience && s->options.spin && s->engine.slots.active_count) {
		uint64_t until = now_ns() + s->options.spin * 1000;

		do {
			n = epoll_wait(s->donors.env.epoll_fd, ev, most, 0);
		} while (!n && now_ns() < until);
		if (n)
			return n;
	}
	return epoll_wait(s->donors.env.epoll_fd, ev, most, patience);
}

int serve_run(struct swapd *s)
{
	int r = add(s, s->frontend->fd(&s->host), KEY_FRONTEND);

	if (!r && backup_there(&s->engine.backup))
		r = add(s, s->engine.backup.done_fd, KEY_BACKUP);
	if (!r)
		r = add(s, s->commands.post_fd, KEY_COMMAND);
	s->watched = true;
	/* Drop ticks that a standby has missed. */
	drain(s->timer_fd);
	engine_tick(&s->engine, now_ns());
	while (!r) {
		struct epoll_event ev[MAX_DONORS + 5];
		bool more;
		int n;

		count_add(&s->shared->beats, 1);
		reap(s);
		more = engine_run(&s->engine);
		more |= engine_begin_large(&s->engine);
		more |= repair_run(&s->replicas);
		donors_flush(&s->donors);
		if (backup_there(&s->engine.backup))
			backup_kick(&s->engine.backup, backup_urgent(s) ? 1 : BACKUP_BATCH);
		watch_frontend(s);
		if (s->frontend->flush)
			s->frontend->flush(&s->host);
		if (backup_there(&s->engine.backup) && backup_urgent(s) &&
		    backup_notify(&s->engine.backup))
			continue;
		wake_for_notes(s);
		/* donors_flush() may have lost a donor, whose requests are ready. */
		more |= engine_is_ready(&s->engine);
		n = wait_events(s, ev, MAX_DONORS + 5, more ? 0 : -1);
		if (n < 0 && errno != EINTR)
			return -errno;
		/* Replies first: they free slots, and their requests have waited longest. */
		for (int i = 0; i < n; i++)
			donors_event(&s->donors, &ev[i]);
		engine_run(&s->engine);
		/* Answers after each piece give the kernel work while the next arrives. */
		for (int i = 0; i < PIECES && donors_more(&s->donors); i++)
			engine_run(&s->engine);
		for (int i = 0; i < n && !r; i++) {
			switch (ev[i].data.u64) {
			case KEY_FRONTEND:
				r = take_requests(s);
				break;
			case KEY_TIMER:
				tick(s);
				if (backup_there(&s->engine.backup))
					backup_kick(&s->engine.backup, 1);
				if (left_alone(s))
					r = -ENODEV;
				break;
			case KEY_SIGNAL:
				serve_take_signals(s);
				break;
			case KEY_BACKUP:
				drain(s->engine.backup.done_fd);
				break;
			case KEY_COMMAND:
				commands_take(&s->commands);
				break;
			}
		}
	}
	return r == -ENODEV && s->frontend->stopped(&s->host) ? 0 : r;
}
