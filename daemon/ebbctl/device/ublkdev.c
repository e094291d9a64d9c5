// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/host/ublk_control.h"
#include "loopdev.h"
#include "ublkdev.h"

#define COMMAND_MS 5000

/* The file may be older than the device that has its number now. */
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
	/* Absent without the module. */
	return r == -ENODEV || r == -ENOENT ? -ENOENT : 0;
}

int ublk_check(struct error *e)
{
	if (access(UBLK_CONTROL_PATH, R_OK | W_OK) == 0)
		return 0;
	return fail_exit(e, EXIT_UNSUPPORTED, errno,
			 UBLK_CONTROL_PATH ": %s; run \"modprobe ublk_drv\", or use --frontend fuse",
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

void ublk_settle(const char *block)
{
	block_queue_set(block, "scheduler", "none");
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
		return fail(e, r, UBLK_CONTROL_PATH ": %s; run \"modprobe ublk_drv\"", strerror(-r));
	r = ublk_control_do(&c, op, n, NULL, 0, 0, COMMAND_MS);
	ublk_control_close(&c);
	/* The device goes at once; DEL_DEV would wait until its last user, swap, closes it. */
	if (!r || r == -ENODEV || (r == -ETIME && op == UBLK_U_CMD_DEL_DEV))
		return 0;
	return fail(e, r, "/dev/ublkb%u: cannot remove: %s; see which process has it open", n, strerror(-r));
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
