// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "donord/pool/machine.h"
#include "lib/base/files.h"
#include "tests/unit/lending.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20 };

static void make_pool(struct pool *p, uint64_t memory, uint64_t slab, uint32_t filled,
		      enum lend_memory kind)
{
	struct error e = { 0 };

	if (pool_init(p, memory, slab, kind, &e) || pool_fill(p, filled, &e))
		fail_msg("%s", e.text);
}

static int with_pool(void **state)
{
	static struct pool pool;

	*state = &pool;
	/* The half slab at the end is not lent. */
	make_pool(&pool, 3 * SLAB + SLAB / 2, SLAB, 3, LEND_PRIVATE);
	return 0;
}

static int without_pool(void **state)
{
	pool_free(*state);
	return 0;
}

/* What the pool thread would do meanwhile. */
static void work(struct pool *p)
{
	while (pool_work(p))
		;
	assert_int_equal(pool_settle(p), 0);
}

static struct wire_frame access_to(uint32_t slab, uint32_t generation, uint32_t offset,
				   uint32_t length)
{
	return (struct wire_frame){ .op = WIRE_READ, .slab = slab, .generation = generation,
				    .offset = offset, .length = length };
}

static void lend_and_return(void **state)
{
	struct pool *p = *state;
	uint32_t slab[3], generation[3], none;

	assert_int_equal(pool_free_slabs(p), 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(lend(p, OWNER, &slab[i], &generation[i]), WIRE_OK);
	assert_int_equal(pool_free_slabs(p), 0);
	assert_int_equal(pool_owned(p, OWNER), 3);
	assert_int_equal(pool_owned(p, OTHER), 0);
	assert_int_equal(lend(p, OWNER, &none, &none), WIRE_NO_SPACE);
	assert_int_not_equal(generation[0], generation[1]);
	assert_int_equal(pool_return(p, OTHER, (struct wire_loan){ slab[1], generation[1] }),
			 WIRE_NO_SLAB);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab[1], generation[1] + 1 }),
			 WIRE_STALE);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab[1], generation[1] }),
			 WIRE_OK);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab[1], generation[1] }),
			 WIRE_NO_SLAB);
	assert_int_equal(pool_free_slabs(p), 1);
	assert_int_equal(pool_remove(p, OWNER), 2);
	assert_int_equal(pool_free_slabs(p), 3);
	assert_int_equal(pool_present(p), 3);
}

static void accesses_are_checked(void **state)
{
	struct pool *p = *state;
	uint32_t slab, g;
	struct wire_frame f;
	void *at;

	assert_int_equal(lend(p, OWNER, &slab, &g), WIRE_OK);
	f = access_to(slab, g, SLAB - 4096, 4096);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_OK);
	assert_ptr_equal(at, p->memory + slab * SLAB + SLAB - 4096);
	f = access_to(slab, g, SLAB - 4096, 8192);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_BAD_RANGE);
	f = access_to(slab, g, 0xfffff000, 8192); /* wraps in 32 bits */
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_BAD_RANGE);
	f = access_to(slab, g - 1, 0, 4096);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_STALE);
	f = access_to(slab, g, 0, 4096);
	assert_int_equal(pool_access(p, OTHER, &f, &at), WIRE_NO_SLAB);
	f = access_to(3, g, 0, 4096);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_NO_SLAB);
	f = access_to(UINT32_MAX, g, 0, 4096);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_NO_SLAB);
}

/* No borrower reads another's data, whether or not the pool thread has zeroed it. */
static void nothing_is_inherited(void **state)
{
	struct pool *p = *state;
	uint32_t slab, g;

	for (int idle = 0; idle < 2; idle++) {
		for (int i = 0; i < 3; i++)
			assert_int_equal(lend(p, OWNER, &slab, &g), WIRE_OK);
		memset(p->memory, 0xee, 3 * SLAB);
		pool_remove(p, OWNER);
		if (idle)
			while (pool_zero_some(p, LEND_RENEW))
				;
		assert_int_equal(p->in[LEND_DIRTY], idle ? 0 : 3);
		for (int i = 0; i < 3; i++)
			assert_int_equal(lend(p, OTHER, &slab, &g), WIRE_OK);
		for (size_t i = 0; i < 3 * SLAB; i++)
			if (p->memory[i])
				fail_msg("byte %zu of a new loan is %#x", i, p->memory[i]);
		pool_remove(p, OTHER);
	}
}

