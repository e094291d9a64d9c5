// SPDX-License-Identifier: GPL-2.0-or-later
/* The events of major faults, and of threads of a v1 cgroup, whose list may be incomplete. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ebbd/plane/events.h"

static char directory[] = "/tmp/ebb-test-events.XXXXXX", tasks[sizeof(directory) + 8];
static struct plane plane;
static int open_events, allowed = INT_MAX;

/* Opens a perf event; events.c makes no other call through it. */
long syscall(long number, ...)
{
	if (number == SYS_perf_event_open && open_events < allowed)
		return open("/dev/null", O_RDONLY | O_CLOEXEC);
	errno = number == SYS_perf_event_open ? EMFILE : ENOSYS;
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

/* As libbpf: destroying a link that is still connected disables its event, pinned or not. */
static int disabled;

void bpf_link__disconnect(struct bpf_link *link)
{
	disabled--;
}

int bpf_link__destroy(struct bpf_link *link)
{
	open_events -= link != NULL;
	disabled += link != NULL;
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
static int detected(struct event_set *s)
{
	events_refresh(s);
	return open_events / 2;
}

static void threads_that_could_not_be_listed_keep_their_events(void **unused)
{
	struct cgroup_ref cgroup = { .id = 0 };
	struct event_set *s = NULL;
	struct error e = { 0 };

	strcpy(cgroup.path, directory);
	list("11\n12\n13\n");
	assert_int_equal(events_open(&plane, &cgroup, &s, &e), 0);
	events_detect_on(s);
	assert_int_equal(detected(s), 3);
	list("12\n13\n14\n");
	assert_int_equal(detected(s), 3);
	list("12\n");
	assert_int_equal(detected(s), 1);
	/* It can be opened and not read, as where the kernel lacks memory for the list. */
	assert_int_equal(unlink(tasks), 0);
	assert_int_equal(mkdir(tasks, 0700), 0);
	assert_int_equal(detected(s), 1);
	/* A removed cgroup has no threads. */
	assert_int_equal(rmdir(tasks), 0);
	assert_int_equal(detected(s), 0);
	events_close(&s);
	assert_int_equal(open_events, 0);
}

/* However many cgroups are attached: events of each would run the program for each fault of all. */
static void major_faults_have_one_event_per_processor(void **unused)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_CONF);
	struct error e = { 0 };

	for (int i = 0; i < 3; i++) {
		assert_int_equal(events_watch(&plane, &e), 0);
		assert_int_equal(open_events, cpus);
	}
	disabled = 0;
	events_unwatch(&plane, EVENTS_KEEP_PINS);
	assert_int_equal(open_events, 0);
	assert_int_equal(disabled, 0);
	assert_int_equal(events_watch(&plane, &e), 0);
	events_unwatch(&plane, EVENTS_UNPIN);
	assert_int_equal(disabled, cpus);
}

static void none_of_some_events_stays_open(void **unused)
{
	struct error e = { 0 };

	allowed = (int)sysconf(_SC_NPROCESSORS_CONF) - 1;
	assert_int_equal(events_watch(&plane, &e), -EMFILE);
	assert_int_equal(e.exit_status, EXIT_UNSUPPORTED);
	assert_int_equal(open_events, 0);
	allowed = INT_MAX;
	assert_int_equal(events_watch(&plane, &e), 0);
	events_unwatch(&plane, EVENTS_KEEP_PINS);
}

/* Without the directory of version 2, hits would never be detected, and none be told. */
static void a_directory_that_cannot_be_opened_is_an_error(void **unused)
{
	struct cgroup_ref cgroup = { .id = 0 };
	struct event_set *s = NULL;
	struct error e = { 0 };

	snprintf(cgroup.twin, sizeof(cgroup.twin), "/dev/null");
	assert_int_equal(events_open(&plane, &cgroup, &s, &e), -ENOTDIR);
	assert_non_null(strstr(e.text, "/dev/null"));
	/* A cgroup that goes meanwhile is none. */
	snprintf(cgroup.twin, sizeof(cgroup.twin), "%s/gone", directory);
	assert_int_equal(events_open(&plane, &cgroup, &s, &e), 0);
	events_close(&s);
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
		cmocka_unit_test(major_faults_have_one_event_per_processor),
		cmocka_unit_test(a_directory_that_cannot_be_opened_is_an_error),
		cmocka_unit_test(none_of_some_events_stays_open),
		cmocka_unit_test(threads_that_could_not_be_listed_keep_their_events),
	};

	return cmocka_run_group_tests(tests, make_cgroup, remove_cgroup);
}
