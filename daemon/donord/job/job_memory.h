/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory for tables of jobs: a fixed area that is allocated and locked at start, since a request of
 * a borrower must not wait for memory.  Blocks are powers of two from 128 bytes to 64 KiB; a chunk
 * of 64 KiB has blocks of one size, and serves another size once all of them are free.
 *
 * Each user has chunks of its own, so that blocks it leaves free in them count as its.  It gets
 * another one while it has less than JOB_SHARE times as many as are left after that (the dynamic
 * threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): one user gets
 * 3/4 of the memory, two get 3/7 each, and there is always some left for the next one.
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
#define JOB_SHARE 3u

struct job_chunk {
	uint32_t next, previous; /* in its list */
	uint16_t used, fresh;    /* blocks in use; blocks that have been in use */
	uint16_t free;           /* first free block of these, from 1; 0 = none */
	uint8_t size;
};

/* What one user has. */
struct job_share {
	uint32_t chunks;
	uint32_t partial[JOB_SIZES]; /* lists of chunks with free blocks */
};

struct job_memory {
	uint8_t *area;
	struct job_chunk *chunk;
	uint32_t chunks;
	uint32_t unused, left; /* list of chunks without a user; how many */
	uint64_t used, bytes;  /* bytes of blocks; of the area */
};

/* Returns 0 or -ENOMEM.  @bytes is rounded down to chunks. */
int job_memory_init(struct job_memory *m, uint64_t bytes);
void job_memory_free(struct job_memory *m);

/* A user without memory; may be moved. */
void job_share_init(struct job_share *s);
/* Returns how many bytes of chunks it may get yet. */
uint64_t job_share_left(const struct job_memory *m, const struct job_share *s);

/* Returns zeroed memory for @bytes, aligned to its power of two, or NULL. */
void *job_take(struct job_memory *m, struct job_share *s, size_t bytes);
/* Releases what job_take() returned for @s and @bytes; NULL is fine. */
void job_give(struct job_memory *m, struct job_share *s, void *block, size_t bytes);

#endif