/* A request in flight pins the memory. */
static void pinned_memory_stays(void **state)
{
	struct pool *p = *state;
	uint32_t slab, g, other;

	for (int i = 0; i < 3; i++)
		assert_int_equal(lend(p, OWNER, &slab, &g), WIRE_OK);
	memset(p->memory + slab * SLAB, 0xdd, SLAB);
	pool_pin(p, slab);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab, g }), WIRE_OK);
	assert_false(pool_zero_some(p, LEND_RENEW));
	assert_int_equal(pool_shrink(p, 3), 0);
	assert_int_equal(lend(p, OTHER, &other, &g), WIRE_NO_SPACE);
	assert_int_equal(p->memory[slab * SLAB], 0xdd);
	pool_unpin(p, slab);
	assert_int_equal(lend(p, OTHER, &other, &g), WIRE_OK);
	assert_int_equal(other, slab);
	assert_int_equal(p->memory[slab * SLAB], 0);
}

/* Resident pages of the pool. */
static uint32_t resident(const struct pool *p)
{
	static unsigned char there[16 * SLAB / 4096];
	uint32_t n = 0, pages = p->count * (p->slab_size / 4096);

	assert_true(pages <= sizeof(there));
	assert_int_equal(mincore(p->memory, p->count * p->slab_size, there), 0);
	for (uint32_t i = 0; i < pages; i++)
		n += there[i] & 1;
	return n;
}

/* KiB that this process has locked. */
static uint64_t locked_kib(void)
{
	char text[4096];

	file_read("/proc/self/status", text, sizeof(text));
	assert_non_null(strstr(text, "VmLck:"));
	return strtoull(strstr(text, "VmLck:") + 6, NULL, 10);
}

static void grows_and_shrinks(enum lend_memory kind)
{
	enum { PAGES = SLAB / 4096 };
	uint64_t locked = locked_kib();
	struct pool p;
	uint32_t slab, g;

	make_pool(&p, 6 * SLAB, SLAB, 0, kind);
	assert_int_equal(pool_present(&p), 0);
	assert_int_equal(resident(&p), 0);
	assert_int_equal(lend(&p, OWNER, &slab, &g), WIRE_NO_SPACE);
	assert_int_equal(pool_grow(&p, 4), 4);
	/* They are not there before the pool thread has made them. */
	assert_int_equal(p.in[LEND_COMING], 4);
	assert_int_equal(pool_free_slabs(&p), 0);
	assert_int_equal(lend(&p, OWNER, &slab, &g), WIRE_NO_SPACE);
	work(&p);
	assert_int_equal(pool_free_slabs(&p), 4);
	assert_int_equal(resident(&p), 4 * PAGES);
	assert_int_equal(locked_kib() - locked, 4 * SLAB >> 10);
	assert_int_equal(pool_grow(&p, 5), 2);
	work(&p);
	assert_int_equal(pool_grow(&p, 1), 0);

	/* What is lent stays; what is dirty goes first. */
	for (int i = 0; i < 4; i++)
		assert_int_equal(lend(&p, i < 2 ? OWNER : OTHER, &slab, &g), WIRE_OK);
	memset(p.memory, 0x77, 4 * SLAB);
	assert_int_equal(pool_remove(&p, OTHER), 2);
	assert_int_equal(pool_shrink(&p, 3), 3);
	assert_int_equal(p.in[LEND_DIRTY], 0);
	work(&p);
	assert_int_equal(pool_present(&p), 3);
	assert_int_equal(resident(&p), 3 * PAGES);
	assert_int_equal(pool_shrink(&p, 100), 1);
	work(&p);
	assert_int_equal(pool_owned(&p, OWNER), 2);
	assert_int_equal(resident(&p), 2 * PAGES);
	assert_int_equal(locked_kib() - locked, 2 * SLAB >> 10);
	assert_int_equal(p.memory[0], 0x77);

	/* What comes again is zeroes. */
	assert_int_equal(pool_grow(&p, 6), 4);
	work(&p);
	assert_int_equal(lend(&p, OTHER, &slab, &g), WIRE_OK);
	for (size_t i = 0; i < SLAB; i++)
		assert_int_equal(p.memory[slab * SLAB + i], 0);
	pool_free(&p);
	assert_int_equal(locked_kib(), locked);
}

