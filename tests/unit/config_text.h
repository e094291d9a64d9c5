/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A configuration as a test has it: text. */
#ifndef CONFIG_TEXT_H
#define CONFIG_TEXT_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbd/config.h"

/* Loads @text as a file; the error's text is left in @e. */
static inline int load(struct config *c, const char *text, struct error *e)
{
	char path[] = "/tmp/ebb-test-config.XXXXXX";
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	config_defaults(c);
	*e = (struct error){ 0 };
	r = config_load(c, path, e);
	unlink(path);
	return r;
}

struct refused_text {
	const char *text, *line, *word;
};

/* Each of @bad is refused as wrong usage; the error names file, line and what is wrong in it. */
static inline void assert_refused(const struct refused_text *bad, size_t n)
{
	struct config c;
	struct error e;

	for (size_t i = 0; i < n; i++) {
		assert_true(load(&c, bad[i].text, &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, "/tmp/ebb-test-config."));
		assert_non_null(strstr(e.text, bad[i].line));
		assert_non_null(strstr(e.text, bad[i].word));
		config_free(&c);
	}
}

#endif
