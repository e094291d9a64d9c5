/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory for tables of jobs: a fixed area that is allocated and locked at start, since a request of
 * a borrower must not wait for memory.  Blocks are powers of two from 128 bytes to 64 KiB; a chunk
 * of 64 KiB has blocks of one size, and serves another size once all of them are free.
 *
 * The loop's thread calls all functions.
 */
#ifndef EBB_JOB_MEMORY_H
#define EBB_JOB_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define JOB_BLOCK_LEAST_SHIFT 7
#define JOB_CHUNK_SHIFT 16
#define JOB_CHUNK (1u << JOB_CHUNK_SHIFT)
#define JOB_SIZES (JOB_CHUNK_SHIFT - JOB_BLOCK_LEAST_SHIFT + 1)

struct job_chunk {
	uint32_t next, previous; /* in its list */
	uint16_t used, fresh;    /* blocks in use; blocks that have been in use */
	uint16_t free;           /* first free block of these, from 1; 0 = none */
	uint8_t size;
};

struct job_memory {
	uint8_t *area;
	struct job_chunk *chunk;
	uint32_t chunks;
	uint32_t unused;              /* list of chunks without a size */
	uint32_t partial[JOB_SIZES];  /* lists of chunks with free blocks */
	uint64_t used, bytes;         /* bytes of blocks; of the area */
};

/* Returns 0 or -ENOMEM.  @bytes is rounded down to chunks. */
int job_memory_init(struct job_memory *m, uint64_t bytes);
void job_memory_free(struct job_memory *m);

/* Returns zeroed memory for @bytes, aligned to its power of two, or NULL. */
void *job_take(struct job_memory *m, size_t bytes);
/* Releases what job_take() returned for @bytes; NULL is fine. */
void job_give(struct job_memory *m, void *block, size_t bytes);

#endif
