/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Output of `ebb-sim cluster --mixes` and `--churn`. */
#ifndef EBB_SIM_MIXES_H
#define EBB_SIM_MIXES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

#define MIXES_MOST 10000

struct mixes_options {
	uint64_t mixes;  /* simulated until the first refusal; 0 = none */
	uint64_t churn;  /* simulated until all programs have ended; 0 = none */
	uint64_t seed, run, miss, device; /* bytes, ns */
	bool columns;    /* order of the kernel's clusters */
	bool json;
};

/* Simulates and prints. */
int mixes_run(const struct mixes_options *options, struct error *e);

#endif
