// SPDX-License-Identifier: GPL-2.0-or-later
/* The events of threads of a v1 cgroup, whose list may be incomplete. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ebbd/plane/events.h"

static char directory[] = "/tmp/ebb-test-events.XXXXXX", tasks[sizeof(directory) + 8];
static struct plane plane;
static int open_events;

/* Opens a perf event; events.c makes no other call through it. */
long syscall(long number, ...)
{
	if (number == SYS_perf_event_open)
		return open("/dev/null", O_RDONLY | O_CLOEXEC);
	errno = ENOSYS;
	return -1;
}

struct bpf_program *plane_program(struct plane *p, enum plane_program which)
{
	return NULL;
}

struct bpf_link *bpf_program__attach_perf_event(const struct bpf_program *program, int fd)
{
	close(fd);
	open_events++;
	return malloc(1);
}

int bpf_link__pin(struct bpf_link *link, const char *path)
{
	return 0;
}

int bpf_link__destroy(struct bpf_link *link)
{
	open_events -= link != NULL;
	free(link);
	return 0;
}

static void list(const char *threads)
{
	FILE *f = fopen(tasks, "we");

	assert_non_null(f);
	assert_true(fputs(threads, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

/* Returns the threads that have their pair of events. */
static int detected(struct event_set *s, int others)
{
	events_refresh(s);
	return (open_events - others) / 2;
}

static void threads_that_could_not_be_listed_keep_their_events(void **unused)
{
	struct cgroup_ref cgroup = { .id = 0 };
	struct event_set *s = NULL;
	struct error e = { 0 };
	int majors;

	strcpy(cgroup.path, directory);
	list("11\n12\n13\n");
	assert_int_equal(events_open(&plane, &cgroup, &s, &e), 0);
	majors = open_events;
	events_detect_on(s);
	assert_int_equal(detected(s, majors), 3);
	list("12\n13\n14\n");
	assert_int_equal(detected(s, majors), 3);
	list("12\n");
	assert_int_equal(detected(s, majors), 1);
	/* It can be opened and not read, as where the kernel lacks memory for the list. */
	assert_int_equal(unlink(tasks), 0);
	assert_int_equal(mkdir(tasks, 0700), 0);
	assert_int_equal(detected(s, majors), 1);
	/* A removed cgroup has no threads. */
	assert_int_equal(rmdir(tasks), 0);
	assert_int_equal(detected(s, majors), 0);
	events_close(&s, EVENTS_KEEP_PINS);
	assert_int_equal(open_events, 0);
}

static int make_cgroup(void **unused)
{
	if (!mkdtemp(directory))
		return -1;
	snprintf(tasks, sizeof(tasks), "%s/tasks", directory);
	return 0;
}

static int remove_cgroup(void **unused)
{
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_that_could_not_be_listed_keep_their_events),
	};

	return cmocka_run_group_tests(tests, make_cgroup, remove_cgroup);
}
