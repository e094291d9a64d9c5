/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Recordings: every swap fault of one cgroup, one CSV line each, until told to
 * stop.  Columns: time_ns,duration_ns,vpn,tgid,tid,kind (miss, hit, late).
 * The only time that events leave the kernel one by one.
 */
#ifndef EBB_RECORDING_H
#define EBB_RECORDING_H

#include "ebbd/attach.h"

struct recordings;

int recordings_new(struct recordings **r, struct attachments *a, struct error *e);
void recordings_free(struct recordings **r);

int recording_start(struct recordings *r, const char *cgroup, const char *file, struct error *e);
int recording_stop(struct recordings *r, const char *cgroup, struct error *e);

/* Writes what came in; cheap when nothing is recorded. */
void recordings_drain(struct recordings *r);

#endif
