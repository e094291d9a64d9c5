// SPDX-License-Identifier: GPL-2.0-or-later
/* A donor's pools of far memory, without a server: each step is a call. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "donord/far/far_access.h"
#include "donord/far/far_census.h"
#include "donord/far/far_members.h"
#include "lib/base/draw.h"
#include "lib/rules/far_memory.h"

#include <cmocka.h>

enum { SECTIONS = 2, SLABS = 4, ARENAS = 3 };
#define ARENA (SECTIONS * EBB_FAR_SECTION)

static struct pool pool;
static struct donor_log lines;
static struct far *far;

/* What the donor's sessions would do. */
static struct far_member *ended;
static struct wire_far_word heard;
static bool has_room;
static uint32_t offers; /* of words */

static void end(void *connection, const char *why)
{
	ended = connection;
	far_left(ended);
}

static bool notify(void *connection, const struct wire_far_word *w)
{
	offers++;
	if (has_room)
		heard = *w;
	return has_room;
}

static const struct far_ops ops = { end, notify };

static int set_up(void **state)
{
	struct error e = { 0 };

	donor_log_init(&lines);
	has_room = true;
	ended = NULL;
	heard = (struct wire_far_word){ 0 };
	assert_int_equal(pool_init(&pool, SLABS * ARENA, ARENA, LEND_PRIVATE, &e), 0);
	/* Slabs that are not locked: that would take root. */
	assert_int_equal(mprotect(pool.memory, SLABS * ARENA, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < SLABS; i++)
		pool.slabs[i].state = LEND_CLEAN;
	pool.in[LEND_ABSENT] = 0;
	pool.in[LEND_CLEAN] = SLABS;
	assert_int_equal(far_pools_new(&far, &pool, &lines, &ops, ARENAS * ARENA, 0), 0);
	return 0;
}

static int tear_down(void **state)
{
	far_pools_free(&far);
	assert_int_equal(pool.in[LEND_LENT], 0);
	pool_free(&pool);
	return 0;
}

static uint16_t create(const char *key, const char *name, uint32_t flags)
{
	struct wire_far_pool p = { .verb = WIRE_FAR_CREATE, .flags = flags };

	strcpy(p.name, name);
	return far_create(far, key, &p);
}

static uint16_t destroy(const char *key, const char *name)
{
	struct wire_far_pool p = { .verb = WIRE_FAR_DESTROY };

	strcpy(p.name, name);
	return far_destroy(far, key, &p);
}

/* Makes the pool "p" with one arena. */
static struct far_pool *one_pool(uint32_t flags)
{
	struct far_pool *fp;

	assert_int_equal(create("k", "p", flags), WIRE_OK);
	fp = far_find(far, "k", "p");
	assert_non_null(fp);
	assert_int_equal(far_arena(fp, 0), WIRE_OK);
	return fp;
}

static struct far_member *join(struct far_pool *fp)
{
	struct far_member *m = NULL;

	assert_int_equal(far_join(fp, NULL, -1, &m), WIRE_OK);
	m->connection = m;
	return m;
}

/* Recovers all that is fenced. */
static void recover_all(void)
{
	for (int i = 0; far_turn(far); i++)
		assert_true(i < 100);
}

/* Executes @op as the donor does for a member by TCP; returns its result. */
static int run(struct far_member *m, struct far_op *op)
{
	struct far_verb v = extent_next(op, FAR_OK);

	for (; v.kind != FAR_DONE; v = extent_next(op, FAR_OK)) {
		if (v.kind == FAR_POST) {
			assert_int_equal(far_write(m, 0, v.at, &v.word, v.bytes), WIRE_OK);
			continue;
		}
		for (uint32_t i = 0; i < v.swaps; i++) {
			const struct wire_far_swap s = { v.swap[i].at, v.swap[i].expect,
							 v.swap[i].desired };

			assert_int_equal(far_cas(m, 0, &s, 1, &v.old[i]), WIRE_OK);
		}
		for (uint32_t i = 0; i < v.reads; i++)
			assert_int_equal(far_read(m, 0, v.read[i].at, v.read[i].to,
						  8 * v.read[i].words), WIRE_OK);
	}
	return op->result;
}

static struct ebb_far_name allocate(struct far_member *m, uint32_t class)
{
	struct ebb_far_name name = { 0 };
	struct far_view view;
	struct far_op op;

	far_view_init(&view, SECTIONS, 1 + m->number);
	far_allocate(&op, &view, m->number, class, &name, 1);
	assert_int_equal(run(m, &op), 0);
	return name;
}

/* --- pools ------------------------------------------------------------------------ */

static void names_and_keys(void **state)
{
	struct wire_far_listed list[WIRE_FAR_POOLS];
	struct wire_far_pool other = { .verb = WIRE_FAR_CREATE, .domain = 1, .name = "x" };

	assert_int_equal(create("k", "p", 0), WIRE_OK);
	assert_int_equal(create("k", "p", 0), WIRE_POOL_EXISTS);
	/* Each key has names of its own. */
	assert_int_equal(create("l", "p", WIRE_FAR_SHARED), WIRE_OK);
	assert_ptr_not_equal(far_find(far, "k", "p"), far_find(far, "l", "p"));
	assert_null(far_find(far, "", "p"));
	assert_int_equal(far_list(far, "l", list), 1);
	assert_string_equal(list[0].name, "p");
	assert_int_equal(list[0].flags, WIRE_FAR_SHARED);
	assert_int_equal(far_list(far, "", list), 0);
	assert_int_equal(far_create(far, "k", &other), WIRE_OTHER_DOMAIN);
	assert_int_equal(destroy("", "p"), WIRE_NO_POOL);
	assert_int_equal(destroy("k", "p"), WIRE_OK);
	assert_int_equal(destroy("k", "p"), WIRE_NO_POOL);
	assert_int_equal(create("k", "z", 0), WIRE_OK);
	for (uint32_t i = 1; i < WIRE_FAR_POOLS; i++) {
		char name[8] = { 'a' + (char)i };

		assert_int_equal(create("k", name, 0), WIRE_OK);
	}
	assert_int_equal(create("k", "one too many", 0), WIRE_NO_SPACE);
	/* Other keys have places, too. */
	assert_int_equal(create("l", "q", 0), WIRE_OK);
	assert_int_equal(create("", "p", 0), WIRE_OK);
	assert_int_equal(far_list(far, "k", list), WIRE_FAR_POOLS);
	assert_int_equal(far_list(far, "l", list), 2);
}

static void arenas_within_the_quota(void **state)
{
	struct far_pool *fp = one_pool(0), *second;

	assert_int_equal(create("k", "q", 0), WIRE_OK);
	second = far_find(far, "k", "q");
	assert_int_equal(far_arena(fp, 0), WIRE_OK);
	assert_int_equal(fp->arenas, 1);
	assert_int_equal(far_arena(fp, 2), WIRE_NO_SLAB);
	assert_int_equal(far_arena(fp, 1), WIRE_OK);
	assert_int_equal(far_arena(second, 0), WIRE_OK);
	assert_int_equal(far_arena(second, 1), WIRE_OVER_QUOTA);
	assert_int_equal(pool.in[LEND_LENT], ARENAS);
	assert_int_equal(destroy("k", "p"), WIRE_OK);
	assert_int_equal(pool.in[LEND_LENT], 1);
	assert_int_equal(far_arena(second, 1), WIRE_OK);
	/* The memory pool refuses, too. */
	pool.draining = true;
	assert_int_equal(far_arena(second, 2), WIRE_NO_SPACE);
	assert_int_equal(second->arenas, 2);
	pool.draining = false;
	assert_int_equal(far_arena(second, 2), WIRE_OK);
}

/* Arenas of a key count toward what the key may borrow. */
static void arenas_count_for_the_key(void **state)
{
	struct far_pool *fp;

	far->key_quota = ARENA;
	fp = one_pool(0);
	assert_int_equal(far_arena(fp, 1), WIRE_OVER_QUOTA);
}

static void tables_of_arenas(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *m = join(fp);
	struct ebb_far_header header;
	struct ebb_far_member record;

	assert_int_equal(far_read(m, 0, 0, &header, sizeof(header)), WIRE_OK);
	assert_int_equal(header.magic, EBB_FAR_MAGIC);
	assert_int_equal(header.pool, fp->identity);
	assert_int_equal(header.sections, SECTIONS);
	assert_int_equal(far_arena(fp, 1), WIRE_OK);
	/* The first one has the members' records: a change costs the same in all pools. */
	for (uint32_t arena = 0; arena < 2; arena++) {
		assert_int_equal(far_read(m, arena, EBB_FAR_MEMBERS_AT, &record, sizeof(record)),
				 WIRE_OK);
		assert_int_equal(record.state, arena ? EBB_FAR_VACANT : EBB_FAR_LIVE);
		assert_int_equal(record.incarnation, !arena);
	}
}

/* --- access ----------------------------------------------------------------------- */

static void owners_alone(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp), *b = join(fp);
	struct ebb_far_name mine = allocate(a, 2), theirs = allocate(b, 2);
	uint64_t at = ebb_far_address(&mine), size = ebb_far_bytes(2), old;
	struct wire_far_swap swap = { at, 0, 7 };
	uint8_t bytes[32768] = { 1, 2, 3 };
	struct far_op op;

	assert_int_equal(far_write(a, 0, at, bytes, (uint32_t)size), WIRE_OK);
	assert_int_equal(far_write(a, 0, at, bytes, (uint32_t)size + 1), WIRE_NOT_OWNER);
	assert_int_equal(far_write(a, 0, at - 1, bytes, 2), WIRE_NOT_OWNER);
	assert_int_equal(far_write(a, 0, at + size - 1, bytes, 1), WIRE_OK);
	assert_int_equal(far_write(b, 0, at, bytes, 1), WIRE_NOT_OWNER);
	assert_int_equal(far_read(b, 0, at, bytes, 1), WIRE_NOT_OWNER);
	assert_int_equal(far_read(b, 0, ebb_far_address(&theirs), bytes, 1), WIRE_OK);
	assert_int_equal(far_cas(b, 0, &swap, 1, &old), WIRE_NOT_OWNER);
	assert_int_equal(far_add_word(b, 0, at, 1, &old), WIRE_NOT_OWNER);
	swap.expect = 0x30201;
	assert_int_equal(far_cas(a, 0, &swap, 1, &old), WIRE_OK);
	assert_int_equal(old, 0x30201);
	assert_int_equal(far_add_word(a, 0, at, 3, &old), WIRE_OK);
	assert_int_equal(old, 7);
	assert_int_equal(far_read(a, 0, at, &old, 8), WIRE_OK);
	assert_int_equal(old, 10);
	/* Places. */
	assert_int_equal(far_add_word(a, 0, at + 4, 3, &old), WIRE_MISALIGNED);
	swap.at += 1;
	assert_int_equal(far_cas(a, 0, &swap, 1, &old), WIRE_MISALIGNED);
	assert_int_equal(far_read(a, 1, at, bytes, 1), WIRE_NO_SLAB);
	assert_int_equal(far_read(a, 0, ARENA, bytes, 1), WIRE_BAD_RANGE);
	assert_int_equal(far_read(a, 0, ARENA - 1, bytes, 2), WIRE_BAD_RANGE);
	assert_int_equal(far_read(a, 0, UINT64_MAX, bytes, 2), WIRE_BAD_RANGE);
	/* A free extent has no owner. */
	far_free(&op, NULL, SECTIONS, a->number, &mine, 1);
	assert_int_equal(run(a, &op), 0);
	assert_int_equal(far_read(a, 0, at, bytes, 1), WIRE_NOT_OWNER);
}

