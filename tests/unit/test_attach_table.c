// SPDX-License-Identifier: GPL-2.0-or-later
/* The table of attached cgroups, against searches of all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbd/attach/table.h"

#define ROUNDS 4000
#define PATHS (sizeof(paths) / sizeof(paths[0]))

/* '-' and '.' come before '/' in ASCII. */
static const char *const paths[] = {
	"/", "/a", "/a-b", "/a.b", "/a/b", "/a/b-c", "/a/b/c", "/a/b/c/d", "/a/bc", "/ab", "/ab/c",
	"/b", "/b/\xc3\xa4", "/b/\xc3\xa4/x", "/b/ x", "/c/d/e", "/c/d/e/f", "/c/d-e",
};

static struct attachments table;

static bool is_within(const char *outer, const char *path)
{
	size_t n = strlen(outer);

	return !strcmp(outer, "/") ||
	       (!strncmp(outer, path, n) && (!path[n] || path[n] == '/'));
}

/* Returns the number of the outermost attached path that contains @path. */
static size_t outermost(const bool *in, size_t path)
{
	size_t best = path;

	for (size_t i = 0; i < PATHS; i++)
		if (in[i] && is_within(paths[i], paths[path]) &&
		    strlen(paths[i]) < strlen(paths[best]))
			best = i;
	return best;
}

static void check(const bool *in, struct attachment *of)
{
	uint32_t n = 0;

	for (size_t i = 0; i < PATHS; i++) {
		struct attached_range r = attachments_below(&table, paths[i]);
		uint32_t below = 0;

		n += in[i];
		assert_ptr_equal(attachments_find(&table, of[i].cgroup.id), in[i] ? &of[i] : NULL);
		for (size_t k = 0; k < PATHS; k++)
			below += in[k] && is_within(paths[i], paths[k]);
		assert_int_equal(r.end - r.first, below);
		for (uint32_t at = r.first; at < r.end; at++)
			assert_true(is_within(paths[i], table.item[at]->cgroup.rel));
		if (in[i])
			assert_string_equal(of[i].root->cgroup.rel, paths[outermost(in, i)]);
	}
	assert_int_equal(table.n, n);
}

static void roots_and_ranges_are_those_of_a_search(void **unused)
{
	struct attachment *of = calloc(PATHS, sizeof(*of));
	bool in[PATHS] = { 0 };

	memset(&table, 0, sizeof(table));
	srand(7);
	for (size_t i = 0; i < PATHS; i++) {
		snprintf(of[i].cgroup.rel, sizeof(of[i].cgroup.rel), "%s", paths[i]);
		of[i].cgroup.id = 1000 + i;
	}
	for (int round = 0; round < ROUNDS; round++) {
		size_t i = (size_t)rand() % PATHS;

		if (in[i])
			attachments_remove(&table, &of[i]);
		else
			attachments_insert(&table, &of[i]);
		in[i] = !in[i];
		check(in, of);
	}
	free(of);
}

/* A cgroup that was re-created is attached before the removed one is forgotten. */
static void two_may_have_one_path(void **unused)
{
	struct attachment *of = calloc(3, sizeof(*of));
	static const char *const path[] = { "/x", "/x", "/x/y" };

	memset(&table, 0, sizeof(table));
	for (uint64_t i = 0; i < 3; i++) {
		snprintf(of[i].cgroup.rel, sizeof(of[i].cgroup.rel), "%s", path[i]);
		of[i].cgroup.id = i + 1;
		attachments_insert(&table, &of[i]);
	}
	assert_true(of[2].root == &of[0] || of[2].root == &of[1]);
	attachments_remove(&table, of[2].root);
	assert_int_equal(table.n, 2);
	assert_string_equal(of[2].root->cgroup.rel, "/x");
	assert_ptr_equal(attachments_find(&table, of[2].root->cgroup.id), of[2].root);
	attachments_remove(&table, of[2].root);
	assert_ptr_equal(of[2].root, &of[2]);
	free(of);
}

static void a_removed_one_is_in_no_list(void **unused)
{
	struct attachment *t = calloc(1, sizeof(*t));

	memset(&table, 0, sizeof(table));
	strcpy(t->cgroup.rel, "/x");
	t->cgroup.id = 5;
	attachments_insert(&table, t);
	for (int i = 0; i < 2; i++) {
		attachment_wake(&table, t);
		attachment_change(&table, t);
	}
	assert_ptr_equal(LIST_FIRST(&table.busy), t);
	assert_ptr_equal(LIST_FIRST(&table.changed), t);
	assert_null(LIST_NEXT(t, busy));
	attachments_remove(&table, t);
	assert_null(LIST_FIRST(&table.busy));
	assert_null(LIST_FIRST(&table.changed));
	assert_null(attachments_find(&table, 5));
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(roots_and_ranges_are_those_of_a_search),
		cmocka_unit_test(two_may_have_one_path),
		cmocka_unit_test(a_removed_one_is_in_no_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
