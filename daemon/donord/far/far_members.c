// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "far_members.h"
#include "lib/base/clock.h"
#include "lib/rules/far_memory.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Verbs of a recovery in a turn of the loop, of up to 64 words each: about 100 us. */
#define RECOVERY_VERBS 256

/* --- processes -------------------------------------------------------------------- */

static int32_t peer_pid(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return fd >= 0 && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) ? peer.pid : 0;
}

/*
 * Returns a pidfd of the peer, or -errno.  Before Linux 6.5 it is opened by number: that is the
 * peer's, unless the peer has exited and another process has its number already.
 */
static int peer_process(int fd)
{
	socklen_t len = sizeof(int);
	int pidfd;

	if (!getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len))
		return pidfd;
	/* Any other refusal says that the peer has exited: its number says nothing. */
	if (errno != ENOPROTOOPT)
		return -errno;
	pidfd = (int)syscall(SYS_pidfd_open, peer_pid(fd), 0);
	return pidfd < 0 ? -errno : pidfd;
}

static bool has_exited(const struct far_member *m)
{
	struct pollfd p = { .fd = m->pidfd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void forget_process(struct far_member *m)
{
	/* If this process has forked, a close does not end the events. */
	if (m->maps)
		epoll_ctl(m->pool->far->epoll_fd, EPOLL_CTL_DEL, m->pidfd, NULL);
	if (m->pidfd >= 0)
		close(m->pidfd);
	m->pidfd = -1;
	m->maps = false;
}

/* The member's process is the peer of @fd, a unix socket, or -1. */
static void take_process(struct far_member *m, int fd)
{
	forget_process(m);
	m->pid = peer_pid(fd);
	m->pidfd = fd >= 0 ? peer_process(fd) : -1;
}

void far_unmapped(struct far_member *m)
{
	forget_process(m);
}

uint16_t far_will_map(struct far_member *m)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = m };

	if (m->maps)
		return WIRE_OK;
	/* Without a way to tell that it has exited, its extents would never be free again. */
	if (m->pidfd < 0 || has_exited(m) ||
	    epoll_ctl(m->pool->far->epoll_fd, EPOLL_CTL_ADD, m->pidfd, &ev) < 0)
		return WIRE_NO_MEMBER;
	m->maps = true;
	m->touched = UINT64_MAX;
	return WIRE_OK;
}

/* --- joining and leaving ---------------------------------------------------------- */

static void set_notified(struct far_member *m, bool notified)
{
	m->pool->notices += notified - m->notified;
	m->pool->far->notices += notified - m->notified;
	m->notified = notified;
}

uint16_t far_join(struct far_pool *fp, void *connection, int peer_fd, struct far_member **out)
{
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS; i++) {
		struct far_member *m = &fp->members[i];

		if (m->state != EBB_FAR_VACANT)
			continue;
		m->incarnation++;
		m->connection = connection;
		take_process(m, peer_fd);
		m->word = m->words = m->touched = 0;
		far_set_state(m, EBB_FAR_LIVE);
		*out = m;
		return WIRE_OK;
	}
	return WIRE_NO_MEMBER;
}

static void fence_if_possible(struct far_member *m)
{
	if (m->recovering || (m->maps && !has_exited(m)))
		return;
	forget_process(m);
	m->recovering = true;
	m->fenced_at = now_ns();
	m->pool->fenced++;
	m->pool->far->fenced++;
	m->pool->far->counts.fences++;
}

void far_lost(struct far_member *m)
{
	far_set_state(m, EBB_FAR_AWAY);
}

void far_left(struct far_member *m)
{
	struct donor_log *log = m->pool->far->log;

	m->connection = NULL;
	set_notified(m, false);
	far_set_state(m, EBB_FAR_DEAD);
	fence_if_possible(m);
	if (!m->recovering)
		donor_say(log, LOG_LVL_WARN,
			  "far pool %s: member %u has disconnected, but process %d still maps its memory; its extents stay until that exits",
			  m->pool->name, m->number, m->pid);
}

bool far_return(struct far_member *m, void *connection, int peer_fd)
{
	/* Number 0 is any process of another namespace. */
	if (m->maps && (!m->pid || peer_pid(peer_fd) != m->pid || has_exited(m)))
		return false;
	/* It may map from now on, and the exit of this process fences it then. */
	if (!m->maps)
		take_process(m, peer_fd);
	m->connection = connection;
	/* The last word may have been lost with the old connection. */
	if (m->words)
		set_notified(m, true);
	m->pool->far->words_due = true;
	far_set_state(m, EBB_FAR_LIVE);
	return true;
}

