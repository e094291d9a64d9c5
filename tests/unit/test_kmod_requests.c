// SPDX-License-Identifier: GPL-2.0-only
/* The kernel module's reads, writes and copies, whose donors and disk are the test's. */
#include <setjmp.h>
#include <stdarg.h>

#include "kmod_block.h"

#include "kmod-swap/session.c"
#include "kmod-swap/slab.c"
#include "kmod-swap/span.c"
#include "kmod-swap/state.c"
#define donor_done read_donor_done
#define backup_done read_backup_done
#include "kmod-swap/read.c"
#undef donor_done
#undef backup_done
#define donor_done write_donor_done
#define backup_done write_backup_done
#include "kmod-swap/write.c"
#undef donor_done
#undef backup_done
#include "kmod-swap/copy.c"

#include <cmocka.h>

enum { PAGES = 256, STEPS = 10000 };

unsigned long jiffies;

static struct {
	struct ebb_device device;
	struct ebb_slab slab;
	struct ebb_counts counts;
	struct ebb_session session[2];
	struct {
		struct request rq;
		struct ebb_io io;
	} tag;
	struct work_struct *queued;  /* NULL = the request or the copier does not continue */
	bool ended, backup_fails;
	blk_status_t status;
	u64 ns;                      /* clock */
	u64 transfer_ns;             /* that a transfer of the copier takes */
	unsigned long slept_us;
	struct ebb_transfer *transfer; /* of the copier, in flight */
	void (*flies)(void);         /* called while it is */
} w;

static struct ebb_place *place(enum ebb_at at)
{
	return &w.slab.hold.at[at];
}

static void map(enum ebb_at at, int session)
{
	*place(at) = (struct ebb_place){ .session = &w.session[session], .epoch = ++w.slab.epoch };
	ebb_session_happens(&w.session[session], ON_OPENED);
	assert_true(ebb_session_live(&w.session[session]));
}

static void go_away(int session)
{
	ebb_session_fail(&w.session[session], EBB_SWAP_CAUSE_UNREACHABLE, "");
	assert_int_equal(atomic_read(&w.session[session].state), EBB_SWAP_AWAY);
}

static void come_back(int session)
{
	ebb_session_happens(&w.session[session], ON_TURN);
	ebb_session_happens(&w.session[session], ON_SUSPENDED);
	ebb_session_happens(&w.session[session], ON_RESUMED);
	assert_true(ebb_session_live(&w.session[session]));
}

/* A device of one slab with a backup. */
static int begin(void **state)
{
	memset(&w, 0, sizeof(w));
	w.device.pages = w.device.slab_pages = PAGES;
	w.device.slab_shift = 8;
	w.device.slab_count = 1;
	w.device.deadline = 1000;
	w.device.counts = &w.counts;
	assert_int_equal(ebb_slabs_init(&w.device), 0);
	free(w.device.slabs);
	w.device.slabs = &w.slab;
	INIT_LIST_HEAD(&w.slab.active);
	INIT_LIST_HEAD(&w.slab.waiting);
	INIT_LIST_HEAD(&w.slab.stuck);
	w.slab.hold.copies = EBB_SWAP_DONOR | EBB_SWAP_BACKUP;
	w.device.backup.bdev = &w;
	for (int i = 0; i < 2; i++) {
		w.session[i].device = &w.device;
		w.session[i].ref.count = 1;
		w.session[i].grace = 30000;
	}
	assert_int_equal(ebb_copier_init(&w.device), 0);
	jiffies = 1000;
	w.ns = NSEC_PER_MSEC * 1000;
	return 0;
}

static int end(void **state)
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(w.session[i].ref.count, 1);
	assert_true(list_empty(&w.slab.active));
	ebb_copier_free(&w.device);
	w.device.slabs = NULL;
	ebb_slabs_free(&w.device);
	return 0;
}

/* Begins a request for @count pages from @first on. */
static struct ebb_io *io_new(u64 first, u32 count, bool write)
{
	struct ebb_io *io = &w.tag.io;

