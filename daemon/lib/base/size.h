/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Sizes, percentages, durations and choices as people write them. */
#ifndef EBB_SIZE_H
#define EBB_SIZE_H

#include <stdint.h>

#include "error.h"

#define SLOWDOWN_MAX 500 /* tenths of a percent: largest slowdown= of offloading */

/*
 * Parses "4096", "64K", "256M", "1.5G", "2T" (powers of 1024, optional
 * trailing "B" or "iB", any case) into bytes.  -EINVAL names @what and the
 * accepted forms; -ERANGE when it does not fit in 63 bits.
 */
int size_parse(const char *text, const char *what, uint64_t *bytes, struct error *e);

/* Parses "250ms", "2s", "1m" or a plain number of seconds into nanoseconds. */
int duration_parse(const char *text, const char *what, uint64_t *ns, struct error *e);

/*
 * Parses "2%", "2.5%", "2" or "off" into tenths of a percent, at most @max;
 * 0 and "off" are 0.  -EINVAL names @what and the accepted forms.
 */
int percent_parse(const char *text, const char *what, uint32_t max, uint32_t *tenths,
		  struct error *e);

/* Where programs and the prefetch executor run: placement=. */
enum placement {
	PLACEMENT_OFF,
	PLACEMENT_TOGETHER,     /* on one CPU */
	PLACEMENT_AUTO,         /* on one CPU while that pays */
	PLACEMENTS
};
#define PLACEMENT_DEFAULT PLACEMENT_AUTO
/* Parses "off", "together" or "auto".  -EINVAL names @what and them. */
int placement_parse(const char *text, const char *what, uint64_t *placement, struct error *e);
const char *placement_name(enum placement placement);

/* Parses "on" as 1 and "off" as 0.  -EINVAL names @what and them. */
int switch_parse(const char *text, const char *what, uint64_t *on, struct error *e);

/*
 * Parses "100,75,50" into at most *@n percentages from 1 to SHARES_PERCENT_MAX and sets *@n.
 * -EINVAL names @what and the accepted form.
 */
#define SHARES_MAX 8
#define SHARES_PERCENT_MAX 400
int shares_parse(const char *text, const char *what, uint64_t *share, uint32_t *n,
		 struct error *e);

/*
 * Parses "1m,5m,30m" into at most *@n ascending durations above 0, ns, and sets *@n.  -EINVAL
 * names @what and the accepted form.
 */
int durations_parse(const char *text, const char *what, uint64_t *ns, uint32_t *n,
		    struct error *e);

/* Returns @buf (16 bytes or more) with text such as "1.5 GiB". */
char *size_format(uint64_t bytes, char *buf, int len);

/* Returns @buf (16 bytes or more) with text such as "12.3 us" or "4.0 ms". */
char *duration_format(uint64_t ns, char *buf, int len);

#endif
