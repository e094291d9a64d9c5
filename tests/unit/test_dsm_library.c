// SPDX-License-Identifier: GPL-2.0-or-later
/* libebbdsm and a donor in this process, at its unix socket (mapped) and its TCP port. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Tests make the mistakes that compilers find. */
#define EBBDSM_NO_CHECKS
#include "userlib/dsm/dsm.h"

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

static ebbdsm_t *join_with(const char *donor, size_t cache)
{
	const char *const donors[] = { donor };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 1,
				    .pool = "p", .cache = cache, .timeout_ms = 5000 };
	ebbdsm_t *dsm;

	if (ebbdsm_open(&o, &dsm))
		fail_msg("%s", o.error);
	return dsm;
}

/* The first process, by the transport of the test. */
static ebbdsm_t *join(void)
{
	return join_with(at, 0);
}

static struct ebbdsm_counts count(ebbdsm_t *dsm)
{
	struct ebbdsm_counts c = { .size = sizeof(c) };

	ebbdsm_count(dsm, &c);
	return c;
}

static struct ebbdsm_box make(ebbdsm_t *dsm, uint64_t value)
{
	struct ebbdsm_box box = { 0 };

	assert_int_equal(ebbdsm_new(dsm, &value, sizeof(value), &box), 0);
	return box;
}

static uint64_t value_of(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const uint64_t *p = ebbdsm_borrow(dsm, box);
	uint64_t value;

	assert_non_null(p);
	value = *p;
	assert_int_equal(ebbdsm_return(dsm, box, p), 0);
	return value;
}

static void set(ebbdsm_t *dsm, struct ebbdsm_box *box, uint64_t value)
{
	uint64_t *p = ebbdsm_borrow_mut(dsm, box);

	assert_non_null(p);
	*p = value;
	assert_int_equal(ebbdsm_return_mut(dsm, box, p), 0);
}

/* Waits until the process has @n places: what others have posted takes effect soon. */
static void settles(ebbdsm_t *dsm, uint64_t n)
{
	for (int i = 0; i < 60000 && count(dsm).places != n; i++) {
		assert_int_equal(ebbdsm_settle(dsm), 0);
		usleep(i ? 1000 : 0);
	}
	assert_int_equal(count(dsm).places, n);
}

/* Uses all memory, so that none is as a dead process has left it. */
static void use_all(ebbdsm_t *dsm)
{
	static const size_t size[] = { 1u << 20, 65504, 16000 };
	int r;

	for (size_t i = 0; i < sizeof(size) / sizeof(*size); i++)
		do {
			struct ebbdsm_box box = { 0 };

			r = ebbdsm_new(dsm, NULL, size[i], &box);
		} while (!r);
	assert_int_equal(r, -ENOSPC);
}

/* Returns the value that @view names, or the error as a large number. */
static uint64_t look(ebbdsm_t *dsm, const struct ebbdsm_view *view)
{
	size_t size = 0;
	const uint64_t *p = ebbdsm_borrow_view(dsm, view, &size);
	uint64_t value;

	if (!p)
		return (uint64_t)-errno;
	assert_int_equal(size, sizeof(*p));
	value = *p;
	assert_int_equal(ebbdsm_return_view(dsm, view, p), 0);
	return value;
}

static void wrong_options(void **state)
{
	const char *const donors[] = { at, "127.0.0.1:1" };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 1,
				    .pool = "p", .timeout_ms = 5000 }, good = o;
	ebbdsm_t *dsm = NULL;

	o.size = 8;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	o = good;
	o.donor_count = 0;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	assert_non_null(strstr(o.error, "give 1 to 8"));
	o = good;
	o.home = 1;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	assert_non_null(strstr(o.error, "home 1"));
	o = good;
	o.pool = NULL;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	o = good;
	o.pool = "two words";
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	assert_non_null(strstr(o.error, "not a name"));
	o = good;
	o.donor_count = 2;
	assert_int_equal(ebbdsm_open(&o, &dsm), -ECONNREFUSED);
	ebbdsm_close(NULL);
}

/* A pool whose members cannot access each other's memory. */
static void pool_of_another(void **state)
{
	const char *const donors[] = { at };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 1,
				    .pool = "p", .timeout_ms = 5000 };
	ebbfar_t *far;
	ebbdsm_t *dsm;

	far = open_at(at, EBBFAR_CREATE);
	assert_int_equal(ebbdsm_open(&o, &dsm), -EEXIST);
	assert_non_null(strstr(o.error, "not shared"));
	ebbfar_close(far);
}