	memset(&w.tag, 0, sizeof(w.tag));
	io->device = &w.device;
	io->slab = &w.slab;
	io->span = (struct ebb_span){ .first = first, .count = count, .write = write };
	INIT_LIST_HEAD(&io->span.node);
	io->transfer[1].index = 1;
	assert_true(ebb_span_start(&w.slab, &io->span));
	w.ended = false;
	return io;
}

/* Continues the request until it has ended or @ms have passed; returns whether it has ended. */
static bool io_run(struct ebb_io *io, unsigned int ms)
{
	unsigned long until = jiffies + msecs_to_jiffies(ms);

	for (int i = 0; w.queued && !w.ended && time_before(jiffies, until); i++) {
		assert_true(i < STEPS);
		w.queued = NULL;
		/* Most continue after a pause; a tick each is exact enough. */
		jiffies++;
		switch (io->step) {
		case EBB_STEP_READ:
			ebb_read_go(io, NULL);
			break;
		case EBB_STEP_WRITE:
			ebb_write_go(io, NULL);
			break;
		case EBB_STEP_BACKUP:
			if (io->span.write)
				ebb_write_backup(io);
			else
				ebb_read_backup(io);
			break;
		default:
			fail();
		}
	}
	return w.ended;
}

/* --- what the module calls --- */

void *kzalloc(size_t size, int flags)
{
	return calloc(1, size);
}

void kfree(void *p)
{
	free(p);
}

void world_lock(bool *held, bool spin)
{
	assert_false(*held);
	*held = true;
}

void world_unlock(bool *held, bool spin)
{
	*held = false;
}

void world_queue(struct work_struct *work)
{
	/* Sessions are suspended and resumed by the test. */
	if (work == &w.tag.io.work.work || work == &w.device.copier->work.work)
		w.queued = work;
}

void cancel_work_sync(struct work_struct *work)
{
	w.queued = NULL;
}

u64 ktime_get_ns(void)
{
	return w.ns;
}

void usleep_range(unsigned long least, unsigned long most)
{
	w.slept_us += least;
	w.ns += least * NSEC_PER_USEC;
}

int submit_bio_wait(struct bio *bio)
{
	return w.backup_fails ? -EIO : 0;
}

void wait_for_completion(struct completion *c)
{
	assert_true(c->done);
}

unsigned long wait_for_completion_timeout(struct completion *c, unsigned long timeout)
{
	w.ns += w.transfer_ns;
	if (w.flies)
		w.flies();
	w.transfer->done(w.transfer, 0);
	return 1;
}

int ebb_transfer_start(struct ebb_transfer *t, u32 skip, u32 bytes, u64 address, u32 rkey,
		       u32 queue, struct ebb_batch *batch)
{
	w.transfer = t;
	percpu_ref_put(&t->session->ref);
	return 0;
}

bool ebb_donor_take(struct ebb_io *io, int i, const struct ebb_place *from, struct ebb_there *to)
{
	if (!ebb_place_take(from))
		return false;
	io->transfer[i].session = from->session;
	io->span.epoch[i] = from->epoch;
	return true;
}

int ebb_donor_start(struct ebb_io *io, int i, u32 count, const struct ebb_there *to,
		    struct ebb_batch *batch, void (*done)(struct ebb_transfer *transfer, int error))
{
	percpu_ref_put(&io->transfer[i].session->ref);
	done(&io->transfer[i], 0);
	return 0;
}

void ebb_backup_start(struct ebb_io *io, u32 from, u32 count, bio_end_io_t *done)
{
	io->bio = (struct bio){ .bi_private = io };
	io->bio.bi_status = w.backup_fails ? BLK_STS_IOERR : BLK_STS_OK;
	done(&io->bio);
}

void ebb_io_finish(struct ebb_io *io, blk_status_t status)
{
	assert_false(w.ended);
	w.ended = true;
	w.status = status;
	ebb_span_end(io->slab, &io->span, NULL);
}

u32 ebb_class_of_pages(const struct ebb_device *d, u64 page, u32 *run)
{
	return 0;
}

unsigned long ebb_class_word(const struct ebb_device *d, size_t word, u32 class)
{
	return ~0ul;
}

u32 ebb_read_priority_take(struct ebb_io *io)
{
	return io->span.count;
}

