// SPDX-License-Identifier: GPL-2.0-or-later
/* Which process ebbd shares epochs with, over its control socket, with maps of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ebbd/server.h"
#include "ebbd/share.h"
#include "lib/host/cgroup.h"

enum { CGROUPS = 70, SLOTS, EPOCHS };

static char dir[] = "/tmp/ebb-test-epochs-XXXXXX", path[64];
static struct ebbd ebbd = { .plane = { .cgroups = CGROUPS, .epoch_slots = SLOTS,
				       .epochs = EPOCHS } };
static struct {
	uint32_t pid, slot;     /* the entry of epoch_slots; 0 = none */
	int asked;              /* process whose cgroup ebbd looked up; 0 = none */
} world;

/* Every process is in a cgroup with a policy. */
int __wrap_cgroup_of_process(int pid, struct cgroup_ref *c, struct error *e);

int __wrap_cgroup_of_process(int pid, struct cgroup_ref *c, struct error *e)
{
	world.asked = pid;
	*c = (struct cgroup_ref){ .rel = "/" };
	snprintf(c->path, sizeof(c->path), "%s", dir);
	return 0;
}

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	if (fd == CGROUPS) {
		*(struct ebb_cgroup *)value = (struct ebb_cgroup){ .flags = EBB_CGROUP_ATTACHED };
		return 0;
	}
	assert_int_equal(fd, SLOTS);
	if (!world.pid || *(const uint32_t *)key != world.pid)
		return -(errno = ENOENT);
	*(uint32_t *)value = world.slot;
	return 0;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags)
{
	if (fd == SLOTS) {
		world.pid = *(const uint32_t *)key;
		world.slot = *(const uint32_t *)value;
	}
	return 0;
}

int bpf_map_get_next_key(int fd, const void *key, void *next)
{
	return -(errno = ENOENT);
}

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/x.sock", dir);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	return rmdir(dir);
}

/* Sends @request to an ebbd; stores its answer in @answer. */
static void ask(const char *request, char *answer, size_t size)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int listening = control_listen(path, NULL), fd = socket(AF_UNIX, SOCK_STREAM, 0);
	ssize_t n;

	assert_true(listening >= 0);
	strcpy(sa.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(write(fd, request, strlen(request)), strlen(request));
	assert_int_equal(control_server_new(&ebbd.server, listening, NULL, server_handle, &ebbd,
					    NULL), 0);
	assert_null(control_server_peer(ebbd.server));
	control_server_turn(ebbd.server);
	assert_null(control_server_peer(ebbd.server));
	control_server_free(&ebbd.server);
	n = read(fd, answer, size - 1);
	assert_true(n > 0);
	answer[n] = '\0';
	close(fd);
	close(listening);
}

/* A program in a PID namespace, such as a container's process 1, names another process. */
static void the_process_is_the_one_that_connected(void **state)
{
	static const char *const requests[] = {
		"{\"verb\":\"epoch.share\",\"pid\":1}\n",
		"{\"verb\":\"epoch.share\"}\n",
		"{\"verb\":\"epoch.share\",\"pid\":2000000000}\n",
	};
	char answer[4096];

	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		memset(&world, 0, sizeof(world));
		ask(requests[i], answer, sizeof(answer));
		assert_non_null(strstr(answer, "\"ok\":true"));
		assert_non_null(strstr(answer, "\"slot\":0"));
		assert_int_equal(world.asked, getpid());
		assert_int_equal(world.pid, getpid());
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_process_is_the_one_that_connected),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
