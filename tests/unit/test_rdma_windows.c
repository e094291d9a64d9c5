// SPDX-License-Identifier: GPL-2.0-or-later
/* Memory windows of borrowers by RDMA, on a device that the test plays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "donord/pool/exports.h"
#include "donord/pool/rdma.h"
#include "fake_verbs.h"
#include "lib/wire/wire_rdma.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 4 };

static struct pool pool;
static struct donor_log donor_log;
static struct rdma_place *place;
static struct rdma_queue queue;
static uint32_t granted, refused, joined;

static void take_grant(struct borrower *b, const struct wire_frame *request,
		       const struct lend_grant *g)
{
	granted += g != NULL;
	refused += !g;
}

static const struct borrower_ops borrower_ops = { .granted = take_grant };
static struct borrower borrower = { .name = "a", .priv = &queue, .ops = &borrower_ops };

static struct borrower *prove(void *data, const struct wire_join *j)
{
	return &borrower;
}

static void join(void *data, struct borrower *b)
{
	joined++;
}

/* The borrower connects its queue. */
static void let_join(void)
{
	uint8_t proof[WIRE_RDMA_JOIN_SIZE];

	wire_build_rdma_join(proof, &(struct wire_join){ .session = 1 });
	fake_requests(proof, sizeof(proof));
	rdma_place_event(place);
}

/* The borrower has a queue and two loans. */
static int with_loans(void **state)
{
	const struct rdma_host host = { .prove = prove, .joined = join };
	const struct address any = { .text = "any" };
	struct error e = { 0 };

	fake_reset();
	granted = refused = joined = 0;
	donor_log_init(&donor_log);
	if (pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e) ||
	    rdma_place_open(&place, &pool, &donor_log, &host, &any, &e) ||
	    pool_fill(&pool, SLABS, &e))
		fail_msg("%s", e.text);
	borrower.export = rdma_place_export(place);
	pool_add(&pool, &borrower);
	let_join();
	assert_int_equal(joined, 1);
	for (int i = 0; i < 2; i++) {
		struct wire_frame map = { .op = WIRE_MAP };

		assert_int_equal(pool_lend(&pool, &borrower, &map), WIRE_OK);
		assert_int_equal(map.slab, i);
		rdma_place_event(place);
	}
	assert_int_equal(granted, 2);
	return 0;
}

static int without(void **state)
{
	rdma_queue_end(place, &queue);
	rdma_place_close(&place);
	pool_free(&pool);
	return 0;
}

/* Releases the first loan. */
static enum wire_status release(void)
{
	return pool_return(&pool, &borrower, (struct wire_loan){ 0, pool.slabs[0].generation });
}

/* A queue pair that takes no packet makes its open windows useless. */
static void a_window_that_stays(void **state)
{
	fake.window_error = EBUSY;
	assert_int_equal(release(), WIRE_OK);
	assert_null(queue.id);
	assert_int_equal(pool.in[LEND_WITHDRAWN], 0);
	assert_int_equal(pool_remove(&pool, &borrower), 1);
	assert_int_equal(pool.in[LEND_WITHDRAWN], 0);
}

/* Otherwise a slab that its old borrower may reach is not lent again. */
static void a_queue_that_stays(void **state)
{
	fake.window_error = fake.stop_error = EBUSY;
	assert_int_equal(release(), WIRE_OK);
	assert_int_equal(pool.slabs[0].state, LEND_WITHDRAWN);
	/* The other loan goes on until it ends. */
	assert_int_equal(pool.slabs[1].state, LEND_LENT);
	assert_int_equal(pool_remove(&pool, &borrower), 1);
	assert_int_equal(pool.in[LEND_WITHDRAWN], 2);
	assert_int_equal(pool_free_slabs(&pool), SLABS - 2);
}

/* Nor is it if the session has resumed without RDMA meanwhile. */
static void a_queue_that_stays_behind(void **state)
{
	struct export stream = { .ops = &export_stream, .pool = &pool };
	struct borrower other = { .name = "a", .ops = &borrower_ops, .export = &stream };

	fake.window_error = fake.stop_error = EBUSY;
	rdma_queue_end(place, &queue);
	pool_add(&pool, &other);
	assert_int_equal(pool_take_over(&pool, &borrower, &other), 2);
	pool_remove(&pool, &borrower);
	assert_int_equal(pool_return(&pool, &other,
				     (struct wire_loan){ 0, pool.slabs[0].generation }), WIRE_OK);
	assert_int_equal(pool.slabs[0].state, LEND_WITHDRAWN);
	assert_int_equal(pool_remove(&pool, &other), 1);
	assert_int_equal(pool.in[LEND_WITHDRAWN], 2);
	assert_int_equal(pool_free_slabs(&pool), SLABS - 2);
}

/* Nor is it granted again to a session that resumes. */
static void not_granted_again(void **state)
{
	struct wire_frame remap = { .op = WIRE_REMAP, .generation = pool.slabs[0].generation };

	fake.window_error = fake.stop_error = EBUSY;
	assert_int_equal(pool_lend_again(&pool, &borrower, &remap), WIRE_NOT_HERE);
	assert_int_equal(pool_return_rest(&pool, &borrower), 1);
	assert_int_equal(pool.slabs[0].state, LEND_WITHDRAWN);
	pool_remove(&pool, &borrower);
}

