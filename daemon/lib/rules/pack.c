// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include <string.h>

#include "pack.h"

#define POLYNOMIAL 0x82F63B78u

/* Four bits at a time: 64 bytes of table. */
static uint32_t crc_plain(uint32_t crc, const uint8_t *p, uint32_t n)
{
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};

	for (; n; n--) {
		crc ^= *p++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc_fast(uint32_t crc, const uint8_t *p,
							     uint32_t n)
{
	uint64_t sum = crc;

	for (; n >= 8; n -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		sum = __builtin_ia32_crc32di(sum, word);
	}
	return crc_plain((uint32_t)sum, p, n);
}
#endif

uint32_t pack_crc(uint32_t crc, const void *bytes, uint32_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("sse4.2"))
		return ~crc_fast(~crc, bytes, n);
#endif
	return ~crc_plain(~crc, bytes, n);
}

uint32_t pack_region(uint8_t *to, const uint8_t *from, const uint64_t *live, const uint64_t *keep,
		     uint32_t slots, uint32_t slot_bytes, uint32_t *crc)
{
	uint32_t rank = 0, done = 0;

	for (uint32_t slot = tablet_next(live, slots, 0); slot < slots;
	     slot = tablet_next(live, slots, slot + 1), rank++) {
		uint8_t copy[TABLET_SLOT_MOST];

		if (!tablet_has(keep, slot))
			continue;
		/* Of a copy that no other thread sees, so that both ends get equal bytes. */
		memcpy(copy, from + rank * slot_bytes, slot_bytes);
		__asm__ volatile("" ::: "memory");
		*crc = pack_crc(*crc, copy, slot_bytes);
		memcpy(to + done, copy, slot_bytes);
		done += slot_bytes;
	}
	return done;
}