static void private_grows_and_shrinks(void **state)
{
	grows_and_shrinks(LEND_PRIVATE);
}

static void shared_grows_and_shrinks(void **state)
{
	grows_and_shrinks(LEND_SHARED);
}

/* Failed allocations are retried; no missing memory is lent. */
static void no_memory(void **state)
{
	struct rlimit old, few;
	struct pool p;
	uint32_t slab, g;
	int used = open("/dev/null", O_RDONLY);

	make_pool(&p, 4 * SLAB, SLAB, 0, LEND_SHARED);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = (rlim_t)used + 2;
	close(used);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(pool_grow(&p, 4), 4);
	while (pool_work(&p))
		;
	assert_int_equal(pool_settle(&p), -EMFILE);
	assert_int_equal(pool_present(&p), 2);
	assert_int_equal(p.in[LEND_ABSENT], 2);
	assert_int_equal(resident(&p), 2 * SLAB / 4096);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_int_equal(pool_grow(&p, 4), 2);
	work(&p);
	for (int i = 0; i < 4; i++)
		assert_int_equal(lend(&p, OWNER, &slab, &g), WIRE_OK);
	pool_free(&p);
}

/* A revoked loan is reported as revoked until its owner's number is reused. */
static void revoked(void **state)
{
	struct pool *p = *state;
	uint32_t slab, g, other, g2;
	struct wire_frame f;
	void *at;

	assert_int_equal(lend(p, OWNER, &slab, &g), WIRE_OK);
	f = access_to(slab, g, 0, 4096);
	pool_revoke(p, slab, 0);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_STALE);
	assert_int_equal(pool_access(p, OTHER, &f, &at), WIRE_NO_SLAB);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab, g }), WIRE_STALE);
	assert_int_equal(p->in[LEND_DIRTY], 1);
	assert_int_equal(pool_remove(p, OWNER), 0);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_NO_SLAB);
	for (int i = 0; i < 3; i++)
		assert_int_equal(lend(p, OTHER, &other, &g2), WIRE_OK);
	assert_int_equal(pool_access(p, OWNER, &f, &at), WIRE_NO_SLAB);
}

/*
 * A revoked slab whose borrower has yet to hear of it is not lent again, as that would drop the
 * announcement, and the borrower would keep the memory mapped.
 */
static void revoked_and_untold(void **state)
{
	struct pool *p = *state;
	uint32_t slab, other, g;

	OWNER->hears_revoked = true;
	assert_int_equal(lend(p, OWNER, &slab, &g), WIRE_OK);
	pool_hand_over(p, slab);
	pool_revoke(p, slab, 0);
	assert_true(p->slabs[slab].untold);
	/* It gets new memory meanwhile. */
	while (pool_zero_some(p, LEND_RENEW))
		while (pool_work(p))
			;
	pool_settle(p);
	assert_int_equal(p->in[LEND_CLEAN], 3);
	for (int i = 0; i < 2; i++)
		assert_int_equal(lend(p, OTHER, &other, &g), WIRE_OK);
	assert_int_equal(lend(p, OTHER, &other, &g), WIRE_NO_SPACE);
	assert_true(p->slabs[slab].untold);
	p->slabs[slab].untold = false;
	assert_int_equal(lend(p, OTHER, &other, &g), WIRE_OK);
	assert_int_equal(other, slab);
	OWNER->hears_revoked = false;
}