/* Nothing is sealed, no page is in a pool, and no program listens to events. */
#define UNUSED_CALL(type, name, result, ...) type name(__VA_ARGS__) { return result; }
UNUSED_CALL(void, ebb_class_set, , struct ebb_device *d, u64 page, u32 count, u32 class)
UNUSED_CALL(void, ebb_read_priority_end, , struct ebb_io *io)
UNUSED_CALL(void, ebb_each_piece, , struct ebb_io *io, u32 from, u32 count, ebb_piece *call)
UNUSED_CALL(void, ebb_each_outside, , struct ebb_io *io, u32 from, u32 count, ebb_piece *call)
UNUSED_CALL(void, ebb_writeback_piece, , struct ebb_io *io, const struct bio_vec *v)
UNUSED_CALL(void, ebb_buffer_piece, , struct ebb_io *io, const struct bio_vec *v)
UNUSED_CALL(bool, ebb_seal_get_buffer, true, struct ebb_io *io, enum ebb_step step)
UNUSED_CALL(void, ebb_seal_put_buffer, , struct ebb_io *io)
UNUSED_CALL(int, ebb_seal_encrypt, 0, struct ebb_io *io)
UNUSED_CALL(int, ebb_seal_decrypt, 0, struct ebb_io *io, u32 from, u32 *count)
UNUSED_CALL(int, ebb_seal_check, 0, struct ebb_device *d, u64 page, struct page *from)
UNUSED_CALL(void, ebb_seal_commit, , const struct ebb_io *io)
UNUSED_CALL(struct ebb_writeback *, ebb_writeback_alloc, NULL, struct ebb_device *d,
	    const struct ebb_span *span)
UNUSED_CALL(void, ebb_writeback_put, , struct ebb_writeback *b)
UNUSED_CALL(void, ebb_writeback_begin, , struct ebb_slab *slab, struct ebb_writeback *b)
UNUSED_CALL(void, ebb_writeback_queue, , struct ebb_writeback *b)
UNUSED_CALL(void, ebb_writeback_supersede, , struct ebb_slab *slab, const struct ebb_span *span)
UNUSED_CALL(struct ebb_writeback *, ebb_writeback_find, NULL, struct ebb_slab *slab, u64 page,
	    u32 *run)
UNUSED_CALL(void, ebb_bad_page, , struct ebb_device *d, u64 page, u32 class, enum ebb_at from,
	    u32 epoch)
UNUSED_CALL(void, ebb_event_send, , const struct ebb_device *d, u32 event, u32 session, u32 slab,
	    u32 cause, const char *reason)
UNUSED_CALL(void, ebb_session_release, , struct ebb_session *s, struct ebb_loan *loan)

/* --- reads --- */

/* The donor is away, and the disk fails: the donor's page is waited for. */
static void a_read_waits_for_its_donor_once_the_backup_has_failed(void **state)
{
	struct ebb_io *io;

	map(AT_DONOR, 0);
	ebb_slab_written(&w.device, 0, 8, 0, BIT(AT_DONOR) | BIT(AT_BACKUP));
	go_away(0);
	w.backup_fails = true;
	io = io_new(0, 8, false);
	ebb_read_go(io, NULL);
	assert_false(io_run(io, 1000));
	assert_int_equal(w.counts.n[EBB_SWAP_C_BACKUP_ERRORS], 1);
	come_back(0);
	assert_true(io_run(io, 1000));
	assert_int_equal(w.status, BLK_STS_OK);
	assert_int_equal(w.counts.n[EBB_SWAP_C_READ_DONOR], 8);
}

/* Pages that only the disk has fail alone, and it is asked once. */
static void a_read_fails_what_only_the_failing_backup_has(void **state)
{
	struct ebb_io *io;

	map(AT_DONOR, 0);
	ebb_slab_written(&w.device, 0, 8, 0, BIT(AT_BACKUP));
	ebb_slab_written(&w.device, 3, 2, 0, BIT(AT_DONOR));
	w.backup_fails = true;
	io = io_new(0, 8, false);
	ebb_read_go(io, NULL);
	assert_true(io_run(io, 1000));
	assert_int_equal(w.status, BLK_STS_IOERR);
	assert_int_equal(io->failed[0], 0xe7);
	assert_int_equal(w.counts.n[EBB_SWAP_C_BACKUP_ERRORS], 1);
}