static void boxes(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm, 5), copy, other = { 0 };
	const uint64_t *p, *q;
	uint64_t *m;

	assert_int_equal(ebbdsm_new(dsm, NULL, 0, &other), -EINVAL);
	assert_int_equal(ebbdsm_new(dsm, NULL, EBBDSM_SIZE_MOST + 1, &other), -EINVAL);
	assert_int_equal(ebbdsm_size(dsm, &box), 8);
	p = ebbdsm_borrow(dsm, &box);
	q = ebbdsm_borrow(dsm, &box);
	assert_int_equal(*p, 5);
	assert_ptr_equal(p, q);
	assert_int_equal((uintptr_t)p % 16, 0);
	assert_null(ebbdsm_borrow_mut(dsm, &box));
	assert_int_equal(errno, EBUSY);
	assert_int_equal(ebbdsm_drop(dsm, &box), -EBUSY);
	assert_int_equal(ebbdsm_return(dsm, &box, q + 1), -EINVAL);
	assert_int_equal(ebbdsm_return(dsm, &box, q), 0);
	assert_int_equal(ebbdsm_return(dsm, &box, p), 0);
	assert_int_equal(ebbdsm_return(dsm, &box, p), -EINVAL);
	m = ebbdsm_borrow_mut(dsm, &box);
	assert_non_null(m);
	*m = 6;
	copy = box;
	assert_null(ebbdsm_borrow(dsm, &box));
	assert_int_equal(errno, EBUSY);
	assert_int_equal(ebbdsm_return(dsm, &box, m), -EINVAL);
	assert_int_equal(ebbdsm_return_mut(dsm, &box, m + 1), -EINVAL);
	assert_int_equal(ebbdsm_return_mut(dsm, &box, m), 0);
	assert_int_equal(value_of(dsm, &box), 6);
	/* A copy of a box is an old one. */
	assert_null(ebbdsm_borrow(dsm, &copy));
	assert_int_equal(errno, ESTALE);
	assert_int_equal(ebbdsm_drop(dsm, &copy), -ESTALE);
	copy = box;
	ebbdsm_move(&other, &box);
	assert_int_equal(box.at, 0);
	assert_null(ebbdsm_borrow(dsm, &box));
	assert_int_equal(errno, ESTALE);
	assert_int_equal(value_of(dsm, &other), 6);
	assert_int_equal(ebbdsm_drop(dsm, &other), 0);
	assert_int_equal(ebbdsm_drop(dsm, &other), 0);
	assert_int_equal(ebbdsm_drop(dsm, &copy), -ESTALE);
	assert_int_equal(ebbdsm_size(dsm, &copy), 0);
	assert_int_equal(count(dsm).places, 0);
	ebbdsm_close(dsm);
}

/* Of each kind of place, also the largest. */
static void sizes(void **state)
{
	static const size_t at_most[] = { 1,	 15,	16,    17,    32,    33,    48,
					  49,	 96,	1000,  4096,  5000,  16352, 16353,
					  32736, 32737, 65504, 65505, 300000, 1u << 20,
					  EBBDSM_SIZE_MOST };
	ebbdsm_t *dsm = join(), *reader = join_with(world.tcp, 0);
	uint8_t *content = malloc(EBBDSM_SIZE_MOST);

	for (size_t i = 0; i < sizeof(at_most) / sizeof(*at_most); i++) {
		struct ebbdsm_box box = { 0 }, zeros = { 0 };
		struct ebbdsm_view view;
		const uint8_t *p;
		size_t size = at_most[i], got;

		for (size_t k = 0; k < size; k++)
			content[k] = (uint8_t)(k * 31 + i);
		assert_int_equal(ebbdsm_new(dsm, content, size, &box), 0);
		view = ebbdsm_lend(&box);
		p = ebbdsm_borrow_view(reader, &view, &got);
		assert_non_null(p);
		assert_int_equal(got, size);
		assert_memory_equal(p, content, size);
		assert_int_equal(ebbdsm_return_view(reader, &view, p), 0);
		assert_int_equal(ebbdsm_drop(dsm, &box), 0);
		assert_int_equal(ebbdsm_new(dsm, NULL, size, &zeros), 0);
		p = ebbdsm_borrow(dsm, &zeros);
		for (size_t k = 0; k < size; k++)
			assert_int_equal(p[k], 0);
		assert_int_equal(ebbdsm_return(dsm, &zeros, p), 0);
		assert_int_equal(ebbdsm_drop(dsm, &zeros), 0);
	}
	free(content);
	ebbdsm_close(reader);
	ebbdsm_close(dsm);
}

