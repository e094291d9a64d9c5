// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "job_memory.h"

#define JOB_NO_CHUNK UINT32_MAX

static uint32_t size_of(size_t bytes)
{
	uint32_t size = 0;

	while (size < JOB_SIZES && (size_t)1 << (JOB_BLOCK_LEAST_SHIFT + size) < bytes)
		size++;
	return size;
}

static uint32_t block_bytes(uint32_t size)
{
	return 1u << (JOB_BLOCK_LEAST_SHIFT + size);
}

int job_memory_init(struct job_memory *m, uint64_t bytes)
{
	uint64_t chunks = bytes >> JOB_CHUNK_SHIFT;

	*m = (struct job_memory){ .unused = JOB_NO_CHUNK };
	if (chunks >= JOB_NO_CHUNK)
		return -ENOMEM;
	m->area = aligned_alloc(JOB_CHUNK, (chunks ?: 1) << JOB_CHUNK_SHIFT);
	m->chunk = calloc(chunks ?: 1, sizeof(*m->chunk));
	if (!m->area || !m->chunk) {
		job_memory_free(m);
		return -ENOMEM;
	}
	m->chunks = (uint32_t)chunks;
	m->bytes = chunks << JOB_CHUNK_SHIFT;
	m->left = m->chunks;
	for (uint32_t i = m->chunks; i--; m->unused = i)
		m->chunk[i].next = m->unused;
	return 0;
}

void job_memory_free(struct job_memory *m)
{
	free(m->area);
	free(m->chunk);
	*m = (struct job_memory){ .unused = JOB_NO_CHUNK };
}

void job_share_init(struct job_share *s)
{
	s->chunks = 0;
	for (uint32_t i = 0; i < JOB_SIZES; i++)
		s->partial[i] = JOB_NO_CHUNK;
}

uint64_t job_share_left(const struct job_memory *m, const struct job_share *s)
{
	uint64_t most = (uint64_t)JOB_SHARE * m->left;

	return most > s->chunks ? (most - s->chunks) / (1 + JOB_SHARE) << JOB_CHUNK_SHIFT : 0;
}

static void link_chunk(struct job_memory *m, struct job_share *s, uint32_t i)
{
	struct job_chunk *c = &m->chunk[i];
	uint32_t *head = &s->partial[c->size];

	c->next = *head;
	c->previous = JOB_NO_CHUNK;
	if (*head != JOB_NO_CHUNK)
		m->chunk[*head].previous = i;
	*head = i;
}

static void unlink_chunk(struct job_memory *m, struct job_share *s, uint32_t i)
{
	const struct job_chunk *c = &m->chunk[i];

	if (c->previous != JOB_NO_CHUNK)
		m->chunk[c->previous].next = c->next;
	else
		s->partial[c->size] = c->next;
	if (c->next != JOB_NO_CHUNK)
		m->chunk[c->next].previous = c->previous;
}

/* Assigns an unused chunk to blocks of @size; returns false if the share allows none. */
static bool add_chunk(struct job_memory *m, struct job_share *s, uint32_t size)
{
	uint32_t i = m->unused;

	if (!job_share_left(m, s))
		return false;
	m->unused = m->chunk[i].next;
	m->left--;
	s->chunks++;
	m->chunk[i] = (struct job_chunk){ .size = (uint8_t)size };
	link_chunk(m, s, i);
	return true;
}

void *job_take(struct job_memory *m, struct job_share *s, size_t bytes)
{
	uint32_t size = size_of(bytes), i, block, n;
	struct job_chunk *c;
	uint8_t *memory;

	if (size == JOB_SIZES || (s->partial[size] == JOB_NO_CHUNK && !add_chunk(m, s, size)))
		return NULL;
	i = s->partial[size];
	c = &m->chunk[i];
	n = JOB_CHUNK / block_bytes(size);
	block = c->free ? c->free - 1u : c->fresh++;
	memory = m->area + ((size_t)i << JOB_CHUNK_SHIFT) + (size_t)block * block_bytes(size);
	if (c->free)
		memcpy(&c->free, memory, sizeof(c->free));
	if (++c->used == n)
		unlink_chunk(m, s, i);
	m->used += block_bytes(size);
	return memset(memory, 0, block_bytes(size));
}

void job_give(struct job_memory *m, struct job_share *s, void *memory, size_t bytes)
{
	size_t at = (size_t)((uint8_t *)memory - m->area);
	uint32_t size = size_of(bytes), i = (uint32_t)(at >> JOB_CHUNK_SHIFT);
	struct job_chunk *c;

	if (!memory)
		return;
	c = &m->chunk[i];
	if (c->used-- == JOB_CHUNK / block_bytes(size))
		link_chunk(m, s, i);
	memcpy(memory, &c->free, sizeof(c->free));
	c->free = (uint16_t)((at & (JOB_CHUNK - 1)) / block_bytes(size) + 1);
	m->used -= block_bytes(size);
	if (c->used)
		return;
	unlink_chunk(m, s, i);
	c->next = m->unused;
	m->unused = i;
	m->left++;
	s->chunks--;
}
