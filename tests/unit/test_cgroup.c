// SPDX-License-Identifier: GPL-2.0-or-later
/* On the machine's own hierarchies, with cgroups made for the test: needs root. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"
#include "lib/host/cgroup_walk.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char rel[64];

static void need_root(void)
{
	if (geteuid() || !cgroup_memory_mount(NULL)) {
		print_message("skip: needs root and a memory controller\n");
		skip();
	}
}

static void create_and_remove(void **state)
{
	struct cgroup_ref c, again;
	struct error e = { 0 };
	char *found[2];
	struct stat st;
	bool v2;

	need_root();
	assert_int_equal(cgroup_create(rel, 64 << 20, &c, &e), 0);
	assert_int_equal(stat(c.path, &st), 0);
	assert_int_equal(c.id, st.st_ino);
	assert_string_equal(c.rel, rel);
	assert_non_null(cgroup_memory_mount(&v2));
	assert_int_equal(c.v2, v2);
	assert_int_equal(cgroup_limit(&c), 64 << 20);
	assert_int_equal(cgroup_oom_kills(&c), 0);
	if (v2)
		assert_string_equal(c.twin, c.path);
	else if (cgroup_unified_mount())
		assert_int_equal(access(c.twin, F_OK), 0);

	assert_int_equal(cgroup_create(rel, 0, &again, &e), -EEXIST);
	assert_int_equal(e.exit_status, EXIT_REFUSED);

	/* Three ways to say the same. */
	assert_int_equal(cgroup_resolve(rel, &again, NULL), 0);
	assert_int_equal(again.id, c.id);
	assert_int_equal(cgroup_resolve(rel + 1, &again, NULL), 0);
	assert_int_equal(again.id, c.id);
	assert_int_equal(cgroup_resolve(c.path, &again, NULL), 0);
	assert_memory_equal(&again, &c, sizeof(c.id));
	assert_string_equal(again.twin, c.twin);
	/* And by its number alone. */
	cgroup_find_ids((uint64_t[]){ c.id, c.id + 1 }, found, 2);
	assert_string_equal(found[0], c.path);
	assert_null(found[1]);
	free(found[0]);
	if (*c.twin) {
		assert_int_equal(cgroup_resolve(c.twin, &again, NULL), 0);
		assert_int_equal(again.id, c.id);
	}

	assert_int_equal(cgroup_remove(&c, NULL), 0);
	assert_int_equal(access(c.path, F_OK), -1);
	cgroup_find_ids(&c.id, found, 1);
	assert_null(found[0]);
	assert_int_equal(access(c.twin, F_OK), -1);
	assert_int_equal(cgroup_remove(&c, NULL), 0);
}

static void limits_of_ancestors(void **state)
{
	struct cgroup_ref parent, child;
	char below[96];

	need_root();
	snprintf(below, sizeof(below), "%s/below", rel);
	assert_int_equal(cgroup_create(rel, 32 << 20, &parent, NULL), 0);
	assert_int_equal(cgroup_create(below, 0, &child, NULL), 0);
	assert_int_equal(cgroup_limit(&child), 32 << 20);
	assert_int_equal(cgroup_limit_set(&child, 16 << 20, NULL), 0);
	assert_int_equal(cgroup_limit(&child), 16 << 20);
	assert_int_equal(cgroup_limit_set(&child, 0, NULL), 0);
	assert_int_equal(cgroup_limit_set(&parent, 0, NULL), 0);
	assert_true(cgroup_limit(&child) > 1ULL << 40 || cgroup_limit(&child) == UINT64_MAX);
	/* Takes what the program made below it too. */
	assert_int_equal(cgroup_remove(&parent, NULL), 0);
	assert_int_equal(access(child.path, F_OK), -1);
}

static void counts_and_names_who_is_inside(void **state)
{
	struct error e = { 0 };
	struct cgroup_ref c;
	int go[2], status;
	char comm[32], byte;
	pid_t pid;

	need_root();
	assert_int_equal(cgroup_create(rel, 64 << 20, &c, NULL), 0);
	assert_int_equal(pipe(go), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		size_t len = 16 << 20;
		char *p;

		if (cgroup_enter(&c, NULL))
			_exit(1);
		p = mmap(NULL, len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (p == MAP_FAILED || write(go[1], "x", 1) != 1)
			_exit(2);
		pause();
		_exit(0);
	}
	assert_int_equal(read(go[0], &byte, 1), 1);
	assert_true(cgroup_usage(&c) >= 16 << 20);
	assert_int_equal(cgroup_first_process(&c, comm, sizeof(comm)), pid);
	assert_int_equal(cgroup_remove(&c, &e), -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	snprintf(comm, sizeof(comm), "process %d ", pid);
	assert_non_null(strstr(e.text, comm));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WTERMSIG(status), SIGKILL);
	assert_true(cgroup_peak(&c) == 0 || cgroup_peak(&c) >= 16 << 20);
	assert_int_equal(cgroup_remove(&c, NULL), 0);
	close(go[0]);
	close(go[1]);
}

static void *resolve_often(void *bad)
{
	struct cgroup_ref c;

	for (int i = 0; i < 1000; i++)
		if (cgroup_resolve("/", &c, NULL) || cgroup_limit(&c) < 1 << 20)
			*(int *)bad += 1;
	return NULL;
}

static void threads_resolve_beside_each_other(void **state)
{
	int bad[4] = { 0 };
	pthread_t threads[4];

	need_root();
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, resolve_often, &bad[i]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4; i++)
		assert_int_equal(bad[i], 0);
}

