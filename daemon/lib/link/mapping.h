/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A slab that a donor lends: its name there, and how this process reaches it. */
#ifndef EBB_MAPPING_H
#define EBB_MAPPING_H

#include <stdint.h>

struct mapping {
	uint32_t remote;     /* the donor's number of the slab */
	uint32_t generation; /* the donor's, of this loan */
	uint8_t *memory;     /* the transport's, while mapped: in this process, or NULL */
	uint64_t address;    /* RDMA: address at the donor */
	uint32_t key;        /* RDMA: key to that address */
};

#endif
