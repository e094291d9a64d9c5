// SPDX-License-Identifier: GPL-2.0-or-later
/* The backup thread, with a file of its own, with and without asynchronous I/O. */
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/draw.h"
#include "swapd/backup.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { PAGE = 4096, PAGES = 512, JOBS = 8000, WAITING = 200 };

/* --- what libaio does, and what it may do instead -------------------------------- */

enum aio { AIO_WORKS, AIO_NO_SETUP, AIO_NO_SUBMIT, AIO_SHORT, AIOS };

static enum aio aio;
static uint64_t turn;

int io_setup(int depth, io_context_t *context)
{
	if (aio == AIO_NO_SETUP)
		return -EAGAIN;
	return syscall(SYS_io_setup, depth, context) < 0 ? -errno : 0;
}

int io_submit(io_context_t context, long n, struct iocb **cb)
{
	/* Every third is refused, or ends early. */
	if (aio == AIO_NO_SUBMIT && ++turn % 3 == 0)
		return -EAGAIN;
	if (aio == AIO_SHORT && ++turn % 3 == 0 && cb[0]->u.c.nbytes > 1)
		cb[0]->u.c.nbytes--;
	return syscall(SYS_io_submit, context, n, cb) < 0 ? -errno : (int)n;
}

/* --- a queue and its file ----------------------------------------------------------- */

struct queue {
	struct backup b;
	struct slots slots;
	char path[64];
	/* Stamps of pages: as handed over, and what each job is to find. */
	uint32_t stamp[PAGES], want[SLOT_COUNT][SLOT_PAGES];
	uint32_t order[SLOT_COUNT]; /* when handed over */
	uint32_t submitted, reaped, failed;
};

static struct queue q;

static uint32_t *page_of(const struct slot *slot, uint32_t i)
{
	return (uint32_t *)(slot->payload + i * (size_t)PAGE);
}

static void start(enum aio how)
{
	struct error e = { 0 };

	memset(&q, 0, sizeof(q));
	aio = how;
	/* A disk, where there is one: tmpfs takes no direct I/O. */
	strcpy(q.path, "/var/tmp/ebb-backup-XXXXXX");
	close(mkstemp(q.path));
	assert_int_equal(slots_init(&q.slots, &e), 0);
	assert_int_equal(backup_open(&q.b, q.path, PAGES * PAGE, &e), 0);
	assert_int_equal(backup_start(&q.b, &q.slots, &e), 0);
}

static void stop(void)
{
	backup_close(&q.b);
	assert_int_equal(q.slots.free_count, SLOT_COUNT);
	slots_free(&q.slots);
	unlink(q.path);
}

static void submit(enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot = slot_get(&q.slots);
	int index = slot_index(&q.slots, slot);

	slot->kind = (uint8_t)kind;
	slot->first = first;
	slot->count = count;
	/* Of a READ the thread gets a part. */
	if (kind != SLOT_WRITE && count > 2)
		slot->cursor = 1;
	slot->run = count - slot->cursor;
	q.order[index] = q.submitted++;
	for (uint32_t i = 0; i < count; i++) {
		if (kind == SLOT_WRITE)
			page_of(slot, i)[0] = page_of(slot, i)[1023] = q.stamp[first + i] = q.submitted;
		else if (kind != SLOT_ALONE)
			page_of(slot, i)[0] = page_of(slot, i)[1023] = ~0u;
		if (kind != SLOT_ALONE)
			q.want[index][i] = q.stamp[first + i];
	}
	backup_submit(&q.b, slot);
}

/* Takes what has come back; in the order it was handed over. */
static void reap(void)
{
	struct slot *slot;

	while ((slot = backup_reap(&q.b))) {
		int index = slot_index(&q.slots, slot);

		assert_int_equal(q.order[index], q.reaped++);
		q.failed += slot->backup_result != 0;
		if (slot->kind == SLOT_READ && !slot->backup_result)
			for (uint32_t i = slot->cursor; i < slot->cursor + slot->run; i++) {
				assert_int_equal(page_of(slot, i)[0], q.want[index][i]);
				assert_int_equal(page_of(slot, i)[1023], q.want[index][i]);
			}
		slot_put(&q.slots, slot);
	}
}

