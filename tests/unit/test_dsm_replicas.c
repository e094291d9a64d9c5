// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Replicas: two donors, which are two pools' members at the donor of this process, of which one is
 * lost at each request of a script, to all processes or to the owner alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EBBDSM_NO_CHECKS
#include "userlib/dsm/dsm.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

/* --- donors that are lost --------------------------------------------------------- */

enum { HANDLES = 4 };

static struct {
	ebbfar_t *lost[HANDLES];
	ebbfar_t *watched[HANDLES]; /* are lost together */
	int left;                   /* submissions of these until then; -1 = never */
	bool arrives;               /* the last one does */
	bool happened;
	bool is_late;               /* the loss is noticed after mapped memory was read */
	ebbfar_t *no_files;         /* its memory cannot be mapped */
	size_t room;                /* no donor has an extent as large; 0 = as it is */
	uint32_t asked;             /* allocations that have so failed */
	ebbfar_t *silent;           /* calls that wait for it do until .ends or loss, atomic */
	int64_t ends;               /* atomic */
	int waiting;                /* calls that do, atomic */
	void (*before_last)(void);  /* at the last request of a batch of several to .split */
	ebbfar_t *split;
	void (*after_words)(void);  /* once, when words that are published were read */
} fault;

static void wait_for(ebbfar_t *far)
{
	if (__atomic_load_n(&fault.silent, __ATOMIC_SEQ_CST) != far)
		return;
	__atomic_add_fetch(&fault.waiting, 1, __ATOMIC_SEQ_CST);
	while (bell_now() < __atomic_load_n(&fault.ends, __ATOMIC_SEQ_CST))
		usleep(1000);
	__atomic_store_n(&fault.silent, NULL, __ATOMIC_SEQ_CST);
}

/* For @ms; a minute is longer than a thread waits for a processor. */
static void be_silent(ebbfar_t *far, int64_t ms)
{
	fault.waiting = 0;
	__atomic_store_n(&fault.ends, bell_now() + ms, __ATOMIC_SEQ_CST);
	__atomic_store_n(&fault.silent, far, __ATOMIC_SEQ_CST);
}

static void end_silence(int64_t ms)
{
	__atomic_store_n(&fault.ends, bell_now() + ms, __ATOMIC_SEQ_CST);
}

static bool is_lost(const ebbfar_t *far)
{
	for (int i = 0; i < HANDLES; i++)
		if (far && fault.lost[i] == far)
			return true;
	return false;
}

static bool is_watched(const ebbfar_t *far)
{
	for (int i = 0; i < HANDLES; i++)
		if (fault.watched[i] == far)
			return true;
	return false;
}

int __real_ebbfar_submit(ebbfar_t *far, struct ebbfar_request *q, size_t n);
int __real_ebbfar_complete(ebbfar_t *far, int timeout_ms, struct ebbfar_request **q);
int __real_ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *x);
int __real_ebbfar_check(ebbfar_t *far, uint32_t owner, const struct ebbfar_extent *x);
int __real_ebbfar_notify(ebbfar_t *far, uint32_t member, uint64_t word);
int __real_ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word);
int __real_ebbfar_published(ebbfar_t *far, uint64_t words[EBBFAR_MEMBERS]);
int __real_ebbfar_publish(ebbfar_t *far, uint64_t word);
int __real_ebbfar_room(ebbfar_t *far, struct ebbfar_memory *room);
const char *__real_ebbfar_why(const ebbfar_t *far);
void __real_ebbfar_close(ebbfar_t *far);
void *__real_calloc(size_t n, size_t size);

static int allocations; /* until one fails; 0 = none does */

void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return allocations && !--allocations ? NULL : __real_calloc(n, size);
}

int __wrap_ebbfar_complete(ebbfar_t *far, int timeout_ms, struct ebbfar_request **q)
{
	int r;

	if (!is_lost(far) && timeout_ms)
		wait_for(far);
	r = __real_ebbfar_complete(far, timeout_ms, q);
	/* Accesses of mapped memory succeed after the loss. */
	if (!r && is_lost(far) && !ebbfar_maps(far))
		(*q)->result = -ESHUTDOWN;
	return r;
}

/* Every request has come back to the library, so that none is leaked. */
void __wrap_ebbfar_close(ebbfar_t *far)
{
	struct ebbfar_request *q;

	assert_int_equal(__real_ebbfar_complete(far, 0, &q), -ENOENT);
	__real_ebbfar_close(far);
}

/* Has requests take effect whose replies are lost. */
static void submit_all(ebbfar_t *far, struct ebbfar_request *q, size_t n)
{
	size_t left = n;

	assert_int_equal(__real_ebbfar_submit(far, q, n), 0);
	while (left) {
		struct ebbfar_request *done;

		assert_int_equal(__real_ebbfar_complete(far, -1, &done), 0);
		if (done >= q && done < q + n)
			left--;
		else
			free(done); /* one that was posted before */
	}
}

/* Mapped memory can still be accessed. */
static bool is_reached(ebbfar_t *far, const struct ebbfar_request *q, size_t n)
{
	void *memory;

	for (size_t i = 0; i < n; i++)
		if (q[i].op == EBBFAR_FREE || ebbfar_map(far, &q[i].extent, &memory))
			return false;
	return true;
}

int __wrap_ebbfar_submit(ebbfar_t *far, struct ebbfar_request *q, size_t n)
{
	if (is_lost(far) && is_reached(far, q, n))
		return __real_ebbfar_submit(far, q, n);
	if (is_lost(far))
		return -ESHUTDOWN;
	if (fault.no_files == far)
		return -EMFILE;
	if (fault.before_last && far == fault.split && n > 1) {
		int r = __real_ebbfar_submit(far, q, n - 1);

		fault.before_last();
		return r ?: __real_ebbfar_submit(far, q + n - 1, 1);
	}
	if (!is_watched(far) || fault.left < 0 || fault.left--)
		return __real_ebbfar_submit(far, q, n);
	if (fault.arrives)
		submit_all(far, q, n);
	memcpy(fault.lost, fault.watched, sizeof(fault.lost));
	fault.happened = true;
	return -ESHUTDOWN;
}

int __wrap_ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *x)
{
	wait_for(far);
	if (is_lost(far))
		return -ESHUTDOWN;
	if (!fault.room || size < fault.room)
		return __real_ebbfar_alloc(far, size, x);
	fault.asked++;
	return -ENOSPC;
}

int __wrap_ebbfar_check(ebbfar_t *far, uint32_t owner, const struct ebbfar_extent *x)
{
	return is_lost(far) && !(fault.is_late && ebbfar_maps(far)) ?
		       -ESHUTDOWN : __real_ebbfar_check(far, owner, x);
}

int __wrap_ebbfar_notify(ebbfar_t *far, uint32_t member, uint64_t word)
{
	return is_lost(far) ? -ESHUTDOWN : __real_ebbfar_notify(far, member, word);
}

int __wrap_ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word)
{
	return is_lost(far) ? -ESHUTDOWN : __real_ebbfar_wait(far, timeout_ms, member, word);
}

