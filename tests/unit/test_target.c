// SPDX-License-Identifier: GPL-2.0-or-later
/* A process that pages are fetched for, and another one that gets its number. */
#include <errno.h>
#include <linux/sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbd/prefetch/target.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* A process that waits, with the number @pid unless 0; -errno. */
static pid_t start(pid_t pid)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = pid ? (uintptr_t)&pid : 0,
		.set_tid_size = pid ? 1 : 0,
	};
	long r = syscall(SYS_clone3, &args, sizeof(args));

	if (!r)
		for (;;)
			pause();
	return r < 0 ? -errno : (pid_t)r;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void is_told_from_its_namesake(void **state)
{
	struct target t, next;
	pid_t pid = start(0), other;

	assert_true(pid > 0);
	assert_int_equal(target_open(&t, (uint32_t)pid, 1), 0);
	assert_false(target_gone(&t));
	end(pid);
	assert_true(target_gone(&t));
	other = start(pid);
	if (other == -EPERM) {
		target_close(&t);
		print_message("skip: needs root to choose a process's number\n");
		skip();
	}
	assert_int_equal(other, pid);
	assert_true(target_gone(&t));
	assert_int_equal(target_open(&next, (uint32_t)pid, 1), 0);
	assert_false(target_gone(&next));
	end(other);
	target_close(&next);
	target_close(&t);
}

/* Its memory is another one then, under the same descriptor of the process. */
static void is_told_when_it_executes_another_program(void **state)
{
	int go[2], came[2];
	struct target t;
	pid_t pid;
	char c;

	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe(came), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(go[0], 0);
		dup2(came[1], 1);
		if (read(0, &c, 1) == 1)
			execl("/bin/cat", "cat", NULL);
		_exit(1);
	}
	assert_int_equal(target_open(&t, (uint32_t)pid, 1), 0);
	assert_true(target_current(&t));
	assert_int_equal(write(go[1], "12", 2), 2);
	/* The second character is cat's. */
	assert_int_equal(read(came[0], &c, 1), 1);
	assert_int_equal(c, '2');
	assert_false(target_gone(&t));
	assert_false(target_current(&t));
	end(pid);
	assert_false(target_current(&t));
	target_close(&t);
	close(go[0]);
	close(go[1]);
	close(came[0]);
	close(came[1]);
}

#define SECOND 1000000000ULL

static bool reaches(const struct target *t, uint64_t vpn, uint64_t now)
{
	return target_keep_memory(t, &vpn, 1, now) == 1;
}

static void knows_its_memory_by_its_faults(void **state)
{
	uint64_t vpn[] = { 9, 10, 19, 20, 30, 39, 40 };
	struct target t = { .tgid = 1 };

	assert_false(reaches(&t, 0, SECOND));
	target_learn(&t, 10, 20, 10 * SECOND);
	target_learn(&t, 30, 40, 10 * SECOND);
	assert_false(reaches(&t, 0, 10 * SECOND));
	assert_int_equal(target_keep_memory(&t, vpn, 7, 10 * SECOND + 1), 4);
	assert_memory_equal(vpn, ((uint64_t[]){ 10, 19, 30, 39 }), 4 * sizeof(*vpn));
	/* What has not faulted since may be mapped to a file by now. */
	target_learn(&t, 30, 40, 11 * SECOND);
	assert_false(reaches(&t, 10, 11 * SECOND));
	assert_true(reaches(&t, 30, 12 * SECOND - 1));
	/* A mapping that was cut takes the place of the old one. */
	target_learn(&t, 30, 35, 11 * SECOND + 1);
	assert_true(reaches(&t, 34, 12 * SECOND));
	assert_false(reaches(&t, 35, 12 * SECOND));
}

static void forgets_the_mapping_that_faulted_longest_ago(void **state)
{
	struct target t = { .tgid = 1 };

	for (uint64_t i = 0; i <= TARGET_SPANS; i++)
		target_learn(&t, 10 * i, 10 * i + 5, SECOND + i);
	assert_false(reaches(&t, 0, SECOND + 100));
	for (uint64_t i = 1; i <= TARGET_SPANS; i++)
		assert_true(reaches(&t, 10 * i, SECOND + 100));
}

/* Pagemap entries: pages 0 to 9 in swap, of type @vpn % 3; page 10 resident, page 11 nowhere. */
static int pagemap(void)
{
	uint64_t entry[2048] = { [10] = 1ULL << 63 | 2 };
	FILE *f = tmpfile();

	assert_non_null(f);
	for (uint64_t vpn = 0; vpn < 10; vpn++)
		entry[vpn] = 1ULL << 62 | 0x1000 | vpn % 3;
	entry[2000] = 1ULL << 62 | 31;
	assert_int_equal(pwrite(fileno(f), entry, sizeof(entry), 0), sizeof(entry));
	return fileno(f);
}

static void holds_back_pages_of_devices_that_wait(void **state)
{
	uint64_t near[] = { 0, 1, 2, 3, 4, 10, 11 }, far[] = { 1, 2000 };
	struct target t = { .tgid = 1, .pagemap = pagemap() };
	struct target_kept k = target_keep_swapped(&t, near, 7, 1 << 1 | 1 << 31);

	assert_int_equal(k.kept, 3);
	assert_int_equal(k.held_back, 2);
	assert_memory_equal(near, ((uint64_t[]){ 0, 2, 3 }), 3 * sizeof(*near));
	k = target_keep_swapped(&t, far, 2, 1U << 31);
	assert_int_equal(k.kept, 1);
	assert_int_equal(k.held_back, 1);
	assert_int_equal(far[0], 1);
	k = target_keep_swapped(&t, near, 3, 0);
	assert_int_equal(k.kept, 3);
	assert_int_equal(k.held_back, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_told_from_its_namesake),
		cmocka_unit_test(is_told_when_it_executes_another_program),
		cmocka_unit_test(knows_its_memory_by_its_faults),
		cmocka_unit_test(forgets_the_mapping_that_faulted_longest_ago),
		cmocka_unit_test(holds_back_pages_of_devices_that_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
