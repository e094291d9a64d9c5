/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The parts that every service shares: its standard options, its way to the
 * background, the notification that it is ready, its exit status.
 */
#ifndef EBB_SERVICE_H
#define EBB_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "options.h"

struct service {
	uint64_t ready_fd; /* 0: none */
	bool version;
	int parent_fd;     /* to the parent that waits, 0: none */
};

/* For the option table of a struct @structure with a member struct service @member. */
#define SERVICE_OPTIONS(structure, member) \
	{ .name = "ready-fd", .type = OPTION_UINT, .offset = offsetof(struct structure, member.ready_fd), \
	  .metavar = "FD", .help = "write READY to this descriptor once ready", .max = 1 << 20 }, \
	{ .name = "version", .type = OPTION_FLAG, .offset = offsetof(struct structure, member.version), \
	  .help = "print the version and exit" }

/*
 * Sets up the log of @program and parses its options into @into, which holds the
 * defaults and @s.  False when the program is to exit with *@status: it has printed
 * its usage, its version or an error.
 */
bool service_options(const struct command *c, const char *program, int argc, char **argv,
		     void *into, const struct service *s, int *status);

/*
 * Forks; only the child returns.  The parent exits successfully at service_ready(), or
 * with the child's status.
 */
int service_daemonise(struct service *s, struct error *e);

/*
 * stdin and stdout become /dev/null, and stderr the file @log unless the journal has
 * it; @flags (O_TRUNC) are those of its open(2).
 */
void service_detach(const char *log, int flags);

/* Notifies --ready-fd, the service manager (@text is its status or NULL) and the parent, once. */
void service_ready(struct service *s, const char *text);

/* In a child of the service: closes the descriptors that service_ready() writes to. */
void service_forget(struct service *s);

/* Logs the error that ended the service, if any; returns the exit status. */
int service_end(const struct error *e);

#endif