static void bad_sizes(void **state)
{
	struct pool p;
	struct error e = { 0 };

	assert_int_equal(pool_init(&p, 1 << 30, 4096, LEND_PRIVATE, &e), -EINVAL);
	assert_non_null(strstr(e.text, "1M to 1G"));
	e.code = 0;
	assert_int_equal(pool_init(&p, SLAB - 1, SLAB, LEND_PRIVATE, &e), -EINVAL);
	assert_int_equal(e.exit_status, EXIT_USAGE);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* What a borrower may still have mapped is never another's. */
static void hand_over_and_replace(uint32_t size)
{
	struct pool p;
	uint32_t slab, again, g1, g2;
	uint8_t *kept;
	int seals, open;

	make_pool(&p, size, size, 1, LEND_SHARED_HUGE);
	assert_int_equal(lend(&p, OWNER, &slab, &g1), WIRE_OK);
	seals = fcntl(pool_hand_over(&p, slab), F_GET_SEALS);
	assert_int_equal(seals & F_SEAL_SHRINK, F_SEAL_SHRINK);
	kept = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, pool_hand_over(&p, slab), 0);
	assert_ptr_not_equal(kept, MAP_FAILED);
	memset(kept, 0x5a, size);
	assert_int_equal(p.memory[size - 1], 0x5a);
	assert_int_equal(pool_return(&p, OWNER, (struct wire_loan){ slab, g1 }), WIRE_OK);
	/* Not even after it has been zeroed: its borrower could write to it. */
	assert_int_equal(lend(&p, OTHER, &again, &g2), WIRE_NO_SPACE);
	while (pool_zero_some(&p, LEND_GIVE_UP))
		;
	assert_int_equal(p.in[LEND_GOING], 1);
	work(&p);
	assert_int_equal(pool_present(&p), 0);
	assert_int_equal(pool_grow(&p, 1), 1);
	work(&p);
	assert_int_equal(lend(&p, OTHER, &again, &g2), WIRE_OK);
	assert_int_equal(again, slab);
	for (uint32_t i = 0; i < size; i++)
		assert_int_equal(p.memory[i], 0);
	memset(kept, 0x11, size);
	assert_int_equal(p.memory[0], 0);
	/* Pinned at first. */
	memset(p.memory, 0x22, size);
	pool_hand_over(&p, again);
	pool_pin(&p, again);
	assert_int_equal(pool_remove(&p, OTHER), 1);
	assert_false(pool_zero_some(&p, LEND_GIVE_UP));
	assert_int_equal(p.memory[0], 0x22);
	pool_unpin(&p, again);
	open = open_fds();
	/* In one go, where the machine does not want the memory. */
	while (pool_zero_some(&p, LEND_RENEW))
		;
	assert_int_equal(p.in[LEND_COMING], 1);
	work(&p);
	assert_int_equal(p.in[LEND_CLEAN], 1);
	/* We do not keep what its borrower may let go. */
	assert_int_equal(open_fds(), open);
	for (uint32_t i = 0; i < size; i++)
		assert_int_equal(p.memory[i], 0);
	/* Not handed over, a slab keeps its memory. */
	assert_int_equal(lend(&p, OWNER, &slab, &g1), WIRE_OK);
	seals = p.slabs[slab].fd;
	assert_int_equal(pool_return(&p, OWNER, (struct wire_loan){ slab, g1 }), WIRE_OK);
	while (pool_zero_some(&p, LEND_GIVE_UP))
		;
	assert_int_equal(p.slabs[slab].fd, seals);
	assert_int_equal(pool_present(&p), 1);
	munmap(kept, size);
	pool_free(&p);
}

static void handed_over_and_replaced(void **state)
{
	hand_over_and_replace(SLAB);
	/* Of a huge page, where there is one. */
	hand_over_and_replace(2 * SLAB);
}

static bool over_now(void *data)
{
	int *calls = data;

	return ++*calls > 2;
}

/* The pool thread checks for its end after each piece of a slab, not after each slab. */
static void told_to_stop(void **state)
{
	struct pool p;
	struct error e = { 0 };
	int calls = 0;

	assert_int_equal(pool_init(&p, 64 << 20, 64 << 20, LEND_PRIVATE, &e), 0);
	p.patience = (struct patience){ over_now, &calls };
	assert_int_equal(pool_fill(&p, 1, &e), -EINTR);
	assert_int_equal(calls, 3);
	assert_int_equal(e.code, 0);
	assert_int_equal(p.in[LEND_ABSENT], 1);
	assert_int_equal(mprotect(p.memory, 4096, PROT_READ), 0);
	assert_int_equal(p.memory[0], 0);
	pool_free(&p);
}

struct watcher {
	struct export x;
	uint32_t there; /* a bit each slab */
	uint32_t refuse;
};

static int added(struct export *x, uint32_t slab)
{
	struct watcher *w = (struct watcher *)x;

	/* It is there, and not lendable yet. */
	assert_int_equal(x->pool->memory[slab * SLAB], 0);
	assert_int_not_equal(x->pool->slabs[slab].state, LEND_CLEAN);
	if (slab == w->refuse)
		return -ENOBUFS;
	w->there |= 1u << slab;
	return 0;
}

