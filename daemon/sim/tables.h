/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Bytes of the tables that have an entry for each slab, from the daemons' own structs.  Tables with
 * an entry for each page (bits, same-filled words, seals) do not depend on the size of slabs and
 * are left out, as is the kernel's memory for mappings.
 */
#ifndef EBB_SIM_TABLES_H
#define EBB_SIM_TABLES_H

#include <stdint.h>

/* Returns the bytes at ebb-swapd, for a device of @device bytes. */
uint64_t tables_borrower(uint64_t device, uint64_t slab);

/* Returns the bytes at ebb-donord, which lends @memory bytes. */
uint64_t tables_donor(uint64_t memory, uint64_t slab);

#endif
