// SPDX-License-Identifier: GPL-2.0-or-later
/* The prefetched set, on a map of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/bpf.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ebbd/prefetch/prefetch_set.h"
#include "ebbd/prefetch/settings.h"

#define MAP 77
#define ROOM 200
#define SECOND 1000000000ULL

static struct {
	struct ebb_page page[ROOM];
	struct ebb_prefetch value[ROOM];
	uint32_t n;
	bool fails;             /* the batch look-up */
	bool refuses;           /* the call of the program */
	int calls;              /* of the program */
} map;

static int find(const void *key)
{
	for (uint32_t i = 0; i < map.n; i++)
		if (!memcmp(&map.page[i], key, sizeof(map.page[i])))
			return (int)i;
	return -1;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags)
{
	int at = find(key);

	assert_int_equal(fd, MAP);
	if (flags == BPF_NOEXIST && at >= 0)
		return -(errno = EEXIST);
	if (flags == BPF_EXIST && at < 0)
		return -(errno = ENOENT);
	if (at < 0 && map.n == ROOM)
		return -(errno = E2BIG);
	at = at < 0 ? (int)map.n++ : at;
	memcpy(&map.page[at], key, sizeof(map.page[at]));
	memcpy(&map.value[at], value, sizeof(map.value[at]));
	return 0;
}

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	int at = find(key);

	if (at < 0)
		return -(errno = ENOENT);
	memcpy(value, &map.value[at], sizeof(map.value[at]));
	return 0;
}

int bpf_map_delete_elem(int fd, const void *key)
{
	int at = find(key);

	if (at < 0)
		return -(errno = ENOENT);
	map.n--;
	map.page[at] = map.page[map.n];
	map.value[at] = map.value[map.n];
	return 0;
}

/* All in one batch, as a snapshot. */
int bpf_map_lookup_batch(int fd, void *in, void *out, void *keys, void *values, __u32 *count,
			 const struct bpf_map_batch_opts *opts)
{
	*count = map.n;
	memcpy(keys, map.page, map.n * sizeof(map.page[0]));
	memcpy(values, map.value, map.n * sizeof(map.value[0]));
	errno = map.fails ? EFAULT : ENOENT;
	return -errno;
}

static int prefetched = MAP;

static struct ebb_prefetch *found(const struct ebb_page *page)
{
	int at = find(page);

	return at < 0 ? NULL : &map.value[at];
}

/* The BPF program, on this map. */
#define bpf_map_update_elem(map, key, value, flags) bpf_map_update_elem(*(map), key, value, flags)
#define bpf_map_lookup_elem(map, key) found(key)
#define bpf_map_delete_elem(map, key) bpf_map_delete_elem(*(map), key)
#undef __always_inline
#define __always_inline inline
#include "bpf/batch.bpf.h"
#undef bpf_map_update_elem
#undef bpf_map_lookup_elem
#undef bpf_map_delete_elem

#define PROGRAM 78

static struct ebb_batch batch;

int bpf_prog_test_run_opts(int fd, struct bpf_test_run_opts *opts)
{
	assert_int_equal(fd, PROGRAM);
	map.calls++;
	if (map.refuses)
		return -(errno = ENOMEM);
	batch_run(&batch);
	return 0;
}

static const struct prefetch_key key = { .tgid = 5, .exec = 2, .owner = 40 };
static uint64_t filter[EBB_FILTER_WORDS];

static bool in_filter(uint64_t vpn)
{
	uint32_t bit = ebb_filter_bit(key.tgid, vpn);

	return filter[bit / 64] >> (bit & 63) & 1;
}

static struct prefetch_set *fresh_set(void)
{
	memset(&map, 0, sizeof(map));
	memset(filter, 0, sizeof(filter));
	return prefetch_set_new(&(struct prefetch_maps){ MAP, PROGRAM, &batch, filter });
}

