/* SPDX-License-Identifier: GPL-2.0-only */
/* Name of <ebb/policy.h> in release 0.1.0, kept for out-of-tree policies. */
#include <ebb/policy.h>
