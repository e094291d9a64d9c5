/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The page that shows what report_data() made: report.html with the data in it. */
#ifndef EBB_REPORT_PAGE_H
#define EBB_REPORT_PAGE_H

#include <json-c/json.h>
#include <stdint.h>

#include "lib/base/error.h"

/*
 * Replaces @path by one page that needs nothing else: no network, no other file.
 * Its length goes to *@bytes.
 */
int report_page_write(struct json_object *data, const char *path, uint64_t *bytes,
		      struct error *e);
/* The data alone, as JSON. */
int report_data_write(struct json_object *data, const char *path, struct error *e);

#endif
