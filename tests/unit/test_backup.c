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

#include "lib/base/draw.h"
#include "swapd/request/backup.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { PAGE = 4096, PAGES = 4096, JOBS = 8000, WAITING = 200 };

/* --- what libaio does, and what it may do instead -------------------------------- */

enum aio { AIO_WORKS, AIO_NO_SETUP, AIO_NO_SUBMIT, AIO_SHORT, AIOS, AIO_HOLDS_WRITES };

static enum aio aio;
static uint64_t turn;
/* With AIO_HOLDS_WRITES: those the disk has not come to, until it is told to. */
static struct iocb *held[64];
static uint32_t held_count;
static io_context_t context_of_held;

int io_setup(int depth, io_context_t *context)
{
	if (aio == AIO_NO_SETUP)
		return -EAGAIN;
	return syscall(SYS_io_setup, depth, context) < 0 ? -errno : 0;
}

int io_submit(io_context_t context, long n, struct iocb **cb)
{
	if (aio == AIO_HOLDS_WRITES && cb[0]->aio_lio_opcode == IO_CMD_PWRITEV) {
		context_of_held = context;
		held[held_count] = cb[0];
		__atomic_store_n(&held_count, held_count + 1, __ATOMIC_RELEASE);
		return 1;
	}
	/* Every third is refused, or ends early. */
	if (aio == AIO_NO_SUBMIT && ++turn % 3 == 0)
		return -EAGAIN;
	if (aio == AIO_SHORT && ++turn % 3 == 0 && cb[0]->u.c.nbytes > 1)
		cb[0]->u.c.nbytes--;
	return syscall(SYS_io_submit, context, n, cb) < 0 ? -errno : (int)n;
}

/* Its file system has become read-only: what is open still works. */
static bool read_only;

int open(const char *path, int flags, ...)
{
	if (read_only && !strncmp(path, "/proc/self/fd/", 14)) {
		errno = EROFS;
		return -1;
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0600);
}

/* Its file system has no fallocate(2): a signal to end comes with the first look. */
static bool zeroes;

int fallocate(int fd, int mode, off_t offset, off_t size)
{
	if (!zeroes)
		return (int)syscall(SYS_fallocate, fd, mode, offset, size);
	errno = EOPNOTSUPP;
	return -1;
}

/* --- a queue and its file ----------------------------------------------------------- */

struct queue {
	struct backup b;
	struct slots slots;
	char path[64];
	uint32_t stamps, stamp[PAGES]; /* as handed over */
	uint32_t order[SLOT_COUNT]; /* when handed over, among those of its lane */
	uint32_t submitted[2], reaped[2], failed; /* [1]: reads */
	uint8_t reading[PAGES]; /* READs in flight, which no WRITE may overlap */
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
	held_count = 0;
	/* A disk, where there is one: tmpfs takes no direct I/O. */
	strcpy(q.path, "/var/tmp/ebb-backup-XXXXXX");
	close(mkstemp(q.path));
	assert_int_equal(slots_init(&q.slots, SLOT_COUNT, &e), 0);
	assert_int_equal(backup_open(&q.b, q.path, PAGES * PAGE, &e), 0);
	assert_int_equal(backup_start(&q.b, &q.slots, &e), 0);
	/* One that comes upon the first jobs by itself takes them, and lets the rest gather. */
	while (!__atomic_load_n(&q.b.sleeping, __ATOMIC_SEQ_CST))
		usleep(100);
}

static void stop(void)
{
	backup_close(&q.b);
	assert_int_equal(q.slots.free_count, SLOT_COUNT);
	slots_free(&q.slots);
	unlink(q.path);
}

static uint32_t under_way(void)
{
	return q.submitted[0] + q.submitted[1] - q.reaped[0] - q.reaped[1];
}

static void hand_over(struct slot *slot)
{
	q.order[slot_index(&q.slots, slot)] = q.submitted[slot->kind == SLOT_READ]++;
	backup_submit(&q.b, slot);
}

static void check_run(struct slot *slot)
{
	for (uint32_t i = slot->cursor; i < slot->cursor + slot->run; i++) {
		assert_int_equal(page_of(slot, i)[0], q.stamp[slot->first + i]);
		assert_int_equal(page_of(slot, i)[1023], q.stamp[slot->first + i]);
	}
	slot->cursor += slot->run;
}

