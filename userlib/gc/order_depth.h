/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Depth first, with a short queue that hides cache misses. */
#ifndef EBBGC_ORDER_DEPTH_H
#define EBBGC_ORDER_DEPTH_H

struct order;

extern const struct order order_depth;

#endif
