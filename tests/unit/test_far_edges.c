// SPDX-License-Identifier: GPL-2.0-or-later
/* libebbfar at its edges: names that are wrong, freed extents, signals, donors that are lost. */
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/rules/far_memory.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

/* The ABI: programs have these numbers. */
_Static_assert(sizeof(struct ebbfar_extent) == 24, "names are stored and sent");
_Static_assert(offsetof(struct ebbfar_extent, generation) == 16, "names are stored and sent");
_Static_assert(offsetof(struct ebbfar_options, size) == 0, "tells releases apart");
_Static_assert(offsetof(struct ebbfar_options, error) == 40, "of release 0.2");
_Static_assert(offsetof(struct ebbfar_options, resume_ms) == 552, "of release 0.2");
_Static_assert(sizeof(struct ebbfar_options) == 560, "of release 0.2");

/* The donor's image of the first arena. */
static uint32_t words_of(uint32_t member)
{
	const uint8_t *arena = far_base(far_find(world.l->far, "", "p"), 0);
	uint32_t n = 0;

	for (uint32_t s = 0; s < FAR_SECTIONS; s++)
		for (uint32_t i = 0; i < EBB_FAR_SLOTS; i++)
			n += ebb_far_slot_owner(far_load(arena, ebb_far_slot_at(FAR_SECTIONS, s,
										i))) == member;
	return n;
}

/* Ends the connections of all members, as the exit of the donor does. */
static void hang_up(void)
{
	for (int i = 0; i < CONNECTIONS; i++)
		if (world.l->sessions.connections[i].member)
			shutdown(world.l->sessions.connections[i].fd, SHUT_RDWR);
}

/* The donor goes on, but does nothing. */
static void freeze(void)
{
	__atomic_store_n(&world.stop, true, __ATOMIC_RELEASE);
	eventfd_write(world.l->wake_fd, 1);
	pthread_join(world.thread, NULL);
	world.threaded = false;
}

/* --- options ---------------------------------------------------------------------- */

static void refused(struct ebbfar_options *o, int error, const char *cause, const char *remedy)
{
	ebbfar_t *far;

	assert_int_equal(ebbfar_open(o, &far), error);
	if (!strstr(o->error, cause) || !strstr(o->error, remedy))
		fail_msg("%s", o->error);
}

static void wrong_options(void **state)
{
	struct {
		struct ebbfar_options o;
		uint64_t later;
	} longer = { .o = options(at, EBBFAR_CREATE) };
	struct ebbfar_options o = options(NULL, 0);
	ebbfar_t *far;

	refused(&o, -EINVAL, "donor is NULL", "set it");
	o = options(at, 0);
	o.pool = NULL;
	refused(&o, -EINVAL, "pool is NULL", "set it");
	o = options(at, 16);
	refused(&o, -EINVAL, "0x10", "update libebbfar");
	o = options(at, EBBFAR_SHARED);
	refused(&o, -EINVAL, "EBBFAR_SHARED alone", "add EBBFAR_CREATE");
	/* Not set, but not zero either. */
	o = options(at, 0);
	o.size = SIZE_MAX / 3;
	refused(&o, -EINVAL, "options: size", "sizeof(struct ebbfar_options)");
	o = options("unix:/nonexistent/donor.sock", 0);
	refused(&o, -ENOENT, "cannot connect: No such file", "is ebb-donord running");
	o = options(at, 0);
	refused(&o, -ENOENT, "no such pool", "EBBFAR_CREATE");
	/* A program for a later release: what it does not set is no obstacle. */
	longer.o.size = sizeof(longer);
	if (ebbfar_open(&longer.o, &far))
		fail_msg("%s", longer.o.error);
	longer.later = 1;
	refused(&longer.o, -EINVAL, "a field that this libebbfar lacks", "update libebbfar");
	o = options(at, 0);
	assert_int_equal(ebbfar_destroy(&o), -EBUSY);
	assert_non_null(strstr(o.error, "close them"));
	ebbfar_close(far);
}

