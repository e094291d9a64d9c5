// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What EBBDSM_CHECK finds, of programs that a compiler has not checked: each report names the place
 * of the mistake, and there is none of right programs.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EBBDSM_NO_CHECKS
#include "userlib/dsm/ebbdsm.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

static int end(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	int r = -EBUSY;

	for (int i = 0; i < 6000 && r == -EBUSY; i++) {
		r = ebbfar_destroy(&o);
		usleep(r == -EBUSY ? 10000 : 0);
	}
	if (r && r != -ENOENT)
		fail_msg("%s", o.error);
	return end_far_donor(state);
}

enum { SIZE = 40000 };

static char said[16384];
static int normal_stderr = -1;

/* Standard error goes to a file until reports(). */
static void listen_to_reports(void)
{
	FILE *f = tmpfile();

	assert_non_null(f);
	normal_stderr = dup(2);
	assert_int_equal(dup2(fileno(f), 2), 2);
	fclose(f);
}

/* Sets .said to what was reported; returns how many reports. */
static int reports(void)
{
	ssize_t n;
	int count = 0;

	lseek(2, 0, SEEK_SET);
	n = read(2, said, sizeof(said) - 1);
	said[n > 0 ? n : 0] = '\0';
	dup2(normal_stderr, 2);
	close(normal_stderr);
	for (const char *at = said; (at = strstr(at, "libebbdsm: ")); at++)
		count++;
	return count;
}

static ebbdsm_t *join_at(const char *donor)
{
	const char *const donors[] = { donor };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 1,
				    .pool = "p", .timeout_ms = 20000 };
	ebbdsm_t *dsm;

	if (ebbdsm_open(&o, &dsm))
		fail_msg("%s", o.error);
	return dsm;
}

static ebbdsm_t *join(void)
{
	return join_at(at);
}

static struct ebbdsm_box make(ebbdsm_t *dsm)
{
	struct ebbdsm_box box = { 0 };

	assert_int_equal(ebbdsm_new(dsm, NULL, SIZE, &box), 0);
	return box;
}

static void change(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	uint64_t *p = ebbdsm_borrow_mut(dsm, box);

	assert_non_null(p);
	p[0]++;
	assert_int_equal(ebbdsm_return_mut(dsm, box, p), 0);
}

static void expect(int count, const char *text)
{
	int found = reports();

	if (found != count || (text && !strstr(said, text)))
		fail_msg("%d reports, not %d with \"%s\": %s", found, count, text ?: "", said);
	/* Where in the program. */
	if (text && !strstr(said, "test_dsm_check+0x") && !strstr(said, "value "))
		fail_msg("no place: %s", said);
}

/* Everything, by two processes' handles. */
static void right_programs(void **state)
{
	ebbdsm_t *dsm = join(), *other = join_at(world.tcp);
	struct ebbdsm_box box = make(dsm), got = { 0 };
	struct ebbdsm_view view;
	struct ebbdsm_parcel parcel;

	listen_to_reports();
	for (int i = 0; i < 50; i++) {
		const void *p, *q;
		struct ebbdsm_loan loan;
		uint64_t *m;

		view = ebbdsm_lend(&box);
		p = ebbdsm_borrow(dsm, &box);
		q = ebbdsm_borrow(dsm, &box);
		assert_true(p && q);
		assert_int_equal(ebbdsm_return(dsm, &box, p), 0);
		p = ebbdsm_borrow_view(other, &view, NULL);
		assert_non_null(p);
		assert_int_equal(ebbdsm_return(dsm, &box, q), 0);
		change(dsm, &box);
		assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
		m = ebbdsm_borrow_loan(other, &loan, NULL);
		assert_non_null(m);
		m[0]++;
		assert_int_equal(ebbdsm_return_loan(other, &loan, m), 0);
		assert_int_equal(ebbdsm_reclaim(dsm, &box), 0);
		/* The value from before is cached. */
		assert_int_equal(ebbdsm_return_view(other, &view, p), 0);
		p = ebbdsm_borrow_view(other, &view, NULL);
		assert_non_null(p);
		assert_int_equal(ebbdsm_return_view(other, &view, p), 0);
		assert_int_equal(ebbdsm_settle(other), 0);
	}
	assert_int_equal(ebbdsm_give(dsm, &box, &parcel), 0);
	assert_int_equal(ebbdsm_accept(other, &parcel, &got), 0);
	change(other, &got);
	assert_int_equal(ebbdsm_drop(other, &got), 0);
	assert_int_equal(ebbdsm_drop(other, &got), 0);
	ebbdsm_close(other);
	ebbdsm_close(dsm);
	expect(0, NULL);
}