static void removed(struct export *x, uint32_t slab)
{
	struct watcher *w = (struct watcher *)x;

	assert_int_equal(x->pool->memory[slab * SLAB], 0);
	w->there &= ~(1u << slab);
}

static const struct export_ops watches = { .slab_added = added, .slab_removed = removed };

/*
 * An export is told of memory that is made, and before it goes; without its consent there is none.
 */
static void exports_know_of_memory(void **state)
{
	struct watcher w = { .x.ops = &watches, .refuse = 2 };
	struct error e = { 0 };
	struct pool p;

	assert_int_equal(pool_init(&p, 4 * SLAB, SLAB, LEND_SHARED, &e), 0);
	pool_add_export(&p, &w.x);
	assert_int_equal(pool_fill(&p, 2, &e), 0);
	assert_int_equal(w.there, 3);
	assert_int_equal(pool_grow(&p, 2), 2);
	while (pool_work(&p))
		;
	assert_int_equal(pool_settle(&p), -ENOBUFS);
	assert_int_equal(w.there, 0xb);
	assert_int_equal(p.in[LEND_ABSENT], 1);
	assert_int_equal(p.slabs[2].fd, -1);
	assert_int_equal(resident(&p), 3 * SLAB / 4096);
	assert_int_equal(pool_shrink(&p, 3), 3);
	work(&p);
	assert_int_equal(w.there, 0);
	assert_int_equal(resident(&p), 0);
	pool_free(&p);
}

static char order[64];

static void run_task(struct pool_task *t)
{
	strcat(order, "run ");
}

static void task_done(struct pool_task *t)
{
	strcat(order, "done ");
}

/* Registrations come before slabs to be made. */
static void tasks_come_first(void **state)
{
	const struct pool_task task = { .run = run_task, .done = task_done };
	struct pool_task t[3] = { task, task, task };
	struct pool p;

	make_pool(&p, 3 * SLAB, SLAB, 2, LEND_PRIVATE);
	order[0] = '\0';
	pool_grow(&p, 1);
	for (int i = 0; i < 2; i++)
		pool_task(&p, &t[i]);
	assert_true(pool_work(&p));
	assert_string_equal(order, "run ");
	pool_task(&p, &t[2]);
	assert_int_equal(pool_settle(&p), 0);
	assert_string_equal(order, "run done ");
	assert_ptr_equal(p.tasks.taken, &t[1]);
	assert_true(pool_work(&p) && pool_work(&p));
	assert_int_equal(p.in[LEND_COMING], 1);
	work(&p);
	assert_string_equal(order, "run done run run done done ");
	assert_int_equal(p.in[LEND_COMING], 0);
	pool_free(&p);
}

static void run_later(struct pool_task *t)
{
	strcat(order, "later ");
}

/* A registration that a MAP waits for overtakes the keys to be invalidated, but not slabs these. */
static void later_tasks_let_others_pass(void **state)
{
	struct pool_task later[2] = { { .run = run_later, .done = task_done },
				      { .run = run_later, .done = task_done } };
	struct pool_task task = { .run = run_task, .done = task_done };
	struct pool p;

	make_pool(&p, 3 * SLAB, SLAB, 2, LEND_PRIVATE);
	order[0] = '\0';
	pool_grow(&p, 1);
	pool_task_later(&p, &later[0]);
	pool_task_later(&p, &later[1]);
	assert_true(pool_work(&p));
	pool_task(&p, &task);
	assert_true(pool_work(&p) && pool_work(&p));
	assert_string_equal(order, "later run later ");
	assert_int_equal(p.in[LEND_COMING], 1);
	work(&p);
	assert_int_equal(p.in[LEND_COMING], 0);
	pool_free(&p);
}

struct meanwhile {
	struct pool *pool;
	struct pool_task task;
	int calls;
};

/* The loop asks for a task while the pool thread is at the second of four pieces. */
static bool ask_meanwhile(void *data)
{
	struct meanwhile *m = data;

	if (m->calls++ == 1)
		pool_task(m->pool, &m->task);
	if (m->calls == 3)
		assert_string_equal(order, "run ");
	return false;
}