static void too_many_pools(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	ebbfar_t *far;
	char name[8];
	int r = 0;

	o.pool = name;
	for (int i = 0; i < 100 && !r; i++) {
		snprintf(name, sizeof(name), "p%d", i);
		r = ebbfar_open(&o, &far);
		if (!r)
			ebbfar_close(far);
	}
	assert_int_equal(r, -ENOSPC);
	assert_non_null(strstr(o.error, "16 pools; destroy one"));
}

/* --- names ------------------------------------------------------------------------ */

/* The table is the donor's: no name is one of its pages, and the donor is no member. */
static void tables(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x, table = { 0, 4096, 0 };
	uint64_t word = 0;
	void *memory;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_take(far, EBB_FAR_DONOR, &table), -EINVAL);
	assert_int_equal(ebbfar_take(far, 0, &x), -EINVAL);
	assert_int_equal(ebbfar_take(far, EBB_FAR_MEMBERS + 1, &x), -EINVAL);
	for (table.place = 0; table.place < ebb_far_table(FAR_SECTIONS); table.place += 4096) {
		assert_int_equal(ebbfar_write(far, &table, 0, &word, 8), -EINVAL);
		assert_int_equal(ebbfar_read(far, &table, 0, &word, 8), -EINVAL);
		assert_int_equal(ebbfar_cas(far, &table, 0, 0, 0, &word), -EINVAL);
		assert_int_equal(ebbfar_map(far, &table, &memory),
				 at == world.tcp ? -EOPNOTSUPP : -EINVAL);
		assert_int_equal(ebbfar_free(far, &table), -EINVAL);
	}
	ebbfar_close(far);
}

static struct ebbfar_extent changing;
static bool changes;