static void returns(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm), second = make(dsm);
	struct ebbdsm_view view = ebbdsm_lend(&box);
	struct ebbdsm_loan loan;
	const void *p;
	void *m;

	p = ebbdsm_borrow(dsm, &box);
	listen_to_reports();
	assert_int_equal(ebbdsm_return_view(dsm, &view, (const char *)p + 1), -EINVAL);
	expect(1, "but not borrowed");
	listen_to_reports();
	ebbdsm_return(dsm, &second, p);
	expect(1, "by another name");
	listen_to_reports();
	assert_int_equal(ebbdsm_return_mut(dsm, &box, (void *)p), -EINVAL);
	expect(1, "return it as a shared borrow");
	assert_int_equal(ebbdsm_return(dsm, &box, p), 0);
	listen_to_reports();
	assert_int_equal(ebbdsm_return(dsm, &box, p), -EINVAL);
	expect(1, "returned twice");
	m = ebbdsm_borrow_mut(dsm, &box);
	listen_to_reports();
	assert_int_equal(ebbdsm_return(dsm, &box, m), -EINVAL);
	expect(1, "return it as a mutable borrow");
	assert_int_equal(ebbdsm_return_mut(dsm, &box, m), 0);
	assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
	m = ebbdsm_borrow_loan(dsm, &loan, NULL);
	assert_non_null(m);
	assert_int_equal(ebbdsm_return_loan(dsm, &loan, m), 0);
	listen_to_reports();
	assert_int_equal(ebbdsm_return_loan(dsm, &loan, m), -EINVAL);
	expect(1, "returned twice");
	ebbdsm_close(dsm);
}

static void not_returned(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box boxes[3] = { make(dsm), make(dsm), make(dsm) };
	struct ebbdsm_view view = ebbdsm_lend(&boxes[2]);

	listen_to_reports();
	assert_non_null(ebbdsm_borrow(dsm, &boxes[0]));
	assert_non_null(ebbdsm_borrow_mut(dsm, &boxes[1]));
	assert_non_null(ebbdsm_borrow_view(dsm, &view, NULL));
	ebbdsm_close(dsm);
	expect(3, "not returned before ebbdsm_close()");
	assert_non_null(strstr(said, "a shared borrow of "));
	assert_non_null(strstr(said, "a mutable borrow of "));
	assert_non_null(strstr(said, "the borrow of a view of "));
}

static void changes_without_a_borrow(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm);
	struct ebbdsm_view view;
	struct ebbdsm_loan loan;
	uint64_t *p, *m;

	/* By the pointer of a shared borrow. */
	p = (uint64_t *)ebbdsm_borrow(dsm, &box);
	p[100]++;
	listen_to_reports();
	assert_int_equal(ebbdsm_return(dsm, &box, p), 0);
	expect(1, "changed without a mutable borrow");
	view = ebbdsm_lend(&box);
	p = (uint64_t *)ebbdsm_borrow_view(dsm, &view, NULL);
	p[100]--;
	listen_to_reports();
	assert_int_equal(ebbdsm_return_view(dsm, &view, p), 0);
	expect(1, "changed without a mutable borrow");
	p = (uint64_t *)ebbdsm_borrow_view(dsm, &view, NULL);
	p[100]++;
	listen_to_reports();
	assert_int_equal(ebbdsm_return_view(dsm, &view, p), 0);
	reports();
	/* After the return. */
	m = ebbdsm_borrow_mut(dsm, &box);
	m[1] = 1;
	assert_int_equal(ebbdsm_return_mut(dsm, &box, m), 0);
	if (at == world.local) {
		m[2] = 1;
		listen_to_reports();
		p = (uint64_t *)ebbdsm_borrow(dsm, &box);
		expect(1, "changed without a mutable borrow");
		assert_int_equal(ebbdsm_return(dsm, &box, p), 0);
		m[2] = 2;
		listen_to_reports();
		assert_ptr_equal(ebbdsm_borrow_mut(dsm, &box), m);
		expect(1, "changed without a mutable borrow");
		assert_int_equal(ebbdsm_return_mut(dsm, &box, m), 0);
		m[2] = 3;
		listen_to_reports();
		assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
		expect(1, "changed without a mutable borrow");
	}
	ebbdsm_close(dsm);
}

