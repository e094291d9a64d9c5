/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Configured attachments: [cgroup] sections of the configuration and the xattr
 * user.ebb.policy, for existing and future cgroups.
 *
 * Precedence for a cgroup: `ebbctl policy attach` and `set`, then the xattr of
 * its own directory, then the last section whose glob matches it.  Without any,
 * its parent's policy applies.  inotify on every directory of the hierarchy
 * reports new cgroups and changed xattrs.
 */
#ifndef EBB_DECLARED_H
#define EBB_DECLARED_H

#include <systemd/sd-event.h>

#include "declaration.h"

struct declared;

/* Reads @sections whenever a cgroup appears; they may change between calls. */
int declared_new(struct declared **d, struct attachments *a,
		 const struct declarations *sections, struct error *e);
void declared_free(struct declared **d);

/* Starts to watch; returns the descriptor to poll, and the function to call then. */
int declared_fd(const struct declared *d);
void declared_events(struct declared *d);
/*
 * Once a second: retries cgroups that were removed or created during an attachment, and cgroups
 * that their user changes too often (change_rate.h).
 */
void declared_again(struct declared *d);
/* Returns how many changes were deferred for that. */
uint64_t declared_deferred(const struct declared *d);
/* Returns how many times attachments changed; joins the changes of one call. */
uint64_t declared_changes(const struct declared *d);

/*
 * Checks every section against the loaded policies, without side effects and without
 * the kernel's verifier.  Errors name file and line.  Sections of unusable policies pass:
 * after an upgrade they are inactive until the policy is rebuilt.
 */
int declared_check(struct attachments *a, const struct declarations *sections, struct error *e);

/*
 * Applies the configuration to every cgroup, at start and after a reload.  Logs sections
 * whose policy the kernel rejects; these become inactive.
 */
void declared_apply(struct declared *d);

/*
 * Keeps @id, which a command detached, detached until declared_apply().  Returns whether the
 * configuration has a policy for it, and describes that in @text.
 */
bool declared_detached(struct declared *d, uint64_t id, const char *path, char *text, size_t size);
/* Forgets that a command detached @id. */
void declared_attached(struct declared *d, uint64_t id);

#endif
