/* SPDX-License-Identifier: GPL-2.0-only */
/* The name of <ebb/policy.h> in release 0.1.0, kept for policies outside the tree. */
#include <ebb/policy.h>
