/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keeps --scope attached of devices up to date with configured attachments, in a thread: it asks
 * ebbd's own control socket for the attached cgroups, and systemd changes limits of units.
 * ebbctl itself applies what its commands change.
 */
#ifndef EBB_SCOPES_H
#define EBB_SCOPES_H

#include <stdint.h>

#include "lib/base/error.h"

struct scopes;

/* Also applies the scope of every device, as scopes_wake(). */
int scopes_start(struct scopes **s, struct error *e);
/* Requires that the control socket is closed, or it may wait for an answer. */
void scopes_stop(struct scopes **s);

/* Applies the scope of every device soon; changes during an application are joined to one more. */
void scopes_wake(struct scopes *s);
/* The main thread, once a second: scopes_wake() if @changes, a count, differs from the last one. */
void scopes_follow(struct scopes *s, uint64_t changes);

#endif
