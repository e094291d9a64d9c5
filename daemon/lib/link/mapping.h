/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A slab that a donor lends: its identity there, and how this process reaches it. */
#ifndef EBB_MAPPING_H
#define EBB_MAPPING_H

#include <stdint.h>

struct mapping {
	uint32_t remote;     /* number of the slab at the donor */
	uint32_t generation; /* generation of this loan */
	uint8_t *memory;     /* set by the transport while mapped in this process, else NULL */
	uint64_t size;       /* bytes of .memory */
	uint64_t address;    /* RDMA: address at the donor */
	uint32_t key;        /* RDMA: key to that address */
};

#endif