/* Extents that touch each other are one range of their owner. */
static void ranges_over_extents(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp);
	uint64_t first = UINT64_MAX, end = 0, table = ebb_far_table(SECTIONS);
	uint32_t extents = (uint32_t)((EBB_FAR_SECTION - table) / EBB_PAGE);
	uint8_t *bytes = calloc(1, EBB_FAR_SECTION);
	struct ebb_far_name name = { 0 };

	/* All of the section that has the table. */
	for (uint32_t i = 0; i < extents; i++) {
		name = allocate(a, 0);
		if (name.section)
			break;
		first = ebb_far_address(&name) < first ? ebb_far_address(&name) : first;
		end = ebb_far_address(&name) + EBB_PAGE > end ? ebb_far_address(&name) + EBB_PAGE :
								end;
	}
	if (!name.section) {
		assert_int_equal(first, table);
		assert_int_equal(end, EBB_FAR_SECTION);
		assert_int_equal(far_write(a, 0, table, bytes, (uint32_t)(end - table)), WIRE_OK);
	}
	assert_int_equal(far_write(a, 0, table - 1, bytes, 2), WIRE_NOT_OWNER);
	free(bytes);
}

static void shared_pools(void **state)
{
	struct far_pool *fp = one_pool(WIRE_FAR_SHARED);
	struct far_member *a = join(fp), *b = join(fp);
	struct ebb_far_name mine = allocate(a, 0);
	uint64_t at = ebb_far_address(&mine), old, word = 5;

	assert_int_equal(far_write(a, 0, at, &word, 8), WIRE_OK);
	assert_int_equal(far_add_word(b, 0, at, 1, &old), WIRE_OK);
	assert_int_equal(old, 5);
	/* The table is no member's, here as well. */
	assert_int_equal(far_write(b, 0, EBB_FAR_MEMBERS_AT, &word, 8), WIRE_NOT_OWNER);
	assert_int_equal(far_add_word(b, 0, ebb_far_section_at(0), 1, &old), WIRE_NOT_OWNER);
}