static void bad_names(void **state)
{
	struct cgroup_ref c;
	struct error e = { 0 };

	need_root();
	assert_int_equal(cgroup_resolve("/no/such/cgroup", &c, &e), -ENOENT);
	assert_int_equal(e.exit_status, EXIT_USAGE);
	assert_non_null(strstr(e.text, "/no/such/cgroup"));
	assert_non_null(strstr(e.text, cgroup_memory_mount(NULL)));
	assert_int_equal(cgroup_resolve("", &c, NULL), -EINVAL);
	assert_int_equal(cgroup_resolve("../../../../etc", &c, NULL), -EINVAL);
	assert_int_equal(cgroup_create("relative", 0, &c, NULL), -EINVAL);
	assert_int_equal(cgroup_create("/", 0, &c, NULL), -EINVAL);
	assert_int_equal(cgroup_create("/a/../b", 0, &c, NULL), -EINVAL);
}

static int count(const char *dir, void *data)
{
	struct cgroup_ref *c = data;

	return !strcmp(dir, c->path);
}

static void each_finds_it(void **state)
{
	struct cgroup_ref c;

	need_root();
	assert_int_equal(cgroup_create(rel, 0, &c, NULL), 0);
	assert_int_equal(cgroup_each(count, &c), 1);
	assert_int_equal(cgroup_remove(&c, NULL), 0);
	assert_int_equal(cgroup_each(count, &c), 0);
}

/* --- walks, of plain directories ------------------------------------------------ */

struct walk {
	char top[32], seen[256];
	unsigned int calls;
	int result;			/* at a directory whose name begins with s */
};

static int note(const char *dir, void *data)
{
	struct walk *w = data;

	w->calls++;
	if (strlen(w->seen) + strlen(dir + strlen(w->top)) < sizeof(w->seen) - 1)
		strcat(strcat(w->seen, dir + strlen(w->top)), " ");
	return strrchr(dir, '/')[1] == 's' ? w->result : 0;
}

static void make(const struct walk *w, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/%s", w->top, name);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void remove_all(const struct walk *w)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", w->top);
	assert_int_equal(system(command), 0);
}

static void walks_visit_parents_first(void **state)
{
	struct walk w = { .top = "/tmp/ebb-walk-XXXXXX" };
	char file[64];

	assert_non_null(mkdtemp(w.top));
	make(&w, "s");
	make(&w, "s/.hidden");
	make(&w, "s/.hidden/x");
	snprintf(file, sizeof(file), "%s/file", w.top);
	fclose(fopen(file, "w"));
	assert_int_equal(cgroup_walk(w.top, note, &w), 0);
	assert_string_equal(w.seen, " /s /s/.hidden /s/.hidden/x ");

	w.seen[0] = '\0';
	w.result = CGROUP_SKIP;
	assert_int_equal(cgroup_walk(w.top, note, &w), 0);
	assert_string_equal(w.seen, " /s ");

	make(&w, "s/.hidden/y");
	w.calls = 0;
	w.result = 7;
	assert_int_equal(cgroup_walk(w.top, note, &w), 7);
	assert_int_equal(w.calls, 2);
	remove_all(&w);
	/* As when a cgroup is removed meanwhile. */
	w.calls = 0;
	assert_int_equal(cgroup_walk(w.top, note, &w), 0);
	assert_int_equal(w.calls, 1);
}

static void walks_reach_any_depth(void **state)
{
	enum { DEPTH = 1000 };
	struct walk w = { .top = "/tmp/ebb-walk-XXXXXX" };
	char path[4096];
	int n;

	assert_non_null(mkdtemp(w.top));
	n = snprintf(path, sizeof(path), "%s", w.top);
	for (int i = 0; i < DEPTH; i++) {
		n += snprintf(path + n, sizeof(path) - (size_t)n, "/a");
		assert_int_equal(mkdir(path, 0700), 0);
	}
	assert_int_equal(cgroup_walk(w.top, note, &w), 0);
	assert_int_equal(w.calls, 1 + DEPTH);
	remove_all(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(create_and_remove), cmocka_unit_test(limits_of_ancestors),
		cmocka_unit_test(counts_and_names_who_is_inside),
		cmocka_unit_test(threads_resolve_beside_each_other), cmocka_unit_test(bad_names),
		cmocka_unit_test(each_finds_it), cmocka_unit_test(walks_visit_parents_first),
		cmocka_unit_test(walks_reach_any_depth),
	};

	snprintf(rel, sizeof(rel), "/ebb-test-%d", getpid());
	return cmocka_run_group_tests(tests, NULL, NULL);
}