static void *change_place(void *data)
{
	uint64_t right = changing.place;

	while (__atomic_load_n(&changes, __ATOMIC_RELAXED)) {
		/* In the arena, and of an arena that no pool has. */
		__atomic_store_n(&changing.place, right + (3ull << 30), __ATOMIC_RELAXED);
		__atomic_store_n(&changing.place, right, __ATOMIC_RELAXED);
		__atomic_store_n(&changing.place, right + (1ull << 60), __ATOMIC_RELAXED);
		__atomic_store_n(&changing.place, right, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A name in memory that another member changes is right or wrong, not half of each. */
static void names_that_change(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE | EBBFAR_SHARED);
	uint64_t since = now_ns(), word = 0, old;
	uint32_t right = 0, wrong = 0;
	pthread_t thread;
	void *memory;

	assert_int_equal(ebbfar_alloc(far, 4096, &changing), 0);
	changes = true;
	pthread_create(&thread, NULL, change_place, NULL);
	for (uint32_t i = 0; now_ns() - since < SECOND / 4; i++) {
		int r = i % 5 == 0 ? ebbfar_read(far, &changing, 0, &word, 8) :
			i % 5 == 1 ? ebbfar_write(far, &changing, 0, &word, 8) :
			i % 5 == 2 ? ebbfar_add(far, &changing, 0, 1, &old) :
			i % 5 == 3 ? ebbfar_check(far, ebbfar_member(far), &changing) :
			at == world.tcp ? 0 : ebbfar_map(far, &changing, &memory);

		if (i % 5 == 4 && !r && at != world.tcp)
			*(volatile uint64_t *)memory = 0;
		right += !r;
		wrong += r == -EINVAL;
		assert_true(!r || r == -EINVAL);
	}
	__atomic_store_n(&changes, false, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_true(right + wrong > 0);
	ebbfar_close(far);
}

/* Writes words of any kind to all tables. */
static void *spoil_tables(void *data)
{
	const struct far_pool *pool = far_find(world.l->far, "", "p");
	uint64_t seed = 3;

	while (__atomic_load_n(&changes, __ATOMIC_RELAXED)) {
		uint8_t *base = far_base(pool, draw_below(&seed, pool->arenas));
		uint64_t from = ebb_far_section_at(0), end = ebb_far_table(FAR_SECTIONS);
		uint64_t at = from + 8 * draw_below(&seed, (uint32_t)(end - from) / 8);
		uint32_t owner = draw_below(&seed, 4), class = draw_below(&seed, 16);

		if (draw_below(&seed, 2))
			at = ebb_far_section_at(draw_below(&seed, 2 * FAR_SECTIONS));
		far_swap(base, at, far_load(base, at), draw_below(&seed, 2) ?
			 ebb_far_section(draw_below(&seed, 8), class, owner, draw32(&seed)) :
			 ebb_far_slot(owner, class, draw_below(&seed, 4)));
	}
	return NULL;
}

/* Whatever a table says, calls return, and reach extents alone. */
static void hostile_tables(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE), *other = open_at(world.local, 0);
	struct ebbfar_extent x[32] = { 0 };
	static uint8_t bytes[4096];
	uint64_t since = now_ns(), seed = 5, old;
	uint32_t done = 0;
	pthread_t thread;

	assert_int_equal(ebbfar_alloc(other, 4096, &x[0]), 0);
	changes = true;
	pthread_create(&thread, NULL, spoil_tables, NULL);
	while (now_ns() - since < SECOND / 4) {
		struct ebbfar_extent *y = &x[draw_below(&seed, 32)];
		ebbfar_t *by = draw_below(&seed, 4) ? far : other;

		done += !ebbfar_alloc(by, 1 + draw_below(&seed, EBBFAR_EXTENT_MOST), y);
		ebbfar_write(by, y, 0, bytes, 4096);
		ebbfar_add(by, y, 4088, 1, &old);
		ebbfar_read(by, y, 0, bytes, 4096);
		ebbfar_take(by, 1 + draw_below(&seed, 3), &x[draw_below(&seed, 32)]);
		ebbfar_withdraw(by, &x[draw_below(&seed, 32)]);
		ebbfar_free(by, &x[draw_below(&seed, 32)]);
	}
	__atomic_store_n(&changes, false, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_true(done > 0);
	assert_string_equal(ebbfar_why(far), "");
	for (uint32_t i = 0; i < far_find(world.l->far, "", "p")->arenas; i++)
		assert_int_equal(far_load(far_base(far_find(world.l->far, "", "p"), i), 0),
				 EBB_FAR_MAGIC);
	ebbfar_close(other);
	ebbfar_close(far);
}

static void no_bytes(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	char byte;

	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	assert_int_equal(ebbfar_read(far, &x, 0, &byte, 0), 0);
	assert_int_equal(ebbfar_write(far, &x, x.size, &byte, 0), 0);
	assert_int_equal(ebbfar_read(far, &x, x.size + 1, &byte, 0), -EINVAL);
	assert_int_equal(ebbfar_read(far, &x, 8, &byte, SIZE_MAX), -EINVAL);
	assert_int_equal(ebbfar_alloc(far, SIZE_MAX, &x), -EINVAL);
	ebbfar_close(far);
}

/* A freed extent serves a later allocation, under another name. */
static void freed_extents(void **state)
{
	enum { MOST = 100 };
	ebbfar_t *a = open_at(at, EBBFAR_CREATE), *b = open_at(world.local, 0);
	struct ebbfar_extent x[MOST], y, guess;
	bool same = false;

	assert_int_equal(ebbfar_alloc(a, 4096, &x[0]), 0);
	assert_int_equal(ebbfar_free(a, &x[0]), 0);
	guess = x[0];
	for (int i = 0; i < 4; i++, guess.generation++) {
		struct ebbfar_extent z = guess;

		assert_int_equal(ebbfar_free(a, &guess), -ESTALE);
		assert_int_equal(ebbfar_withdraw(a, &z), -ESTALE);
		assert_int_equal(ebbfar_free(b, &guess), -ESTALE);
	}
	/* What has been freed cannot be taken by its old name. */
	y = x[0];
	assert_int_equal(ebbfar_take(b, ebbfar_member(a), &y), -ESTALE);
	/* Should a member guess a name, it alone has the extent. */
	y.generation++;
	if (!ebbfar_take(b, ebbfar_member(a), &y)) {
		assert_int_equal(ebbfar_alloc(a, 4096, &guess), 0);
		assert_int_not_equal(guess.place, y.place);
		assert_int_equal(ebbfar_free(a, &guess), 0);
		assert_int_equal(ebbfar_free(b, &y), 0);
	}
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < MOST; i++) {
			assert_int_equal(ebbfar_alloc(a, 4096u << i % 6, &x[i]), 0);
			for (int k = 0; k < i; k++)
				assert_true(x[k].place + x[k].size <= x[i].place ||
					    x[i].place + x[i].size <= x[k].place);
			same |= x[i].place == y.place;
		}
		assert_int_equal(words_of(ebbfar_member(a)) <= MOST, 1);
		for (int i = 0; i < MOST; i++) {
			y = x[i * 37 % MOST];
			assert_int_equal(ebbfar_free(a, &y), 0);
			assert_int_equal(ebbfar_free(a, &y), -ESTALE);
		}
	}
	assert_true(same);
	/* The member keeps at most 64 KiB of each size. */
	assert_in_range(words_of(ebbfar_member(a)), at == world.tcp ? 0 : 1,
			at == world.tcp ? 0 : 16 + 8 + 4 + 2 + 1);
	ebbfar_close(b);
	ebbfar_close(a);
}

/* What a member keeps of one section does not keep others from getting empty. */
static void kept_in_one_section(void **state)
{
	enum { MOST = 700 };
	ebbfar_t *a = open_at(at, EBBFAR_CREATE), *b = open_at(at, 0);
	static struct ebbfar_extent x[MOST];
	int n = 0;

	for (int i = 0; i < MOST; i++)
		assert_int_equal(ebbfar_alloc(a, 8192, &x[i]), 0);
	for (int i = 0; i < MOST; i++)
		assert_int_equal(ebbfar_free(a, &x[(uint32_t)i * 641 % MOST]), 0);
	/* All but the sections of the tables and that one, and in the end that one. */
	while (!ebbfar_alloc(b, EBBFAR_EXTENT_MOST, &x[n]))
		n++;
	assert_int_equal(n, FAR_ARENAS * (FAR_SECTIONS - 1) - (at != world.tcp));
	while (n)
		assert_int_equal(ebbfar_free(b, &x[--n]), 0);
	while (!ebbfar_alloc(a, EBBFAR_EXTENT_MOST, &x[n]))
		n++;
	assert_int_equal(n, FAR_ARENAS * (FAR_SECTIONS - 1));
	ebbfar_close(b);
	ebbfar_close(a);
}

/* Memory that is allocated and freed in any order is found again, also by other members. */
static void found_again(void **state)
{
	enum { MOST = 1200 };
	ebbfar_t *a = open_at(at, EBBFAR_CREATE), *b = open_at(world.tcp, 0);
	static struct ebbfar_extent x[MOST];
	const struct far_pool *pool = far_find(world.l->far, "", "p");
	int rounds = at == world.tcp ? 1 : 100;

	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < MOST; i++)
			assert_int_equal(ebbfar_alloc(a, 4096, &x[i]), 0);
		for (int i = 0; i < MOST; i++)
			assert_int_equal(ebbfar_free(a, &x[(uint32_t)i * 641 % MOST]), 0);
	}
	for (int i = 0; i < MOST; i++)
		assert_int_equal(ebbfar_alloc(b, 4096, &x[i]), 0);
	/* Of three free sections of 512 pages, and a part of the table's. */
	assert_int_equal(pool->arenas, 1);
	ebbfar_close(b);
	ebbfar_close(a);
}

