/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The contents of `report` as one object: figures, the map of faults, and values over time.  It
 * stays below about a megabyte however long the trace is, because values that grow with the trace
 * are put into bins; docs/trace.md names them.
 */
#ifndef EBB_REPORT_DATA_H
#define EBB_REPORT_DATA_H

#include <json-c/json.h>

#include "trace_load.h"

#define REPORT_COLUMNS 480      /* of the map */
#define REPORT_ROWS 240
#define REPORT_BINS 160         /* of faults over time */
#define REPORT_SAMPLES 400
#define REPORT_REGIONS 300
#define REPORT_THREADS 12
#define REPORT_LATENCIES 32     /* [i] counts 2^i <= ns < 2^(i+1) */

/* The caller owns the result; NULL without memory. */
struct json_object *report_data(const struct loaded_trace *t);

#endif
