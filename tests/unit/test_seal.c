// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "swapd/page/seal.h"

#include <cmocka.h>

#define PAGES 16u

struct world {
	struct seal_table table;
	struct sealer sealer;
	uint8_t plain[PAGES][EBB_PAGE], buf[PAGES][EBB_PAGE];
};

static unsigned long allocations;

static void *counting_malloc(size_t size, const char *file, int line)
{
	allocations++;
	return malloc(size);
}

static void *counting_realloc(void *p, size_t size, const char *file, int line)
{
	allocations++;
	return realloc(p, size);
}

static void plain_free(void *p, const char *file, int line)
{
	free(p);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	*state = w;
	for (unsigned i = 0; i < sizeof(w->plain); i++)
		w->plain[i / EBB_PAGE][i % EBB_PAGE] = (uint8_t)(i * 2654435761u >> 24);
	memcpy(w->buf, w->plain, sizeof(w->buf));
	return seal_table_init(&w->table, PAGES, NULL) ?: sealer_init(&w->sealer, &w->table, NULL);
}

static int teardown(void **state)
{
	struct world *w = *state;

	sealer_free(&w->sealer);
	seal_table_free(&w->table);
	free(w);
	return 0;
}

static int seal_pages(struct sealer *s, uint32_t first, uint32_t count, void *payload)
{
	int r = 0;

	for (uint32_t i = 0; i < count && !r; i++) {
		uint8_t *page = (uint8_t *)payload + i * (size_t)EBB_PAGE;

		r = seal_page(s, first + i, page, page);
	}
	return r;
}

static void seal_all(struct world *w)
{
	memcpy(w->buf, w->plain, sizeof(w->buf));
	assert_int_equal(seal_pages(&w->sealer, 0, PAGES, w->buf), 0);
}

static void assert_bad(struct world *w, uint32_t page)
{
	static const uint8_t nothing[EBB_PAGE];
	uint32_t bad = PAGES;

	assert_int_equal(seal_open(&w->sealer, page, 1, w->buf[page], &bad), -EBADMSG);
	assert_int_equal(bad, page);
	/* Nothing unproven gets out. */
	assert_memory_equal(w->buf[page], nothing, EBB_PAGE);
}

static void round_trip(void **state)
{
	struct world *w = *state;

	seal_all(w);
	for (unsigned i = 0; i < PAGES; i++)
		assert_memory_not_equal(w->buf[i], w->plain[i], EBB_PAGE);
	/* A part of what was sealed as one opens by itself, more than once. */
	assert_int_equal(seal_open(&w->sealer, 3, 2, w->buf[3], NULL), 0);
	assert_memory_equal(w->buf[3], w->plain[3], 2 * EBB_PAGE);
	seal_all(w);
	assert_int_equal(seal_open(&w->sealer, 0, PAGES, w->buf, NULL), 0);
	assert_memory_equal(w->buf, w->plain, sizeof(w->plain));
}

static void every_flipped_bit_is_seen(void **state)
{
	struct world *w = *state;
	uint8_t sealed[EBB_PAGE];
	struct seal *seal = &w->table.memory->seal[5];

	seal_all(w);
	memcpy(sealed, w->buf[5], EBB_PAGE);
	for (unsigned bit = 0; bit < 8 * EBB_PAGE; bit++) {
		memcpy(w->buf[5], sealed, EBB_PAGE);
		w->buf[5][bit / 8] ^= 1 << bit % 8;
		assert_bad(w, 5);
	}
	for (unsigned bit = 0; bit < 8 * sizeof(*seal); bit++) {
		memcpy(w->buf[5], sealed, EBB_PAGE);
		((uint8_t *)seal)[bit / 8] ^= 1 << bit % 8;
		assert_bad(w, 5);
		((uint8_t *)seal)[bit / 8] ^= 1 << bit % 8;
	}
	memcpy(w->buf[5], sealed, EBB_PAGE);
	assert_int_equal(seal_open(&w->sealer, 5, 1, w->buf[5], NULL), 0);
}

static void swapped_pages_are_seen(void **state)
{
	struct world *w = *state;
	uint8_t other[EBB_PAGE];

	/* The same content, even. */
	memcpy(w->plain[2], w->plain[7], EBB_PAGE);
	seal_all(w);
	memcpy(other, w->buf[2], EBB_PAGE);
	memcpy(w->buf[2], w->buf[7], EBB_PAGE);
	memcpy(w->buf[7], other, EBB_PAGE);
	assert_bad(w, 2);
	assert_bad(w, 7);
}

