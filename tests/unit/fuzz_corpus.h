/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Runs a fuzzer's corpus as a unit test; behind <cmocka.h>. */
#ifndef EBB_TESTS_FUZZ_CORPUS_H
#define EBB_TESTS_FUZZ_CORPUS_H

#include <dirent.h>
#include <stdio.h>

#include "tests/fuzz/protocol.h"

/* Gives @run each file of @directory, its first @most bytes in @data; nothing may go wrong. */
static inline void run_corpus(const char *directory, uint8_t *data, size_t most,
			      void (*run)(const uint8_t *data, size_t size,
					  struct fuzz_protocol_result *r))
{
	DIR *d = opendir(directory);
	int files = 0;

	assert_non_null(d);
	for (struct dirent *entry; (entry = readdir(d));) {
		struct fuzz_protocol_result r;
		char path[512];
		size_t size;
		FILE *f;

		if (*entry->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
		f = fopen(path, "rb");
		assert_non_null(f);
		size = fread(data, 1, most, f);
		fclose(f);
		run(data, size, &r);
		if (*r.wrong)
			fail_msg("%s (%s)", r.wrong, path);
		files++;
	}
	closedir(d);
	assert_true(files > 5);
}

#endif