static void readers(void **state)
{
	ebbdsm_t *dsm = join(), *reader = join_with(world.tcp, 0);
	struct ebbdsm_box box = make(dsm, 1);
	struct ebbdsm_view first = ebbdsm_lend(&box), second, wrong = first;
	const uint64_t *p;

	assert_int_equal(look(reader, &first), 1);
	assert_int_equal(count(reader).round_trips, 1);
	for (int i = 0; i < 10; i++)
		assert_int_equal(look(reader, &first), 1);
	assert_int_equal(count(reader).round_trips, 1);
	assert_int_equal(count(reader).hits, 10);
	p = ebbdsm_borrow_view(reader, &first, NULL);
	set(dsm, &box, 2);
	second = ebbdsm_lend(&box);
	/* The old value stays what it was, where it is cached. */
	assert_int_equal(*p, 1);
	assert_int_equal(look(reader, &first), 1);
	assert_int_equal(look(reader, &second), 2);
	assert_int_equal(*p, 1);
	assert_int_equal(ebbdsm_return_view(reader, &second, p), -EINVAL);
	assert_int_equal(ebbdsm_return_view(reader, &first, p), 0);
	assert_int_equal(ebbdsm_return_view(reader, &first, p), -EINVAL);
	/* Another reader has no copy. */
	ebbdsm_close(reader);
	reader = join_with(world.tcp, 0);
	assert_int_equal(look(reader, &first), (uint64_t)-ESTALE);
	assert_int_equal(look(reader, &second), 2);
	assert_int_equal(look(dsm, &second), 2);
	/* Names that cannot be. */
	wrong.at = ~0ull;
	assert_int_equal(look(reader, &wrong), (uint64_t)-EINVAL);
	wrong.at = 0;
	assert_int_equal(look(reader, &wrong), (uint64_t)-EINVAL);
	wrong = (struct ebbdsm_view){ second.at, second.stamp + 16 };
	assert_int_equal(look(reader, &wrong), (uint64_t)-ESTALE);
	wrong.stamp = 0;
	assert_int_equal(look(reader, &wrong), (uint64_t)-EINVAL);
	assert_int_equal(ebbdsm_drop(dsm, &box), 0);
	wrong = (struct ebbdsm_view){ second.at, second.stamp };
	assert_int_equal(look(reader, &wrong), 2);
	ebbdsm_close(reader);
	reader = join_with(world.tcp, 0);
	assert_int_equal(look(reader, &wrong), (uint64_t)-ESTALE);
	ebbdsm_close(reader);
	ebbdsm_close(dsm);
}

/* Borrows that are never returned do not free the copy under those that are used. */
static void forgotten_borrows(void **state)
{
	ebbdsm_t *dsm = join(), *reader = join_with(world.tcp, 0);
	struct ebbdsm_box box = make(dsm, 1);
	struct ebbdsm_view view = ebbdsm_lend(&box);
	const uint64_t *p = ebbdsm_borrow_view(reader, &view, NULL), *q;
	struct copy *copy = cache_find(&reader->cache, view.at, view.stamp);

	assert_non_null(p);
	copy->borrows = UINT32_MAX - 1;
	q = ebbdsm_borrow_view(reader, &view, NULL);
	assert_ptr_equal(q, p);
	assert_null(ebbdsm_borrow_view(reader, &view, NULL));
	assert_int_equal(errno, EBUSY);
	assert_int_equal(ebbdsm_return_view(reader, &view, q), 0);
	assert_int_equal(look(reader, &view), 1);
	assert_int_equal(copy->borrows, UINT32_MAX - 1);
	ebbdsm_close(reader);
	ebbdsm_close(dsm);
}

