/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A snapshot (snapshot.h) as text for Prometheus; ebb-stats(7) lists the metrics. */
#ifndef EBB_EXPOSITION_H
#define EBB_EXPOSITION_H

#include <json-c/json.h>
#include <stdio.h>

enum exposition_format {
	EXPOSITION_OPENMETRICS, /* OpenMetrics 1.0 */
	EXPOSITION_PROMETHEUS,  /* text format 0.0.4, for node_exporter and promtool */
};

/* Returns the content type, "application/openmetrics-text; ...". */
const char *exposition_type(enum exposition_format format);

/*
 * Writes every metric of @snapshot.  Unknown values (null, absent) have no sample; metrics
 * without samples are omitted.
 */
void exposition_write(FILE *f, struct json_object *snapshot, enum exposition_format format);

#endif
