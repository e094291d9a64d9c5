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

/* --- the table of metrics ---------------------------------------------------------------- */

enum metric_type {
	/* "_total" is added to its name.  Of an object: one per member, with the label kind. */
	METRIC_COUNTER,
	METRIC_GAUGE,
	METRIC_HISTOGRAM, /* of log2 buckets of ns; in seconds */
	METRIC_IS,        /* gauge: 1 if the member is true, or is the text in .is */
	METRIC_STATES,    /* gauge per member of an object, with the label state */
	METRIC_INFO,      /* gauge, always 1, with the labels in .labels */
};

enum metric_rows {
	ROWS_DAEMON,  /* snapshot.ebbd, if present */
	ROWS_CGROUP,  /* label cgroup */
	ROWS_SOURCE,  /* labels cgroup and source */
	ROWS_DEVICE,  /* label device */
	ROWS_DONOR,   /* labels device and donor */
	ROWS_LENDER,  /* snapshot.lender, if present */
	ROWS_THROTTLED, /* label borrower: a key or an address */
	ROWS_POOL,    /* labels pool and key, "" without one */
};

struct metric {
	const char *name;
	enum metric_type type;
	enum metric_rows rows;
	const char *path;      /* "server.backup.errors" */
	const char *help;
	double scale;          /* 0 = 1 */
	const char *is;        /* METRIC_IS */
	const char *sum;       /* METRIC_HISTOGRAM: path of the sum, ns; NULL = not counted */
	const char *labels[4]; /* METRIC_INFO: members of the row */
};

/* Ends with a NULL name. */
extern const struct metric metrics[];

#endif
