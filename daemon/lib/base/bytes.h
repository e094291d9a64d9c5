/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Numbers as little-endian bytes at any address: protocol and trace files. */
#ifndef EBB_BYTES_H
#define EBB_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put32(uint8_t *to, uint32_t v)
{
	v = htole32(v);
	memcpy(to, &v, sizeof(v));
}

static inline void put64(uint8_t *to, uint64_t v)
{
	v = htole64(v);
	memcpy(to, &v, sizeof(v));
}

static inline uint32_t get32(const uint8_t *from)
{
	uint32_t v;

	memcpy(&v, from, sizeof(v));
	return le32toh(v);
}

static inline uint64_t get64(const uint8_t *from)
{
	uint64_t v;

	memcpy(&v, from, sizeof(v));
	return le64toh(v);
}

#endif