/* A large slab is made in pieces: tasks do not wait for the rest of it, nor does their answer. */
static void tasks_between_pieces(void **state)
{
	struct meanwhile m = { .task = { .run = run_task, .done = task_done } };
	eventfd_t answers;
	struct pool p;

	order[0] = '\0';
	make_pool(&p, 64 << 20, 64 << 20, 0, LEND_PRIVATE);
	m.pool = &p;
	p.done_fd = eventfd(0, EFD_NONBLOCK);
	p.patience = (struct patience){ ask_meanwhile, &m };
	pool_grow(&p, 1);
	assert_true(pool_work(&p));
	assert_int_equal(m.calls, 4);
	assert_int_equal(eventfd_read(p.done_fd, &answers), 0);
	assert_int_equal(answers, 2);
	assert_int_equal(pool_settle(&p), 0);
	assert_string_equal(order, "run done ");
	assert_int_equal(p.in[LEND_CLEAN], 1);
	close(p.done_fd);
	pool_free(&p);
}

/* A slab that may still be reached is neither lent, nor dropped, nor counted as free. */
static void withdrawn(void **state)
{
	struct pool *p = *state;
	uint32_t slab, g, other;

	assert_int_equal(lend(p, OWNER, &slab, &g), WIRE_OK);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab, g }), WIRE_OK);
	pool_withdraw(p, slab);
	assert_int_equal(pool_free_slabs(p), 2);
	assert_int_equal(pool_allocated(p), 3);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(lend(p, OTHER, &other, &g), WIRE_OK);
		assert_int_not_equal(other, slab);
	}
	assert_int_equal(lend(p, OTHER, &other, &g), WIRE_NO_SPACE);
	assert_true(p->refused);
	assert_int_equal(pool_remove(p, OTHER), 2);
	assert_int_equal(pool_shrink(p, 3), 2);
}

/* What one had is its reconnecting borrower's, which keeps what it names. */
static void taken_over(void **state)
{
	struct wire_frame again = { .op = WIRE_REMAP };
	struct pool *p = *state;
	uint32_t slab[3], g[3];

	for (int i = 0; i < 3; i++)
		assert_int_equal(lend(p, i < 2 ? OWNER : OTHER, &slab[i], &g[i]), WIRE_OK);
	assert_int_equal(pool_take_over(p, OWNER, OTHER), 2);
	assert_int_equal(pool_owned(p, OTHER), 3);
	assert_int_equal(pool_return(p, OWNER, (struct wire_loan){ slab[0], g[0] }), WIRE_NO_SLAB);
	again.slab = slab[1];
	again.generation = g[1];
	assert_int_equal(pool_lend_again(p, OTHER, &again), WIRE_OK);
	assert_int_equal(pool_return_rest(p, OTHER), 1);
	assert_int_equal(pool_check(p, OTHER, (struct wire_loan){ slab[0], g[0] }), WIRE_NO_SLAB);
	assert_int_equal(pool_check(p, OTHER, (struct wire_loan){ slab[1], g[1] }), WIRE_OK);
	again.generation++;
	assert_int_equal(pool_lend_again(p, OTHER, &again), WIRE_STALE);
}

static void the_machine(void **state)
{
	static const char meminfo[] = "MemTotal:       24691084 kB\nMemFree:         1000 kB\n"
				      "MemAvailable:   12345678 kB\nBuffers: 1 kB\n";
	static const char psi[] = "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\n"
				  "full avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
	struct headroom_sample s;
	struct error e = { 0 };
	struct machine m;

	assert_int_equal(machine_parse(meminfo, psi, &s), 0);
	assert_int_equal(s.memory, 24691084ull << 10);
	assert_int_equal(s.available, 12345678ull << 10);
	assert_true(s.pressure == 12.5);
	assert_int_equal(machine_parse(meminfo, NULL, &s), 0);
	assert_true(s.pressure == 0);
	assert_int_equal(machine_parse("MemTotal: 5 kB\nXMemAvailable: 1 kB\n", "", &s), -EBADMSG);
	assert_int_equal(machine_parse("MemTotal: 5 kB\n", "", &s), -EBADMSG);
	assert_int_equal(machine_parse("", "", &s), -EBADMSG);
	/* Of none, all is in use. */
	assert_int_equal(machine_parse("MemTotal: 5 kB\nMemAvailable: 9 kB\n", "", &s), 0);
	assert_int_equal(s.available, 5 << 10);
	machine_find(&m, "/proc");
	assert_int_equal(machine_sample(&m, &s, &e), 0);
	assert_true(s.memory > s.available && s.available > 0);
	assert_int_not_equal(machine_number(&m), 0);
	machine_find(&m, "/proc/self/fdinfo");
	assert_int_equal(machine_number(&m), 0);
	assert_int_equal(machine_sample(&m, &s, &e), -ENOENT);
	assert_non_null(strstr(e.text, "/meminfo"));
}

