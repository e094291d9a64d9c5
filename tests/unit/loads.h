/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Access patterns of programs, for a memory (memory_world.h), page by page and with the
 * instruction that accesses it: those of tests/programs/walks, smaller.
 */
#ifndef LOADS_H
#define LOADS_H

#include "memory_world.h"

static inline void load_visit(struct memory *m, uint64_t ip, uint32_t page)
{
	m->ip = ip;
	memory_visit(m, 0, 0, page);
}

/* Instructions; IP_LIBC is a loop of the C library's memset(). */
enum load_ip {
	IP_A = 0x401000,
	IP_B = 0x401010,
	IP_C = 0x401020,
	IP_D = 0x401031,
	IP_FILL = 0x402000,
	IP_LIBC = 0x7f001000,
};

/*
 * c = a * b in blocks of 64 x 64, each matrix `rows` rows of `width` pages of doubles (rows =
 * 512 * width).  A block's accesses to b after the first row are not shown: they are to
 * resident pages.
 */
static inline void load_multiply(struct memory *m, uint32_t width, uint64_t memset_ip)
{
	uint32_t rows = 512 * width, blocks = rows / 64;
	uint32_t a = 0, b = rows * width, c = 2 * rows * width;

	for (uint32_t i0 = 0; i0 < blocks; i0++)
		for (uint32_t j0 = 0; j0 < blocks; j0++) {
			for (uint32_t i = 0; i < 64; i++)
				load_visit(m, memset_ip, c + (i0 * 64 + i) * width + j0 / 8);
			for (uint32_t k0 = 0; k0 < blocks; k0++)
				for (uint32_t i = 0; i < 64; i++) {
					load_visit(m, IP_A, a + (i0 * 64 + i) * width + k0 / 8);
					for (uint32_t k = k0 * 64; k < (k0 + 1) * 64 && !i; k++)
						load_visit(m, IP_B, b + k * width + j0 / 8);
					load_visit(m, IP_C, c + (i0 * 64 + i) * width + j0 / 8);
				}
			for (uint32_t i = 0; i < 64; i++)
				load_visit(m, IP_D, c + (i0 * 64 + i) * width + j0 / 8);
		}
}

/* Every page of each column of a table of `rows` rows of `width` pages, top to bottom, `times`. */
static inline void load_columns(struct memory *m, uint32_t rows, uint32_t width, uint32_t times)
{
	for (uint32_t c = 0; c < width; c++)
		for (uint32_t k = 0; k < times; k++)
			for (uint32_t r = 0; r < rows; r++)
				load_visit(m, IP_A, r * width + c);
}

/* `n` arrays of `pages` pages that follow one another, read together, by an instruction each. */
static inline void load_arrays(struct memory *m, uint32_t n, uint32_t pages)
{
	for (uint32_t i = 0; i < pages; i++)
		for (uint32_t k = 0; k < n; k++)
			load_visit(m, IP_A + 16 * k, k * pages + i);
}

/*
 * A hash join: `index` pages cleared by the C library and filled at random while `builds` pages
 * are read front to back; then `probes` pages front to back, and of each for 16 rows a random page
 * of the index and of the build side, the same in each run.
 */
static inline void load_join(struct memory *m, uint32_t index, uint32_t builds, uint32_t probes)
{
	uint64_t seed = 77;

	for (uint32_t i = 0; i < index; i++)
		load_visit(m, IP_LIBC, i);
	for (uint32_t i = 0; i < builds; i++) {
		load_visit(m, IP_A, index + i);
		for (uint32_t k = 0; k < 16; k++)
			load_visit(m, IP_B, memory_random(&seed) % index);
	}
	for (uint32_t i = 0; i < probes; i++)
		for (uint32_t k = 0; k < 16; k++) {
			load_visit(m, IP_C, index + builds + i);
			load_visit(m, IP_D, memory_random(&seed) % index);
			load_visit(m, IP_D + 8, index + memory_random(&seed) % builds);
		}
}

#endif