static void dead_owner(void **state)
{
	ebbdsm_t *dsm = join(), *reader = join_with(world.tcp, 0);
	struct ebbdsm_box box = make(dsm, 1), second = make(dsm, 2), third = make(dsm, 3);
	struct ebbdsm_box got = { 0 };
	struct ebbdsm_view cached = ebbdsm_lend(&box), view = ebbdsm_lend(&second);
	struct ebbdsm_loan loan;
	struct ebbdsm_parcel parcel;
	uint64_t *p;

	assert_int_equal(look(reader, &cached), 1);
	assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
	assert_int_equal(ebbdsm_give(dsm, &third, &parcel), 0);
	p = ebbdsm_borrow_loan(reader, &loan, NULL);
	assert_non_null(p);
	ebbdsm_close(dsm);
	assert_int_equal(look(reader, &cached), 1);
	*p = 7;
	/* The memory may be as it was for a while; then it is a third one's. */
	dsm = join_with(world.local, 0);
	use_all(dsm);
	assert_int_equal(ebbdsm_return_loan(reader, &loan, p), -EOWNERDEAD);
	assert_int_equal(ebbdsm_return_loan(reader, &loan, p), -EINVAL);
	assert_int_equal(ebbdsm_accept(reader, &parcel, &got), -ESTALE);
	assert_int_equal(look(reader, &view), (uint64_t)-ESTALE);
	ebbdsm_close(dsm);
	assert_int_equal(count(reader).places, 0);
	/* No member has its number. */
	assert_int_equal(ebbdsm_accept(reader, &parcel, &got), -EOWNERDEAD);
	assert_int_equal(look(reader, &view), (uint64_t)-EOWNERDEAD);
	ebbdsm_close(reader);
}

static void loans(void **state)
{
	ebbdsm_t *dsm = join(), *other = join_with(world.tcp, 0);
	ebbdsm_t *third = join_with(world.local, 0);
	struct ebbdsm_box box = make(dsm, 1);
	struct ebbdsm_view before = ebbdsm_lend(&box);
	struct ebbdsm_loan loan, old;
	uint64_t *p;
	size_t size;

	assert_int_equal(ebbdsm_reclaim(dsm, &box), -EINVAL);
	/* Not borrowed. */
	assert_int_equal(ebbdsm_lend_mut(dsm, &box, &old), 0);
	assert_null(ebbdsm_borrow(dsm, &box));
	assert_int_equal(errno, EBUSY);
	assert_int_equal(ebbdsm_drop(dsm, &box), -EBUSY);
	assert_int_equal(ebbdsm_reclaim(dsm, &box), 0);
	assert_int_equal(value_of(dsm, &box), 1);
	assert_null(ebbdsm_borrow_loan(other, &old, NULL));
	assert_int_equal(errno, ESTALE);
	/* Borrowed and returned. */
	assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
	p = ebbdsm_borrow_loan(other, &loan, &size);
	assert_non_null(p);
	assert_int_equal(size, 8);
	assert_int_equal(*p, 1);
	assert_null(ebbdsm_borrow_loan(third, &loan, NULL));
	assert_int_equal(errno, ESTALE);
	assert_int_equal(ebbdsm_reclaim(dsm, &box), -EBUSY);
	*p = 2;
	/* Views of the value from before are valid. */
	assert_int_equal(look(third, &before), 1);
	assert_int_equal(ebbdsm_return_loan(other, &loan, p + 1), -EINVAL);
	assert_int_equal(ebbdsm_return_loan(other, &loan, p), 0);
	assert_int_equal(ebbdsm_return_loan(other, &loan, p), -EINVAL);
	assert_int_equal(ebbdsm_reclaim(dsm, &box), 0);
	assert_int_equal(value_of(dsm, &box), 2);
	settles(other, 0);
	assert_int_equal(count(dsm).places, 1);
	/* Again and again, by both. */
	for (uint64_t i = 2; i < 300; i++) {
		ebbdsm_t *by = i % 2 ? other : third;

		assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
		p = ebbdsm_borrow_loan(by, &loan, NULL);
		assert_non_null(p);
		assert_int_equal((*p)++, i);
		assert_int_equal(ebbdsm_return_loan(by, &loan, p), 0);
		assert_int_equal(ebbdsm_reclaim(dsm, &box), 0);
		assert_int_equal(ebbdsm_settle(by), 0);
	}
	assert_int_equal(value_of(dsm, &box), 300);
	settles(other, 0);
	settles(third, 0);
	ebbdsm_close(third);
	ebbdsm_close(other);
	ebbdsm_close(dsm);
}