static uint16_t swap_slot(struct far_member *m, uint64_t expect, uint64_t desired)
{
	const struct wire_far_swap s = { ebb_far_slot_at(SECTIONS, 0, ebb_far_word_of(300)),
					 expect, desired };
	uint64_t old;

	return far_cas(m, 0, &s, 1, &old);
}

static uint16_t swap_section(struct far_member *m, uint64_t expect, uint64_t desired)
{
	const struct wire_far_swap s = { ebb_far_section_at(1), expect, desired };
	uint64_t old;

	return far_cas(m, 0, &s, 1, &old);
}

/* Members change words only to what the protocol has. */
static void words_of_the_table(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp), *b = join(fp);
	uint64_t word = 1;

	assert_int_equal(swap_slot(a, ebb_far_slot(0, 0, 0), ebb_far_slot(b->number, 0, 0)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_slot(a, ebb_far_slot(EBB_FAR_DONOR, 0, 0), ebb_far_slot(0, 0, 1)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_slot(a, ebb_far_slot(0, 0, 5), ebb_far_slot(a->number, 0, 4)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_slot(a, ebb_far_slot(0, 0, 0), ebb_far_slot(a->number, 0, 0)),
			 WIRE_OK);
	assert_int_equal(swap_section(a, 0, ebb_far_section(EBB_FAR_WHOLE, 9, b->number, 0)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_section(a, 0, ebb_far_section(7, 9, a->number, 0)), WIRE_NOT_OWNER);
	assert_int_equal(swap_section(a, 0, ebb_far_section(EBB_FAR_OPEN, 1, a->number, 0)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_section(a, ebb_far_section(EBB_FAR_WHOLE, 9, EBB_FAR_DONOR, 0),
				      ebb_far_section(EBB_FAR_FREE, 0, 0, 1)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_section(a, 0, ebb_far_section(EBB_FAR_WHOLE, 9, a->number, 0)),
			 WIRE_OK);
	/* Of another member's words, a member may take an extent, and that is all. */
	assert_int_equal(swap_slot(b, ebb_far_slot(a->number, 0, 0), ebb_far_slot(0, 0, 1)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_slot(b, ebb_far_slot(a->number, 0, 0),
				   ebb_far_slot(EBB_FAR_CLOSED, 0, 1)), WIRE_NOT_OWNER);
	assert_int_equal(swap_slot(b, ebb_far_slot(a->number, 0, 0), ebb_far_slot(b->number, 0, 0)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_slot(b, ebb_far_slot(a->number, 0, 0), ebb_far_slot(b->number, 0, 1)),
			 WIRE_OK);
	assert_int_equal(swap_section(b, ebb_far_section(EBB_FAR_WHOLE, 9, a->number, 0),
				      ebb_far_section(EBB_FAR_FREE, 0, 0, 1)), WIRE_NOT_OWNER);
	assert_int_equal(swap_section(b, ebb_far_section(EBB_FAR_WHOLE, 9, a->number, 0),
				      ebb_far_section(EBB_FAR_WHOLE, 9, b->number, 0)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_section(b, ebb_far_section(EBB_FAR_OPENING, 1, a->number, 0),
				      ebb_far_section(EBB_FAR_OPEN, 1, 0, 0)), WIRE_NOT_OWNER);
	assert_int_equal(swap_section(b, ebb_far_section(EBB_FAR_CLOSING, 1, a->number, 0),
				      ebb_far_section(EBB_FAR_WHOLE, 9, b->number, 1)),
			 WIRE_NOT_OWNER);
	assert_int_equal(swap_section(b, ebb_far_section(EBB_FAR_WHOLE, 9, a->number, 0),
				      ebb_far_section(EBB_FAR_WHOLE, 9, b->number, 1)), WIRE_OK);
	/* Of hints, one word or less. */
	assert_int_equal(far_write(a, 0, ebb_far_hint_at(SECTIONS, 1), &word, 8), WIRE_OK);
	assert_int_equal(far_write(a, 0, ebb_far_hint_at(SECTIONS, 1) + 7, &word, 1), WIRE_OK);
	assert_int_equal(far_write(a, 0, ebb_far_hint_at(SECTIONS, 0) + 4, &word, 8),
			 WIRE_NOT_OWNER);
	assert_int_equal(far_write(a, 0, ebb_far_section_at(1), &word, 8), WIRE_NOT_OWNER);
}

/* A CAS with a part that is refused changes nothing. */
static void all_parts_or_none(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp);
	struct ebb_far_name n = allocate(a, 0);
	const struct wire_far_swap swaps[] = { { ebb_far_address(&n), 0, 1 }, { 0, 0, 1 } };
	uint64_t old[2], word;

	assert_int_equal(far_cas(a, 0, swaps, 2, old), WIRE_NOT_OWNER);
	assert_int_equal(far_read(a, 0, swaps[0].at, &word, 8), WIRE_OK);
	assert_int_equal(word, 0);
}

/* --- members ---------------------------------------------------------------------- */

static uint32_t state_of(const struct far_member *m)
{
	struct ebb_far_member record;

	memcpy(&record, far_base(m->pool, 0) + EBB_FAR_MEMBERS_AT +
	       (m->number - 1) * sizeof(record), sizeof(record));
	return record.state;
}

static void dead_members_are_recovered(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp), *b = join(fp), *c = NULL;
	struct ebb_far_name mine = allocate(a, 1), theirs = allocate(b, 1);
	uint64_t word = 1;

	far_lost(a);
	assert_int_equal(state_of(a), EBB_FAR_AWAY);
	recover_all();
	/* Nothing is recovered before the fence. */
	assert_true(far_return(a, a, -1));
	assert_int_equal(far_write(a, 0, ebb_far_address(&mine), &word, 8), WIRE_OK);
	assert_int_equal(state_of(a), EBB_FAR_LIVE);
	far_left(a);
	assert_int_equal(state_of(a), EBB_FAR_DEAD);
	assert_int_equal(destroy("k", "p"), WIRE_POOL_IN_USE);
	/* The number is in use until then. */
	assert_int_equal(far_join(fp, NULL, -1, &c), WIRE_OK);
	assert_int_equal(c->number, 3);
	recover_all();
	assert_int_equal(state_of(a), EBB_FAR_VACANT);
	assert_int_equal(far_write(a, 0, ebb_far_address(&mine), &word, 8), WIRE_NOT_OWNER);
	assert_int_equal(far_write(b, 0, ebb_far_address(&theirs), &word, 8), WIRE_OK);
	/* The next one of that number does not have the extents. */
	assert_int_equal(far_join(fp, NULL, -1, &c), WIRE_OK);
	assert_int_equal(c->number, 1);
	assert_int_equal(c->incarnation, 2);
	assert_int_equal(far_write(c, 0, ebb_far_address(&mine), &word, 8), WIRE_NOT_OWNER);
	assert_int_equal(fp->in[EBB_FAR_LIVE], 3);
}

/* Recovery reads the tables that the member may have changed. */
static void recovery_of_few_tables(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp);
	uint64_t word = 1;

	allocate(a, 0);
	far_left(a);
	recover_all();
	assert_int_equal(fp->recovery.op.sections, SECTIONS);
	assert_int_equal(fp->recovery.freed, 1);
	a = join(fp);
	assert_int_equal(a->number, 1);
	far_write(a, 0, ebb_far_hint_at(SECTIONS, 0), &word, 1);
	far_left(a);
	recover_all();
	assert_int_equal(fp->recovery.op.sections, 0);
	assert_int_equal(a->state, EBB_FAR_VACANT);
}

/* At any verb of an operation; words of other members stay. */
static void death_at_each_verb(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *b = join(fp);
	struct ebb_far_name theirs = allocate(b, 0), name;
	uint64_t word = 1;

	for (int verbs = 0; verbs < 40; verbs++) {
		struct far_member *a = join(fp);
		struct far_view view;
		struct far_verb v;
		struct far_op op;

		assert_int_equal(a->number, 2);
		/* As by far_will_map(). */
		a->touched = UINT64_MAX;
		far_view_init(&view, SECTIONS, 77);
		/* The second section is formatted, or taken as a whole. */
		far_allocate(&op, &view, a->number, verbs % 2 ? 4 : EBB_FAR_WHOLE_CLASS, &name, 1);
		v = extent_next(&op, FAR_OK);
		for (int i = 0; i < verbs / 2 && v.kind != FAR_DONE; i++) {
			far_execute(far_base(fp, 0), &v);
			v = extent_next(&op, FAR_OK);
		}
		far_left(a);
		recover_all();
		/* No slot or section has its number. */
		for (uint32_t s = 0; s < SECTIONS; s++) {
			word = far_load(far_base(fp, 0), ebb_far_section_at(s));
			assert_int_not_equal(ebb_far_section_owner(word), 2);
			for (uint32_t i = 0; i < EBB_FAR_SLOTS; i++) {
				word = far_load(far_base(fp, 0), ebb_far_slot_at(SECTIONS, s, i));
				assert_int_not_equal(ebb_far_slot_owner(word), 2);
			}
		}
		far_trim(&op, SECTIONS, b->number, 1);
		assert_in_range(run(b, &op) + EBUSY, 0, EBUSY);
		assert_int_equal(ebb_far_section_state(far_load(far_base(fp, 0),
								ebb_far_section_at(1))),
				 EBB_FAR_FREE);
	}
	assert_int_equal(far_write(b, 0, ebb_far_address(&theirs), &word, 8), WIRE_OK);
}

/* Hostile words in a mapped table: recovery ends, and stays within the arena. */
static void hostile_tables(void **state)
{
	struct far_pool *fp = one_pool(0);
	uint64_t seed = 4711, words = ebb_far_table(SECTIONS) / 8, other, word;
	struct far_member *b;

	for (int round = 0; round < 50; round++) {
		struct far_member *a = join(fp);
		uint64_t *table = (uint64_t *)far_base(fp, 0);

		for (uint64_t i = EBB_FAR_SECTIONS_AT / 8; i < words; i++)
			table[i] = (uint64_t)draw32(&seed) << 32 | draw32(&seed);
		far_left(a);
		for (int i = 0; far_turn(far); i++) {
			table[EBB_FAR_SECTIONS_AT / 8 + draw_below(&seed, 3000)] = draw32(&seed);
			assert_true(i < 100);
		}
		assert_int_equal(a->state, EBB_FAR_VACANT);
		b = join(fp);
		for (uint64_t at = 0; at < ARENA; at += 60000) {
			far_read(b, 0, at, &word, 8);
			far_write(b, 0, at & ~7ull, &word, 8);
			far_add_word(b, 0, at & ~7ull, 1, &other);
		}
		far_left(b);
		recover_all();
	}
}

static void words_for_members(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp), *b = join(fp);
	struct wire_far_word w = { b->number, 11 };

	has_room = false;
	assert_int_equal(far_notify(a, &w), WIRE_OK);
	recover_all();
	assert_int_equal(heard.member, 0);
	/* A word that is not taken costs nothing. */
	offers = 0;
	for (int i = 0; i < 10; i++)
		recover_all();
	assert_int_equal(offers, 0);
	/* The last one is passed on. */
	w.word = 12;
	assert_int_equal(far_notify(a, &w), WIRE_OK);
	has_room = true;
	recover_all();
	assert_int_equal(heard.member, a->number);
	assert_int_equal(heard.word, 12);
	heard.member = 0;
	recover_all();
	assert_int_equal(heard.member, 0);
	/* Also when the member returns. */
	far_lost(b);
	assert_int_equal(far_notify(a, &w), WIRE_OK);
	recover_all();
	assert_int_equal(heard.member, 0);
	assert_true(far_return(b, b, -1));
	recover_all();
	assert_int_equal(heard.member, a->number);
	w.member = 3;
	assert_int_equal(far_notify(a, &w), WIRE_NO_MEMBER);
	w.member = EBB_FAR_MEMBERS + 1;
	assert_int_equal(far_notify(a, &w), WIRE_NO_MEMBER);
	w.member = 0;
	assert_int_equal(far_notify(a, &w), WIRE_NO_MEMBER);
}

static uint64_t word_of(const struct far_member *m, uint32_t arena)
{
	struct ebb_far_member record;

	memcpy(&record, far_base(m->pool, arena) + EBB_FAR_MEMBERS_AT +
	       (m->number - 1) * sizeof(record), sizeof(record));
	return record.notify;
}

/* A word costs the same however many arenas the pool has. */
static void words_in_one_record(void **state)
{
	struct far_pool *fp;
	struct far_member *a, *b;
	struct wire_far_word w;

	assert_int_equal(create("k", "p", 0), WIRE_OK);
	fp = far_find(far, "k", "p");
	a = join(fp);
	b = join(fp);
	w = (struct wire_far_word){ b->number, 11 };
	assert_int_equal(far_notify(a, &w), WIRE_OK);
	assert_int_equal(far_arena(fp, 0), WIRE_OK);
	assert_int_equal(far_arena(fp, 1), WIRE_OK);
	assert_int_equal(word_of(b, 0), 11);
	w.word = 12;
	assert_int_equal(far_notify(a, &w), WIRE_OK);
	assert_int_equal(word_of(b, 0), 12);
	assert_int_equal(word_of(b, 1), 0);
	/* The next member of that number has none. */
	far_left(b);
	recover_all();
	b = join(fp);
	assert_int_equal(b->number, 2);
	assert_int_equal(word_of(b, 0), 0);
}

/* Members of one pool that die all the time do not delay the recovery of another pool. */
static void recovery_of_each_pool(void **state)
{
	struct far_pool *fp = one_pool(0), *second;
	struct far_member *m[4], *other;

	assert_int_equal(create("l", "q", 0), WIRE_OK);
	second = far_find(far, "l", "q");
	assert_int_equal(far_arena(second, 0), WIRE_OK);
	for (uint32_t i = 0; i < 4; i++)
		m[i] = join(fp);
	other = join(second);
	allocate(other, 0);
	/* A section of slots takes more than one verb. */
	for (uint32_t i = 0; i < 4; i++)
		allocate(m[i], 0);
	for (uint32_t i = 0; i < 128; i++)
		join(fp);
	far_left(other);
	for (int turn = 0; turn < 20 && other->state != EBB_FAR_VACANT; turn++) {
		for (uint32_t i = 0; i < EBB_FAR_MEMBERS; i++)
			if (fp->members[i].state == EBB_FAR_LIVE)
				far_left(&fp->members[i]);
		far_turn(far);
		while (fp->in[EBB_FAR_LIVE] + fp->in[EBB_FAR_DEAD] < EBB_FAR_MEMBERS)
			join(fp);
	}
	assert_int_equal(other->state, EBB_FAR_VACANT);
}

static void declared_dead(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp), *b = join(fp);

	assert_int_equal(far_kill(a, a->number), WIRE_NO_MEMBER);
	assert_int_equal(far_kill(a, 9), WIRE_NO_MEMBER);
	far_lost(b);
	assert_int_equal(far_kill(a, b->number), WIRE_OK);
	assert_ptr_equal(ended, b);
	recover_all();
	assert_int_equal(b->state, EBB_FAR_VACANT);
	assert_int_equal(far_kill(a, b->number), WIRE_NO_MEMBER);
}

static void all_numbers(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *m;

	for (uint32_t i = 0; i < EBB_FAR_MEMBERS; i++)
		join(fp);
	assert_int_equal(far_join(fp, NULL, -1, &m), WIRE_NO_MEMBER);
}

/* A process that maps an arena is fenced when it has exited, and not before. */
static void processes_that_map(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *m = NULL;
	int fd[2], hold[2];
	pid_t child;
	char byte;

	assert_int_equal(pipe(hold), 0);
	child = fork();
	if (!child) {
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	assert_int_equal(far_join(fp, NULL, fd[0], &m), WIRE_OK);
	m->connection = m;
	/* The socket pair's process is this one: let it be the child. */
	close(m->pidfd);
	m->pidfd = (int)syscall(434, child, 0);
	assert_true(m->pidfd >= 0);
	assert_int_equal(far_will_map(m), WIRE_OK);
	assert_int_equal(far_will_map(m), WIRE_OK);
	far_left(m);
	recover_all();
	far_exits(far);
	assert_int_equal(m->state, EBB_FAR_DEAD);
	close(hold[1]);
	assert_int_equal(waitpid(child, NULL, 0), child);
	far_exits(far);
	recover_all();
	assert_int_equal(m->state, EBB_FAR_VACANT);
	/* One that has exited may not map. */
	assert_int_equal(far_join(fp, NULL, fd[0], &m), WIRE_OK);
	m->connection = m;
	m->pid = 1;
	m->maps = true;
	assert_false(far_return(m, m, fd[0]));
	m->pid = getpid();
	assert_true(far_return(m, m, fd[0]));
	close(fd[0]);
	close(fd[1]);
	close(hold[0]);
}

/* Returns a socket whose peer is a process that exits when *@hold is closed. */
static int other_process(pid_t *child, int *hold)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(at);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), fd, held[2];
	char byte;

	/* Without a name the kernel chooses one. */
	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at.sun_family)), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(pipe(held), 0);
	*child = fork();
	if (!*child) {
		close(held[1]);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		_exit(connect(fd, (struct sockaddr *)&at, len) || read(held[0], &byte, 1) != 0);
	}
	fd = accept(listener, NULL, NULL);
	assert_true(fd >= 0);
	close(held[0]);
	close(listener);
	*hold = held[1];
	return fd;
}

