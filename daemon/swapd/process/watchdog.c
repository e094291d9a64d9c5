// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "swapd/swapd.h"
#include "watchdog.h"

#define CONNECTIONS "/sys/fs/fuse/connections"

enum watchdog_verdict watchdog_judge(struct watchdog_state *w, const struct watchdog_sight *now,
				     uint64_t tick_ns, uint64_t limit_ns)
{
	bool answers_move = now->received - now->completed <= now->held ||
			    now->completed != w->last.completed;

	w->answers_ns = answers_move ? 0 : w->answers_ns + tick_ns;
	w->loop_ns = now->beats != w->last.beats ? 0 : w->loop_ns + tick_ns;
	w->last = *now;
	return w->answers_ns >= limit_ns ? WATCHDOG_STUCK :
	       w->loop_ns >= limit_ns ? WATCHDOG_STOPPED : WATCHDOG_MOVES;
}

enum watchdog_remedy watchdog_remedy(struct watchdog_tries *t, uint64_t completed, bool standby)
{
	if (completed != t->completed)
		*t = (struct watchdog_tries){ .completed = completed };
	if (standby && !t->replaced) {
		t->replaced = true;
		return WATCHDOG_REPLACE;
	}
	if (t->replaced || t->waited)
		return WATCHDOG_ABORT;
	t->waited = true;
	return WATCHDOG_WAIT;
}

static int open_control(uint32_t connection, const char *file, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), CONNECTIONS "/%u/%s", connection, file);
	return open(path, flags | O_CLOEXEC);
}

/* Mounts fusectl, where a connection can be aborted; only systemd mounts it at boot. */
static int mount_fusectl(uint32_t connection)
{
	char path[64];

	snprintf(path, sizeof(path), CONNECTIONS "/%u", connection);
	if (access(path, F_OK) == 0)
		return 0;
	if (mount("fusectl", CONNECTIONS, "fusectl", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return -errno;
	return access(path, F_OK) == 0 ? 0 : -errno;
}

static int arm_fuse(struct watchdog *w)
{
	int r = mount_fusectl(w->connection);

	if (r)
		return r;
	w->waiting_fd = open_control(w->connection, "waiting", O_RDONLY);
	w->abort_fd = open_control(w->connection, "abort", O_WRONLY);
	return w->waiting_fd < 0 || w->abort_fd < 0 ? -errno : 0;
}

static bool inflight(const struct watchdog *w)
{
	unsigned int reads, writes;
	char text[64] = "";

	return pread(w->waiting_fd, text, sizeof(text) - 1, 0) <= 0 ||
	       sscanf(text, "%u %u", &reads, &writes) != 2 || reads || writes;
}

static int arm_ublk(struct watchdog *w, uint32_t device)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/block/ublkb%u/inflight", device);
	w->waiting_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (w->waiting_fd < 0)
		return -errno;
	/* The first read allocates memory, which later ones reuse. */
	inflight(w);
	return 0;
}

int watchdog_arm(struct watchdog *w, const struct shared *shared, uint64_t limit_ns)
{
	*w = (struct watchdog){ .connection = shared->frontend.connection, .limit_ns = limit_ns,
				.waiting_fd = -1, .abort_fd = -1 };
	w->tick_ns = limit_ns / 10 < 1000000000ull ? limit_ns / 10 : 1000000000ull;
	return shared->frontend.ublk ? arm_ublk(w, shared->frontend.ublk - 1) : arm_fuse(w);
}

/*
 * Returns whether the kernel has requests for the stalled server.  FUSE's file can be read once per
 * open: opens the next one in advance, so that this one needs no memory.  Assumes requests if in
 * doubt: a stalled swap device always has some.
 */
static bool requests_wait(struct watchdog *w, uint8_t life)
{
	char text[24] = "";
	ssize_t n;

	/* ublk does not count requests that wait for a successor. */
	if (!w->connection)
		return life != LIFE_SERVES || inflight(w);
	n = w->waiting_fd < 0 ? -1 : read(w->waiting_fd, text, sizeof(text) - 1);
	if (w->waiting_fd >= 0)
		close(w->waiting_fd);
	w->waiting_fd = open_control(w->connection, "waiting", O_RDONLY);
	return n <= 0 || strtoull(text, NULL, 10) > 0;
}

bool watchdog_barks(struct watchdog *w, const struct shared *shared, uint8_t life)
{
	struct watchdog_sight now = {
		.completed = count_get(&shared->counters.completed),
		.received = count_get(&shared->counters.received),
		.held = count_get(&shared->counters.held),
		.beats = count_get(&shared->beats),
	};
	enum watchdog_verdict v = watchdog_judge(&w->state, &now, w->tick_ns, w->limit_ns);

	return v == WATCHDOG_STUCK || (v == WATCHDOG_STOPPED && requests_wait(w, life));
}

int watchdog_abort(struct watchdog *w, struct shared *shared)
{
	__atomic_store_n(&shared->aborted, 1, __ATOMIC_RELAXED);
	return write(w->abort_fd, "1", 1) == 1 ? 0 : -errno;
}

void watchdog_close(struct watchdog *w)
{
	if (w->waiting_fd >= 0)
		close(w->waiting_fd);
	if (w->abort_fd >= 0)
		close(w->abort_fd);
	w->waiting_fd = w->abort_fd = -1;
}