enum { ALL = FAR_ARENAS * FAR_SECTIONS * EBB_FAR_SLOTS };

static uint32_t fill(ebbfar_t *far, struct ebbfar_extent *x)
{
	uint32_t n = 0;

	while (n < ALL && !ebbfar_alloc(far, 4096, &x[n]))
		n++;
	return n;
}

/* What member @a frees, the other one finds. */
static void pass_extents(const char *where, bool hints)
{
	static struct ebbfar_extent x[ALL];
	ebbfar_t *a = open_at(world.tcp, EBBFAR_CREATE), *b = open_at(where, 0);
	const struct far_pool *pool = far_find(world.l->far, "", "p");
	uint32_t n = fill(b, x);

	assert_in_range(n, ALL / 2, ALL - 1);
	for (uint32_t i = 0; i < 10; i++) {
		struct ebbfar_extent *y = &x[i * n / 10];

		assert_int_equal(ebbfar_take(a, ebbfar_member(b), y), 0);
		assert_int_equal(ebbfar_free(a, y), 0);
		for (uint32_t k = 0; k < FAR_ARENAS && !hints; k++)
			memset(far_base(pool, k) + ebb_far_hint_at(FAR_SECTIONS, 0), 0,
			       8 * FAR_SECTIONS);
		assert_int_equal(ebbfar_alloc(b, 4096, y), 0);
	}
	ebbfar_close(b);
	ebbfar_close(a);
}