/* What of the READ is queued is taken from there, what is not is read. */
static void read_on(struct slot *slot)
{
	while (slot->cursor < slot->count) {
		slot->run = slot->count - slot->cursor;
		if (!backup_take_queued(&q.b, slot)) {
			hand_over(slot);
			return;
		}
		assert_true(slot->run && slot->cursor + slot->run <= slot->count);
		check_run(slot);
	}
	for (uint32_t i = 0; i < slot->count; i++)
		q.reading[slot->first + i]--;
	slot_put(&q.slots, slot);
}

/* Takes what has come back; in the order it was handed over. */
static void reap(void)
{
	struct slot *slot;

	while ((slot = backup_reap(&q.b))) {
		bool reads = slot->kind == SLOT_READ;

		assert_int_equal(q.order[slot_index(&q.slots, slot)], q.reaped[reads]++);
		q.failed += slot->backup_result != 0;
		if (!reads) {
			slot_put(&q.slots, slot);
			continue;
		}
		assert_int_equal(slot->backup_result, 0);
		check_run(slot);
		read_on(slot);
	}
}

/* Runs until at most @left jobs are in flight, as the loop does. */
static void settle(uint32_t left)
{
	while (under_way() > left) {
		struct pollfd p = { .fd = q.b.done_fd, .events = POLLIN };
		uint64_t n;

		backup_kick(&q.b, 1);
		if (!backup_notify(&q.b)) {
			assert_int_equal(poll(&p, 1, 60000), 1);
			assert_int_equal(read(q.b.done_fd, &n, sizeof(n)), sizeof(n));
		}
		reap();
	}
}

static void submit(enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot;

	for (uint32_t i = 0; kind == SLOT_WRITE && i < count; i++)
		if (q.reading[first + i])
			settle(0);
	slot = slot_get(&q.slots);
	slot->kind = (uint8_t)kind;
	slot->first = first;
	slot->count = count;
	for (uint32_t i = 0; kind == SLOT_WRITE && i < count; i++)
		page_of(slot, i)[0] = page_of(slot, i)[1023] = q.stamp[first + i] = ++q.stamps;
	if (kind != SLOT_READ) {
		hand_over(slot);
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		page_of(slot, i)[0] = page_of(slot, i)[1023] = ~0u;
		q.reading[first + i]++;
	}
	/* Of some the thread gets a part. */
	if (count > 2)
		slot->cursor = 1;
	read_on(slot);
}

/* --- tests --------------------------------------------------------------------------- */