static void another_pages_seal_is_no_good(void **state)
{
	struct world *w = *state;

	/* Counter and tag come along: the page's number is in nonce and associated data. */
	seal_all(w);
	memcpy(w->buf[2], w->buf[7], EBB_PAGE);
	w->table.memory->seal[2] = w->table.memory->seal[7];
	assert_bad(w, 2);
}

static void another_device_is_no_good(void **state)
{
	struct world *w = *state;

	seal_all(w);
	w->table.memory->device++;
	assert_bad(w, 1);
}

static void an_old_version_is_seen(void **state)
{
	struct world *w = *state;
	uint8_t old[EBB_PAGE];

	seal_all(w);
	memcpy(old, w->buf[4], EBB_PAGE);
	seal_all(w);
	assert_memory_not_equal(w->buf[4], old, EBB_PAGE);
	memcpy(w->buf[4], old, EBB_PAGE);
	assert_bad(w, 4);
}

static void the_first_bad_page_is_named(void **state)
{
	struct world *w = *state;
	uint8_t behind[EBB_PAGE];
	uint32_t bad;

	seal_all(w);
	w->buf[6][0] ^= 1;
	w->buf[9][0] ^= 1;
	memcpy(behind, w->buf[7], EBB_PAGE);
	assert_int_equal(seal_open(&w->sealer, 2, PAGES - 2, w->buf[2], &bad), -EBADMSG);
	assert_int_equal(bad, 6);
	assert_memory_equal(w->buf[2], w->plain[2], 4 * EBB_PAGE);
	assert_memory_equal(w->buf[7], behind, EBB_PAGE);
}

static void a_check_opens_nothing(void **state)
{
	struct world *w = *state;
	uint8_t sealed[PAGES][EBB_PAGE];
	uint32_t bad;

	seal_all(w);
	w->buf[6][0] ^= 1;
	memcpy(sealed, w->buf, sizeof(sealed));
	assert_int_equal(seal_check(&w->sealer, 0, 6, w->buf, &bad), 0);
	assert_int_equal(seal_check(&w->sealer, 0, PAGES, w->buf, &bad), -EBADMSG);
	assert_int_equal(bad, 6);
	assert_int_equal(seal_check(&w->sealer, PAGES - 1, 2, w->buf, &bad), -ERANGE);
	assert_memory_equal(w->buf, sealed, sizeof(sealed));
	assert_int_equal(seal_open(&w->sealer, 7, PAGES - 7, w->buf[7], &bad), 0);
}

static void what_was_never_sealed_does_not_open(void **state)
{
	struct world *w = *state;

	assert_bad(w, 0);
	seal_all(w);
	seal_forget(&w->table, 3, 2);
	assert_bad(w, 3);
	assert_bad(w, 4);
	assert_int_equal(seal_open(&w->sealer, 5, 1, w->buf[5], NULL), 0);
}

static void bounds(void **state)
{
	static const struct { uint32_t first, count;
	} beyond[] = {
		{ PAGES, 1 },	   { PAGES - 1, 2 }, { UINT32_MAX, 1 },
		{ 1, UINT32_MAX }, { 0, PAGES + 1 },
	};
	struct world *w = *state;
	uint64_t writes = w->table.memory->writes;

	for (unsigned i = 0; i < sizeof(beyond) / sizeof(*beyond); i++) {
		uint32_t first = beyond[i].first, count = beyond[i].count;

		assert_int_equal(seal_open(&w->sealer, first, count, w->buf, NULL), -ERANGE);
		seal_forget(&w->table, first, count);
	}
	assert_int_equal(seal_page(&w->sealer, PAGES, w->buf, w->buf), -ERANGE);
	assert_int_equal(seal_page(&w->sealer, UINT32_MAX, w->buf, w->buf), -ERANGE);
	assert_int_equal(w->table.memory->writes, writes);
	assert_memory_equal(w->buf, w->plain, sizeof(w->plain));
	assert_int_equal(seal_page(&w->sealer, PAGES - 1, w->buf[PAGES - 1], w->buf[PAGES - 1]), 0);
}

/* Notes the counters of @count pages from @first, which must all be new. */
static void note_counters(const struct world *w, uint32_t first, uint32_t count, uint64_t *highest)
{
	for (uint32_t i = first; i < first + count; i++) {
		assert_true(w->table.memory->seal[i].counter > *highest);
		*highest = w->table.memory->seal[i].counter;
	}
}

