// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "supervisor.h"
#include "swapd/swapd.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
/* Delay after a failover, in favour of the new server. */
#define FORK_AFTER (200 * MS)
#define FORK_WAIT_FIRST SECOND
#define FORK_WAIT_MOST (60 * SECOND)
/* A standby that lived this long did not fail to start. */
#define LIVED (10 * SECOND)

/* The first server's message to the process that started it. */
struct report {
	int result;
	struct error error;
};

/* --- children ------------------------------------------------------------------- */

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void set_standby(struct supervisor *h, struct child standby)
{
	h->standby = standby;
	__atomic_store_n(&h->s->shared->standby, (uint32_t)standby.pid, __ATOMIC_RELAXED);
}

/* In the child: closes what belongs to the supervisor. */
static void leave_holder(struct supervisor *h)
{
	close_fd(&h->signal_fd);
	watchdog_close(&h->watchdog);
}

/*
 * Forks.  Returns 0 in the child, whose end of the pipe stays open for its life; its
 * pid in the supervisor, with *@child; or -errno.
 */
static int fork_child(struct supervisor *h, struct child *child)
{
	uint8_t life = h->server.pid && !h->server.life;
	int pair[2], pid, r;

	if (pipe2(pair, O_CLOEXEC) < 0)
		return -errno;
	h->s->life = &h->s->shared->life[life];
	*h->s->life = LIFE_WAITS;
	pid = fork();
	r = -errno;
	close(pair[pid ? 1 : 0]);
	if (pid < 0) {
		close(pair[0]);
		return r;
	}
	if (pid)
		*child = (struct child){ pid, pair[0], life };
	else
		leave_holder(h);
	return pid;
}

/* Forks a standby.  The server that it waits for may have exited already. */
static int fork_standby(struct supervisor *h, struct child *child)
{
	int alive_fd = h->server.alive_fd;
	int pid = fork_child(h, child);

	if (!pid) {
		close_fd(&h->standby.alive_fd);
		close_fd(&h->report_fd);
		swapd_stand_by(h->s, h->c, alive_fd);
	}
	return pid < 0 ? pid : 0;
}

static void run_first(struct supervisor *h, int fd)
{
	struct report report = { 0 };
	uint8_t output;

	report.result = swapd_begin(h->s, h->c, &report.error);
	if (send(fd, &report, sizeof(report), MSG_NOSIGNAL) != sizeof(report) || report.result)
		_exit(EXIT_FAILED);
	/* Without a supervisor the server serves nevertheless. */
	if (recv(fd, &output, sizeof(output), 0) != sizeof(output))
		output = OUTPUT_AS_IS;
	close(fd);
	swapd_serve(h->s, h->c, output);
}

int supervisor_start(struct supervisor *h, struct swapd *s, struct device_control *c,
		     struct error *e)
{
	struct report report;
	sigset_t set;
	int pair[2], r;

	*h = (struct supervisor){ .s = s, .c = c, .signal_fd = -1, .report_fd = -1,
			      .server = { .alive_fd = -1 }, .standby = { .alive_fd = -1 },
			      .watchdog = { .waiting_fd = -1, .abort_fd = -1 },
			      .fork_wait = FORK_WAIT_FIRST };
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return fail(e, errno, "server: socketpair: %m");
	r = fork_child(h, &h->server);
	if (!r) {
		close(pair[0]);
		run_first(h, pair[1]);
	}
	close(pair[1]);
	h->report_fd = pair[0];
	if (r < 0) {
		close_fd(&h->report_fd);
		return fail(e, r, "server: fork: %s", strerror(-r));
	}
	if (recv(h->report_fd, &report, sizeof(report), 0) != sizeof(report)) {
		report.result = -ECHILD;
		fail(&report.error, ECHILD, "device %s: ebb-swapd exited during startup; see the log",
		     s->options.name);
	}
	if (report.result) {
		waitpid(h->server.pid, NULL, 0);
		close_fd(&h->report_fd);
		*e = report.error;
		return report.result;
	}
	r = watchdog_arm(&h->watchdog, s->shared, s->options.watchdog / 2);
	s->shared->watchdog_works = !r;
	if (r)
		log_warn("watchdog: %s: %s; the watchdog cannot abort a hung device",
			 s->shared->frontend.ublk ? "/sys/block" : "/sys/fs/fuse/connections", strerror(-r));
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	h->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return 0;
}

/* --- watching ------------------------------------------------------------------- */

enum outcome { GOES_ON, ENDED };

/* Waits, or the child would stay a zombie until the next look. */
static void end_standby(struct supervisor *h)
{
	if (!h->standby.pid)
		return;
	kill(h->standby.pid, SIGKILL);
	waitpid(h->standby.pid, NULL, 0);
}

