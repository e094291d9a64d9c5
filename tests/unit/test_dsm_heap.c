// SPDX-License-Identifier: GPL-2.0-or-later
/* A process's places by their names: a name of no object is not found, nor is one that ended. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "far_world.h"
#include "userlib/dsm/dsm.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static const size_t sizes[] = { 1, 16, 32, 48, 100, 1000, 4096, 8100, 8200, 12000, 16300, 16353,
				65504, 65505, 300000, EBBDSM_SIZE_MOST };

enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static const char *at;

static int by_tcp(void **state)
{
	int r = with_far_thread(state);

	at = world.tcp;
	return r;
}

static int by_mapping(void **state)
{
	int r = with_far_thread(state);

	at = world.local;
	return r;
}

static ebbdsm_t *join(void)
{
	const char *const donors[] = { at };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 1,
				    .pool = "p", .timeout_ms = 5000 };
	ebbdsm_t *dsm;

	if (ebbdsm_open(&o, &dsm))
		fail_msg("%s", o.error);
	return dsm;
}

/* Names as name_make() makes them, which other processes parse. */
static void names(void **state)
{
	ebbdsm_t *dsm = join();

	for (int i = 0; i < SIZES; i++)
		for (int k = 0; k < 3; k++) {
			uint32_t kind = name_kind(DSM_HEAD + sizes[i]);
			struct ebbdsm_box box = { 0 };
			struct name n = { 0 };

			assert_int_equal(ebbdsm_new(dsm, NULL, sizes[i], &box), 0);
			assert_true(name_parse(box.at, dsm_generation(box.stamp), 1, &n));
			assert_int_equal(n.kind, kind);
			assert_int_equal(n.member, dsm->home->member);
			assert_int_equal(name_make(0, n.member, &n.x, n.offset, kind,
						   DSM_HEAD + sizes[i]), box.at);
			assert_true(dsm_size_fits(box.at, sizes[i]));
			assert_int_equal(ebbdsm_size(dsm, &box), sizes[i]);
		}
	ebbdsm_close(dsm);
}

/* Of a name that differs in one bit there is no object, whether the right one was just found. */
static void other_names(void **state)
{
	ebbdsm_t *dsm = join();

	for (int i = 0; i < SIZES; i++) {
		struct ebbdsm_box box = { 0 };

		assert_int_equal(ebbdsm_new(dsm, NULL, sizes[i], &box), 0);
		for (int bit = 0; bit < 64; bit++) {
			struct ebbdsm_box other = { box.at ^ 1ull << bit, box.stamp };

			assert_non_null(heap_find(&dsm->heap, box.at));
			assert_null(heap_find(&dsm->heap, other.at));
			assert_int_equal(ebbdsm_size(dsm, &other), 0);
			assert_int_equal(ebbdsm_drop(dsm, &other), -ESTALE);
		}
		assert_int_equal(ebbdsm_drop(dsm, &box), 0);
	}
	assert_null(heap_find(&dsm->heap, 0));
	ebbdsm_close(dsm);
}

/* A place that was found is not found after the object's end, also when its block was freed. */
static void ended(void **state)
{
	ebbdsm_t *dsm = join();

	for (int i = 0; i < SIZES; i++)
		for (int k = 0; k < 3; k++) {
			struct ebbdsm_box box = { 0 };
			uint64_t place;

			assert_int_equal(ebbdsm_new(dsm, NULL, sizes[i], &box), 0);
			place = box.at;
			assert_non_null(heap_find(&dsm->heap, place));
			assert_int_equal(ebbdsm_drop(dsm, &box), 0);
			assert_null(heap_find(&dsm->heap, place));
			assert_null(heap_memory(&dsm->heap, place));
			assert_int_equal(heap_stamp(&dsm->heap, place), 0);
			assert_true(heap_is_worn(&dsm->heap, place));
		}
	ebbdsm_close(dsm);
}

#define BY_BOTH(test)                                                                    \
	{ #test " by TCP", test, by_tcp, end_far_donor, NULL },                          \
	{ #test " mapped", test, by_mapping, end_far_donor, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_BOTH(names),
		BY_BOTH(other_names),
		BY_BOTH(ended),
	};

	return cmocka_run_group_tests_name("libebbdsm's places", tests, NULL, NULL);
}
