/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Commands of the control thread to the loop thread: one at a time, through a mailbox.  The control
 * thread allocates memory and resolves names before.
 */
#ifndef EBB_COMMANDS_H
#define EBB_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

struct replicas;

enum command_kind {
	COMMAND_USE,     /* uses the donor from now on: a new, unlisted or removed one */
	COMMAND_REMOVE,  /* migrates the donor's slabs, then frees its entry */
	COMMAND_UNLIST,  /* places no slabs at the donor, and frees its entry once it has none */
	COMMAND_DRAIN,   /* migrates the donor's slabs; its entry stays */
	COMMAND_UNDRAIN,
	COMMAND_TRUST,   /* ends the donor's quarantine */
	COMMAND_FORGET,  /* ends the absence of the donor: its replicas are lost */
	COMMAND_MIGRATE, /* migrates a replica of the slab to the donor, or to any if that is -1 */
};

struct device_command {
	enum command_kind kind;
	int donor;      /* index */
	uint32_t slab;
	bool force;     /* FORGET: also if it has the only copy of pages */
	uint64_t epoch; /* FORGET: loss_epoch() before the check that it has none */
	int result;     /* 0 or -errno */
	const char *why; /* cause and remedy of a failure */
};

struct commands {
	struct replicas *replicas;
	struct device_command command;
	int post_fd;        /* eventfds: to the loop, and back */
	int done_fd;
	uint32_t in_flight; /* the last command has no answer yet */
};

int commands_open(struct commands *c, struct error *e);
void commands_close(struct commands *c);

/* Control thread: gives @command and waits up to 5 s for its result. */
int commands_give(struct commands *c, const struct device_command *command, const char *what,
		  struct error *e);

/* Loop thread: carries out a command; post_fd is readable. */
void commands_take(struct commands *c);

#endif