/* A borrower that leaves: the box is as it was. */
static void dead_borrower(void **state)
{
	ebbdsm_t *dsm = join(), *other;
	struct ebbdsm_box box = make(dsm, 1);
	struct ebbdsm_loan loan;
	uint64_t *p;

	for (int returned = 0; returned < 2; returned++) {
		other = join_with(world.tcp, 0);
		assert_int_equal(ebbdsm_lend_mut(dsm, &box, &loan), 0);
		p = ebbdsm_borrow_loan(other, &loan, NULL);
		assert_non_null(p);
		*p = 2;
		if (returned)
			assert_int_equal(ebbdsm_return_loan(other, &loan, p), 0);
		ebbdsm_close(other);
		/* Its memory is used again. */
		other = join_with(world.local, 0);
		use_all(other);
		assert_int_equal(ebbdsm_reclaim(dsm, &box), -EOWNERDEAD);
		assert_int_equal(value_of(dsm, &box), 1);
		ebbdsm_close(other);
	}
	set(dsm, &box, 3);
	assert_int_equal(value_of(dsm, &box), 3);
	assert_int_equal(count(dsm).places, 1);
	ebbdsm_close(dsm);
}

static void parcels(void **state)
{
	ebbdsm_t *dsm = join(), *other = join_with(world.tcp, 0);
	struct ebbdsm_box box = make(dsm, 1), got = { 0 }, again = { 0 };
	struct ebbdsm_parcel parcel;

	assert_int_equal(ebbdsm_give(dsm, &box, &parcel), 0);
	assert_null(ebbdsm_borrow(dsm, &box));
	assert_int_equal(ebbdsm_reclaim(dsm, &box), 0);
	assert_int_equal(ebbdsm_accept(other, &parcel, &got), -ESTALE);
	assert_int_equal(value_of(dsm, &box), 1);
	assert_int_equal(ebbdsm_give(dsm, &box, &parcel), 0);
	assert_int_equal(ebbdsm_accept(other, &parcel, &got), 0);
	assert_int_equal(ebbdsm_accept(other, &parcel, &again), -ESTALE);
	assert_int_equal(value_of(other, &got), 1);
	set(other, &got, 2);
	assert_int_equal(value_of(other, &got), 2);
	/* The receiver may still be copying it. */
	for (int i = 0, r = -EBUSY; i < 1000 && r == -EBUSY; i++) {
		r = ebbdsm_reclaim(dsm, &box);
		assert_true(r == -EBUSY || r == -ESTALE);
	}
	assert_int_equal(box.at, 0);
	settles(dsm, 0);
	/* The giver forgets it. */
	assert_int_equal(ebbdsm_give(other, &got, &parcel), 0);
	assert_int_equal(ebbdsm_settle(other), 0);
	assert_int_equal(count(other).places, 1);
	assert_int_equal(ebbdsm_accept(dsm, &parcel, &again), 0);
	settles(other, 0);
	ebbdsm_close(other);
	assert_int_equal(value_of(dsm, &again), 2);
	ebbdsm_close(dsm);
}

static void *settle_always(void *data)
{
	ebbdsm_t *dsm = data;

	/* The test drops the box. */
	while (count(dsm).places)
		ebbdsm_settle(dsm);
	return NULL;
}

/* Another thread settles: what no process accepts can be withdrawn at any time. */
static void withdrawn_while_settling(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm, 1);
	struct ebbdsm_parcel parcel;
	int r = 0;
	pthread_t t;

	pthread_create(&t, NULL, settle_always, dsm);
	for (int i = 0; i < 2000 && !r; i++) {
		r = ebbdsm_give(dsm, &box, &parcel);
		usleep(i % 3 ? 0 : 20);
		r = r ?: ebbdsm_reclaim(dsm, &box);
	}
	assert_int_equal(r, 0);
	assert_int_equal(value_of(dsm, &box), 1);
	assert_int_equal(ebbdsm_drop(dsm, &box), 0);
	pthread_join(t, NULL);
	ebbdsm_close(dsm);
}

static int64_t cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * (int64_t)1000000 + t.tv_nsec / 1000;
}

