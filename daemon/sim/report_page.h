/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The page that shows what report_data() made: report.html with the data in it. */
#ifndef EBB_REPORT_PAGE_H
#define EBB_REPORT_PAGE_H

#include <json-c/json.h>
#include <stdint.h>

#include "lib/base/error.h"

/* Replaces @path by a page that needs no network and no other file.  Sets *@bytes to its length. */
int report_page_write(struct json_object *data, const char *path, uint64_t *bytes,
		      struct error *e);
/* Writes only the data, as JSON. */
int report_data_write(struct json_object *data, const char *path, struct error *e);

#endif
