// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/fnv.h"
#include "lib/base/paths.h"
#include "ublk_control.h"

#define COMMANDS 4
#define NS_PER_MS 1000000ll

int ublk_control_open(struct ublk_control *c)
{
	int r;

	c->given = 0;
	c->fd = open(UBLK_CONTROL_PATH, O_RDWR | O_CLOEXEC);
	if (c->fd < 0)
		return -errno;
	/* These commands need entries of 128 bytes. */
	r = io_uring_queue_init(COMMANDS, &c->ring, IORING_SETUP_SQE128);
	if (r) {
		close(c->fd);
		c->fd = -1;
	}
	return r;
}

void ublk_control_close(struct ublk_control *c)
{
	if (c->fd < 0)
		return;
	io_uring_queue_exit(&c->ring);
	close(c->fd);
	c->fd = -1;
}

int ublk_control_give(struct ublk_control *c, uint32_t op, uint32_t dev, void *data,
		      uint16_t length, uint64_t word)
{
	struct ublksrv_ctrl_cmd cmd = {
		.dev_id = dev, .queue_id = (uint16_t)-1, .len = length,
		.addr = (uintptr_t)data, .data = { word },
	};
	struct io_uring_sqe *sqe = io_uring_get_sqe(&c->ring);
	int r;

	if (!sqe)
		return -EBUSY;
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = c->fd;
	sqe->cmd_op = op;
	sqe->user_data = ++c->given;
	memcpy(sqe->cmd, &cmd, sizeof(cmd));
	do {
		r = io_uring_submit(&c->ring);
	} while (r == -EINTR || r == -EAGAIN);
	return r < 0 ? r : 0;
}

int ublk_control_result(struct ublk_control *c, int timeout_ms)
{
	struct __kernel_timespec t = { timeout_ms / 1000, timeout_ms % 1000 * NS_PER_MS };
	struct io_uring_cqe *cqe;
	uint64_t which;
	int r;

	do {
		do {
			r = io_uring_wait_cqe_timeout(&c->ring, &cqe, &t);
		} while (r == -EINTR);
		if (r)
			return r;
		which = cqe->user_data;
		r = cqe->res;
		io_uring_cqe_seen(&c->ring, cqe);
	} while (which != c->given);
	return r;
}

int ublk_control_do(struct ublk_control *c, uint32_t op, uint32_t dev, void *data,
		    uint16_t length, uint64_t word, int timeout_ms)
{
	int r = ublk_control_give(c, op, dev, data, length, word);

	return r ? r : ublk_control_result(c, timeout_ms);
}

void ublk_control_note(const char *name, char path[static PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/%s.ublk", ebb_device_dir(), name);
}

uint64_t ublk_control_mark(const char *name)
{
	return fnv1a(FNV1A_START, name);
}

int ublk_control_check(struct ublk_control *c, uint32_t dev, const char *name, int timeout_ms)
{
	struct ublksrv_ctrl_dev_info *info = calloc(1, sizeof(*info));
	int r;

	if (!info)
		return -ENOMEM;
	r = ublk_control_do(c, UBLK_U_CMD_GET_DEV_INFO, dev, info, sizeof(*info), 0, timeout_ms);
	/* The command may still write there, even after the ring is closed: it stays allocated. */
	if (r == -ETIME)
		return r;
	if (!r && info->ublksrv_flags != ublk_control_mark(name))
		r = -ENODEV;
	free(info);
	return r;
}
