/* SPDX-License-Identifier: GPL-2.0-or-later */
/* swapoff(2) with a deadline, that shows its progress and can be interrupted. */
#ifndef EBB_SWAPOFF_H
#define EBB_SWAPOFF_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbctl/process.h"
#include "lib/base/error.h"

enum swapoff_show {
	SWAPOFF_QUIET,
	SWAPOFF_LINES, /* a line on stderr every 10 s */
	SWAPOFF_LIVE,  /* one line on stderr, which must be a terminal, rewritten twice a second */
};

struct swapoff_options {
	int timeout_ms;
	enum process_patience patience;
	enum swapoff_show show;
	const char *again; /* command that continues; NULL: "ebbctl device destroy NAME" */
};

/*
 * swapoff(2) in a child.  Stopped after the timeout or, depending on the patience, when
 * interrupted; swap then stays on and works, and @e says how to continue.  Returns 0 when
 * swap is off; -ETIMEDOUT; -EINTR; -EINPROGRESS when the child does not react to the stop: swap
 * may be off later.
 */
int swaps_off(const char *device, const char *block, const struct swapoff_options *o,
	      struct error *e);

/*
 * Returns whether a swapoff that swaps_off() has given up has not ended: swap that is on may be off
 * soon.  The caller has the lock of devices.
 */
bool swapoff_goes_on(void);

/* How fast pages come back: over the last 5 to 10 s.  Initialize to 0. */
struct swapoff_pace {
	int64_t ms[2];    /* when: of the rate's start, and of the next start */
	uint64_t used[2]; /* bytes that were swapped out then */
	int64_t moved_ms; /* when @used last fell */
	uint64_t last;
};

/* Records that @used bytes are swapped out at @now_ms, which is above 0 and never falls. */
void swapoff_pace_add(struct swapoff_pace *p, uint64_t used, int64_t now_ms);

/* Writes pages left, rate and time left at @now_ms to @text; returns @text. */
char *swapoff_pace_format(const struct swapoff_pace *p, int64_t now_ms, char *text, int size);

#endif