int __wrap_ebbfar_published(ebbfar_t *far, uint64_t words[EBBFAR_MEMBERS])
{
	void (*after)(void) = is_lost(far) ? NULL : fault.after_words;
	int r = is_lost(far) ? -ESHUTDOWN : __real_ebbfar_published(far, words);

	if (after) {
		fault.after_words = NULL;
		after();
	}
	return r;
}

int __wrap_ebbfar_publish(ebbfar_t *far, uint64_t word)
{
	return is_lost(far) ? -ESHUTDOWN : __real_ebbfar_publish(far, word);
}

int __wrap_ebbfar_room(ebbfar_t *far, struct ebbfar_memory *room)
{
	return is_lost(far) ? -ESHUTDOWN : __real_ebbfar_room(far, room);
}

const char *__wrap_ebbfar_why(const ebbfar_t *far)
{
	return is_lost(far) ? "lost" : __real_ebbfar_why(far);
}

/* --- processes -------------------------------------------------------------------- */

static ebbdsm_t *join(uint32_t home, uint32_t donors)
{
	const char *const listed[] = { at, world.tcp, world.tcp };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = listed, .donor_count = donors,
				    .home = home, .pool = "p", .timeout_ms = 5000,
				    .replicas = 1 };
	ebbdsm_t *dsm;

	if (ebbdsm_open(&o, &dsm))
		fail_msg("%s", o.error);
	return dsm;
}

static struct ebbdsm_counts count(ebbdsm_t *dsm)
{
	struct ebbdsm_counts c = { .size = sizeof(c) };

	ebbdsm_count(dsm, &c);
	return c;
}

enum { WORDS = 24 };

static struct ebbdsm_box make(ebbdsm_t *dsm, uint64_t value)
{
	struct ebbdsm_box box = { 0 };
	uint64_t content[WORDS];

	for (int i = 0; i < WORDS; i++)
		content[i] = value;
	assert_int_equal(ebbdsm_new(dsm, content, sizeof(content), &box), 0);
	return box;
}

static uint64_t value_in(const uint64_t *p)
{
	for (int i = 1; i < WORDS; i++)
		assert_int_equal(p[i], p[0]);
	return p[0];
}

static uint64_t value_of(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const uint64_t *p = ebbdsm_borrow(dsm, box);
	uint64_t value;

	if (!p)
		fail_msg("a box cannot be borrowed: %s", strerror(errno));
	value = value_in(p);
	assert_int_equal(ebbdsm_return(dsm, box, p), 0);
	return value;
}

static void set(ebbdsm_t *dsm, struct ebbdsm_box *box, uint64_t value)
{
	uint64_t *p = ebbdsm_borrow_mut(dsm, box);

	assert_non_null(p);
	for (int i = 0; i < WORDS; i++)
		p[i] = value;
	assert_int_equal(ebbdsm_return_mut(dsm, box, p), 0);
}

/* Returns the value, or the error as a large number. */
static uint64_t look(ebbdsm_t *dsm, struct ebbdsm_view view)
{
	const uint64_t *p = ebbdsm_borrow_view(dsm, &view, NULL);
	uint64_t value;

	if (!p)
		return (uint64_t)-errno;
	value = value_in(p);
	assert_int_equal(ebbdsm_return_view(dsm, &view, p), 0);
	return value;
}

static int end(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	int r = -EBUSY;

	memset(&fault, 0, sizeof(fault));
	for (int i = 0; i < 500 && r == -EBUSY; i++) {
		r = ebbfar_destroy(&o);
		usleep(r == -EBUSY ? 10000 : 0);
	}
	if (r && r != -ENOENT)
		fail_msg("%s", o.error);
	return end_far_donor(state);
}

/* --- the script ------------------------------------------------------------------- */

struct box_seen {
	struct ebbdsm_box box;
	uint64_t value;
	bool owned;
};

enum { BOXES = 5 };

static struct {
	ebbdsm_t *a, *b;
	struct box_seen s[BOXES];
	bool is_over;    /* the donor is lost, and all goes on */
	uint64_t unsure; /* parcels that the receiver may have */
	uint32_t loans_ended, parcels_lost;
} run;

static void check(int i)
{
	struct box_seen *s = &run.s[i];

	if (!s->owned)
		return;
	assert_int_equal(value_of(run.a, &s->box), s->value);
	assert_int_equal(look(run.b, ebbdsm_lend(&s->box)), s->value);
}

static void change(int i, uint64_t value)
{
	if (!run.s[i].owned)
		return;
	set(run.a, &run.s[i].box, value);
	run.s[i].value = value;
	check(i);
}

static void lend(int i, uint64_t value)
{
	struct box_seen *s = &run.s[i];
	struct ebbdsm_loan loan;
	uint64_t *p, now;
	int r, returned = -EIO;

	if (!s->owned || ebbdsm_lend_mut(run.a, &s->box, &loan)) {
		assert_true(!run.is_over || !s->owned);
		check(i);
		return;
	}
	p = ebbdsm_borrow_loan(run.b, &loan, NULL);
	if (p) {
		assert_int_equal(value_in(p), s->value);
		for (int k = 0; k < WORDS; k++)
			p[k] = value;
		returned = ebbdsm_return_loan(run.b, &loan, p);
		assert_true(returned == 0 || returned == -EIO);
	} else {
		assert_int_equal(errno, EIO);
	}
	/* In mapped memory, what the borrower says may come late. */
	for (int k = 0; k < 200; k++) {
		r = ebbdsm_reclaim(run.a, &s->box);
		if (r != -EBUSY)
			break;
		usleep(1000);
	}
	assert_true(r == 0 || r == -EOWNERDEAD);
	assert_true(!run.is_over || (p && !returned && !r));
	now = value_of(run.a, &s->box);
	if (r || !p)
		assert_int_equal(now, s->value);
	else if (!returned)
		assert_int_equal(now, value);
	else
		assert_true(now == value || now == s->value);
	run.loans_ended += r != 0;
	s->value = now;
	check(i);
}

static void give(int i)
{
	struct box_seen *s = &run.s[i];
	struct ebbdsm_parcel parcel;
	struct ebbdsm_box got = { 0 }, back = { 0 };
	int accepted, r;

	if (!s->owned || ebbdsm_give(run.a, &s->box, &parcel)) {
		check(i);
		return;
	}
	accepted = ebbdsm_accept(run.b, &parcel, &got);
	assert_true(accepted == 0 || accepted == -EIO);
	for (int k = 0; k < 200; k++) {
		r = ebbdsm_reclaim(run.a, &s->box);
		if (r != -EBUSY)
			break;
		usleep(1000);
	}
	assert_true(r == -ESTALE || r == -EIO || (accepted && r == 0));
	run.unsure += r == -EIO;
	s->owned = r == 0;
	if (accepted) {
		run.parcels_lost += r != 0;
		check(i);
		return;
	}
	assert_int_equal(value_of(run.b, &got), s->value);
	assert_int_equal(ebbdsm_give(run.b, &got, &parcel), 0);
	assert_int_equal(ebbdsm_accept(run.a, &parcel, &back), 0);
	s->box = back;
	s->owned = true;
	check(i);
}