/* Nor is a donor waited for that lacks the page. */
static void a_read_waits_for_no_donor_without_the_page(void **state)
{
	struct ebb_io *io;

	map(AT_DONOR, 0);
	ebb_slab_written(&w.device, 0, 8, 0, BIT(AT_BACKUP));
	go_away(0);
	w.backup_fails = true;
	io = io_new(0, 8, false);
	ebb_read_go(io, NULL);
	assert_true(io_run(io, 1000));
	assert_int_equal(io->failed[0], 0xff);
	assert_int_equal(w.counts.n[EBB_SWAP_C_AWAY_WAITS], 0);
}

/* After away_timeout it is EIO. */
static void a_read_waits_for_its_donor_in_bounded_time(void **state)
{
	struct ebb_io *io;

	map(AT_DONOR, 0);
	ebb_slab_written(&w.device, 0, 8, 0, BIT(AT_DONOR) | BIT(AT_BACKUP));
	go_away(0);
	w.backup_fails = true;
	io = io_new(0, 8, false);
	ebb_read_go(io, NULL);
	assert_true(io_run(io, away_timeout + 1000));
	assert_int_equal(io->failed[0], 0xff);
	assert_int_equal(w.counts.n[EBB_SWAP_C_BACKUP_ERRORS], 1);
}

/* --- writes --- */

/* Writes 8 pages of a slab whose only donor is away, without a backup; @flags: of the request. */
static struct ebb_io *write_to_the_absent(u32 flags)
{
	struct ebb_io *io;

	w.device.backup.bdev = NULL;
	map(AT_DONOR, 0);
	go_away(0);
	io = io_new(0, 8, true);
	w.tag.rq.cmd_flags = flags;
	ebb_write_go(io, NULL);
	return io;
}

static void a_swap_out_is_held_for_the_only_donor(void **state)
{
	struct ebb_io *io = write_to_the_absent(REQ_SWAP);

	assert_false(io_run(io, 1900));
	come_back(0);
	assert_true(io_run(io, 100));
	assert_int_equal(w.status, BLK_STS_OK);
	assert_true(ebb_slab_is_at(&w.device, 7, BIT(AT_DONOR)));
}

static void a_swap_out_fails_once_the_only_donor_is_away_for_long(void **state)
{
	struct ebb_io *io = write_to_the_absent(REQ_SWAP);

	assert_true(io_run(io, 2100));
	assert_int_equal(w.status, BLK_STS_IOERR);
}

/* Other donors' swap-outs are not admitted meanwhile. */
static void a_swap_out_is_held_briefly_beside_a_live_donor(void **state)
{
	struct ebb_io *io = write_to_the_absent(REQ_SWAP);

	ebb_session_happens(&w.session[1], ON_OPENED);
	assert_false(io_run(io, 80));
	assert_true(io_run(io, 100));
	assert_int_equal(w.status, BLK_STS_IOERR);
}

/* It goes on being held when the other donor is away, too. */
static void a_swap_out_is_held_beside_an_absent_donor(void **state)
{
	struct ebb_io *io = write_to_the_absent(REQ_SWAP);

	ebb_session_happens(&w.session[1], ON_OPENED);
	assert_false(io_run(io, 80));
	go_away(1);
	assert_false(io_run(io, 1500));
	come_back(0);
	assert_true(io_run(io, 100));
	assert_int_equal(w.status, BLK_STS_OK);
}

/* Nothing is admitted in its place. */
static void another_write_is_held_beside_a_live_donor(void **state)
{
	struct ebb_io *io = write_to_the_absent(REQ_SYNC | REQ_IDLE);

	ebb_session_happens(&w.session[1], ON_OPENED);
	assert_false(io_run(io, 1900));
	assert_true(io_run(io, 200));
	assert_int_equal(w.status, BLK_STS_IOERR);
}

/* --- copies --- */

/* Both donors of a copy keep the slab until it has ended. */
static void both_are_used(void)
{
	assert_true(ebb_span_uses(&w.slab, place(AT_DONOR)->epoch));
	assert_true(ebb_span_uses(&w.slab, place(AT_SECOND)->epoch));
}

