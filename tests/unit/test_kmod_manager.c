// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Devices that ebbd manages for the kernel module, and those that it must not touch; needs no
 * module.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbd/kmod/manager.h"
#include "lib/base/paths.h"
#include "lib/control/control_server.h"
#include "lib/control/device.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-manager-XXXXXX";

static int setup(void **state)
{
	return mkdtemp(dir) ? setenv("EBB_RUN_DIR", dir, 1) : -1;
}

static int teardown(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/devices", dir);
	return rmdir(path) || rmdir(dir) ? -1 : 0;
}

static struct kmod_manager *start(void)
{
	static const struct device_record record = {
		.name = "x", .frontend = "kmod", .block = "/dev/ebb7", .size = 64 << 20, .slab = 64 << 20,
	};
	struct kmod_manager *m = NULL;

	assert_int_equal(device_record_write(&record, NULL), 0);
	assert_int_equal(kmod_manager_start(&m, NULL), 0);
	for (int ms = 0; ms < 10000 && access(ebb_device_socket("x"), F_OK); ms++)
		usleep(1000);
	assert_int_equal(access(ebb_device_socket("x"), F_OK), 0);
	return m;
}

static void its_socket_goes_with_it(void **state)
{
	struct kmod_manager *m = start();

	kmod_manager_stop(&m);
	assert_int_equal(access(ebb_device_socket("x"), F_OK), -1);
	device_record_remove("x");
}

/* The device is destroyed, and re-created with ebb-swapd, while a donor connects. */
static void anothers_socket_stays(void **state)
{
	struct kmod_manager *m = start();
	int other = control_listen(ebb_device_socket("x"), NULL);

	assert_true(other >= 0);
	kmod_manager_stop(&m);
	assert_int_equal(access(ebb_device_socket("x"), F_OK), 0);
	close(other);
	unlink(ebb_device_socket("x"));
	device_record_remove("x");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(its_socket_goes_with_it), cmocka_unit_test(anothers_socket_stays),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