static char directory[] = "/tmp/ebb-machine-XXXXXX";

static void put(const char *file, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	*strrchr(path, '/') = '\0';
	assert_int_equal(file_make_dirs(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/%s", directory, file);
	assert_int_equal(file_replace(path, text), 0);
}

static struct headroom_sample sample(void)
{
	struct headroom_sample s;
	struct machine m;

	machine_find(&m, directory);
	assert_int_equal(machine_sample(&m, &s, NULL), 0);
	return s;
}

/* The lowest limit of our cgroup and those above it, page cache not counted as used. */
static void the_cgroups_we_are_in(void **state)
{
	struct headroom_sample s;
	char command[256];

	assert_non_null(mkdtemp(directory));
	put("meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
	assert_false(sample().limited);
	put("self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/a/b\n1:name=systemd:/\n0::/v2/only\n");
	put("cgroup/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	put("cgroup/a/memory.limit_in_bytes", "9223372036854771712\n");
	assert_false(sample().limited);
	put("cgroup/a/b/memory.limit_in_bytes", "1000000\n");
	put("cgroup/a/b/memory.usage_in_bytes", "700000\n");
	put("cgroup/a/b/memory.stat", "cache 1\ninactive_file 3\ntotal_inactive_file 100000\n"
				      "total_active_file 50000\ntotal_unevictable 9\n");
	s = sample();
	assert_true(s.limited);
	assert_int_equal(s.limit, 1000000);
	assert_int_equal(s.own, 450000);
	/* One above has less left, though its limit is higher. */
	put("cgroup/a/memory.limit_in_bytes", "2000000\n");
	put("cgroup/a/memory.usage_in_bytes", "1999000\n");
	s = sample();
	assert_int_equal(s.limit, 1000000);
	assert_int_equal(s.own, 1000);
	put("cgroup/a/memory.usage_in_bytes", "2999000\n");
	assert_int_equal(sample().own, 0);

	put("cgroup/cgroup.controllers", "cpu memory\n");
	put("cgroup/v2/only/memory.max", "max\n");
	assert_false(sample().limited);
	put("cgroup/v2/only/memory.high", "5000\n");
	put("cgroup/v2/only/memory.current", "2000\n");
	put("cgroup/v2/only/memory.stat", "anon 7\ninactive_file 400\nactive_file 100\n");
	s = sample();
	assert_int_equal(s.limit, 5000);
	assert_int_equal(s.own, 3500);
	put("cgroup/v2/memory.max", "1500\n");
	s = sample();
	assert_int_equal(s.limit, 1500);
	assert_int_equal(s.own, 1500);
	assert_int_equal(s.memory, 1ull << 30);
	snprintf(command, sizeof(command), "rm -r %s", directory);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lend_and_return, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(accesses_are_checked, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(nothing_is_inherited, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(pinned_memory_stays, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(revoked, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(revoked_and_untold, with_pool, without_pool),
		cmocka_unit_test(private_grows_and_shrinks),
		cmocka_unit_test(shared_grows_and_shrinks),
		cmocka_unit_test(no_memory),
		cmocka_unit_test(bad_sizes),
		cmocka_unit_test(handed_over_and_replaced),
		cmocka_unit_test(told_to_stop),
		cmocka_unit_test(exports_know_of_memory),
		cmocka_unit_test(tasks_come_first),
		cmocka_unit_test(later_tasks_let_others_pass),
		cmocka_unit_test(tasks_between_pieces),
		cmocka_unit_test_setup_teardown(withdrawn, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(taken_over, with_pool, without_pool),
		cmocka_unit_test(the_machine),
		cmocka_unit_test(the_cgroups_we_are_in),
	};

	return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
