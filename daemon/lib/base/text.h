/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Output.  A verb builds its answer as one JSON object: --json prints it, and the plain view is
 * made from it, so that they cannot disagree.
 */
#ifndef EBB_OUTPUT_H
#define EBB_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "json.h"

enum column_format {
	COLUMN_TEXT,
	COLUMN_COUNT,   /* 1234567 */
	COLUMN_BYTES,   /* "1.5 GiB" */
	COLUMN_NS,      /* "12.3 us" */
	COLUMN_PERCENT, /* a ratio, 0.99 is "99.0 %" */
	COLUMN_RATE,    /* 0.4, 12.5, 340, 1.2M: three digits or so */
};

struct column {
	const char *key;    /* member of a row */
	const char *title;
	enum column_format format;
};

/*
 * Writes @o as JSON and a newline; @flags are JSON_C_TO_STRING_*.  Names of cgroups may be any
 * bytes, and names of threads may end within a character: invalid UTF-8 becomes U+FFFD.
 */
void output_json(FILE *f, struct json_object *o, int flags);

/* Prints @o: as JSON when @json, else through @plain. */
void output(bool json, struct json_object *o, void (*plain)(struct json_object *o));

/*
 * Prints @rows, an array of objects, as a table of @columns (which ends with a
 * NULL key).  Absent and null members are "-".  @empty is printed instead when
 * there are no rows.
 */
void output_table(struct json_object *rows, const struct column *columns, const char *empty);

/* As output_table(), to @f. */
void output_table_to(FILE *f, struct json_object *rows, const struct column *columns,
		     const char *empty);

/* Formats one member; @buf (of at least 32 bytes) or a string of @row. */
const char *output_cell(struct json_object *row, const struct column *column, char *buf, int len);

#endif