/* Returns the processor time, us, of looking at @n parcels that no process accepts. */
static int64_t cost_of_looking(unsigned n)
{
	ebbdsm_t *dsm = join();
	int64_t best = INT64_MAX;

	for (unsigned i = 0; i < n; i++) {
		struct ebbdsm_box box = make(dsm, i);
		struct ebbdsm_parcel parcel;

		assert_int_equal(ebbdsm_give(dsm, &box, &parcel), 0);
	}
	for (int i = 0; i < 3; i++) {
		int64_t began = cpu_us();

		assert_int_equal(ebbdsm_settle(dsm), 0);
		best = cpu_us() - began < best ? cpu_us() - began : best;
	}
	assert_int_equal(count(dsm).places, n);
	ebbdsm_close(dsm);
	return best;
}

/* The cost of ebbdsm_settle() grows with what is pending, and not with its square. */
static void many_pending(void **state)
{
	int64_t few = cost_of_looking(1000), many = cost_of_looking(32000);

	print_message("1000 parcels: %lld us, 32000: %lld us\n", (long long)few, (long long)many);
	/* 32 times as many; the square is 1024. */
	assert_true(many < 200 * few);
}

/* Names do not repeat when the numbers of a block are used up: the box moves. */
static void numbers(void **state)
{
	ebbdsm_t *dsm = join_with(world.local, 0);
	struct ebbdsm_box box = make(dsm, 0);
	uint64_t first = box.at, moved = 0;

	for (uint64_t i = 1; i <= 140000; i++) {
		uint64_t was = box.at, stamp = box.stamp;

		set(dsm, &box, i);
		moved += was != box.at;
		assert_true(was != box.at || stamp < box.stamp);
	}
	assert_int_equal(value_of(dsm, &box), 140000);
	assert_in_range(moved, 2, 3);
	assert_true(box.at != first || moved > 1);
	assert_int_equal(count(dsm).places, 1);
	ebbdsm_close(dsm);
}

static void budget(void **state)
{
	enum { BOXES = 20, SIZE = 1000 };
	ebbdsm_t *dsm = join(), *reader = join_with(world.tcp, (size_t)10 * 1200);
	struct ebbdsm_view views[BOXES];
	const uint64_t *p[BOXES];
	int borrowed = 0;

	for (uint64_t i = 0; i < BOXES; i++) {
		struct ebbdsm_box box = { 0 };
		uint64_t content[SIZE / 8] = { i };

		assert_int_equal(ebbdsm_new(dsm, content, SIZE, &box), 0);
		views[i] = ebbdsm_lend(&box);
	}
	for (int i = 0; i < BOXES; i++) {
		p[0] = ebbdsm_borrow_view(reader, &views[i], NULL);
		assert_int_equal(*p[0], i);
		assert_int_equal(ebbdsm_return_view(reader, &views[i], p[0]), 0);
		assert_true(count(reader).cached <= 10 * 1200);
	}
	/* The last ones are there. */
	p[0] = ebbdsm_borrow_view(reader, &views[BOXES - 3], NULL);
	assert_int_equal(ebbdsm_return_view(reader, &views[BOXES - 3], p[0]), 0);
	assert_int_equal(count(reader).misses, BOXES);
	for (; borrowed < BOXES; borrowed++) {
		p[borrowed] = ebbdsm_borrow_view(reader, &views[borrowed], NULL);
		if (!p[borrowed])
			break;
	}
	assert_int_equal(errno, ENOBUFS);
	assert_in_range(borrowed, 9, 11);
	for (int i = 0; i < borrowed; i++) {
		assert_int_equal(*p[i], i);
		assert_int_equal(ebbdsm_return_view(reader, &views[i], p[i]), 0);
	}
	p[0] = ebbdsm_borrow_view(reader, &views[BOXES - 1], NULL);
	assert_int_equal(*p[0], BOXES - 1);
	ebbdsm_close(reader);
	ebbdsm_close(dsm);
}

/* All memory, several times: nothing is left behind. */
static void full(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box *all = calloc(4096, sizeof(*all));
	int most = 0;

	for (int turn = 0; turn < 3; turn++) {
		int n = 0, r = 0;

		while (n < 4096 && !r) {
			r = ebbdsm_new(dsm, NULL, turn == 1 ? 100000 : 15000, &all[n]);
			n += !r;
		}
		assert_int_equal(r, -ENOSPC);
		assert_true(turn != 2 || n == most);
		most = turn ? most : n;
		for (int i = 0; i < n; i++)
			assert_int_equal(ebbdsm_drop(dsm, &all[i]), 0);
		assert_int_equal(ebbdsm_settle(dsm), 0);
	}
	assert_true(most > 1000);
	free(all);
	ebbdsm_close(dsm);
}