static void copies_of_boxes(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm), copy = box, moved = { 0 };
	struct ebbdsm_loan loan;

	change(dsm, &box);
	listen_to_reports();
	assert_null(ebbdsm_borrow(dsm, &copy));
	expect(1, "a copy of one that has changed");
	listen_to_reports();
	assert_null(ebbdsm_borrow_mut(dsm, &copy));
	expect(1, "a copy of one that has changed");
	ebbdsm_move(&moved, &box);
	listen_to_reports();
	assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), -ESTALE);
	expect(1, "moved, dropped or given");
	ebbdsm_close(dsm);
}

/* An owner that stores by a pointer of before, while another process reads. */
static struct {
	volatile uint64_t *content;
	int stop;
} writer;

static void *store_always(void *data)
{
	for (uint64_t i = 1; !__atomic_load_n(&writer.stop, __ATOMIC_RELAXED); i++)
		for (int k = 0; k < SIZE / 8; k++)
			writer.content[k] = i;
	return NULL;
}

static void torn_reads(void **state)
{
	ebbdsm_t *dsm = join_at(world.local), *reader;
	struct ebbdsm_box box = make(dsm);
	struct ebbdsm_view view;
	pthread_t thread;
	void *p = ebbdsm_borrow_mut(dsm, &box);
	bool found = false;

	assert_int_equal(ebbdsm_return_mut(dsm, &box, p), 0);
	view = ebbdsm_lend(&box);
	writer.content = p;
	pthread_create(&thread, NULL, store_always, NULL);
	/* On a busy machine the other thread seldom runs between two reads. */
	while (!found) {
		/* Without a copy. */
		reader = join_at(at);
		listen_to_reports();
		p = (void *)ebbdsm_borrow_view(reader, &view, NULL);
		reports();
		found = strstr(said, "torn read: two reads differ");
		/* What is borrowed is a copy, which does not change. */
		if (p) {
			listen_to_reports();
			assert_int_equal(ebbdsm_return_view(reader, &view, p), 0);
			assert_int_equal(reports(), 0);
		}
		ebbdsm_close(reader);
	}
	__atomic_store_n(&writer.stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	writer.stop = 0;
	listen_to_reports();
	ebbdsm_close(dsm);
	reports();
}

/* A child's handle of its own. */
static int status_of(const char *checks, int leaves)
{
	int status;
	pid_t pid;

	setenv("EBBDSM_CHECK", checks, 1);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		ebbdsm_t *dsm = join();
		struct ebbdsm_box box = make(dsm);
		const void *p = ebbdsm_borrow(dsm, &box);

		signal(SIGABRT, SIG_DFL);
		close(2);
		if (!leaves)
			ebbdsm_return(dsm, &box, p);
		ebbdsm_return(dsm, &box, p);
		ebbdsm_close(dsm);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	setenv("EBBDSM_CHECK", "report", 1);
	return status;
}

static void the_environment(void **state)
{
	assert_int_equal(status_of("", 0), 0);
	assert_int_equal(status_of("0", 0), 0);
	assert_int_equal(status_of("report", 0), 0);
	assert_true(WTERMSIG(status_of("abort", 0)) == SIGABRT);
	assert_true(WTERMSIG(status_of("1", 0)) == SIGABRT);
	assert_int_equal(status_of("abort", 1), 0);
}

static void a_child_has_no_borrows(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm);
	const void *p = ebbdsm_borrow(dsm, &box);
	int status;

	listen_to_reports();
	if (!fork()) {
		ebbdsm_close(dsm);
		_exit(0);
	}
	wait(&status);
	expect(0, NULL);
	assert_int_equal(status, 0);
	assert_int_equal(ebbdsm_return(dsm, &box, p), 0);
	ebbdsm_close(dsm);
}

#define BY_BOTH(test)                                                                    \
	{ #test " by TCP", test, by_tcp, end, NULL }, { #test " mapped", test, by_mapping, end, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_BOTH(right_programs),
		BY_BOTH(returns),
		BY_BOTH(not_returned),
		BY_BOTH(changes_without_a_borrow),
		BY_BOTH(copies_of_boxes),
		BY_BOTH(torn_reads),
		/* A child that aborts leaves at once, if it has mapped memory. */
		cmocka_unit_test_setup_teardown(the_environment, by_mapping, end),
		BY_BOTH(a_child_has_no_borrows),
	};

	setenv("EBBDSM_CHECK", "report", 1);
	(void)open_at;
	return cmocka_run_group_tests_name("libebbdsm with EBBDSM_CHECK", tests, NULL, NULL);
}