static void pages_are_told_apart_by_age(void **unused)
{
	struct prefetch_set *s = fresh_set();
	uint64_t old[] = { 20, 30 }, young[] = { 10 }, vpn[] = { 10, 20, 11, 30, 12 };
	struct prefetch_entered in;

	prefetch_set_enter(s, &key, old, 2, SECOND);
	prefetch_set_enter(s, &key, young, 1, SECOND + EBB_EVICTED_NS / 2);
	in = prefetch_set_enter(s, &key, vpn, 5, SECOND + EBB_EVICTED_NS);
	assert_int_equal(in.fresh, 2);
	assert_int_equal(in.again, 2);
	assert_int_equal(in.repeated, 1);
	assert_int_equal(in.full, 0);
	assert_memory_equal(vpn, ((uint64_t[]){ 11, 12, 20, 30 }), 4 * sizeof(*vpn));
	for (int i = 0; i < 4; i++)
		assert_true(in_filter(vpn[i]));
	assert_int_equal(map.value[find(&(struct ebb_page){ 5, 2, 11 })].owner, 40);

	/* Renewed pages are young again, and a page that was used meanwhile stays out. */
	bpf_map_delete_elem(MAP, &(struct ebb_page){ 5, 2, 20 });
	prefetch_set_renew(s, &key, vpn + 2, 2, SECOND + EBB_EVICTED_NS);
	assert_true(find(&(struct ebb_page){ 5, 2, 20 }) < 0);
	vpn[0] = 30;
	in = prefetch_set_enter(s, &key, vpn, 1, SECOND + EBB_EVICTED_NS + 1);
	assert_int_equal(in.repeated, 1);

	/* The owner that counted a page keeps it. */
	prefetch_set_renew(s, &(struct prefetch_key){ .tgid = 5, .exec = 2, .owner = 41 }, vpn, 1,
			   9 * SECOND);
	assert_int_equal(map.value[find(&(struct ebb_page){ 5, 2, 30 })].owner, 40);
	assert_int_equal(map.value[find(&(struct ebb_page){ 5, 2, 30 })].issued_ns, 9 * SECOND);
	prefetch_set_free(&s);
}

/* The source that requested a page first keeps it, too. */
static void pages_name_their_source(void **unused)
{
	struct prefetch_key near = key, replay = key;
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[] = { 10 }, now = SECOND + 3;
	struct ebb_prefetch *p;

	near.source = EBB_SOURCE_NEAR;
	replay.source = EBB_SOURCE_REPLAY;
	prefetch_set_enter(s, &near, vpn, 1, now);
	p = &map.value[find(&(struct ebb_page){ 5, 2, 10 })];
	assert_int_equal(p->issued_ns & EBB_ISSUED_SOURCE, EBB_SOURCE_NEAR);
	assert_true(p->issued_ns / 8 == now / 8);
	assert_false(p->issued_ns & EBB_ISSUED_SHARED);
	now += EBB_EVICTED_NS + 8;
	assert_int_equal(prefetch_set_enter(s, &replay, vpn, 1, now).again, 1);
	prefetch_set_renew(s, &replay, vpn, 1, now);
	assert_int_equal(p->issued_ns & EBB_ISSUED_SOURCE, EBB_SOURCE_NEAR);
	assert_true(p->issued_ns / 8 == now / 8);
	assert_false(p->issued_ns & EBB_ISSUED_SHARED);
	prefetch_set_free(&s);
}

static void pages_of_shared_memory_stay_marked(void **unused)
{
	struct prefetch_key shared = key;
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[] = { 10 }, now = SECOND + 3;
	struct ebb_prefetch *p;

	shared.shared = true;
	shared.source = EBB_SOURCE_STREAMS;
	prefetch_set_enter(s, &shared, vpn, 1, now);
	p = &map.value[find(&(struct ebb_page){ 5, 2, 10 })];
	assert_int_equal(p->issued_ns & EBB_ISSUED_BITS, EBB_SOURCE_STREAMS | EBB_ISSUED_SHARED);
	now += EBB_EVICTED_NS + 8;
	prefetch_set_renew(s, &key, vpn, 1, now);
	assert_int_equal(p->issued_ns & EBB_ISSUED_BITS, EBB_SOURCE_STREAMS | EBB_ISSUED_SHARED);
	assert_true(p->issued_ns / 8 == now / 8);
	prefetch_set_free(&s);
}

static void another_program_has_pages_of_its_own(void **unused)
{
	struct prefetch_key other = { .tgid = 5, .exec = 3, .owner = 40 };
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[] = { 10 };

	assert_int_equal(prefetch_set_enter(s, &key, vpn, 1, SECOND).fresh, 1);
	assert_int_equal(prefetch_set_enter(s, &other, vpn, 1, SECOND).fresh, 1);
	assert_int_equal(prefetch_set_withdraw(s, &other, vpn, 1), 1);
	assert_int_equal(prefetch_set_withdraw(s, &other, vpn, 1), 0);
	assert_int_equal(map.n, 1);
	prefetch_set_free(&s);
}

static void a_full_set_takes_no_more(void **unused)
{
	struct prefetch_set *s = fresh_set();
	struct prefetch_entered in;
	uint64_t vpn[64];

	for (uint64_t first = 1; map.n < ROOM; first += 50) {
		for (int i = 0; i < 50; i++)
			vpn[i] = first + (uint64_t)i;
		in = prefetch_set_enter(s, &key, vpn, 50, SECOND);
		assert_int_equal(in.fresh, 50);
	}
	vpn[0] = 1;
	vpn[1] = 1000;
	in = prefetch_set_enter(s, &key, vpn, 2, SECOND);
	assert_int_equal(in.full, 1);
	assert_int_equal(in.repeated, 1);
	prefetch_set_free(&s);
}

