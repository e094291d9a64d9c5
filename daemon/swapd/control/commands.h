/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Commands of the control thread to the loop thread: one at a time, through a mailbox.  The control
 * thread allocates memory and resolves names before.
 */
#ifndef EBB_COMMANDS_H
#define EBB_COMMANDS_H

#include <stdint.h>

#include "lib/base/error.h"

struct replicas;

enum command_kind {
	COMMAND_USE,     /* the donor, from now on: it is new, or still being removed */
	COMMAND_REMOVE,  /* the donor: its slabs migrate, then its entry is freed */
	COMMAND_DRAIN,   /* the donor: its slabs migrate; its entry stays */
	COMMAND_UNDRAIN,
	COMMAND_TRUST,   /* the donor, which is quarantined */
	COMMAND_MIGRATE, /* a replica of the slab, to the donor or, if that is -1, to any */
};

struct device_command {
	enum command_kind kind;
	int donor;      /* index */
	uint32_t slab;
	int result;     /* 0 or -errno */
	const char *why; /* cause and remedy of a failure */
};

struct commands {
	struct replicas *replicas;
	struct device_command command;
	int post_fd;        /* eventfds: to the loop, and back */
	int done_fd;
	uint32_t in_flight; /* the loop has not answered the last command */
};

int commands_open(struct commands *c, struct error *e);
void commands_close(struct commands *c);

/* Control thread: gives @command and waits up to 5 s for its result. */
int commands_give(struct commands *c, const struct device_command *command, const char *what,
		  struct error *e);

/* Loop thread: carries out a command; post_fd is readable. */
void commands_take(struct commands *c);

#endif
