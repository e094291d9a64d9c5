/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_OPTIONS_H
#define EBBGC_OPTIONS_H

#include "ebbgc.h"

/*
 * Sets @to to the defaults, overridden by @from unless NULL, then by EBBGC_OPTIONS.  Returns 0,
 * -EINVAL or -E2BIG, as ebbgc_heap_create() does.
 */
int options_take(struct ebbgc_options *to, const struct ebbgc_options *from);

#endif