bool crashes_count(struct crashes *c, enum server_death death, uint64_t now)
{
	if (death == DEATH_NOT_COUNTED)
		return false;
	c->in_a_row = death == DEATH_TAKING_OVER ? c->in_a_row + 1 : 0;
	c->at[c->count++ % SUPERVISOR_CRASHES] = now;
	return c->in_a_row >= SUPERVISOR_CRASHES ||
	       (c->count >= SUPERVISOR_CRASHES &&
		now - c->at[c->count % SUPERVISOR_CRASHES] < SUPERVISOR_CRASH_SPAN * SECOND);
}

enum server_death cause_of_death(uint8_t life, int status)
{
	if (life == LIFE_WAITS || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
		return DEATH_NOT_COUNTED;
	return life == LIFE_SERVES ? DEATH_SERVING : DEATH_TAKING_OVER;
}

static void kill_servers(const struct supervisor *h)
{
	/* The standby first, or it would take over. */
	if (h->standby.pid)
		kill(h->standby.pid, SIGKILL);
	if (h->server.pid)
		kill(h->server.pid, SIGKILL);
}

/*
 * Ends service: errors are better than waiting forever.  A device that cannot be aborted ends when
 * it has no server and the supervisor cleans up.
 */
static void cut(struct supervisor *h)
{
	h->s->shared->watchdog_works = false;
	h->cut = !watchdog_abort(&h->watchdog, h->s->shared);
	if (!h->cut)
		kill_servers(h);
}

static void give_up(struct supervisor *h)
{
	cut(h);
	if (h->s->shared->frontend.refused) {
		note_event(&h->notes, EVENT_DEVICE_ABORTED, LOG_LVL_ERR,
			   "device %s: no process can take over; see the messages before this one, then destroy and re-create it",
			   h->s->options.name);
		return;
	}
	note_event(&h->notes, EVENT_DEVICE_ABORTED, LOG_LVL_ERR,
		   "device %s: its servers crash, %d within %d s or in a row; see the messages before this one, then destroy and re-create it",
		   h->s->options.name, SUPERVISOR_CRASHES, SUPERVISOR_CRASH_SPAN);
}

/* Notes the exit reason of a child, if it left one. */
static void note_last_words(struct supervisor *h)
{
	if (*h->s->shared->last_words)
		note(&h->notes, LOG_LVL_ERR, "device %s: exit reason: %s", h->s->options.name,
		     h->s->shared->last_words);
	*h->s->shared->last_words = '\0';
}

/* Returns what follows the death of the server, for the log. */
static const char *next_server(const struct supervisor *h)
{
	return h->s->shared->aborted ? "the device was aborted" :
	       h->standby.pid ? "failing over to the standby" : "no standby, starting one";
}

static enum outcome server_died(struct supervisor *h, int status, uint64_t now)
{
	uint8_t life = h->s->shared->life[h->server.life];
	bool crashes_on;

	if (__atomic_load_n(&h->s->shared->ended, __ATOMIC_SEQ_CST)) {
		end_standby(h);
		return ENDED;
	}
	note(&h->notes, LOG_LVL_ERR, "device %s: server %d died (%s %d); %s",
	     h->s->options.name, h->server.pid, WIFSIGNALED(status) ? "signal" : "exit status",
	     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), next_server(h));
	note_last_words(h);
	if (life == LIFE_SERVES)
		h->crashes.in_a_row = 0;
	crashes_on = crashes_count(&h->crashes, cause_of_death(life, status), now);
	h->server.pid = 0;
	if (!h->standby.pid) {
		/* At once, unless it died while starting. */
		h->fork_at = now - h->forked >= SECOND ? now : now + SECOND;
	} else {
		close(h->server.alive_fd);
		h->server = h->standby;
		set_standby(h, (struct child){ .alive_fd = -1 });
		h->fork_wait = FORK_WAIT_FIRST;
		h->fork_at = now + FORK_AFTER;
	}
	if ((crashes_on || h->s->shared->frontend.refused) && !h->s->shared->aborted)
		give_up(h);
	return GOES_ON;
}

static void standby_died(struct supervisor *h, uint64_t now)
{
	note(&h->notes, LOG_LVL_ERR, "device %s: standby %d exited%s", h->s->options.name,
	     h->standby.pid, h->s->shared->aborted ? "" : "; starting another");
	note_last_words(h);
	close(h->standby.alive_fd);
	set_standby(h, (struct child){ .alive_fd = -1 });
	if (now - h->forked >= LIVED)
		h->fork_wait = FORK_WAIT_FIRST;
	h->fork_at = now + h->fork_wait;
	h->fork_wait = h->fork_wait * 2 < FORK_WAIT_MOST ? h->fork_wait * 2 : FORK_WAIT_MOST;
}

/*
 * Handles ended children.  They may be found in another order than they died: a standby that took
 * over and died is then the server.
 */
static enum outcome reap(struct supervisor *h, uint64_t now, int *status)
{
	int pid;

	while ((pid = waitpid(-1, status, WNOHANG)) > 0) {
		if (pid == h->standby.pid)
			standby_died(h, now);
		else if (pid == h->server.pid && server_died(h, *status, now) == ENDED)
			return ENDED;
	}
	return GOES_ON;
}

