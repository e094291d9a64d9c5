/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_TOP_VIEW_H
#define EBB_TOP_VIEW_H

#include <json-c/json.h>
#include <stdio.h>

/* Parts of a frame. */
enum top_parts {
	TOP_CGROUPS = 1 << 0,
	TOP_DEVICES = 1 << 1,
	TOP_DONORS = 1 << 2,
	TOP_ALL = TOP_CGROUPS | TOP_DEVICES | TOP_DONORS,
};

/*
 * Writes @frame (top_model.h) as text.  With TOP_MARKED, heads of tables begin with
 * TOP_HEAD.  Unprintable bytes of names become '?'.
 */
#define TOP_HEAD '\001'
enum top_marks { TOP_PLAIN, TOP_MARKED };
void top_write(FILE *f, struct json_object *frame, enum top_parts parts, enum top_marks marks);

#endif