/* Returns the member with @number if it can be told anything. */
static struct far_member *find_member(struct far_pool *fp, uint32_t number)
{
	struct far_member *m;

	if (!number || number > EBB_FAR_MEMBERS)
		return NULL;
	m = &fp->members[number - 1];
	return m->state == EBB_FAR_LIVE || m->state == EBB_FAR_AWAY ? m : NULL;
}

uint16_t far_notify(struct far_member *m, const struct wire_far_word *w)
{
	struct far_member *to = find_member(m->pool, w->member);

	if (!to)
		return WIRE_NO_MEMBER;
	to->notifier = m->number;
	to->word = w->word;
	to->words++;
	set_notified(to, true);
	m->pool->far->words_due = true;
	far_put_word(to);
	return WIRE_OK;
}

uint16_t far_kill(struct far_member *m, uint32_t number)
{
	struct far_member *victim = find_member(m->pool, number);

	if (!victim || victim == m)
		return WIRE_NO_MEMBER;
	m->pool->far->ops->end(victim->connection, "declared dead by another member");
	return WIRE_OK;
}

void far_exits(struct far *far)
{
	struct epoll_event ev[16];
	int n = epoll_wait(far->epoll_fd, ev, 16, 0);

	for (int i = 0; i < n; i++) {
		struct far_member *m = ev[i].data.ptr;

		/* Its end calls far_left(). */
		if (m->connection)
			far->ops->end(m->connection, "its process exited");
		else
			fence_if_possible(m);
	}
}

/* --- recovery --------------------------------------------------------------------- */

/* Begins with the next fenced member; returns false without any. */
static bool begin_recovery(struct far_pool *fp)
{
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS && fp->fenced; i++) {
		if (!fp->members[i].recovering)
			continue;
		fp->recovery = (struct far_recovery){ .member = i + 1 };
		return true;
	}
	return false;
}

static void end_recovery(struct far_pool *fp)
{
	struct far_recovery *r = &fp->recovery;
	struct far_member *m = &fp->members[r->member - 1];

	donor_say(fp->far->log, LOG_LVL_INFO,
		  "far pool %s: member %u: %llu words of its extents freed %llu us after its fence",
		  fp->name, r->member, (unsigned long long)r->freed,
		  (unsigned long long)(now_ns() - m->fenced_at) / 1000);
	fp->far->counts.recovered++;
	fp->far->counts.freed += r->freed;
	m->recovering = false;
	fp->fenced--;
	fp->far->fenced--;
	r->member = 0;
	far_set_state(m, EBB_FAR_VACANT);
}

/* Executes the next verb of the pool's recovery. */
static void recover_some(struct far_pool *fp)
{
	struct far_recovery *r = &fp->recovery;
	struct far_verb verb;

	if (!r->begun) {
		if (r->arena == fp->arenas) {
			end_recovery(fp);
			return;
		}
		/* A program that fails again and again must not have all tables read each time. */
		if (!(fp->members[r->member - 1].touched >> r->arena % 64 & 1)) {
			r->arena++;
			return;
		}
		far_recover(&r->op, fp->far->sections, r->member);
		r->begun = true;
	}
	verb = extent_next(&r->op, FAR_OK);
	if (verb.kind != FAR_DONE) {
		far_execute(far_base(fp, r->arena), &verb);
		return;
	}
	r->freed += r->op.next;
	r->begun = false;
	r->arena++;
}

static void pass_words_on(struct far_pool *fp)
{
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS && fp->notices; i++) {
		struct far_member *m = &fp->members[i];
		const struct wire_far_word w = { m->notifier, m->word };

		if (m->notified && m->state == EBB_FAR_LIVE &&
		    fp->far->ops->notify(m->connection, &w))
			set_notified(m, false);
	}
}

bool far_turn(struct far *far)
{
	uint32_t verbs = 0, first = far->recovers;

	/* A member may never take its word: that must not cost anything in each turn. */
	for (uint32_t i = 0; i < FAR_POOLS && far->notices && far->words_due; i++)
		pass_words_on(&far->pools[i]);
	far->words_due = false;
	/* Members of one pool may die faster than it recovers: another one is first next time. */
	for (uint32_t i = 0; i < FAR_POOLS && far->fenced; i++) {
		uint32_t n = (first + i) % FAR_POOLS;
		struct far_pool *fp = &far->pools[n];

		while (verbs < RECOVERY_VERBS && (fp->recovery.member || begin_recovery(fp))) {
			recover_some(fp);
			verbs++;
			far->recovers = (n + 1) % FAR_POOLS;
		}
	}
	return far->fenced;
}
