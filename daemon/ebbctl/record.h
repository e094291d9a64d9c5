/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_RECORD_H
#define EBB_RECORD_H

#include <json-c/json.h>
#include <stddef.h>

#include "common/error.h"

/* @name as an absolute path, for ebbd. */
int record_path(const char *name, char *path, size_t size, struct error *e);

/* Ends the recording of @cgroup; *@answer has "records" and "lost". */
int record_stop(const char *cgroup, struct json_object **answer, struct error *e);

#endif
