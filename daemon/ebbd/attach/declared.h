/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Attachments by declaration: [cgroup] sections of the configuration and the
 * xattr user.ebb.policy, for cgroups that are there and for those made later.
 *
 * Precedence for a cgroup: `ebbctl policy attach` and `set`, then the xattr of
 * its own directory, then the last section whose glob matches it.  Without any
 * it is governed as its parent is.  inotify on every directory of the
 * hierarchy tells of new cgroups and changed xattrs.
 */
#ifndef EBB_DECLARED_H
#define EBB_DECLARED_H

#include <systemd/sd-event.h>

#include "declaration.h"

struct declared;

/* @sections is looked at whenever a cgroup appears; it may change between calls. */
int declared_new(struct declared **d, struct attachments *a,
		 const struct declarations *sections, struct error *e);
void declared_free(struct declared **d);

/* Watches from now on; the descriptor to poll, and what to call then. */
int declared_fd(const struct declared *d);
void declared_events(struct declared *d);
/* Once a second: cgroups that went and came while they were looked at. */
void declared_again(struct declared *d);

/*
 * Checks every section against what is there, changes nothing.
 * Errors name file and line.  Whether the kernel takes a policy is found out later.
 */
int declared_check(struct attachments *a, const struct declarations *sections, struct error *e);

/*
 * Applies the configuration to every cgroup; at start and after a reload.  Sections whose
 * policy the kernel does not take are inactive from then on, which is logged.
 */
void declared_apply(struct declared *d);

/*
 * @id was detached by a command: it stays so until declared_apply().  Returns true
 * when something declares it, and says what and where in @text.
 */
bool declared_detached(struct declared *d, uint64_t id, const char *path, char *text, size_t size);
/* It was attached by a command again. */
void declared_attached(struct declared *d, uint64_t id);

#endif