/* A member that has mapped nothing may return from another process, whose exit then counts. */
static void returns_from_another_process(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *m = NULL;
	int fd, hold, pair[2];
	pid_t child;

	fd = other_process(&child, &hold);
	assert_int_equal(far_join(fp, NULL, fd, &m), WIRE_OK);
	assert_int_equal(m->pid, child);
	m->connection = m;
	far_lost(m);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_true(far_return(m, m, pair[0]));
	assert_int_equal(m->pid, getpid());
	assert_int_equal(far_will_map(m), WIRE_OK);
	close(hold);
	assert_int_equal(waitpid(child, NULL, 0), child);
	far_exits(far);
	recover_all();
	assert_null(ended);
	assert_int_equal(m->state, EBB_FAR_LIVE);
	/* Of another namespace: it may be any process. */
	m->pid = 0;
	assert_false(far_return(m, m, -1));
	close(fd);
	close(pair[0]);
	close(pair[1]);
}

/* --- counts ----------------------------------------------------------------------- */

static void count_all(void)
{
	assert_false(far_counted(far));
	for (int i = 0; !far_census_turn(far); i++)
		assert_true(i < 100);
	assert_true(far_counted(far));
	far_count_end(far);
}

static void extents_are_counted(void **state)
{
	struct far_pool *fp, *other;
	struct far_member *a, *b, *c;
	struct ebb_far_name name;
	struct far_op op;

	/* Without arenas there is nothing to count. */
	assert_true(far_counted(far));
	fp = one_pool(0);
	assert_int_equal(create("l", "q", 0), WIRE_OK);
	other = far_find(far, "l", "q");
	assert_int_equal(far_arena(other, 0), WIRE_OK);
	a = join(fp);
	b = join(fp);
	c = join(other);
	count_all();
	assert_int_equal(far_count_extents(&fp->extents), 0);
	name = allocate(a, 0);
	allocate(a, 0);
	allocate(b, 0);
	allocate(c, 3);
	count_all();
	assert_int_equal(fp->extents.extents[0], 3);
	assert_int_equal(far_count_bytes(&fp->extents), 3 * EBB_PAGE);
	assert_int_equal(other->extents.extents[3], 1);
	assert_int_equal(far_count_bytes(&other->extents), 8 * EBB_PAGE);
	far_free(&op, NULL, SECTIONS, a->number, &name, 1);
	assert_int_equal(run(a, &op), 0);
	far_left(b);
	recover_all();
	far_left(c);
	recover_all();
	count_all();
	assert_int_equal(far_count_extents(&fp->extents), 1);
	assert_int_equal(far_count_extents(&other->extents), 0);
	assert_int_equal(far->counts.fences, 2);
	assert_int_equal(far->counts.recovered, 2);
	assert_int_equal(far->counts.freed, 2);
	/* A new pool in the place of a counted one has none. */
	far_left(a);
	recover_all();
	assert_int_equal(destroy("k", "p"), WIRE_OK);
	assert_int_equal(create("k", "r", 0), WIRE_OK);
	count_all();
	assert_int_equal(far_count_extents(&far_find(far, "k", "r")->extents), 0);
}

