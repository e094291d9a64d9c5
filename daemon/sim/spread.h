/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Balance of memory use across machines, over time. */
#ifndef EBB_SIM_SPREAD_H
#define EBB_SIM_SPREAD_H

#include <stdint.h>

#include "cluster_result.h"

struct spread;

/* In machines: 1 is all memory of one. */
struct spread_node {
	double wanted;  /* by its programs */
	double local;   /* the part of it that fits */
	double hosted;  /* in slabs of others */
	double away;    /* wanted - local */
	double served;  /* the part of that in donors */
};

/* Seconds before @warmup are not counted.  -ENOMEM. */
int spread_new(struct spread **out, uint32_t nodes, uint32_t seconds, uint32_t warmup);
void spread_free(struct spread **s);

/* A second: begin, add every node in the same order, end. */
void spread_begin(struct spread *s, uint32_t now);
void spread_add(struct spread *s, const struct spread_node *n);
void spread_end(struct spread *s);

/* Fills in use, imbalance and stability. */
void spread_result(struct spread *s, struct cluster_result *x);

#endif
