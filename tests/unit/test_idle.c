// SPDX-License-Identifier: GPL-2.0-or-later
/* What `advise` makes of readings, and of what the kernel says of its pages. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbctl/idle/processes.h"
#include "ebbctl/idle/references.h"
#include "ebbctl/idle/watch.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define S 1000000000ULL

/* --- a watch with a source of the test's --------------------------------------------- */

struct fake {
	uint64_t idle[5];  /* by reading */
	uint32_t read;
	int fails_at;      /* reading; 0: none */
	int interrupted;   /* wait; -1: none */
};

static struct fake *fake;
static int waits;

static int fake_read(void *state, bool first, struct idle_counts *c, struct error *e)
{
	struct fake *f = state;
	uint32_t n = f->read++;

	assert_int_equal(first, !n);
	if (f->fails_at && (int)n == f->fails_at)
		return -EIO;
	*c = (struct idle_counts){ 1000, f->idle[n] };
	return 0;
}

static const struct idle_source source = { "fake", NULL, fake_read, NULL };

static void no_progress(void *data, uint64_t ns, uint64_t idle, uint64_t total)
{
}

static bool no_wait(uint64_t begin, uint64_t ns)
{
	return waits++ != fake->interrupted;
}

static int watch(struct fake *f, uint64_t duration, struct idle_report *report)
{
	const struct idle_plan plan = { { 1 * S, 5 * S, 30 * S }, 3, duration, no_progress, NULL,
					no_wait };
	struct error e = { 0 };

	fake = f;
	waits = 0;
	return idle_watch(&source, f, &plan, report, &e);
}

static void each_time_has_a_row(void **state)
{
	struct fake f = { { 0, 900, 700, 400, 300 }, .interrupted = -1 };
	struct idle_report r;

	assert_int_equal(watch(&f, 60 * S, &r), 0);
	assert_int_equal(f.read, 5);
	assert_int_equal(r.n, 3);
	assert_int_equal(r.reached, 3);
	assert_int_equal(r.row[0].bytes, 900);
	assert_int_equal(r.row[0].returned, 200);
	assert_int_equal(r.row[1].returned, 300);
	assert_int_equal(r.row[2].bytes, 400);
	assert_int_equal(r.row[2].returned, 100);
	assert_true(r.row[2].window_ns > 0 && r.row[0].asked_ns == 1 * S);
}

static void one_without_a_later_reading_has_no_cost(void **state)
{
	struct fake f = { { 0, 900, 700 }, .interrupted = -1 };
	struct idle_report r;

	assert_int_equal(watch(&f, 5 * S, &r), 0);
	assert_int_equal(f.read, 3);
	assert_int_equal(r.n, 2);
	assert_int_equal(r.reached, 2);
	assert_int_equal(r.row[1].window_ns, 0);
}

static void interrupted_ones_report(void **state)
{
	struct fake f = { { 0, 900, 700 }, .interrupted = 0 };
	struct idle_report r;

	assert_int_equal(watch(&f, 60 * S, &r), 0);
	assert_int_equal(f.read, 2);
	assert_int_equal(r.n, 1);
	assert_int_equal(r.reached, 0);
	assert_int_equal(r.row[0].bytes, 900);
	assert_int_equal(r.row[0].window_ns, 0);

	f.read = 0;
	f.interrupted = 1;
	assert_int_equal(watch(&f, 60 * S, &r), 0);
	assert_int_equal(r.n, 1);
	assert_int_equal(r.reached, 1);
	assert_int_equal(r.row[0].returned, 200);
}

static void one_that_fails_reports_what_it_has(void **state)
{
	struct fake f = { { 0, 900, 700 }, .fails_at = 3, .interrupted = -1 };
	struct idle_report r;

	assert_int_equal(watch(&f, 60 * S, &r), -EIO);
	assert_int_equal(r.n, 2);
	f = (struct fake){ .fails_at = 1, .interrupted = -1 };
	assert_int_equal(watch(&f, 60 * S, &r), -EIO);
	assert_int_equal(r.n, 0);
}

static FILE *text_file(const char *text)
{
	return fmemopen((void *)(uintptr_t)text, strlen(text), "r");
}

/* --- accessed bits ------------------------------------------------------------------- */

static void mappings_of_a_process(void **state)
{
	static const char smaps[] =
		/* a file's */
		"55a0-55b0 r-xp 00002000 fe:01 1234   /usr/bin/x y\nRss: 400 kB\nPrivate_Clean: 400 kB\n"
		"Referenced: 100 kB\nVmFlags: rd ex\n"
		"7f00-7f10 rw-p 00000000 00:00 0 \nRss: 100 kB\nShared_Dirty: 20 kB\nPrivate_Clean: 30 kB\n"
		"Private_Dirty: 50 kB\nReferenced: 60 kB\nLocked: 0 kB\nVmFlags: rd wr\n"
		/* locked */
		"7f20-7f30 rw-p 00000000 00:00 0 \nPrivate_Dirty: 700 kB\nReferenced: 0 kB\nLocked: 700 kB\n"
		/* more references than pages of its own; huge pages that never leave */
		"7f40-7f50 rw-p 00000000 00:00 0 [heap]\nPrivate_Dirty: 10 kB\nPrivate_Hugetlb: 2048 kB\n"
		"Referenced: 90 kB\n"
		/* shared anonymous memory */
		"7f60-7f70 rw-s 00000000 00:01 77 /dev/zero (deleted)\nPrivate_Dirty: 512 kB\nReferenced: 0 kB\n";
	struct referenced sum = { 0, 0 };
	FILE *f = text_file(smaps);

	smaps_read(f, &sum);
	fclose(f);
	assert_int_equal(sum.total, 90 << 10);
	assert_int_equal(sum.idle, 20 << 10);
}

/* --- virtual machines ---------------------------------------------------------------- */

static void virtual_machines_are_found(void **state)
{
	char dir[] = "/tmp/ebb-fd-XXXXXX", link[64];

	assert_non_null(mkdtemp(dir));
	snprintf(link, sizeof(link), "%s/3", dir);
	assert_int_equal(symlink("anon_inode:[eventfd]", link), 0);
	assert_false(holds_virtual_machine(dir));
	snprintf(link, sizeof(link), "%s/4", dir);
	assert_int_equal(symlink("anon_inode:kvm-vm", link), 0);
	assert_true(holds_virtual_machine(dir));
	unlink(link);
	snprintf(link, sizeof(link), "%s/3", dir);
	unlink(link);
	rmdir(dir);
	assert_false(holds_virtual_machine(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_time_has_a_row),
		cmocka_unit_test(one_without_a_later_reading_has_no_cost),
		cmocka_unit_test(interrupted_ones_report),
		cmocka_unit_test(one_that_fails_reports_what_it_has),
		cmocka_unit_test(mappings_of_a_process),
		cmocka_unit_test(virtual_machines_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