/* Threads of one process, and another one that changes what they read. */
enum { THREADS = 4, TURNS = 300, VALUES = 64 };

static struct {
	ebbdsm_t *dsm;
	pthread_mutex_t lock;
	struct ebbdsm_view view;
	int wrong, done;
} shared = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *read_views(void *data)
{
	while (!__atomic_load_n(&shared.done, __ATOMIC_ACQUIRE)) {
		struct ebbdsm_view view;
		const uint64_t *p;

		pthread_mutex_lock(&shared.lock);
		view = shared.view;
		pthread_mutex_unlock(&shared.lock);
		p = ebbdsm_borrow_view(shared.dsm, &view, NULL);
		if (!p) {
			/* It has changed since. */
			shared.wrong += errno != ESTALE;
			continue;
		}
		for (int i = 1; i < VALUES; i++)
			shared.wrong += p[i] != p[0];
		shared.wrong += ebbdsm_return_view(shared.dsm, &view, p) != 0;
	}
	return NULL;
}

static void threads(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = { 0 };
	pthread_t t[THREADS];

	shared.dsm = join_with(world.tcp, 0);
	shared.wrong = shared.done = 0;
	assert_int_equal(ebbdsm_new(dsm, NULL, 8 * VALUES, &box), 0);
	shared.view = ebbdsm_lend(&box);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, read_views, NULL);
	for (uint64_t turn = 1; turn < TURNS; turn++) {
		uint64_t *p = ebbdsm_borrow_mut(dsm, &box);

		assert_non_null(p);
		for (int i = 0; i < VALUES; i++)
			p[i] = turn;
		assert_int_equal(ebbdsm_return_mut(dsm, &box, p), 0);
		pthread_mutex_lock(&shared.lock);
		shared.view = ebbdsm_lend(&box);
		pthread_mutex_unlock(&shared.lock);
		usleep(100);
	}
	__atomic_store_n(&shared.done, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(shared.wrong, 0);
	assert_true(count(shared.dsm).misses > 1);
	ebbdsm_close(shared.dsm);
	ebbdsm_close(dsm);
}

static void after_fork(void **state)
{
	ebbdsm_t *dsm = join();
	struct ebbdsm_box box = make(dsm, 1), other = { 0 };
	struct ebbdsm_view view = ebbdsm_lend(&box);
	int status;

	if (!fork()) {
		int right = !ebbdsm_borrow(dsm, &box) && errno == ECHILD;

		right &= ebbdsm_new(dsm, NULL, 8, &other) == -ECHILD;
		right &= !ebbdsm_borrow_view(dsm, &view, NULL) && errno == ECHILD;
		right &= ebbdsm_settle(dsm) == -ECHILD;
		ebbdsm_close(dsm);
		_exit(!right);
	}
	wait(&status);
	assert_int_equal(status, 0);
	assert_int_equal(value_of(dsm, &box), 1);
	ebbdsm_close(dsm);
}

#define BY_BOTH(test)                                                                    \
	{ #test " by TCP", test, by_tcp, end, NULL }, { #test " mapped", test, by_mapping, end, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_BOTH(wrong_options),
		BY_BOTH(pool_of_another),
		BY_BOTH(boxes),
		BY_BOTH(sizes),
		BY_BOTH(readers),
		BY_BOTH(forgotten_borrows),
		BY_BOTH(dead_owner),
		BY_BOTH(loans),
		BY_BOTH(dead_borrower),
		BY_BOTH(parcels),
		BY_BOTH(withdrawn_while_settling),
		cmocka_unit_test_setup_teardown(many_pending, by_mapping, end),
		cmocka_unit_test_setup_teardown(numbers, by_mapping, end),
		BY_BOTH(budget),
		BY_BOTH(full),
		BY_BOTH(threads),
		BY_BOTH(after_fork),
	};

	return cmocka_run_group_tests_name("libebbdsm", tests, NULL, NULL);
}
