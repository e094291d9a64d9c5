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
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ebbd/kmod/manager.c"

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

static char entry[2048]; /* the last one for the journal */

/* Replaces libc's. */
ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to,
	       socklen_t length)
{
	if (!to || to->sa_family != AF_UNIX)
		return syscall(SYS_sendto, fd, data, size, flags, to, length);
	assert_true(size < sizeof(entry));
	memcpy(entry, data, size);
	entry[size] = '\0';
	return (ssize_t)size;
}

/* ebbd has several devices: the catalog and journalctl find the event's by EBB_DEVICE. */
static void a_quarantine_names_its_device(void **state)
{
	static struct kmod_round round = { .quarantined = { true } };
	static struct kmod_view view = { .donors = 1 };

	snprintf(view.donor[0].text, sizeof(view.donor[0].text), "rdma:h:1");
	log_donors("x", &view, &round);
	assert_non_null(strstr(entry, "MESSAGE=device x: donor rdma:h:1 quarantined: "));
	assert_non_null(strstr(entry, "\nMESSAGE_ID=dd2b6c5efb744f728131e707c0161141\n"));
	assert_non_null(strstr(entry, "\nEBB_DEVICE=x\n"));
	/* Other events of ebbd are of no device. */
	log_event(EVENT_READY, LOG_LVL_INFO, "ready");
	assert_null(strstr(entry, "EBB_DEVICE"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(its_socket_goes_with_it), cmocka_unit_test(anothers_socket_stays),
		cmocka_unit_test(a_quarantine_names_its_device),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