static void no_nonce_twice(void **state)
{
	struct world *w = *state;
	uint64_t highest = 0;
	struct sealer second;
	struct seal_table again;
	pid_t pid;
	int status;

	for (uint32_t i = 0; i < 1000; i++) {
		uint32_t first = i * 7 % PAGES, count = 1 + i * 5 % (PAGES - first);

		assert_int_equal(seal_pages(&w->sealer, first, count, w->buf[first]), 0);
		note_counters(w, first, count, &highest);
		/* Neither what is forgotten nor what fails gives its number back. */
		if (i % 10 == 0)
			seal_forget(&w->table, 0, PAGES);
	}
	/* Another thread's sealer. */
	assert_int_equal(sealer_init(&second, &w->table, NULL), 0);
	assert_int_equal(seal_pages(&second, 2, 3, w->buf[2]), 0);
	note_counters(w, 2, 3, &highest);
	sealer_free(&second);
	/* Another process, which dies; then we are its successor. */
	pid = fork();
	if (!pid)
		_exit(sealer_init(&second, &w->table, NULL) ||
		      seal_pages(&second, 0, PAGES, w->buf) ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	note_counters(w, 0, PAGES, &highest);
	/* A new table counts from the start, with another key. */
	assert_int_equal(seal_table_init(&again, PAGES, NULL), 0);
	assert_memory_not_equal(again.memory->key, w->table.memory->key, SEAL_KEY);
	assert_true(again.memory->device != w->table.memory->device);
	seal_table_free(&again);
}

/* Neither swap nor a core dump gets the key; the kernel has the word. */
static void key_is_locked_and_not_dumped(void **state)
{
	struct world *w = *state;
	char line[512], begins[24];
	bool found = false, locked = false, kept_out = false;
	FILE *smaps = fopen("/proc/self/smaps", "r");

	assert_non_null(smaps);
	snprintf(begins, sizeof(begins), "%llx-",
		 (unsigned long long)(uintptr_t)w->table.memory);
	while (fgets(line, sizeof(line), smaps)) {
		if (!found) {
			found = !strncmp(line, begins, strlen(begins));
		} else if (!strncmp(line, "VmFlags:", 8)) {
			locked = strstr(line, " lo ");
			kept_out = strstr(line, " dd ");
			break;
		}
	}
	fclose(smaps);
	assert_true(found && locked && kept_out);
}

static void the_counter_has_an_end(void **state)
{
	struct world *w = *state;

	w->table.memory->writes = SEAL_MOST - 1;
	assert_int_equal(seal_page(&w->sealer, 1, w->buf[1], w->buf[1]), 0);
	assert_int_equal(seal_page(&w->sealer, 0, w->buf, w->buf), -EKEYEXPIRED);
	assert_memory_equal(w->buf, w->plain, EBB_PAGE);
}

static void nothing_is_allocated(void **state)
{
	struct world *w = *state;
	unsigned long before = allocations;

	/* Else this counts nothing. */
	assert_true(before > 0);
	for (int i = 0; i < 100; i++) {
		seal_all(w);
		w->buf[3][i] ^= 1;
		assert_int_equal(seal_open(&w->sealer, 0, PAGES, w->buf, NULL), -EBADMSG);
	}
	assert_int_equal(allocations, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(every_flipped_bit_is_seen, setup, teardown),
		cmocka_unit_test_setup_teardown(swapped_pages_are_seen, setup, teardown),
		cmocka_unit_test_setup_teardown(another_pages_seal_is_no_good, setup, teardown),
		cmocka_unit_test_setup_teardown(another_device_is_no_good, setup, teardown),
		cmocka_unit_test_setup_teardown(an_old_version_is_seen, setup, teardown),
		cmocka_unit_test_setup_teardown(the_first_bad_page_is_named, setup, teardown),
		cmocka_unit_test_setup_teardown(a_check_opens_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(what_was_never_sealed_does_not_open, setup,
						teardown),
		cmocka_unit_test_setup_teardown(bounds, setup, teardown),
		cmocka_unit_test_setup_teardown(no_nonce_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(key_is_locked_and_not_dumped, setup, teardown),
		cmocka_unit_test_setup_teardown(the_counter_has_an_end, setup, teardown),
		cmocka_unit_test_setup_teardown(nothing_is_allocated, setup, teardown),
	};

	if (CRYPTO_set_mem_functions(counting_malloc, counting_realloc, plain_free) != 1) {
		fprintf(stderr, "OpenSSL's allocations cannot be counted\n");
		return 1;
	}
	return cmocka_run_group_tests_name("seal", tests, NULL, NULL);
}