/* ... whether or not the first one makes a call after that. */
static void freed_for_others(void **state)
{
	pass_extents(at, true);
}

/* A wrong hint costs time, never memory. */
static void wrong_hints(void **state)
{
	pass_extents(at, false);
}

/* A program that uses one size after the other needs memory for one of them. */
static void one_size_after_the_other(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	const struct far_pool *pool = far_find(world.l->far, "", "p");
	static struct ebbfar_extent x[2 * EBB_FAR_SLOTS];

	for (uint32_t size = EBBFAR_EXTENT_MOST; size >= 2 * 65536; size /= 2) {
		uint32_t n = 2 * EBBFAR_EXTENT_MOST / size;

		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(ebbfar_alloc(far, size, &x[i]), 0);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(ebbfar_free(far, &x[i]), 0);
	}
	/* One has three sections, of which a size takes two. */
	assert_int_equal(pool->arenas, 1);
	ebbfar_close(far);
}

static uint64_t requests(enum wire_far_op op)
{
	return __atomic_load_n(&world.l->far->counts.requests[op - WIRE_FAR_POOL],
			       __ATOMIC_RELAXED);
}

/* The section of a table is not closed in vain: an allocation that fails swaps nothing. */
static void sections_of_tables(void **state)
{
	ebbfar_t *far = open_at(world.tcp, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t since;

	for (int i = 0; i < FAR_ARENAS * (FAR_SECTIONS - 1); i++)
		assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x), 0);
	since = requests(WIRE_FAR_CAS);
	assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x), -ENOSPC);
	assert_int_equal(requests(WIRE_FAR_CAS), since);
	ebbfar_close(far);
}

/* An allocation does not look at all arenas of a large pool, but those that it looks at suffice. */
static void many_arenas(void **state)
{
	enum { MOST = FAR_MANY_ARENAS * (FAR_SECTIONS - 1) };
	static struct ebbfar_extent x[MOST];
	ebbfar_t *far = open_at(world.tcp, EBBFAR_CREATE), *other = open_at(world.tcp, 0);
	const struct far_pool *pool = far_find(world.l->far, "", "p");
	uint64_t since;

	for (int i = 0; i < MOST; i++)
		assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x[i]), 0);
	assert_int_equal(pool->arenas, FAR_MANY_ARENAS);
	assert_true(requests(WIRE_FAR_READ) < 40 * FAR_MANY_ARENAS);
	/* What this member has freed is found at once, and what others have freed, too. */
	for (int i = 0; i < 3; i++) {
		struct ebbfar_extent *y = &x[100 + 200 * i];

		since = requests(WIRE_FAR_READ);
		assert_int_equal(ebbfar_free(far, y), 0);
		assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, y), 0);
		assert_true(requests(WIRE_FAR_READ) - since < 5);
		assert_int_equal(ebbfar_take(other, ebbfar_member(far), y), 0);
		assert_int_equal(ebbfar_free(other, y), 0);
		assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, y), 0);
	}
	/* A member that is new looks at all of them. */
	assert_int_equal(ebbfar_free(far, &x[MOST / 2]), 0);
	assert_int_equal(ebbfar_alloc(other, EBBFAR_EXTENT_MOST, &x[MOST / 2]), 0);
	ebbfar_close(other);
	ebbfar_close(far);
}

/* --- processes and signals -------------------------------------------------------- */

