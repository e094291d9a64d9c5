/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_RECORD_H
#define EBB_RECORD_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

/* @name as an absolute path, for ebbd. */
int record_path(const char *name, char *path, size_t size, struct error *e);

/*
 * Begins to record @cgroup (an absolute directory) in @file (absolute); from now
 * on ^C and the like end record_wait(), not this program, and ebbd ends the
 * recording by itself some seconds after nobody waits any more.
 */
int record_begin(const char *cgroup, const char *file, struct error *e);

/* Until a signal comes, @ns have passed (0: for ever), or the recording has ended by itself. */
void record_wait(const char *cgroup, uint64_t ns);

/* Ends the recording of @cgroup; *@answer has "records" and "lost". */
int record_stop(const char *cgroup, struct json_object **answer, struct error *e);

#endif
