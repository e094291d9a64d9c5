// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "report_page.h"

#define PLACE "@DATA@"

/* The file, NUL-terminated. */
extern const char report_html[];
__asm__(".pushsection .rodata\n"
	".globl report_html\n"
	".hidden report_html\n"
	"report_html:\n"
	".incbin \"daemon/sim/report.html\"\n"
	".byte 0\n"
	".popsection\n");

/*
 * Writes JSON inside <script>: a '<' occurs only in strings, and a program's name may be
 * "</script>".
 */
static void put_data(FILE *to, struct json_object *data)
{
	const char *at = json_object_to_json_string_ext(data, JSON_C_TO_STRING_PLAIN);

	for (; *at; at++)
		if (*at == '<')
			fputs("\\u003c", to);
		else
			fputc(*at, to);
}

static void put_page(FILE *to, struct json_object *data)
{
	const char *place = strstr(report_html, PLACE);

	fwrite(report_html, 1, (size_t)(place - report_html), to);
	put_data(to, data);
	fputs(place + strlen(PLACE), to);
}

static void put_plain(FILE *to, struct json_object *data)
{
	output_json(to, data, JSON_C_TO_STRING_PLAIN);
}

static int replace(const char *path, void (*put)(FILE *to, struct json_object *data),
		   struct json_object *data, uint64_t *bytes, struct error *e)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	FILE *to = open_memstream(&text, &size);
	int r;

	if (!to)
		return fail(e, ENOMEM, "%s: out of memory", path);
	put(to, data);
	if (fclose(to))
		return fail(e, ENOMEM, "%s: out of memory", path);
	*bytes = size;
	r = file_replace(path, text);
	return r ? fail(e, r, "%s: cannot write: %s; give a directory with free space", path,
			strerror(-r)) : 0;
}

int report_page_write(struct json_object *data, const char *path, uint64_t *bytes, struct error *e)
{
	return replace(path, put_page, data, bytes, e);
}

int report_data_write(struct json_object *data, const char *path, struct error *e)
{
	uint64_t bytes;

	return replace(path, put_plain, data, &bytes, e);
}
