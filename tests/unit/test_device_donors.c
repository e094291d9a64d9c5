// SPDX-License-Identifier: GPL-2.0-or-later
/* Exit statuses of a device without usable donors: ebb-device@.service tries again after some. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ebbctl/device/donors.h"
#include "lib/base/json.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static const char *answer_text; /* of ebbd to "donors"; NULL: does not run */
static char answer_space[512];

int __wrap_daemon_call(struct json_object *request, struct json_object **answer, struct error *e)
{
	json_object_put(request);
	if (!answer_text)
		return -ECONNREFUSED;
	*answer = json_tokener_parse(answer_text);
	assert_non_null(*answer);
	return 0;
}

/* Returns a socket bound to a port of loopback, and its address. */
static int bound(char *address, size_t size)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	snprintf(address, size, "127.0.0.1:%d", ntohs(a.sin_port));
	return fd;
}

/* Returns the exit status, 0 after success. */
static int status_of(const char *durability, const char *ebbd, struct error *e)
{
	const struct option_list none = { .n = 0 };
	struct donor_list list = { .n = 0 };
	struct device_record d = { .name = "x", .slab = 1 << 20 };
	int r;

	*e = (struct error){ 0 };
	answer_text = ebbd;
	strcpy(d.durability, durability);
	r = device_donors(&none, &list, &d, e);
	donor_list_free(&list);
	return r ? e->exit_status : 0;
}

static void ebbd_that_has_not_started(void **state)
{
	struct error e;

	assert_int_equal(status_of("disk", NULL, &e), EXIT_NO_DAEMON);
	assert_non_null(strstr(e.text, "cannot connect to ebbd"));
}

static void ebbd_that_knows_no_donor_yet(void **state)
{
	struct error e;

	assert_int_equal(status_of("disk", "{\"source\":\"etcd\",\"error\":null,\"donors\":[]}", &e),
			 EXIT_FAILED);
	assert_int_equal(status_of("disk", "{\"source\":\"etcd\",\"error\":\"etcd: gone\",\"donors\":[]}",
				   &e), EXIT_FAILED);
	assert_non_null(strstr(e.text, "etcd: gone"));
	/* Without [donors] in the configuration it never will. */
	assert_int_equal(status_of("disk", "{\"source\":\"none\",\"error\":null,\"donors\":[]}", &e),
			 EXIT_USAGE);
}

static void donors_that_have_not_started(void **state)
{
	char there[32], absent[32];
	int up = bound(there, sizeof(there)), down = bound(absent, sizeof(absent));
	struct error e;

	assert_int_equal(listen(up, 8), 0);
	snprintf(answer_space, sizeof(answer_space),
		 "{\"source\":\"list\",\"error\":null,\"donors\":[{\"address\":\"%s\"},{\"address\":\"%s\"}]}",
		 there, absent);
	assert_int_equal(status_of("disk", answer_space, &e), 0);
	assert_int_equal(status_of("replicas=2", answer_space, &e), EXIT_FAILED);
	assert_non_null(strstr(e.text, "replicas=2 needs 2 donors, and 1 of the 2 known to ebbd"));
	assert_int_equal(listen(down, 8), 0);
	assert_int_equal(status_of("replicas=2", answer_space, &e), 0);
	close(up);
	close(down);
	assert_int_equal(status_of("disk", answer_space, &e), EXIT_FAILED);
	assert_non_null(strstr(e.text, "none of 2 donors is reachable"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ebbd_that_has_not_started),
		cmocka_unit_test(ebbd_that_knows_no_donor_yet),
		cmocka_unit_test(donors_that_have_not_started),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