static void a_copy_uses_its_donors(void **state)
{
	map(AT_DONOR, 0);
	map(AT_SECOND, 1);
	ebb_slab_written(&w.device, 0, 64, 0, BIT(AT_DONOR));
	w.flies = both_are_used;
	w.device.copier->work.work.run(&w.device.copier->work.work);
	assert_non_null(w.transfer);
	assert_false(ebb_span_uses(&w.slab, place(AT_DONOR)->epoch));
	assert_true(ebb_slab_is_at(&w.device, 63, BIT(AT_SECOND)));
}

static void a_copy_uses_its_only_donor(void **state)
{
	map(AT_DONOR, 0);
	ebb_slab_written(&w.device, 0, 64, 0, BIT(AT_BACKUP));
	w.device.copier->work.work.run(&w.device.copier->work.work);
	assert_true(ebb_slab_is_at(&w.device, 63, BIT(AT_DONOR)));
}

/* Copies a chunk whose READ and WRITE take @ns each; returns how long (us) the copier pauses. */
static unsigned long pause_after(u64 ns)
{
	unsigned long before = w.slept_us;

	w.transfer_ns = ns;
	w.device.copier->work.work.run(&w.device.copier->work.work);
	return w.slept_us - before;
}

static void the_copier_pauses_as_long_as_the_donors_are_slow(void **state)
{
	map(AT_DONOR, 0);
	map(AT_SECOND, 1);
	ebb_slab_written(&w.device, 0, PAGES, 0, BIT(AT_DONOR));
	w.counts.n[EBB_SWAP_C_REQUESTS]++;
	assert_int_equal(pause_after(50 * NSEC_PER_USEC), 300);
	/* The request is less than 4 ms ago. */
	assert_int_equal(pause_after(50 * NSEC_PER_USEC), 300);
	assert_int_equal(pause_after(1 * NSEC_PER_MSEC), 4000);
	/* No longer. */
	assert_int_equal(pause_after(50 * NSEC_PER_USEC), 0);
	assert_int_equal(w.counts.n[EBB_SWAP_C_COPIED], PAGES);
}

/* Without a transfer there is nothing to measure. */
static void the_copier_pauses_for_longest_after_a_failure(void **state)
{
	map(AT_DONOR, 0);
	ebb_slab_written(&w.device, 0, 64, 0, BIT(AT_BACKUP));
	w.backup_fails = true;
	w.counts.n[EBB_SWAP_C_REQUESTS]++;
	assert_int_equal(pause_after(0), 4000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_read_waits_for_its_donor_once_the_backup_has_failed, begin, end),
		cmocka_unit_test_setup_teardown(
			a_read_fails_what_only_the_failing_backup_has, begin, end),
		cmocka_unit_test_setup_teardown(
			a_read_waits_for_no_donor_without_the_page, begin, end),
		cmocka_unit_test_setup_teardown(
			a_read_waits_for_its_donor_in_bounded_time, begin, end),
		cmocka_unit_test_setup_teardown(a_swap_out_is_held_for_the_only_donor, begin, end),
		cmocka_unit_test_setup_teardown(
			a_swap_out_fails_once_the_only_donor_is_away_for_long, begin, end),
		cmocka_unit_test_setup_teardown(
			a_swap_out_is_held_briefly_beside_a_live_donor, begin, end),
		cmocka_unit_test_setup_teardown(
			a_swap_out_is_held_beside_an_absent_donor, begin, end),
		cmocka_unit_test_setup_teardown(
			another_write_is_held_beside_a_live_donor, begin, end),
		cmocka_unit_test_setup_teardown(a_copy_uses_its_donors, begin, end),
		cmocka_unit_test_setup_teardown(a_copy_uses_its_only_donor, begin, end),
		cmocka_unit_test_setup_teardown(
			the_copier_pauses_as_long_as_the_donors_are_slow, begin, end),
		cmocka_unit_test_setup_teardown(
			the_copier_pauses_for_longest_after_a_failure, begin, end),
	};

	return cmocka_run_group_tests_name("kmod_requests", tests, NULL, NULL);
}
