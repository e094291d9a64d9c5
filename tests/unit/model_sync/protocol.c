// SPDX-License-Identifier: GPL-2.0-or-later
/* The protocol as it is shipped, with fewer users. */
#include "world.h"

#include "userlib/dsm/sync_step.c"
