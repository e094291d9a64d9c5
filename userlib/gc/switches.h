/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * What ebbgc_debug() sets: bits of struct ebbgc_options.features, and a mode.  0.1.0 had them in
 * ebbgc.h, so programs may pass them: no version gives them another meaning.
 */
#ifndef EBBGC_SWITCHES_H
#define EBBGC_SWITCHES_H

#include "ebbgc.h"

#define EBBGC_MEMLINER ((enum ebbgc_mode)2)

enum {
	EBBGC_EXACT = 1 << 0,
	EBBGC_PARK = 1 << 1,
	EBBGC_DROP = 1 << 2,
	EBBGC_INCOGNITO = 1 << 3,
	EBBGC_COLD = 1 << 4,
	EBBGC_ARRIVALS = 1 << 5,
	EBBGC_HINTS = 1 << 6,
	EBBGC_COUNT_FAULTS = 1 << 8,
	EBBGC_ADDRESS_ORDER = 1 << 9,
};

#endif
