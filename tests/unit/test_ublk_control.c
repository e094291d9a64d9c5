// SPDX-License-Identifier: GPL-2.0-or-later
/* Commands for ublk devices, by a kernel that the test plays. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/host/ublk_control.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { ENTRIES = 4 };

static struct {
	unsigned int head, flags;
	struct io_uring_sqe sqes[2 * ENTRIES];
	struct ublksrv_ctrl_dev_info *info; /* where the last command writes */
	uint64_t number;
	const char *device;                 /* whose mark it has */
	bool slow;
	struct io_uring_cqe cqe;
} kernel;

static void answer(void)
{
	kernel.info->ublksrv_flags = ublk_control_mark(kernel.device);
}

int io_uring_submit(struct io_uring *ring)
{
	struct ublksrv_ctrl_cmd cmd;

	memcpy(&cmd, kernel.sqes[2 * (kernel.head++ % ENTRIES)].cmd, sizeof(cmd));
	assert_int_equal(cmd.len, sizeof(*kernel.info));
	kernel.info = (struct ublksrv_ctrl_dev_info *)(uintptr_t)cmd.addr;
	kernel.number++;
	return 1;
}

int io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
			      struct __kernel_timespec *t)
{
	if (kernel.slow)
		return -ETIME;
	answer();
	kernel.cqe = (struct io_uring_cqe){ .user_data = kernel.number };
	*cqe = &kernel.cqe;
	return 0;
}

static struct ublk_control begin(void)
{
	static unsigned int tail;
	struct ublk_control c = { .fd = -1 };

	memset(&kernel, 0, sizeof(kernel));
	kernel.device = "ebb0";
	tail = 0;
	c.ring.flags = IORING_SETUP_SQE128;
	c.ring.sq.khead = &kernel.head;
	c.ring.sq.kflags = &kernel.flags;
	c.ring.sq.ring_mask = ENTRIES - 1;
	c.ring.sq.ring_entries = ENTRIES;
	c.ring.sq.sqes = kernel.sqes;
	c.ring.cq.khead = &tail;
	return c;
}

static void a_device_has_its_mark(void **state)
{
	struct ublk_control c = begin();

	assert_int_equal(ublk_control_check(&c, 0, "ebb0", 1000), 0);
	assert_int_equal(ublk_control_check(&c, 0, "ebb1", 1000), -ENODEV);
}

/* Far from those of a few calls. */
static bool is_on_stack(const void *p)
{
	const char here = 0;
	ptrdiff_t far = (const char *)p - &here;

	return far > -65536 && far < 65536;
}

/* A command that timed out completes later, into memory that nothing else uses. */
static void a_late_result_harms_nothing(void **state)
{
	static struct ublksrv_ctrl_dev_info *late; /* the kernel's: no leak */
	struct ublk_control c = begin();

	kernel.slow = true;
	assert_int_equal(ublk_control_check(&c, 0, "ebb0", 1), -ETIME);
	late = kernel.info;
	assert_false(is_on_stack(late));
	kernel.slow = false;
	assert_int_equal(ublk_control_check(&c, 0, "ebb1", 1000), -ENODEV);
	assert_ptr_not_equal(kernel.info, late);
	late->ublksrv_flags = ublk_control_mark("ebb1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_device_has_its_mark),
		cmocka_unit_test(a_late_result_harms_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
