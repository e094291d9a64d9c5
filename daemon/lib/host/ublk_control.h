/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Commands for ublk devices, by io_uring on /dev/ublk-control.  Defines the ioctl-encoded commands
 * of Linux 6.4 (UBLK_F_CMD_IOCTL_ENCODE), which the header of Debian 12 lacks.
 */
#ifndef EBB_UBLK_CONTROL_H
#define EBB_UBLK_CONTROL_H

#include <liburing.h>
#include <limits.h>
#include <linux/ublk_cmd.h>
#include <stdint.h>

#define UBLK_CONTROL_PATH "/dev/ublk-control"

#ifndef UBLK_U_CMD_ADD_DEV
#define UBLK_U_CMD_GET_DEV_INFO _IOR('u', UBLK_CMD_GET_DEV_INFO, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_ADD_DEV _IOWR('u', UBLK_CMD_ADD_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_DEL_DEV _IOWR('u', UBLK_CMD_DEL_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_DEV _IOWR('u', UBLK_CMD_START_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_STOP_DEV _IOWR('u', UBLK_CMD_STOP_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_SET_PARAMS _IOWR('u', UBLK_CMD_SET_PARAMS, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_USER_RECOVERY \
	_IOWR('u', UBLK_CMD_START_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_END_USER_RECOVERY \
	_IOWR('u', UBLK_CMD_END_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#define UBLK_U_IO_FETCH_REQ _IOWR('u', UBLK_IO_FETCH_REQ, struct ublksrv_io_cmd)
#define UBLK_U_IO_COMMIT_AND_FETCH_REQ \
	_IOWR('u', UBLK_IO_COMMIT_AND_FETCH_REQ, struct ublksrv_io_cmd)
#endif
#ifndef UBLK_F_CMD_IOCTL_ENCODE
#define UBLK_F_CMD_IOCTL_ENCODE (1ULL << 6)
#endif

struct ublk_control {
	int fd; /* -1 = closed */
	struct io_uring ring;
	uint64_t given; /* number of the last command */
};

/* Returns 0, or -errno with @c closed.  Belongs to one thread at a time. */
int ublk_control_open(struct ublk_control *c);
void ublk_control_close(struct ublk_control *c);

/*
 * Gives the kernel a command for device @dev, (uint32_t)-1 for a new one, with @length bytes at
 * @data, or with @word.  @data must stay valid until the result has come, or until the process ends
 * if the result may time out.
 */
int ublk_control_give(struct ublk_control *c, uint32_t op, uint32_t dev, void *data,
		      uint16_t length, uint64_t word);

/*
 * Returns the result of the last command, 0 or -errno; -ETIME after @timeout_ms without one: the
 * command continues then.  Drops results of earlier commands whose callers timed out.
 */
int ublk_control_result(struct ublk_control *c, int timeout_ms);

/* Gives a command and returns its result. */
int ublk_control_do(struct ublk_control *c, uint32_t op, uint32_t dev, void *data,
		    uint16_t length, uint64_t word, int timeout_ms);

/*
 * Stores the path of the file with the number of device @name, for cleanup after its processes
 * died.
 */
void ublk_control_note(const char *name, char path[static PATH_MAX]);

/*
 * A mark of device @name that the kernel keeps with the block device
 * (ublksrv_ctrl_dev_info.ublksrv_flags), since its number may belong to another device later.  The
 * second function checks that @dev has the mark: 0, -ENODEV, or -errno when that is unknown.
 */
uint64_t ublk_control_mark(const char *name);
int ublk_control_check(struct ublk_control *c, uint32_t dev, const char *name, int timeout_ms);

#endif