/* Jobs on the same pages in order, whatever the disk does; a read finds what was last written. */
static void newest_content(void **state)
{
	for (enum aio how = AIO_WORKS; how < AIOS; how++) {
		uint64_t seed = 99 + how;

		start(how);
		for (int i = 0; i < JOBS / (how == AIO_WORKS ? 1 : 4); i++) {
			uint32_t count = 1 +
					 draw_below(&seed, draw_below(&seed, 8) ? 4 : SLOT_PAGES);
			/* Few places, so that they meet. */
			uint32_t first = draw_below(&seed,
						    draw_below(&seed, 2) ? 24 : PAGES - SLOT_PAGES);

			switch (draw_below(&seed, 16)) {
			case 0:
				submit(SLOT_EXCLUSIVE, 0, PAGES);
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
			if (under_way() > WAITING)
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

static void wait_for_held(uint32_t count)
{
	for (int i = 0; i < 60000 && __atomic_load_n(&held_count, __ATOMIC_ACQUIRE) < count; i++)
		usleep(1000);
	assert_int_equal(__atomic_load_n(&held_count, __ATOMIC_ACQUIRE), count);
}

/*
 * The disk stalls in writes: other pages are read all the same,
 * queued pages are read from the queue, and the number of writes in flight is bounded.
 */
static void a_read_overtakes_the_queue(void **state)
{
	enum { EVERY = 3, WRITES = 64 };

	start(AIO_HOLDS_WRITES);
	for (uint32_t i = 0; i < WRITES; i++)
		submit(SLOT_WRITE, i * EVERY, 1);
	submit(SLOT_WRITE, 0, 2);
	backup_kick(&q.b, 1);
	wait_for_held(32);
	/* Now it sleeps, for the end of one of them. */
	usleep(20000);
	submit(SLOT_READ, 400, 8);
	assert_int_equal(q.submitted[1], 1);
	settle(WRITES + 1);
	assert_int_equal(q.reaped[1], 1);
	/* Queued and not queued, by turns; the newest of those that are queued twice. */
	submit(SLOT_READ, 0, 9);
	settle(WRITES + 1);
	assert_int_equal(q.reaped[1], 4);
	assert_int_equal(q.reaped[0], 0);
	assert_int_equal(q.failed, 0);
	/* It goes on, in the end. */
	aio = AIO_WORKS;
	for (uint32_t i = 0; i < 32; i++)
		assert_int_equal(io_submit(context_of_held, 1, &held[i]), 1);
	settle(0);
	assert_int_equal(q.reaped[0], WRITES + 1);
	for (uint32_t at = 0; at < PAGES; at += SLOT_PAGES)
		submit(SLOT_READ, at, SLOT_PAGES);
	settle(0);
	assert_int_equal(q.failed, 0);
	stop();

	/* Neighbours, 4 MiB each once they are one: two of the four. */
	start(AIO_HOLDS_WRITES);
	for (uint32_t at = 0; at < PAGES; at += SLOT_PAGES)
		submit(SLOT_WRITE, at, SLOT_PAGES);
	backup_kick(&q.b, 1);
	wait_for_held(2);
	usleep(50000);
	assert_int_equal(held_count, 2);
	aio = AIO_WORKS;
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(io_submit(context_of_held, 1, &held[i]), 1);
	settle(0);
	assert_int_equal(q.failed, 0);
	stop();
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
	assert_int_equal(q.reaped[0], 100);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(pread(fd, &word, sizeof(word), i * (off_t)PAGE), sizeof(word));
		assert_int_equal(word, q.stamp[i]);
	}
	close(fd);
	stop();
}

static void two_servers(void **state)
{
	struct backup *second = calloc(1, sizeof(*second));
	struct error e = { 0 };

	assert_non_null(second);
	start(AIO_WORKS);
	assert_true(q.b.shared_fd >= 0);
	assert_int_equal(backup_claim(&q.b), 0);
	/* As the supervisor has it. */
	strcpy(second->path, q.path);
	second->direct = q.b.direct;
	second->fd = dup(q.b.shared_fd);
	second->shared_fd = -1;
	assert_int_equal(backup_start(second, &q.slots, &e), 0);
	assert_int_equal(backup_claim(second), -EAGAIN);
	submit(SLOT_WRITE, 0, 4);
	settle(0);
	stop();
	/* The kernel puts away a file that it has used in its own time. */
	for (int i = 0; i < 60000 && backup_claim(second); i++)
		usleep(1000);
	assert_int_equal(backup_claim(second), 0);
	backup_close(second);
	free(second);
}

static void without_a_file_of_its_own(void **state)
{
	read_only = true;
	start(AIO_WORKS);
	read_only = false;
	assert_int_equal(q.b.shared_fd, -1);
	assert_int_equal(backup_claim(&q.b), 0);
	submit(SLOT_WRITE, 0, 4);
	settle(0);
	submit(SLOT_READ, 0, 4);
	settle(0);
	assert_int_equal(q.failed, 0);
	stop();
}

static void an_allocation_that_writes_can_be_ended(void **state)
{
	char path[] = "/tmp/ebb-test-zeroes-XXXXXX";
	sigset_t blocked, before;
	struct backup b = { 0 };
	struct error e = { 0 };
	int fd = mkstemp(path), number;

	assert_true(fd >= 0 && !close(fd) && !unlink(path));
	zeroes = true;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	assert_int_equal(sigprocmask(SIG_BLOCK, &blocked, &before), 0);
	assert_int_equal(raise(SIGTERM), 0);
	assert_int_equal(backup_open(&b, path, 64 << 20, &e), -EINTR);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(sigwait(&blocked, &number), 0);
	assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
	zeroes = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(newest_content),
		cmocka_unit_test(a_read_overtakes_the_queue),
		cmocka_unit_test(a_limit_in_the_middle),
		cmocka_unit_test(the_end_waits),
		cmocka_unit_test(two_servers),
		cmocka_unit_test(without_a_file_of_its_own),
		cmocka_unit_test(an_allocation_that_writes_can_be_ended),
	};

	return cmocka_run_group_tests_name("backup", tests, NULL, NULL);
}
