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

#endif