static void a_call_that_fails_enters_nothing(void **unused)
{
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[] = { 1, 2, 3 };
	struct prefetch_entered in;

	map.refuses = true;
	in = prefetch_set_enter(s, &key, vpn, 3, SECOND);
	assert_int_equal(in.failed, 3);
	assert_int_equal(in.fresh + in.again + in.repeated + in.full, 0);
	assert_int_equal(map.n, 0);
	map.refuses = false;
	assert_int_equal(prefetch_set_enter(s, &key, vpn, 3, SECOND).fresh, 3);
	prefetch_set_free(&s);
}

/* A page that the kernel rejected would be counted as a hit. */
static void rejected_pages_go_though_the_call_fails(void **unused)
{
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[] = { 1, 2, 3 };

	assert_int_equal(prefetch_set_enter(s, &key, vpn, 3, SECOND).fresh, 3);
	/* Used meanwhile. */
	bpf_map_delete_elem(MAP, &(struct ebb_page){ 5, 2, 3 });
	map.refuses = true;
	assert_int_equal(prefetch_set_withdraw(s, &key, vpn, 3), 2);
	assert_int_equal(map.n, 0);
	prefetch_set_free(&s);
}

static void a_call_that_fails_is_logged_once(void **unused)
{
	struct prefetch_set *s = fresh_set();
	int before = dup(STDERR_FILENO), file = memfd_create("log", 0);
	char text[4096] = "", *line;
	uint64_t vpn[] = { 1 };

	dup2(file, STDERR_FILENO);
	map.refuses = true;
	for (int i = 0; i < 100; i++)
		prefetch_set_enter(s, &key, vpn, 1, SECOND);
	dup2(before, STDERR_FILENO);
	assert_true(pread(file, text, sizeof(text) - 1, 0) > 0);
	line = strchr(text, '\n');
	assert_non_null(line);
	assert_string_equal(line, "\n");
	assert_non_null(strstr(text, "bpf/fault: cannot run set_batch: Cannot allocate memory; "));
	close(before);
	close(file);
	prefetch_set_free(&s);
}

static void a_batch_is_one_call(void **unused)
{
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[PREFETCH_BATCH_MAX];

	for (uint64_t i = 0; i < PREFETCH_BATCH_MAX; i++)
		vpn[i] = 7 * i;
	prefetch_set_enter(s, &key, vpn, PREFETCH_BATCH_MAX, SECOND);
	assert_int_equal(map.calls, 1);
	prefetch_set_renew(s, &key, vpn, PREFETCH_BATCH_MAX, 2 * SECOND);
	assert_int_equal(map.calls, 2);
	assert_int_equal(prefetch_set_withdraw(s, &key, vpn + PREFETCH_BATCH_MAX, 0), 0);
	assert_int_equal(map.calls, 2);
	assert_int_equal(prefetch_set_withdraw(s, &key, vpn, PREFETCH_BATCH_MAX),
			 PREFETCH_BATCH_MAX);
	assert_int_equal(map.calls, 3);
	assert_int_equal(map.n, 0);
	prefetch_set_free(&s);
}

static bool keep_even(void *data, const struct ebb_page *page, const struct ebb_prefetch *p)
{
	assert_int_equal(p->owner, key.owner);
	return page->vpn % 2 == 0;
}

static void count_expired(void *data, const struct ebb_prefetch *p)
{
	assert_int_equal(p->owner, key.owner);
	++*(int *)data;
}

static void a_sweep_keeps_what_it_is_told(void **unused)
{
	struct prefetch_set *s = fresh_set();
	uint64_t vpn[] = { 10, 11, 12, 13 };
	int expired = 0;

	prefetch_set_enter(s, &key, vpn, 4, SECOND);
	map.fails = true;
	prefetch_set_sweep(s, &(struct prefetch_sweep){ keep_even, count_expired, &expired });
	assert_int_equal(expired, 0);
	/* Of a sweep that failed nothing is hidden from faults. */
	for (uint64_t page = 10; page < 14; page++)
		assert_true(in_filter(page));
	map.fails = false;
	prefetch_set_sweep(s, &(struct prefetch_sweep){ keep_even, count_expired, &expired });
	assert_int_equal(expired, 2);
	assert_int_equal(map.n, 2);
	for (uint64_t page = 10; page < 14; page++)
		assert_int_equal(in_filter(page), page % 2 == 0);
	prefetch_set_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_are_told_apart_by_age),
		cmocka_unit_test(pages_name_their_source),
		cmocka_unit_test(pages_of_shared_memory_stay_marked),
		cmocka_unit_test(another_program_has_pages_of_its_own),
		cmocka_unit_test(a_full_set_takes_no_more),
		cmocka_unit_test(a_call_that_fails_enters_nothing),
		cmocka_unit_test(rejected_pages_go_though_the_call_fails),
		cmocka_unit_test(a_call_that_fails_is_logged_once),
		cmocka_unit_test(a_batch_is_one_call),
		cmocka_unit_test(a_sweep_keeps_what_it_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
