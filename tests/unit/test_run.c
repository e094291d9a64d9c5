// SPDX-License-Identifier: GPL-2.0-or-later
/* The sequence of what `ebbctl run` does before its program starts, and what is left of it. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ebbctl/run/run.h"
#include "lib/base/files.h"
#include "lib/base/json.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char steps[128];
static int attach_result;

static void step(const char *what)
{
	snprintf(steps + strlen(steps), sizeof(steps) - strlen(steps), "%s ", what);
}

int __wrap_program_block_signals(struct program *p, struct error *e) { return 0; }
bool __wrap_program_interrupted(struct program *p) { return false; }

int __wrap_program_fork(struct program *p, char **argv, enum program_user user, struct error *e)
{
	return 0;
}

int __wrap_program_go(struct program *p, const struct cgroup_ref *c, struct error *e)
{
	step("go");
	return 0;
}

int __wrap_program_wait(struct program *p, struct program_end *end, struct error *e)
{
	return 0;
}

int __wrap_cgroup_create(const char *rel, uint64_t limit, struct cgroup_ref *c, struct error *e)
{
	return 0;
}

int __wrap_daemon_call(struct json_object *request, struct json_object **answer, struct error *e)
{
	json_object_put(request);
	*answer = NULL;
	return -ENOENT;
}

int __wrap_daemon_tell(struct json_object *request, struct error *e)
{
	step(json_text(request, "verb", ""));
	json_object_put(request);
	return attach_result;
}

void __wrap_scope_apply_all(const char *extra)
{
	step("scope");
}

static void begin(void)
{
	const struct run_options o = { .policy = "leap", .keep = true };
	char *argv[] = { "true", NULL };
	struct run run = { .o = &o };
	struct error e = { 0 };

	*steps = '\0';
	assert_int_equal(run_begin(&run, argv, &e), attach_result);
	json_object_put(run.summary);
}

/*
 * Attached first: then another ebbctl that applies the scope meanwhile either knows the cgroup, or
 * is followed by this one.  The program would start without swap before the scope is applied.
 */
static void scope_is_applied_once_attached_and_before_the_start(void **state)
{
	attach_result = 0;
	begin();
	assert_string_equal(steps, "policy.attach scope go ");
}

static void program_does_not_start_unattached(void **state)
{
	attach_result = -EIO;
	begin();
	assert_string_equal(steps, "policy.attach ");
}

/* Returns what run_end() writes to stderr about a scope whose program ended. */
static char *end_scope(const char *dir)
{
	const struct run_options o = { .policy = "leap" };
	struct run run = { .o = &o, .created = true, .lock = -1,
			   .program = { .pidfd = -1, .go = -1, .failed = -1, .signals = -1 } };
	char path[64];
	int saved = dup(STDERR_FILENO), fd;
	static char said[512];

	snprintf(path, sizeof(path), "%s.said", dir);
	snprintf(run.cgroup.path, sizeof(run.cgroup.path), "%s", dir);
	strcpy(run.cgroup.rel, "/ebb-x.scope");
	strcpy(run.scope, "ebb-x.scope");
	run.cgroup.v2 = true;
	fd = fileno(freopen(path, "w", stderr));
	assert_true(fd >= 0);
	run_end(&run);
	fflush(stderr);
	dup2(saved, STDERR_FILENO);
	close(saved);
	assert_true(file_read(path, said, sizeof(said)) >= 0);
	unlink(path);
	return said;
}

/* The scope is delegated: a program may make cgroups, such as a nested systemd or a container. */
static void processes_below_the_cgroup_are_ended(void **state)
{
	char dir[] = "/tmp/ebb-test-run-XXXXXX", below[64], procs[80], text[32];
	char *said;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	snprintf(below, sizeof(below), "%s/below", dir);
	snprintf(procs, sizeof(procs), "%s/cgroup.procs", below);
	/* A process that ended must not be a zombie, which kill(2) finds. */
	signal(SIGCHLD, SIG_IGN);
	pid = fork();
	if (pid == 0) {
		alarm(30);
		for (;;)
			pause();
	}
	assert_int_equal(mkdir(below, 0700), 0);
	/* 0: a process of another PID namespace.  kill(0) would end this process. */
	snprintf(text, sizeof(text), "0\n%d\n", pid);
	assert_int_equal(file_replace(procs, text), 0);
	said = end_scope(dir);
	assert_int_equal(kill(pid, 0), -1);
	assert_non_null(strstr(said, "ended 1 processes"));
	/* rmdir(2) of a directory with a plain file fails, as that of a cgroup in use. */
	assert_non_null(strstr(said, "cannot remove"));
	unlink(procs);
	assert_string_equal(end_scope(dir), "");
	assert_int_equal(access(dir, F_OK), -1);
	/* As systemd removes it. */
	assert_string_equal(end_scope(dir), "");
	signal(SIGCHLD, SIG_DFL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scope_is_applied_once_attached_and_before_the_start),
		cmocka_unit_test(program_does_not_start_unattached),
		cmocka_unit_test(processes_below_the_cgroup_are_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
