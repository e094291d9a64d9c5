// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/paths.h"
#include "sim_exec.h"

#define PROGRAM "ebb-sim"

void sim_command(struct sim_call *c, const char *word)
{
	c->word[c->n++] = PROGRAM;
	c->word[c->n++] = word;
}

void sim_add(struct sim_call *c, const char *option, const char *value)
{
	if (!value)
		return;
	c->word[c->n++] = option;
	c->word[c->n++] = value;
}

void sim_add_flag(struct sim_call *c, const char *option, bool given)
{
	if (given)
		c->word[c->n++] = option;
}

int sim_exec(struct sim_call *c, const char *file, struct error *e)
{
	const char *path = ebb_program(PROGRAM);

	c->word[c->n++] = "--";
	c->word[c->n++] = file;
	c->word[c->n] = NULL;
	fflush(stdout);
	/* Not by PATH, which may be another user's. */
	if (!strchr(path, '/'))
		return fail(e, ENOENT, PROGRAM ": not found; install it beside ebbctl");
	execv(path, (char *const *)c->word);
	return fail(e, errno, PROGRAM ": cannot run: %s; install it beside ebbctl", strerror(errno));
}
