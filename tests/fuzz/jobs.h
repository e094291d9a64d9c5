/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Runs arbitrary bytes through the decoder of far memory's frames and on to a donor's jobs, for a
 * member that has three extents and may write anything there.  Whatever comes, a request is a
 * bounded piece of work, its reply fits, tables stay within their limit, the extent of another
 * member stays as it is, and the end of the heap frees all of its tables.
 */
#ifndef FUZZ_JOBS_H
#define FUZZ_JOBS_H

#include "protocol.h"

/* As those of protocol.h; .loans: heaps and places; .accesses: objects marked, bytes copied. */
int fuzz_jobs_set_up(struct error *e);
void fuzz_jobs_tear_down(void);
void fuzz_jobs(const uint8_t *data, size_t size, struct fuzz_protocol_result *result);
void fuzz_jobs_bytes(uint64_t seed, uint8_t *data, size_t size);

#endif