static void child_of_fork(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x, y;
	int status;

	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	if (!fork()) {
		uint64_t word = 0;
		uint32_t from;
		void *memory;
		bool right = ebbfar_cas(far, &x, 0, 0, 1, &word) == -ECHILD &&
			     ebbfar_add(far, &x, 0, 1, &word) == -ECHILD &&
			     ebbfar_write(far, &x, 0, &word, 8) == -ECHILD &&
			     ebbfar_notify(far, 1, 1) == -ECHILD &&
			     ebbfar_wait(far, 1000, &from, &word) == -ECHILD &&
			     ebbfar_take(far, 2, &x) == -ECHILD &&
			     ebbfar_withdraw(far, &x) == -ECHILD &&
			     ebbfar_map(far, &x, &memory) == (at == world.tcp ? -EOPNOTSUPP :
								       -ECHILD) &&
			     ebbfar_member(far) == 1;

		ebbfar_close(far);
		/* A membership of its own. */
		far = open_at(at, 0);
		right = right && ebbfar_member(far) == 2 && !ebbfar_alloc(far, 1, &y);
		ebbfar_close(far);
		_exit(!right);
	}
	wait(&status);
	assert_int_equal(status, 0);
	assert_int_equal(ebbfar_free(far, &x), 0);
	ebbfar_close(far);
}

/* Whether an allocation fails with -ENOMEM while this process may not lock an arena. */
static bool fails_without_memory(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };
	const struct rlimit page = { 4096, 4096 };
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	int first, second;

	if (syscall(SYS_capset, &header, none) || setrlimit(RLIMIT_MEMLOCK, &page) ||
	    mlockall(MCL_FUTURE))
		return false;
	first = ebbfar_alloc(far, 1, &x);
	munlockall();
	second = ebbfar_alloc(far, 1, &x);
	ebbfar_close(far);
	return first == -ENOMEM && !second;
}

/* It is not told to try again: that is for allocations that others were faster with. */
static void locked_memory(void **state)
{
	int status;

	if (!fork())
		_exit(!fails_without_memory());
	wait(&status);
	assert_int_equal(status, 0);
}

static volatile int signals;
static pthread_t counted;

/* SIGPIPE of the donor's thread is its own; SIGALRM comes to any thread. */
static void count(int signal)
{
	if (signal != SIGPIPE || pthread_equal(pthread_self(), counted))
		__atomic_add_fetch(&signals, 1, __ATOMIC_RELAXED);
}

/* Signals interrupt system calls, not operations. */
static void interrupted(void **state)
{
	const struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { 0 };
	static uint8_t bytes[1 << 20], back[1 << 20];
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct sigaction action = { .sa_handler = count }, before;
	struct ebbfar_extent x;
	uint64_t since, word;
	uint32_t from;

	memset(bytes, 0x5a, sizeof(bytes));
	assert_int_equal(ebbfar_alloc(far, sizeof(bytes), &x), 0);
	signals = 0;
	sigaction(SIGALRM, &action, &before);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(ebbfar_write(far, &x, 0, bytes, sizeof(bytes)), 0);
		assert_int_equal(ebbfar_read(far, &x, 0, back, sizeof(back)), 0);
		assert_memory_equal(back, bytes, sizeof(back));
		assert_int_equal(ebbfar_notify(far, ebbfar_member(far), 1), 0);
		assert_int_equal(ebbfar_wait(far, 5000, &from, &word), 0);
	}
	since = now_ns();
	assert_int_equal(ebbfar_wait(far, 30, &from, &word), -EAGAIN);
	assert_true(now_ns() - since >= 29 * SECOND / 1000);
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &before, NULL);
	assert_true(signals > 0);
	ebbfar_close(far);
}