/* Without a server the next standby is one at once: it finds its predecessor dead. */
static void mend(struct supervisor *h, uint64_t now)
{
	struct child child;
	int r;

	if ((h->server.pid && h->standby.pid) || now < h->fork_at || h->s->shared->aborted)
		return;
	if (!h->server.pid)
		h->fork_wait = FORK_WAIT_FIRST;
	r = fork_standby(h, &child);
	if (r) {
		note(&h->notes, LOG_LVL_ERR,
		     "device %s: cannot start a standby: %s; retrying in %llu s",
		     h->s->options.name, strerror(-r), h->fork_wait / SECOND);
		h->fork_at = now + h->fork_wait;
		h->fork_wait = h->fork_wait * 2 < FORK_WAIT_MOST ? h->fork_wait * 2 :
			       FORK_WAIT_MOST;
		return;
	}
	h->forked = now;
	if (h->server.pid) {
		set_standby(h, child);
		return;
	}
	close(h->server.alive_fd);
	h->server = child;
}

/* Looks once a tick whether there is progress, and acts if not: watchdog.h. */
static void watch(struct supervisor *h, uint64_t now)
{
	bool standby = h->server.pid && h->standby.pid;
	uint8_t life;

	if (!h->s->shared->watchdog_works || now < h->bark_at)
		return;
	h->bark_at = now + h->watchdog.tick_ns;
	life = h->server.pid ? h->s->shared->life[h->server.life] : LIFE_WAITS;
	if (!watchdog_barks(&h->watchdog, h->s->shared, life))
		return;
	h->watchdog.state = (struct watchdog_state){ .answers_ns = 0 };
	switch (watchdog_remedy(&h->tries, count_get(&h->s->count->completed), standby)) {
	case WATCHDOG_WAIT:
		return;
	case WATCHDOG_REPLACE:
		kill(h->server.pid, SIGKILL);
		note(&h->notes, LOG_LVL_ERR,
		     "device %s: watchdog: no answer for too long; server %d is killed",
		     h->s->options.name, h->server.pid);
		return;
	case WATCHDOG_ABORT:
		cut(h);
		/* A server that hangs does not notice: it would stay, with its slabs at donors. */
		kill_servers(h);
		note_event(&h->notes, EVENT_DEVICE_ABORTED, LOG_LVL_ERR,
			   "device %s: watchdog: no answer for too long, device aborted; programs with pages there get SIGBUS; swapoff, then destroy it",
			   h->s->options.name);
	}
}

/*
 * The log may be a file on tmpfs, with a page swapped out to this very device: a write to it waits
 * for the server.  So the supervisor writes while a server serves and a standby would follow it, or
 * when I/O fails instead of waiting.
 */
static void write_notes(struct supervisor *h)
{
	const struct shared *shared = h->s->shared;
	uint64_t beats = count_get(&shared->beats);
	bool served = h->server.pid && shared->life[h->server.life] == LIFE_SERVES &&
		      beats != h->beats;

	h->beats = beats;
	if (h->cut || (served && (h->standby.pid || h->fork_wait > FORK_WAIT_FIRST)))
		notes_log(&h->notes);
}

static void take_signals(struct supervisor *h)
{
	struct signalfd_siginfo si;

	while (read(h->signal_fd, &si, sizeof(si)) == sizeof(si))
		if (si.ssi_signo != SIGCHLD)
			want_stop(h->s);
}

/* Cleans up, as no server is left to do it. */
static int clear_away(struct supervisor *h)
{
	swapd_stop(h->s, h->c);
	notes_log(&h->notes);
	return EXIT_FAILED;
}

int supervisor_run(struct supervisor *h, enum swapd_output output)
{
	struct pollfd p = { .fd = h->signal_fd, .events = POLLIN };
	uint8_t detach = (uint8_t)output;
	int status = 0;

	if (send(h->report_fd, &detach, sizeof(detach), MSG_NOSIGNAL) != sizeof(detach))
		log_warn("server: %m");
	close_fd(&h->report_fd);
	for (;;) {
		uint64_t now = now_ns();
		int wait = (int)(h->watchdog.tick_ns / MS) + 1;

		take_signals(h);
		if (reap(h, now, &status) == ENDED) {
			if (!WIFEXITED(status))
				return clear_away(h);
			notes_log(&h->notes);
			return WEXITSTATUS(status);
		}
		if (h->s->shared->aborted && !h->server.pid)
			return clear_away(h);
		mend(h, now);
		watch(h, now);
		write_notes(h);
		if ((!h->standby.pid || h->notes.taken != h->notes.put) &&
		    wait > (int)(FORK_AFTER / MS))
			wait = (int)(FORK_AFTER / MS);
		if (poll(&p, 1, wait) < 0 && errno != EINTR)
			note(&h->notes, LOG_LVL_WARN, "supervisor: poll: %s", strerror(errno));
	}
}