static void drop(int i)
{
	struct ebbdsm_view view = ebbdsm_lend(&run.s[i].box);
	uint64_t seen;

	if (!run.s[i].owned)
		return;
	assert_int_equal(ebbdsm_drop(run.a, &run.s[i].box), 0);
	run.s[i].owned = false;
	seen = look(run.b, view);
	assert_true(seen == run.s[i].value || seen == (uint64_t)-ESTALE ||
		    seen == (uint64_t)-EIO || seen == (uint64_t)-EOWNERDEAD);
}

static void script(void)
{
	for (int i = 0; i < BOXES; i++) {
		run.s[i] = (struct box_seen){ make(run.a, 10u + (unsigned)i), 10u + (unsigned)i,
					      true };
		check(i);
	}
	change(0, 20);
	lend(1, 21);
	give(2);
	drop(3);
	change(0, 30);
	ebbdsm_settle(run.a);
	ebbdsm_settle(run.b);
}

static void settles(ebbdsm_t *dsm, uint64_t most)
{
	for (int i = 0; i < 1000 && count(dsm).places > most; i++) {
		ebbdsm_settle(dsm);
		usleep(1000);
	}
	assert_true(count(dsm).places <= most);
}

/* All goes on, and nothing of the owner is left. */
static void go_on(void)
{
	run.is_over = true;
	for (int i = 0; i < BOXES; i++) {
		check(i);
		change(i, 40);
		lend(i, 41);
		change(i, 42);
		drop(i);
	}
	settles(run.a, run.unsure);
}

/* The first donor is lost to @to_all or to the owner alone, at each request to it. */
static void lost_at_each_request(bool to_all, bool arrives)
{
	uint32_t loans_ended = 0, parcels_lost = 0;
	int request = 0;

	do {
		memset(&run, 0, sizeof(run));
		memset(&fault, 0, sizeof(fault));
		fault.left = -1;
		run.a = join(0, 2);
		run.b = join(1, 2);
		fault.watched[0] = run.a->link[0].far;
		fault.watched[1] = to_all ? run.b->link[0].far : NULL;
		fault.arrives = arrives;
		fault.left = request++;
		script();
		if (!fault.happened)
			memcpy(fault.lost, fault.watched, sizeof(fault.lost));
		go_on();
		loans_ended += run.loans_ended;
		parcels_lost += run.parcels_lost;
		ebbdsm_close(run.a);
		/* A donor that the owner alone has lost frees what it had there. */
		settles(run.b, 0);
		ebbdsm_close(run.b);
	} while (fault.happened);
	printf("%d requests; %u loans ended, %u parcels lost\n", request, loans_ended,
	       parcels_lost);
	assert_true(request > 10);
	assert_true(loans_ended > 0);
}

static void lost_to_all(void **state)
{
	lost_at_each_request(true, false);
	lost_at_each_request(true, true);
}

static void lost_to_the_owner(void **state)
{
	lost_at_each_request(false, false);
	lost_at_each_request(false, true);
}

/* --- twins ------------------------------------------------------------------------ */

static void wrong_options(void **state)
{
	const char *const donors[] = { at, world.tcp };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 2,
				    .pool = "p", .timeout_ms = 5000, .replicas = 2 };
	ebbdsm_t *dsm;

	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	assert_non_null(strstr(o.error, "replicas 2"));
	o.replicas = 1;
	o.donor_count = 1;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	/* A program of before. */
	o.size = offsetof(struct ebbdsm_options, replicas);
	assert_int_equal(ebbdsm_open(&o, &dsm), 0);
	assert_int_equal(dsm->heap.replicas, 0);
	ebbdsm_close(dsm);
	o.size--;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	/* A field of a later release. */
	o.size = sizeof(o);
	o.donor_count = 2;
	o.unused = 1;
	assert_int_equal(ebbdsm_open(&o, &dsm), -EINVAL);
	assert_non_null(strstr(o.error, "update libebbdsm"));
}

/* What the twin has of a name, whatever has happened to the object. */
static void stamps(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 1);
	struct ebbdsm_view first = ebbdsm_lend(&box), second, next;
	struct { struct dsm_head head; uint64_t words[WORDS]; uint8_t rest[64]; } got;
	uint64_t size;

	assert_int_equal(dsm_read_saved(b, first.at, first.stamp, (void *)&got, &size), 0);
	assert_int_equal(size, sizeof(got.words));
	assert_int_equal(value_in(got.words), 1);
	set(a, &box, 2);
	second = ebbdsm_lend(&box);
	assert_int_equal(dsm_read_saved(b, first.at, first.stamp, (void *)&got, &size), -ESTALE);
	assert_int_equal(dsm_read_saved(b, second.at, second.stamp, (void *)&got, &size), 0);
	assert_int_equal(value_in(got.words), 2);
	next = (struct ebbdsm_view){ second.at, second.stamp + 16 };
	assert_int_equal(dsm_read_saved(b, next.at, next.stamp, (void *)&got, &size), -EIO);
	assert_int_equal(ebbdsm_drop(a, &box), 0);
	/* Posted. */
	for (int i = 0, r = 0; i < 1000 && r != -ESTALE; i++) {
		r = dsm_read_saved(b, second.at, second.stamp, (void *)&got, &size);
		assert_true(r == 0 || r == -ESTALE);
		assert_true(r || value_in(got.words) == 2);
		assert_true(i < 999);
	}
	assert_int_equal(count(b).lost, 1);
	ebbdsm_close(a);
	/* The list is another's memory, or as it was. */
	assert_true(dsm_read_saved(b, second.at, second.stamp, (void *)&got, &size) < 0);
	ebbdsm_close(b);
}

/* A twin that was not made, or is lost, is made by ebbdsm_settle() with what is there. */
static void mended(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct ebbdsm_box box[40], lent = make(a, 7), borrowed = make(a, 8);
	struct ebbdsm_loan loan;
	uint64_t *p;

	for (unsigned i = 0; i < 40; i++)
		box[i] = make(a, 100 + i);
	assert_int_equal(ebbdsm_lend_mut(a, &lent, &loan), 0);
	p = ebbdsm_borrow_mut(a, &borrowed);
	assert_non_null(p);
	/* The donor of the twins. */
	fault.lost[0] = a->link[1].far;
	fault.lost[1] = b->link[1].far;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, 0);
	for (int i = 0; i < WORDS; i++)
		p[i] = 9;
	assert_int_equal(ebbdsm_return_mut(a, &borrowed, p), 0);
	/* The first one. */
	fault.lost[2] = a->link[0].far;
	fault.lost[3] = b->link[0].far;
	for (unsigned i = 0; i < 40; i++) {
		assert_int_equal(look(b, ebbdsm_lend(&box[i])), 100 + i);
		assert_int_equal(value_of(a, &box[i]), 100 + i);
	}
	assert_int_equal(look(b, ebbdsm_lend(&borrowed)), 9);
	/* In mapped memory it is withdrawn. */
	assert_int_equal(ebbdsm_reclaim(a, &lent), a->link[0].maps ? 0 : -EOWNERDEAD);
	assert_int_equal(value_of(a, &lent), 7);
	if (!a->link[0].maps)
		assert_int_equal(count(b).at_twins, 41);
	for (unsigned i = 0; i < 40; i++)
		set(a, &box[i], 200 + i);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(look(b, ebbdsm_lend(&box[i])), 200 + i);
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_true(count(a).bare > 0);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* The value of a shared object has another copy when its copy is lost. */
static void shared_objects(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct { struct dsm_head head; uint64_t words[WORDS]; uint8_t rest[64]; } got;
	struct ebbdsm_box box = make(a, 7);
	struct heap_twin twin[HEAP_TWINS];
	struct ebbdsm_arc arc;
	struct dsm_op op;

	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), 0);
	/* The donor of the twins. */
	fault.lost[0] = a->link[1].far;
	fault.lost[1] = b->link[1].far;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, 0);
	pthread_mutex_lock(&a->lock);
	assert_int_equal(heap_twins(&a->heap, arc.value.at, twin), 1);
	pthread_mutex_unlock(&a->lock);
	assert_ptr_equal(twin[0].link, &a->link[2]);
	dsm_read_twin(&op, arc.value.at, arc.value.stamp);
	assert_int_equal(link_run_at(twin[0].link, &op, (void *)&got, &twin[0].x), 0);
	assert_int_equal(value_in(got.words), 7);
	/* The first one. */
	fault.lost[2] = a->link[0].far;
	fault.lost[3] = b->link[0].far;
	assert_int_equal(look(b, arc.value), 7);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* Two twins of a block, in places that may be equal: a write to one fails. */