/* Until no more than @left jobs are under way, as the loop does it. */
static void settle(uint32_t left)
{
	while (q.submitted - q.reaped > left) {
		struct pollfd p = { .fd = q.b.done_fd, .events = POLLIN };
		uint64_t n;

		backup_kick(&q.b, 1);
		if (!backup_notify(&q.b)) {
			assert_int_equal(poll(&p, 1, 10000), 1);
			assert_int_equal(read(q.b.done_fd, &n, sizeof(n)), sizeof(n));
		}
		reap();
	}
}

/* --- tests --------------------------------------------------------------------------- */

/* Jobs on the same pages in order, whatever the disk does; a read finds what was last written. */
static void newest_content(void **state)
{
	for (enum aio how = AIO_WORKS; how < AIOS; how++) {
		uint64_t seed = 99 + how;

		start(how);
		for (int i = 0; i < JOBS / (how == AIO_WORKS ? 1 : 4); i++) {
			uint32_t count = 1 + draw_below(&seed, draw_below(&seed, 8) ? 4 : SLOT_PAGES);
			/* Few places, so that they meet. */
			uint32_t first = draw_below(&seed, draw_below(&seed, 2) ? 24 : PAGES - SLOT_PAGES);

			switch (draw_below(&seed, 16)) {
			case 0:
				submit(SLOT_ALONE, 0, PAGES);
				break;
			case 1:
			case 2:
			case 3:
			case 4:
				submit(SLOT_READ, first, count);
				break;
			case 5:
				/* Neighbours, which become one. */
				for (uint32_t at = first; at < first + 20; at += 4)
					submit(SLOT_WRITE, at, 4);
				break;
			default:
				submit(SLOT_WRITE, first, count);
			}
			/* Kicked now and then, as the loop is lazy. */
			backup_kick(&q.b, 32);
			if (q.submitted - q.reaped > WAITING)
				settle(draw_below(&seed, WAITING));
			reap();
		}
		settle(0);
		for (uint32_t at = 0; at < PAGES; at += SLOT_PAGES)
			submit(SLOT_READ, at, SLOT_PAGES);
		settle(0);
		assert_int_equal(q.failed, 0);
		stop();
	}
}

/* What the file does not take fails, each by itself, and nothing else does. */
static void a_limit_in_the_middle(void **state)
{
	struct rlimit old, half = { PAGES / 2 * PAGE, RLIM_INFINITY };

	for (enum aio how = AIO_WORKS; how < AIOS; how++) {
		start(how);
		getrlimit(RLIMIT_FSIZE, &old);
		half.rlim_max = old.rlim_max;
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &half);
		/* Neighbours: one transfer, of which the second half is beyond it. */
		for (uint32_t i = 0; i < 8; i++)
			submit(SLOT_WRITE, PAGES / 2 - 16 + i * 4, 4);
		settle(0);
		setrlimit(RLIMIT_FSIZE, &old);
		assert_int_equal(q.failed, 4);
		/* It goes on when it can. */
		submit(SLOT_WRITE, PAGES / 2, 4);
		submit(SLOT_READ, PAGES / 2, 4);
		settle(0);
		assert_int_equal(q.failed, 4);
		stop();
	}
}

/* What is handed over behind its back is done before the thread ends. */
static void the_end_waits(void **state)
{
	uint32_t word;
	int fd;

	start(AIO_WORKS);
	for (uint32_t i = 0; i < 100; i++)
		submit(SLOT_WRITE, i, 1);
	fd = open(q.path, O_RDONLY);
	unlink(q.path);
	backup_close(&q.b);
	reap();
	assert_int_equal(q.reaped, 100);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(pread(fd, &word, sizeof(word), i * (off_t)PAGE), sizeof(word));
		assert_int_equal(word, q.stamp[i]);
	}
	close(fd);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(newest_content),
		cmocka_unit_test(a_limit_in_the_middle),
		cmocka_unit_test(the_end_waits),
	};

	return cmocka_run_group_tests_name("backup", tests, NULL, NULL);
}
