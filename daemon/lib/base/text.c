// SPDX-License-Identifier: GPL-2.0-or-later
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "size.h"
#include "utf8.h"
#include "text.h"

#define CELL 64
#define MAX_COLUMNS 20

void output_json(FILE *f, struct json_object *o, int flags)
{
	const char *text = json_object_to_json_string_ext(o,
							  flags | JSON_C_TO_STRING_NOSLASHESCAPE);
	const char *c = text;

	while (*c) {
		int len = utf8_length((const unsigned char *)c);
		unsigned int code = len ? utf8_control((const unsigned char *)c) : 0xfffd;

		len = len ?: 1;
		/* json-c escapes C0; remaining control characters are between members. */
		if (code >= ' ') {
			fwrite(text, 1, (size_t)(c - text), f);
			fprintf(f, "\\u%04x", code);
			text = c + len;
		}
		c += len;
	}
	fprintf(f, "%s\n", text);
}

void output(bool json, struct json_object *o, void (*plain)(struct json_object *o))
{
	if (json)
		output_json(stdout, o, JSON_C_TO_STRING_PRETTY);
	else
		plain(o);
}

const char *output_cell(struct json_object *row, const struct column *column, char *buf, int len)
{
	struct json_object *v = json_member(row, column->key);
	double rate;

	if (!v)
		return "-";
	switch (column->format) {
	case COLUMN_COUNT:
		snprintf(buf, len, "%" PRId64, json_object_get_int64(v));
		return buf;
	case COLUMN_BYTES:
		return size_format(json_object_get_int64(v), buf, len);
	case COLUMN_NS:
		return duration_format(json_object_get_int64(v), buf, len);
	case COLUMN_PERCENT:
		snprintf(buf, len, "%.1f %%", 100 * json_object_get_double(v));
		return buf;
	case COLUMN_RATE:
		rate = json_object_get_double(v);
		if (rate < 1e6)
			snprintf(buf, len, rate < 100 ? "%.1f" : "%.0f", rate);
		else
			snprintf(buf, len, "%.1fM", rate / 1e6);
		return buf;
	default:
		return json_object_get_string(v);
	}
}

/*
 * Names of cgroups and programs may contain control characters, which must not reach the terminal.
 */
static void print_text(FILE *f, const char *text)
{
	_cleanup_free_ char *copy = strdup(text);

	if (!copy)
		return;
	utf8_print(copy);
	fputs(copy, f);
}

static void print_cell(FILE *f, const char *text, int width, bool right, bool last)
{
	int blanks = width - (int)strlen(text);

	if (right)
		fprintf(f, "%*s", blanks, "");
	print_text(f, text);
	if (!right && !last)
		fprintf(f, "%*s", blanks, "");
	fputs(last ? "\n" : "  ", f);
}

void output_table(struct json_object *rows, const struct column *columns, const char *empty)
{
	output_table_to(stdout, rows, columns, empty);
}

void output_table_to(FILE *f, struct json_object *rows, const struct column *columns,
		     const char *empty)
{
	int width[MAX_COLUMNS] = { 0 }, n = 0;
	size_t count = rows ? json_object_array_length(rows) : 0;
	char buf[CELL];

	if (!count) {
		fprintf(f, "%s\n", empty);
		return;
	}
	for (; n < MAX_COLUMNS && columns[n].key; n++)
		width[n] = (int)strlen(columns[n].title);
	for (size_t i = 0; i < count; i++)
		for (int c = 0; c < n; c++) {
			int len = (int)strlen(output_cell(json_object_array_get_idx(rows, i),
							  &columns[c], buf, sizeof(buf)));

			width[c] = len > width[c] ? len : width[c];
		}
	for (int c = 0; c < n; c++)
		print_cell(f, columns[c].title, width[c], columns[c].format != COLUMN_TEXT,
			   c == n - 1);
	for (size_t i = 0; i < count; i++)
		for (int c = 0; c < n; c++)
			print_cell(f,
				   output_cell(json_object_array_get_idx(rows, i), &columns[c], buf,
					       sizeof(buf)),
				   width[c], columns[c].format != COLUMN_TEXT, c == n - 1);
}