static void one_of_two_twins(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct ebbdsm_box box = make(a, 7);
	struct heap_twin twin[HEAP_TWINS], left[HEAP_TWINS];
	struct slot *slot;

	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	pthread_mutex_lock(&a->lock);
	heap_begin_write(&a->heap, box.at);
	assert_int_equal(heap_twins(&a->heap, box.at, twin), 2);
	/* As if the second donor had given that place. */
	slot = heap_find(&a->heap, box.at);
	assert_non_null(slot);
	for (int wrong = 0; wrong < 2; wrong++) {
		struct heap_twin other = twin[0];

		other.link = wrong ? other.link : twin[1].link;
		other.x.generation += (unsigned)wrong;
		heap_lose_twin(&a->heap, box.at, &other);
		assert_int_equal(heap_twins(&a->heap, box.at, left), 2);
	}
	heap_lose_twin(&a->heap, box.at, &twin[0]);
	assert_int_equal(heap_twins(&a->heap, box.at, left), 1);
	assert_ptr_equal(left[0].link, twin[1].link);
	/* Its memory is this process's until the write has ended. */
	assert_int_equal(link_has(twin[0].link, twin[0].link->member, &twin[0].x), 1);
	heap_end_write(&a->heap, box.at);
	for (int i = 0; link_has(twin[0].link, twin[0].link->member, &twin[0].x); i++) {
		link_settle(twin[0].link);
		assert_true(i < 1000);
		usleep(1000);
	}
	pthread_mutex_unlock(&a->lock);
	assert_int_equal(look(b, ebbdsm_lend(&box)), 7);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* The end of one object fails to get memory: the others of its block stay. */
static void no_memory(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box[40];
	struct ebbdsm_view view;

	for (unsigned i = 0; i < 40; i++)
		box[i] = make(a, 100 + i);
	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	for (unsigned i = 0; i < 2; i++) {
		view = ebbdsm_lend(&box[i]);
		allocations = 1 + (int)i;
		assert_int_equal(ebbdsm_drop(a, &box[i]), 0);
		allocations = 0;
		assert_true((int64_t)look(b, view) == -ESTALE || (int64_t)look(b, view) == -EIO);
	}
	for (unsigned i = 2; i < 40; i++)
		assert_int_equal(look(b, ebbdsm_lend(&box[i])), 100 + i);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* A process has taken a parcel, and cannot finish: the giver, which has mapped it, frees it. */
static void taken_and_lost(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 7);
	struct ebbdsm_parcel parcel;
	uint64_t claim, generation;
	struct dsm_op op;
	struct { struct dsm_head head; uint64_t words[WORDS]; uint8_t rest[64]; } got;

	assert_int_equal(ebbdsm_give(a, &box, &parcel), 0);
	assert_int_equal(link_claim(&b->link[0], &claim, &generation), 0);
	dsm_take(&op, parcel.at, parcel.stamp, DSM_HOLD_OFFERED, claim, generation);
	assert_int_equal(link_run(&b->link[0], &op, (void *)&got), 0);
	ebbdsm_settle(a);
	assert_int_equal(count(a).places, 1);
	fault.is_late = true;
	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	ebbdsm_settle(a);
	assert_int_equal(count(a).places, 0);
	assert_int_equal(ebbdsm_reclaim(a, &box), -ESTALE);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

static int no_function(ebbdsm_t *dsm, struct ebbdsm_call *call)
{
	return 0;
}

/* A worker goes on at its home donor when another one is lost. */
static void workers(void **state)
{
	static const ebbdsm_function table[] = { no_function };
	struct ebbdsm_functions f = { .size = sizeof(f), .table = table, .count = 1,
				      .waiting = 1, .build = "b" };
	ebbdsm_t *a = join(0, 2);

	assert_int_equal(ebbdsm_register(a, &f), 0);
	fault.lost[0] = a->link[1].far;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	a->tasks.settled_at = 0;
	assert_int_equal(ebbdsm_work(a, 0), -EAGAIN);
	fault.lost[0] = a->link[0].far;
	a->tasks.settled_at = 0;
	assert_int_equal(ebbdsm_work(a, 0), -EIO);
	ebbdsm_close(a);
}

/* The name of an object that has ended costs little while all donors are there. */
static void stale_views(void **state)
{
	enum { VIEWS = 100 };
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 1), kept = make(a, 2);
	struct ebbdsm_view view = ebbdsm_lend(&box);
	uint64_t before;

	assert_int_equal(ebbdsm_drop(a, &box), 0);
	assert_int_equal(value_of(a, &kept), 2);
	for (int i = 0; a->link[0].posted || a->link[1].posted; i++) {
		assert_true(i < 5000);
		ebbdsm_settle(a);
		usleep(1000);
	}
	before = count(b).round_trips;
	for (int i = 0; i < VIEWS; i++)
		assert_int_equal(look(b, view), (uint64_t)-ESTALE);
	assert_true(count(b).round_trips - before <= 4 * VIEWS + 40);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* A list has moved: its readers notice, whatever they have read just before. */
static void moved_lists(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct { struct dsm_head head; uint64_t words[WORDS]; uint8_t rest[64]; } got;
	uint64_t size, key = 1;
	struct twin_list *list = &a->heap.list[1];
	struct ebbdsm_box box = make(a, 1);
	uint32_t entries = list->table[0].entries;

	assert_int_equal(dsm_read_saved(b, box.at, box.stamp, (void *)&got, &size), 0);
	pthread_mutex_lock(&a->lock);
	while (list->table[0].entries == entries)
		assert_int_equal(twin_list_add(list, &a->link[1], &a->heap.told, key++ << 20, 0),
				 0);
	twin_unlock(&a->heap.told);
	ebbdsm_settle(a);
	assert_int_equal(dsm_read_saved(b, box.at, box.stamp, (void *)&got, &size), 0);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* The value is at the second donor: the third one is not asked. */
static void silent_donor(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct ebbdsm_box box = make(a, 1);
	uint64_t before;

	fault.lost[0] = b->link[0].far;
	before = b->link[2].round_trips;
	assert_int_equal(look(b, ebbdsm_lend(&box)), 1);
	assert_int_equal(b->link[2].round_trips, before);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* Many twins: the list grows, and its entries are found. */
static void lists(void **state)
{
	enum { KEYS = 3000 };
	ebbdsm_t *a = join(0, 2);
	struct link *l = &a->link[1];
	struct twin_list list = { 0 };
	const struct twin_table *t = &list.table[0];
	struct twin_entry e[TWIN_WINDOW];

	pthread_mutex_lock(&a->lock);
	for (uint64_t i = 1; i <= KEYS; i++)
		assert_int_equal(twin_list_add(&list, l, &a->heap.told, i << 20, i << 12), 0);
	for (uint64_t i = 1; i <= KEYS; i += 3)
		twin_list_remove(&list, l, &a->heap.told, i << 20);
	twin_unlock(&a->heap.told);
	assert_int_equal(list.tables, 1);
	assert_true(t->entries >= KEYS);
	for (uint64_t i = 1; i <= KEYS; i++) {
		struct ebbfar_request q = {
			.op = EBBFAR_READ, .extent = t->x, .memory = e, .size = sizeof(e),
			.offset = sizeof(struct twin_head) +
				  twin_first(i << 20, t->entries) * sizeof(*e) };
		uint64_t place = 0;

		assert_int_equal(link_submit(l, &q, 1), 0);
		for (uint32_t k = 0; k < TWIN_WINDOW; k++)
			place = e[k].key == i << 20 ? e[k].place : place;
		assert_int_equal(place, i % 3 == 1 ? 0 : i << 12);
	}
	link_free(l, &t->x);
	twin_list_end(&list);
	ebbdsm_close(a);
}

/* Sets @key to the next one that the largest table has in the places of key 1 << 20. */
static void next_key(uint64_t *key)
{
	const uint32_t entries = (EBBFAR_EXTENT_MOST - sizeof(struct twin_head)) /
				 sizeof(struct twin_entry);

	do
		*key += 1 << 20;
	while (twin_first(*key, entries) != twin_first(1 << 20, entries));
}

/* A table that is full has others before and after it, and readers find what all have. */
static void full_lists(void **state)
{
	enum { TABLES = 3 };
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct twin_list *list = &a->heap.list[1];
	struct ebbdsm_box first = make(a, 1), last = { 0 };
	uint64_t key = 1 << 20;
	char large[40000] = { 0 };
	struct ebbdsm_view view;
	const char *p;

	pthread_mutex_lock(&a->lock);
	for (int i = 0; i < TABLES * (int)TWIN_WINDOW; i++, next_key(&key))
		assert_int_equal(twin_list_add(list, &a->link[1], &a->heap.told, key, 0), 0);
	twin_unlock(&a->heap.told);
	assert_in_range(list->tables, TABLES, TABLES + 1);
	memset(large, 7, sizeof(large));
	assert_int_equal(ebbdsm_new(a, large, sizeof(large), &last), 0);
	assert_int_equal(count(a).bare, 0);
	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	assert_int_equal(look(b, ebbdsm_lend(&first)), 1);
	view = ebbdsm_lend(&last);
	p = ebbdsm_borrow_view(b, &view, NULL);
	assert_non_null(p);
	assert_memory_equal(p, large, sizeof(large));
	assert_int_equal(ebbdsm_return_view(b, &view, p), 0);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* Blocks for which there is no memory: others get twins, and these are not read again and again. */
static void no_room(void **state)
{
	enum { LARGE = 3, SMALL = 7, BYTES = 40000, EXTENT = 512 << 10 };
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct ebbdsm_box large[LARGE] = { 0 }, small[SMALL] = { 0 }, box = make(a, 5);
	uint64_t round_trips;

	for (int i = 0; i < LARGE; i++)
		assert_int_equal(ebbdsm_new(a, NULL, EXTENT - DSM_HEAD, &large[i]), 0);
	for (int i = 0; i < SMALL; i++)
		assert_int_equal(ebbdsm_new(a, NULL, BYTES, &small[i]), 0);
	fault.lost[0] = a->link[1].far;
	fault.lost[1] = b->link[1].far;
	fault.room = EXTENT;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, LARGE * EXTENT);
	assert_int_equal(fault.asked, 1);
	round_trips = count(a).round_trips;
	for (int i = 0; i < 20; i++)
		ebbdsm_settle(a);
	assert_int_equal(count(a).round_trips, round_trips);
	assert_int_equal(fault.asked, 1);
	fault.room = 0;
	a->heap.full[2].until = 0;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, 0);
	fault.lost[2] = a->link[0].far;
	fault.lost[3] = b->link[0].far;
	assert_int_equal(look(b, ebbdsm_lend(&box)), 5);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* A block whose objects are nowhere is read seldom. */
static void not_to_copy(void **state)
{
	ebbdsm_t *a = join(0, 3);
	struct ebbdsm_box box = make(a, 5), other = { 0 };
	struct slot *slot = heap_find(&a->heap, box.at);
	uint64_t allocated;

	assert_int_equal(ebbdsm_new(a, NULL, 40000, &other), 0);
	slot->stamp += 16;
	fault.lost[0] = a->link[1].far;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, NAME_BLOCK);
	allocated = count(a).round_trips;
	for (int i = 0; i < 20; i++)
		ebbdsm_settle(a);
	assert_int_equal(count(a).round_trips, allocated);
	slot->stamp -= 16;
	a->heap.bare_first->mend_at = 0;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, 0);
	ebbdsm_close(a);
}

struct busy {
	ebbdsm_t *dsm;
	struct ebbdsm_box box, other;
	uint64_t value;
	bool ends; /* atomic */
};

static void *work(void *argument)
{
	struct busy *busy = argument;

	while (!__atomic_load_n(&busy->ends, __ATOMIC_SEQ_CST)) {
		set(busy->dsm, &busy->box, ++busy->value);
		assert_int_equal(ebbdsm_drop(busy->dsm, &busy->other), 0);
		busy->other = make(busy->dsm, busy->value);
	}
	return NULL;
}

/* A block at which calls always work gets a twin, which has what they have written. */
static void busy_blocks(void **state)
{
	enum { THREADS = 3, BOXES_BESIDE = 20 };
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct busy busy[THREADS] = { 0 };
	struct ebbdsm_box box[BOXES_BESIDE];
	pthread_t thread[THREADS];

	for (unsigned i = 0; i < BOXES_BESIDE; i++)
		box[i] = make(a, 100 + i);
	for (int i = 0; i < THREADS; i++) {
		busy[i] = (struct busy){ .dsm = a, .box = make(a, 1), .other = make(a, 2) };
		assert_int_equal(pthread_create(&thread[i], NULL, work, &busy[i]), 0);
	}
	usleep(20000);
	fault.lost[0] = b->link[1].far;
	__atomic_store_n(&fault.lost[1], a->link[1].far, __ATOMIC_SEQ_CST);
	assert_int_equal(ebbdsm_settle(a), -EIO);
	assert_int_equal(count(a).bare, 0);
	usleep(20000);
	for (int i = 0; i < THREADS; i++)
		__atomic_store_n(&busy[i].ends, true, __ATOMIC_SEQ_CST);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(count(a).bare, 0);
	fault.lost[2] = a->link[0].far;
	fault.lost[3] = b->link[0].far;
	for (unsigned i = 0; i < BOXES_BESIDE; i++)
		assert_int_equal(look(b, ebbdsm_lend(&box[i])), 100 + i);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(look(b, ebbdsm_lend(&busy[i].box)), busy[i].value);
		assert_int_equal(look(b, ebbdsm_lend(&busy[i].other)), busy[i].value);
	}
	ebbdsm_close(a);
	ebbdsm_close(b);
}

struct slow {
	ebbdsm_t *dsm;
	struct ebbdsm_box *box;
	int n;
};

static void *drops(void *argument)
{
	struct slow *slow = argument;

	for (int i = 0; i < slow->n; i++)
		assert_int_equal(ebbdsm_drop(slow->dsm, &slow->box[i]), 0);
	return NULL;
}

static void *makes(void *argument)
{
	struct slow *slow = argument;

	assert_int_equal(ebbdsm_new(slow->dsm, NULL, 300000, slow->box), 0);
	return NULL;
}

static void *settle_slowly(void *argument)
{
	struct slow *slow = argument;

	ebbdsm_settle(slow->dsm);
	return NULL;
}

/* While a call of another thread waits for @silent, a borrow without messages does not. */
static void borrow_beside(void *call(void *argument), struct slow *slow, struct link *silent,
			  struct ebbdsm_box *box)
{
	pthread_t thread;

	be_silent(silent->far, 60000);
	assert_int_equal(pthread_create(&thread, NULL, call, slow), 0);
	for (int i = 0; !__atomic_load_n(&fault.waiting, __ATOMIC_SEQ_CST); i++) {
		assert_true(i < 30000);
		usleep(1000);
	}
	assert_int_equal(value_of(slow->dsm, box), 5);
	assert_ptr_equal(__atomic_load_n(&fault.silent, __ATOMIC_SEQ_CST), silent->far);
	end_silence(0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* The donor of twins is silent: calls of the process that do not need it go on. */
static void silent_twins(void **state)
{
	enum { DROPPED = 100 };
	ebbdsm_t *a = join(0, 3);
	struct ebbdsm_box box = make(a, 5), dropped[DROPPED], large = { 0 };
	struct slow slow = { a, dropped, DROPPED };

	assert_int_equal(value_of(a, &box), 5);
	for (unsigned i = 0; i < DROPPED; i++)
		dropped[i] = make(a, i);
	borrow_beside(drops, &slow, &a->link[1], &box);
	slow.box = &large;
	borrow_beside(makes, &slow, &a->link[1], &box);
	assert_int_equal(count(a).bare, 0);
	fault.lost[0] = a->link[1].far;
	borrow_beside(settle_slowly, &slow, &a->link[2], &box);
	assert_int_equal(count(a).bare, 0);
	ebbdsm_close(a);
}

/* --- what others see -------------------------------------------------------------- */

/* A value that is over is read no more, also where a reader has mapped what the owner had not. */
static void values_that_are_over(void **state)
{
	ebbdsm_t *a, *b;
	struct ebbdsm_box box;
	struct ebbdsm_view first, second;

	at = world.tcp;
	a = join(0, 2);
	at = world.local;
	b = join(1, 2);
	assert_true(b->link[0].maps && !a->link[0].maps);
	box = make(a, 7);
	first = ebbdsm_lend(&box);
	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	ebbdsm_settle(a);
	set(a, &box, 8);
	assert_true((int64_t)look(b, first) == -ESTALE || (int64_t)look(b, first) == -EIO);
	second = ebbdsm_lend(&box);
	assert_int_equal(ebbdsm_drop(a, &box), 0);
	assert_true((int64_t)look(b, first) == -ESTALE || (int64_t)look(b, first) == -EIO);
	assert_true((int64_t)look(b, second) < 0 || look(b, second) == 8);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

enum { OBJECTS = 40, LONG = 2500 };

static struct {
	ebbdsm_t *reader;
	struct ebbdsm_view view[OBJECTS];
	uint32_t seen, wrong;
} dead;

/* Reads the objects of a process that has ended, of which no other one keeps a copy. */
static void look_at_the_dead(void)
{
	usleep(2000);
	for (int i = 0; i < OBJECTS; i++) {
		const uint64_t *p = ebbdsm_borrow_view(dead.reader, &dead.view[i], NULL);
		bool is_wrong = false;

		for (int k = 1; k < LONG && p; k++)
			is_wrong |= p[k] != p[0];
		dead.seen += p != NULL;
		dead.wrong += is_wrong;
		if (p)
			assert_int_equal(ebbdsm_return_view(dead.reader, &dead.view[i], p), 0);
	}
	cache_end(&dead.reader->cache);
	dead.reader->cache.oldest = dead.reader->cache.newest = NULL;
}

/* A list lies where a dead process's object was: readers find the object, or none. */
static void memory_of_the_dead(void **state)
{
	ebbdsm_t *a = join(0, 2), *c = join(0, 2);
	struct ebbdsm_box box = { 0 };
	uint64_t content[LONG];

	memset(&dead, 0, sizeof(dead));
	dead.reader = join(1, 2);
	for (int i = 0; i < LONG; i++)
		content[i] = 77;
	for (int i = 0; i < OBJECTS; i++) {
		assert_int_equal(ebbdsm_new(c, content, sizeof(content), &box), 0);
		dead.view[i] = ebbdsm_lend(&box);
		box = (struct ebbdsm_box){ 0 };
	}
	ebbdsm_close(c);
	usleep(200000);
	look_at_the_dead();
	fault.split = a->link[1].far;
	fault.before_last = look_at_the_dead;
	for (int n = 0; n < OBJECTS; n++) {
		struct twin_list list = { 0 };

		pthread_mutex_lock(&a->lock);
		for (uint64_t i = 1; i <= 900; i++)
			assert_int_equal(twin_list_add(&list, &a->link[1], &a->heap.told, i << 20,
						       i << 12), 0);
		twin_unlock(&a->heap.told);
		twin_list_end(&list);
	}
	fault.before_last = NULL;
	printf("%u objects of a dead process read\n", dead.seen);
	assert_true(dead.seen > 0);
	assert_int_equal(dead.wrong, 0);
	ebbdsm_close(a);
	ebbdsm_close(dead.reader);
}

/* A block's donor is lost, and noticed, while its twin is made. */
static void lost_meanwhile(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct ebbdsm_box large = { 0 };
	struct slow slow = { a, &large, 1 };
	struct ebbdsm_view view;
	pthread_t thread;
	size_t size = 0;
	const void *p;

	be_silent(a->link[1].far, 60000);
	assert_int_equal(pthread_create(&thread, NULL, makes, &slow), 0);
	while (!__atomic_load_n(&fault.waiting, __ATOMIC_SEQ_CST))
		usleep(1000);
	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	end_silence(1000);
	ebbdsm_settle(a);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(count(a).bare > 0);
	ebbdsm_settle(a);
	assert_int_equal(count(a).bare, 0);
	fault.lost[2] = a->link[1].far;
	fault.lost[3] = b->link[1].far;
	view = ebbdsm_lend(&large);
	p = ebbdsm_borrow_view(b, &view, &size);
	assert_non_null(p);
	assert_int_equal(size, 300000);
	assert_int_equal(ebbdsm_return_view(b, &view, p), 0);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* What one process publishes is no place: values of others are found. */
static void wrong_words(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(1, 3), *c = join(0, 3);
	struct ebbdsm_box box = make(a, 7);

	assert_int_equal(ebbfar_publish(c->link[1].far, (4ull << 32) | TWIN_VERSION), 0);
	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	assert_int_equal(look(b, ebbdsm_lend(&box)), 7);
	ebbdsm_close(a);
	ebbdsm_close(b);
	ebbdsm_close(c);
}

static ebbdsm_t *grows;

/* The list of twins at the second donor is at another place. */
static void grow_list(void)
{
	struct twin_list *list = &grows->heap.list[1];
	uint32_t entries = list->table[0].entries;
	static uint64_t key;

	pthread_mutex_lock(&grows->lock);
	while (list->table[0].entries == entries)
		assert_int_equal(twin_list_add(list, &grows->link[1], &grows->heap.told,
					       ++key << 20, 0), 0);
	twin_unlock(&grows->heap.told);
	for (int i = 0; grows->link[1].posted && i < 1000; i++) {
		link_settle(&grows->link[1]);
		usleep(1000);
	}
}

/* A list grows between two round trips of its reader. */
static void growing_lists(void **state)
{
	ebbdsm_t *a = grows = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 7);

	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	fault.after_words = grow_list;
	assert_int_equal(look(b, ebbdsm_lend(&box)), 7);
	assert_null(fault.after_words);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* The owner alone has lost the donor: what a borrower returns there late has no effect. */
static void late_returns(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 7);
	struct ebbdsm_loan loan;
	uint64_t *p;
	int r;

	assert_int_equal(ebbdsm_lend_mut(a, &box, &loan), 0);
	p = ebbdsm_borrow_loan(b, &loan, NULL);
	assert_non_null(p);
	fault.lost[0] = a->link[0].far;
	assert_int_equal(ebbdsm_reclaim(a, &box), -EOWNERDEAD);
	set(a, &box, 9);
	p[0] = 1;
	r = ebbdsm_return_loan(b, &loan, p);
	assert_true(r == 0 || r == -EIO || r == -EOWNERDEAD);
	assert_int_equal(value_of(a, &box), 9);
	assert_int_equal(look(b, ebbdsm_lend(&box)), 9);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* Without memory to look for a value, it is not lost. */
static void no_memory_to_look(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 7);
	bool failed = false;

	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	for (int i = 1; i < 4; i++) {
		int64_t seen;

		allocations = i;
		seen = (int64_t)look(b, ebbdsm_lend(&box));
		allocations = 0;
		assert_true(seen == 7 || seen == -ENOMEM);
		failed |= seen == -ENOMEM;
	}
	assert_true(failed);
	assert_int_equal(count(b).lost, 0);
	assert_int_equal(look(b, ebbdsm_lend(&box)), 7);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* A process that cannot map a donor's memory now does not find that a value is lost. */
static void no_files_to_look(void **state)
{
	ebbdsm_t *a = join(0, 2), *b = join(1, 2);
	struct ebbdsm_box box = make(a, 7), other = make(a, 8);

	fault.lost[0] = a->link[0].far;
	fault.lost[1] = b->link[0].far;
	for (int knows_lists = 0; knows_lists < 2; knows_lists++) {
		fault.no_files = b->link[1].far;
		assert_int_equal((int64_t)look(b, ebbdsm_lend(&box)), -ENOMEM);
		fault.no_files = NULL;
		assert_int_equal(look(b, ebbdsm_lend(&other)), 8);
	}
	assert_int_equal(count(b).lost, 0);
	assert_int_equal(look(b, ebbdsm_lend(&box)), 7);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

static void *sets(void *argument)
{
	struct slow *slow = argument;

	set(slow->dsm, slow->box, 3);
	return NULL;
}

/* A box at a silent donor is dropped: others do not wait for that. */
static void silent_places(void **state)
{
	ebbdsm_t *a = join(0, 3);
	struct ebbdsm_box box = make(a, 5), home = make(a, 1), far = { 0 }, large = { 0 };
	struct ebbdsm_box dropped[] = { far, large };
	struct slow writer = { a, &home, 1 }, dropper = { a, dropped, 2 };
	uint64_t zero[WORDS] = { 0 };
	pthread_t thread[2];

	assert_int_equal(ebbdsm_new_at(a, 1ull << 61, zero, sizeof(zero), &dropped[0]), 0);
	assert_int_equal(ebbdsm_new_at(a, 1ull << 61, NULL, 300000, &dropped[1]), 0);
	set(a, &home, 2);
	assert_int_equal(value_of(a, &box), 5);
	be_silent(a->link[1].far, 60000);
	assert_int_equal(pthread_create(&thread[0], NULL, sets, &writer), 0);
	while (!__atomic_load_n(&fault.waiting, __ATOMIC_SEQ_CST))
		usleep(1000);
	assert_int_equal(pthread_create(&thread[1], NULL, drops, &dropper), 0);
	usleep(50000);
	assert_int_equal(value_of(a, &box), 5);
	assert_ptr_equal(__atomic_load_n(&fault.silent, __ATOMIC_SEQ_CST), a->link[1].far);
	end_silence(0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	ebbdsm_close(a);
}

/* A donor is lost: what others have left or taken at the other donors is freed, as always. */
static void settled_beside_a_loss(void **state)
{
	ebbdsm_t *a = join(0, 3), *b = join(2, 3);
	struct ebbdsm_box box = make(a, 5), given = make(a, 6), away = { 0 }, got = { 0 };
	struct ebbdsm_parcel parcel, lost;
	struct ebbdsm_arc arc;
	uint64_t zero[WORDS] = { 0 };

	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), 0);
	assert_int_equal(ebbdsm_clone(b, &arc), 0);
	assert_int_equal(ebbdsm_unclone(a, &arc), 0);
	assert_int_equal(ebbdsm_give(a, &given, &parcel), 0);
	/* The first one that is looked at. */
	assert_int_equal(ebbdsm_new_at(a, 1ull << 61, zero, sizeof(zero), &away), 0);
	assert_int_equal(ebbdsm_give(a, &away, &lost), 0);
	assert_int_equal(count(a).places, 4);
	assert_int_equal(ebbdsm_accept(b, &parcel, &got), 0);
	assert_int_equal(ebbdsm_unclone(b, &arc), 0);
	fault.lost[0] = a->link[1].far;
	assert_int_equal(ebbdsm_settle(a), -EIO);
	/* At a donor over TCP, one that has accepted says so a little later. */
	for (int i = 0; i < 60000 && count(a).places; i++) {
		usleep(1000);
		assert_int_equal(ebbdsm_settle(a), -EIO);
	}
	assert_int_equal(count(a).places, 0);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* Of another process, at the donor that is silent. */
static struct {
	struct ebbdsm_parcel parcel;
	struct ebbdsm_loan loan;
	struct ebbdsm_mutex mutex;
	void *borrowed;
} handed;

static void *accepts(void *argument)
{
	struct slow *slow = argument;

	assert_int_equal(ebbdsm_accept(slow->dsm, &handed.parcel, slow->box), 0);
	return NULL;
}

static void *returns(void *argument)
{
	struct slow *slow = argument;

	assert_int_equal(ebbdsm_return_loan(slow->dsm, &handed.loan, handed.borrowed), 0);
	return NULL;
}

static void *locks(void *argument)
{
	struct slow *slow = argument;
	void *content;

	assert_int_equal(ebbdsm_lock(slow->dsm, &handed.mutex, -1, &content), 0);
	assert_int_equal(ebbdsm_unlock(slow->dsm, &handed.mutex, content), 0);
	return NULL;
}

/* What another process hands over at a silent donor: others do not wait for that. */
static void silent_givers(void **state)
{
	void *(*const calls[])(void *argument) = { sets, accepts, returns, locks };
	enum { CALLS = sizeof(calls) / sizeof(*calls) };
	ebbdsm_t *a = join(0, 3), *b = join(1, 3);
	struct ebbdsm_box box = make(a, 5), home = make(a, 1), got = { 0 };
	struct ebbdsm_box given = make(b, 6), lent = make(b, 7);
	struct slow slow[CALLS] = {
		{ a, &home, 1 }, { a, &got, 1 }, { a, NULL, 1 }, { a, NULL, 1 },
	};
	pthread_t thread[CALLS];

	assert_int_equal(ebbdsm_give(b, &given, &handed.parcel), 0);
	assert_int_equal(ebbdsm_lend_mut(b, &lent, &handed.loan), 0);
	assert_int_equal(ebbdsm_mutex_new(b, NULL, 8, &handed.mutex), 0);
	handed.borrowed = ebbdsm_borrow_loan(a, &handed.loan, NULL);
	assert_non_null(handed.borrowed);
	set(a, &home, 2);
	assert_int_equal(value_of(a, &box), 5);
	be_silent(a->link[1].far, 60000);
	for (int i = 0; i < CALLS; i++) {
		assert_int_equal(pthread_create(&thread[i], NULL, calls[i], &slow[i]), 0);
		while (!__atomic_load_n(&fault.waiting, __ATOMIC_SEQ_CST))
			usleep(1000);
		usleep(50000);
		assert_int_equal(value_of(a, &box), 5);
		assert_ptr_equal(__atomic_load_n(&fault.silent, __ATOMIC_SEQ_CST), a->link[1].far);
	}
	end_silence(0);
	for (int i = 0; i < CALLS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(value_of(a, &got), 6);
	ebbdsm_close(a);
	ebbdsm_close(b);
}

/* A place for which there is no memory: what is freed for it is not taken for twins. */
static void no_room_for_a_place(void **state)
{
	enum { EXTENT = 512 << 10 };
	ebbdsm_t *a = join(0, 3);
	struct ebbdsm_box box = make(a, 5), large = { 0 };
	struct heap_twin twin[HEAP_TWINS];

	fault.lost[0] = a->link[1].far;
	fault.room = EXTENT;
	assert_int_equal(ebbdsm_new_at(a, 0, NULL, EXTENT - DSM_HEAD, &large), -ENOSPC);
	assert_int_equal(heap_twins(&a->heap, box.at, twin), 1);
	assert_ptr_equal(twin[0].link, &a->link[1]);
	ebbdsm_settle(a);
	assert_int_equal(heap_twins(&a->heap, box.at, twin), 1);
	assert_ptr_equal(twin[0].link, &a->link[2]);
	ebbdsm_close(a);
}

/* A donor comes back empty: no name of the new pool is one that a box of the old one has. */
static void names_of_a_new_pool(void **state)
{
	enum { NAMES = 64 };
	struct ebbfar_options o = options(world.tcp, 0);
	struct ebbdsm_box old[NAMES];
	uint8_t *large = calloc(1, 40000);

	assert_non_null(large);
	for (int life = 0; life < 2; life++) {
		ebbdsm_t *a = join(0, 2);
		int r = -EBUSY;

		for (int i = 0; i < NAMES; i++) {
			struct ebbdsm_box box = { 0 };

			assert_int_equal(ebbdsm_new(a, large, i % 2 ? 40000 : 200, &box), 0);
			for (int k = 0; k < NAMES && life; k++)
				assert_true(box.at != old[k].at || box.stamp != old[k].stamp);
			old[i] = life ? old[i] : box;
		}
		ebbdsm_close(a);
		for (int i = 0; i < 500 && r == -EBUSY; i++) {
			r = ebbfar_destroy(&o);
			usleep(r == -EBUSY ? 10000 : 0);
		}
		assert_int_equal(r, 0);
	}
	free(large);
}

/* Waits of calls with twins, and without. */
static void messages(void **state)
{
	ebbdsm_t *a = join(0, 2);
	struct ebbdsm_box box = make(a, 1), other;
	uint64_t own = a->link[0].maps ? 0 : 1, before = count(a).round_trips;
	const void *p;

	other = make(a, 2);
	assert_int_equal(count(a).round_trips - before, own + 1);
	set(a, &box, 2);
	assert_int_equal(count(a).round_trips - before, 2 * (own + 1));
	p = ebbdsm_borrow(a, &box);
	assert_int_equal(ebbdsm_return(a, &box, p), 0);
	assert_int_equal(ebbdsm_drop(a, &other), 0);
	assert_int_equal(count(a).round_trips - before, 2 * (own + 1));
	ebbdsm_close(a);
}

#define BY_BOTH(test)                                                                    \
	{ #test " by TCP", test, by_tcp, end, NULL }, { #test " mapped", test, by_mapping, end, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_BOTH(wrong_options),
		BY_BOTH(stamps),
		BY_BOTH(mended),
		BY_BOTH(shared_objects),
		BY_BOTH(one_of_two_twins),
		BY_BOTH(no_memory),
		BY_BOTH(taken_and_lost),
		BY_BOTH(workers),
		BY_BOTH(stale_views),
		BY_BOTH(moved_lists),
		BY_BOTH(silent_donor),
		BY_BOTH(messages),
		BY_BOTH(no_room),
		BY_BOTH(not_to_copy),
		BY_BOTH(busy_blocks),
		BY_BOTH(silent_twins),
		BY_BOTH(full_lists),
		cmocka_unit_test_setup_teardown(values_that_are_over, by_tcp, end),
		cmocka_unit_test_setup_teardown(memory_of_the_dead, by_tcp, end),
		BY_BOTH(lost_meanwhile),
		BY_BOTH(wrong_words),
		BY_BOTH(growing_lists),
		BY_BOTH(late_returns),
		BY_BOTH(no_memory_to_look),
		BY_BOTH(no_files_to_look),
		BY_BOTH(no_room_for_a_place),
		BY_BOTH(silent_places),
		BY_BOTH(silent_givers),
		BY_BOTH(settled_beside_a_loss),
		cmocka_unit_test_setup_teardown(names_of_a_new_pool, by_tcp, end),
		cmocka_unit_test_setup_teardown(lists, by_tcp, end),
		BY_BOTH(lost_to_all),
		cmocka_unit_test_setup_teardown(lost_to_the_owner, by_tcp, end),
	};

	return cmocka_run_group_tests_name("libebbdsm's replicas", tests, NULL, NULL);
}