/* The donor closes a TLS connection to which the library writes: the program gets no SIGPIPE. */
static void no_sigpipe(void **state)
{
	static uint8_t bytes[EBBFAR_EXTENT_MOST];
	struct sigaction action = { .sa_handler = count }, before;
	struct ebbfar_options o = options(world.tcp, EBBFAR_CREATE | EBBFAR_NO_RESUME);
	struct ebbfar_extent x;
	sigset_t pipe, mask;

	signals = 0;
	counted = pthread_self();
	sigaction(SIGPIPE, &action, &before);
	for (int i = 0; i < 20; i++) {
		ebbfar_t *far;
		int r;

		o.key = world.keys[0];
		far = open_with(o);
		assert_int_equal(ebbfar_alloc(far, sizeof(bytes), &x), 0);
		hang_up();
		for (r = 0; !r;)
			r = ebbfar_write(far, &x, 0, bytes, sizeof(bytes));
		assert_int_equal(r, -ESHUTDOWN);
		ebbfar_close(far);
	}
	assert_int_equal(signals, 0);
	/* One that is the program's stays, and so does the mask. */
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, NULL);
	raise(SIGPIPE);
	ebbfar_close(open_with(o));
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	assert_int_equal(sigismember(&mask, SIGPIPE), 1);
	assert_int_equal(signals, 0);
	pthread_sigmask(SIG_UNBLOCK, &pipe, NULL);
	assert_int_equal(signals, 1);
	sigaction(SIGPIPE, &before, NULL);
}

/* --- the donor is lost ------------------------------------------------------------ */

/* Once the end is known, nothing new begins; mapped memory stays readable. */
static void lost(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE | EBBFAR_NO_RESUME);
	struct ebbfar_extent x, y;
	uint32_t from;
	uint64_t word;

	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	hang_up();
	assert_int_equal(ebbfar_wait(far, 5000, &from, &word), -ESHUTDOWN);
	y = x;
	assert_int_equal(ebbfar_alloc(far, 1, &y), -ESHUTDOWN);
	assert_memory_equal(&x, &y, sizeof(x));
	assert_int_equal(ebbfar_free(far, &x), -ESHUTDOWN);
	assert_int_equal(ebbfar_withdraw(far, &x), -ESHUTDOWN);
	assert_int_equal(ebbfar_take(far, 2, &x), -ESHUTDOWN);
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), at == world.tcp ? -ESHUTDOWN : 0);
	assert_non_null(strstr(ebbfar_why(far), "the connection has ended"));
	ebbfar_close(far);
}

static _Thread_local unsigned int polls;

int __real_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout_ms)
{
	polls++;
	return __real_poll(p, n, timeout_ms);
}

/* A donor that does not reply costs one time-out; later calls fail without a wait. */
static void slow(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t since;
	ebbfar_t *far;

	o.timeout_ms = o.resume_ms = 1500;
	far = open_with(o);
	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	assert_string_equal(ebbfar_why(far), "");
	freeze();
	since = now_ns();
	assert_int_equal(ebbfar_notify(far, 1, 1), -ETIMEDOUT);
	assert_in_range(now_ns() - since, 1490 * SECOND / 1000, 10 * SECOND);
	assert_true(polls);
	polls = 0;
	assert_int_equal(ebbfar_alloc(far, 1, &x), -ETIMEDOUT);
	assert_int_equal(ebbfar_notify(far, 1, 1), -ETIMEDOUT);
	ebbfar_close(far);
	assert_int_equal(polls, 0);
	refused(&o, -ETIMEDOUT, "no reply in 1500 ms", "timeout_ms");
}

int main(void)
{
#define BOTH(f) \
	{ #f " by tcp", f, by_tcp, end_far_donor, NULL }, \
	{ #f " by mapping", f, by_mapping, end_far_donor, NULL }
	const struct CMUnitTest tests[] = {
		BOTH(wrong_options),
		BOTH(too_many_pools),
		BOTH(tables),
		BOTH(names_that_change),
		BOTH(hostile_tables),
		BOTH(no_bytes),
		BOTH(freed_extents),
		BOTH(kept_in_one_section),
		BOTH(found_again),
		BOTH(freed_for_others),
		BOTH(wrong_hints),
		BOTH(one_size_after_the_other),
		cmocka_unit_test_setup_teardown(sections_of_tables, by_tcp, end_far_donor),
		cmocka_unit_test_setup_teardown(many_arenas, with_many_arenas, end_far_donor),
		BOTH(child_of_fork),
		cmocka_unit_test_setup_teardown(locked_memory, by_mapping, end_far_donor),
		BOTH(interrupted),
		cmocka_unit_test_setup_teardown(no_sigpipe, with_far_keys, end_far_donor),
		BOTH(lost),
		BOTH(slow),
	};

	return cmocka_run_group_tests_name("far edges", tests, NULL, NULL);
}
