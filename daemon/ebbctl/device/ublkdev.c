// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/host/ublk_control.h"
#include "ublkdev.h"

#define COMMAND_MS 5000
/* So many tags of each queue are never taken: by them the kernel sees that a server died. */
#define SPARE 8

/* A note may be older than what has its number now. */
static int number(const char *name, unsigned int *n)
{
	char path[PATH_MAX], text[32];
	struct ublk_control c;
	int r;

	ublk_control_note(name, path);
	if (file_read(path, text, sizeof(text)) <= 0 || sscanf(text, "%u", n) != 1)
		return -ENOENT;
	r = ublk_control_open(&c);
	if (!r) {
		r = ublk_control_check(&c, *n, name, COMMAND_MS);
		ublk_control_close(&c);
	}
	/* Without the module there is none. */
	return r == -ENODEV || r == -ENOENT ? -ENOENT : 0;
}

int ublk_check(struct error *e)
{
	if (access(UBLK_CONTROL_PATH, R_OK | W_OK) == 0)
		return 0;
	return fail_exit(e, EXIT_UNSUPPORTED, errno,
			 UBLK_CONTROL_PATH ": %s; modprobe ublk_drv, or use --frontend fuse",
			 strerror(errno));
}

int ublk_find(const char *name, char *block, size_t size)
{
	unsigned int n;
	int r = number(name, &n);

	if (!r)
		snprintf(block, size, "/dev/ublkb%u", n);
	return r;
}

static void queue_attribute(const char *block, const char *attribute, char path[static PATH_MAX])
{
	snprintf(path, PATH_MAX, "/sys/block/%.64s/queue/%s", strrchr(block, '/') + 1, attribute);
}

static void set(const char *block, const char *attribute, const char *value)
{
	char path[PATH_MAX];

	queue_attribute(block, attribute, path);
	file_write(path, value);
}

void ublk_settle(const char *block)
{
	char path[PATH_MAX], text[32];
	unsigned int depth;

	/* It would have as many tags taken as there are. */
	set(block, "scheduler", "none");
	queue_attribute(block, "nr_requests", path);
	if (file_read(path, text, sizeof(text)) <= 0 || sscanf(text, "%u", &depth) != 1 ||
	    depth <= 2 * SPARE)
		return;
	snprintf(text, sizeof(text), "%u", depth - SPARE);
	if (file_write(path, text))
		fprintf(stderr, "ebbctl: warning: %s: cannot be set to %s: a server's death may be noticed after 30 s only\n",
			path, text);
}

static int command(const char *name, uint32_t op, struct error *e)
{
	struct ublk_control c;
	unsigned int n;
	int r;

	if (number(name, &n))
		return 0;
	r = ublk_control_open(&c);
	if (r)
		return fail(e, r, UBLK_CONTROL_PATH ": %s; modprobe ublk_drv", strerror(-r));
	r = ublk_control_do(&c, op, n, NULL, 0, 0, COMMAND_MS);
	ublk_control_close(&c);
	/* It is deleted at once, and DEL_DEV waits for the last who has it open: swap, for ever. */
	if (!r || r == -ENODEV || (r == -ETIME && op == UBLK_U_CMD_DEL_DEV))
		return 0;
	return fail(e, r, "/dev/ublkb%u: not taken away: %s; see what has it open", n, strerror(-r));
}

int ublk_cut(const char *name, struct error *e)
{
	return command(name, UBLK_U_CMD_STOP_DEV, e);
}

int ublk_remove(const char *name, struct error *e)
{
	char path[PATH_MAX];
	int r = command(name, UBLK_U_CMD_DEL_DEV, e);

	ublk_control_note(name, path);
	if (!r)
		unlink(path);
	return r;
}