/* A pool that ends while it is counted leaves nothing to the next one in its place. */
static void pools_end_during_a_count(void **state)
{
	struct far_pool *fp = one_pool(0);
	struct far_member *a = join(fp);

	allocate(a, 0);
	assert_int_equal(create("l", "q", 0), WIRE_OK);
	assert_int_equal(far_arena(far_find(far, "l", "q"), 0), WIRE_OK);
	assert_false(far_counted(far));
	/* As if a piece had ended behind the first section. */
	far->census.members[1].extents[0] = 1;
	far->census.section = 1;
	far_left(a);
	recover_all();
	assert_int_equal(destroy("k", "p"), WIRE_OK);
	assert_int_equal(create("k", "r", 0), WIRE_OK);
	while (!far_census_turn(far))
		;
	assert_int_equal(far_count_extents(&far_find(far, "k", "r")->extents), 0);
}

/* Words may hold anything. */
static void hostile_words_are_counted(void **state)
{
	struct far_pool *fp = one_pool(0);
	uint64_t *words = (uint64_t *)far_base(fp, 0), seed = 7;

	for (int round = 0; round < 20; round++) {
		for (uint32_t i = EBB_FAR_SECTIONS_AT / 8; i < ebb_far_table(SECTIONS) / 8; i++)
			words[i] = (uint64_t)draw32(&seed) << 32 | draw32(&seed);
		count_all();
		assert_true(far_count_extents(&fp->extents) <= SECTIONS * EBB_FAR_SLOTS);
		assert_true(far_count_bytes(&fp->extents) <= ARENA);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(names_and_keys, set_up, tear_down),
		cmocka_unit_test_setup_teardown(arenas_within_the_quota, set_up, tear_down),
		cmocka_unit_test_setup_teardown(arenas_count_for_the_key, set_up, tear_down),
		cmocka_unit_test_setup_teardown(tables_of_arenas, set_up, tear_down),
		cmocka_unit_test_setup_teardown(owners_alone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(ranges_over_extents, set_up, tear_down),
		cmocka_unit_test_setup_teardown(shared_pools, set_up, tear_down),
		cmocka_unit_test_setup_teardown(words_of_the_table, set_up, tear_down),
		cmocka_unit_test_setup_teardown(all_parts_or_none, set_up, tear_down),
		cmocka_unit_test_setup_teardown(dead_members_are_recovered, set_up, tear_down),
		cmocka_unit_test_setup_teardown(recovery_of_few_tables, set_up, tear_down),
		cmocka_unit_test_setup_teardown(death_at_each_verb, set_up, tear_down),
		cmocka_unit_test_setup_teardown(hostile_tables, set_up, tear_down),
		cmocka_unit_test_setup_teardown(words_for_members, set_up, tear_down),
		cmocka_unit_test_setup_teardown(words_in_one_record, set_up, tear_down),
		cmocka_unit_test_setup_teardown(recovery_of_each_pool, set_up, tear_down),
		cmocka_unit_test_setup_teardown(declared_dead, set_up, tear_down),
		cmocka_unit_test_setup_teardown(all_numbers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(extents_are_counted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(pools_end_during_a_count, set_up, tear_down),
		cmocka_unit_test_setup_teardown(hostile_words_are_counted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(processes_that_map, set_up, tear_down),
		cmocka_unit_test_setup_teardown(returns_from_another_process, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("far pools", tests, NULL, NULL);
}