/*
 * A session that resumes breaks once more, and its queue ends before the donor comes to a REMAP
 * that was sent on the control connection: the next resumption finds the loan.
 */
static void a_remap_behind_the_end_of_its_queue(void **state)
{
	struct wire_frame remap = { .op = WIRE_REMAP, .generation = pool.slabs[0].generation };

	rdma_queue_end(place, &queue);
	assert_int_equal(pool_lend_again(&pool, &borrower, &remap), WIRE_NOT_HERE);
	assert_int_equal(pool.slabs[0].state, LEND_LENT);
	let_join();
	assert_int_equal(joined, 2);
	assert_int_equal(pool_lend_again(&pool, &borrower, &remap), WIRE_OK);
	rdma_place_event(place);
	assert_int_equal(granted, 3);
	assert_int_equal(pool_return_rest(&pool, &borrower), 0);
	/* A loan that the borrower gives up instead does not stay. */
	rdma_queue_end(place, &queue);
	assert_int_equal(pool_lend_again(&pool, &borrower, &remap), WIRE_NOT_HERE);
	assert_int_equal(pool_return_rest(&pool, &borrower), 1);
	assert_int_equal(borrower.lent, 1);
	pool_remove(&pool, &borrower);
}

/*
 * The queue pair fails, and with it the binding of a window.  The borrower's pages are still in a
 * slab that it requested again.
 */
static void a_window_that_is_not_bound(void **state)
{
	struct wire_frame map = { .op = WIRE_MAP };
	struct wire_frame remap = { .op = WIRE_REMAP, .generation = pool.slabs[0].generation };

	fake.send_status = IBV_WC_WR_FLUSH_ERR;
	assert_int_equal(pool_lend(&pool, &borrower, &map), WIRE_OK);
	rdma_place_event(place);
	assert_int_equal(refused, 1);
	assert_int_equal(borrower.lent, 2);
	assert_int_equal(pool_lend_again(&pool, &borrower, &remap), WIRE_OK);
	rdma_place_event(place);
	assert_int_equal(refused, 1);
	assert_int_equal(borrower.lent, 2);
	assert_null(queue.id);
	fake.send_status = IBV_WC_SUCCESS;
	let_join();
	assert_int_equal(pool_lend_again(&pool, &borrower, &remap), WIRE_OK);
	rdma_place_event(place);
	assert_int_equal(granted, 3);
	assert_int_equal(pool_remove(&pool, &borrower), 2);
}

/* Its descriptor is readable for ever: the donor must not wait for it. */
static void a_device_that_is_removed(void **state)
{
	uint32_t lines = donor_log.notes.put;

	assert_int_equal(rdma_place_event(place), 0);
	/* Some devices wait until each program has closed them: it hears this alone. */
	fake_happens(fake.listener, RDMA_CM_EVENT_DEVICE_REMOVAL, NULL, 0);
	assert_int_equal(rdma_place_event(place), 0);
	assert_int_equal(donor_log.notes.put, lines + 1);
	fake.channel_error = EIO;
	for (int i = 0; i < 3; i++)
		assert_int_equal(rdma_place_event(place), -EIO);
	assert_int_equal(donor_log.notes.put, lines + 1);
	pool_remove(&pool, &borrower);
}

static void no_trouble(void **state)
{
	assert_int_equal(pool_remove(&pool, &borrower), 2);
	assert_int_equal(pool.in[LEND_DIRTY], 2);
	rdma_queue_end(place, &queue);
	rdma_place_close(&place);
	assert_int_equal(fake.objects, 0);
}

/* Connections that strangers attempt, each of which is logged, do not hide an event. */
static void an_event_among_strangers(void **state)
{
	struct notes *notes = &donor_log.notes;
	uint32_t strangers;

	for (int i = 0; i < 100; i++)
		donor_say(&donor_log, LOG_LVL_WARN, "a stranger");
	strangers = notes->put;
	assert_in_range(strangers, 1, NOTES - 10);
	donor_tell(&donor_log, EVENT_SLAB_REVOKED, LOG_LVL_WARN, "an event");
	donor_say(&donor_log, LOG_LVL_ERR, "an error");
	assert_true(notes->put > strangers + 1);
	assert_string_equal(notes->ring[(notes->put - 2) % NOTES].text, "an event");
	assert_string_equal(notes->ring[(notes->put - 1) % NOTES].text, "an error");
	pool_remove(&pool, &borrower);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_window_that_stays, with_loans, without),
		cmocka_unit_test_setup_teardown(a_queue_that_stays, with_loans, without),
		cmocka_unit_test_setup_teardown(a_queue_that_stays_behind, with_loans, without),
		cmocka_unit_test_setup_teardown(not_granted_again, with_loans, without),
		cmocka_unit_test_setup_teardown(a_remap_behind_the_end_of_its_queue, with_loans,
						without),
		cmocka_unit_test_setup_teardown(a_window_that_is_not_bound, with_loans, without),
		cmocka_unit_test_setup_teardown(a_device_that_is_removed, with_loans, without),
		cmocka_unit_test_setup_teardown(an_event_among_strangers, with_loans, without),
		cmocka_unit_test_setup_teardown(no_trouble, with_loans, without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
