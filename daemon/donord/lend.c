// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "common/size.h"
#include "lend.h"

/* About 30 us of memset: what a request may have to wait. */
#define ZERO_CHUNK (256u << 10)

int lend_init(struct lend_pool *p, uint64_t memory, uint64_t slab_size, struct error *e)
{
	struct lend_pool pool = { .slab_size = slab_size };
	char a[16], b[16];
	uint64_t bytes;

	if (slab_size < WIRE_MIN_SLAB || slab_size > WIRE_MAX_SLAB || slab_size % WIRE_PAGE)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "slab: %s is out of range; use 1M to 1G in whole pages",
				 size_format(slab_size, a, sizeof(a)));
	if (memory / slab_size == 0 || memory / slab_size > UINT32_MAX)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "memory: %s is not even one slab of %s; lend more or use smaller slabs",
				 size_format(memory, a, sizeof(a)),
				 size_format(slab_size, b, sizeof(b)));
	pool.count = pool.clean = (uint32_t)(memory / slab_size);
	bytes = pool.count * slab_size;
	pool.slabs = calloc(pool.count, sizeof(*pool.slabs));
	if (!pool.slabs)
		return fail(e, ENOMEM, "memory: no room for %u slabs", pool.count);
	pool.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool.memory == MAP_FAILED) {
		free(pool.slabs);
		return fail(e, errno, "memory: cannot map %s: %m; lend less",
			    size_format(bytes, a, sizeof(a)));
	}
	/* Copies between sockets and slabs are half as dear with huge pages. */
	madvise(pool.memory, bytes, MADV_HUGEPAGE);
	madvise(pool.memory, bytes, MADV_DONTDUMP);
	/* Locking touches every page: nothing is allocated when a request comes. */
	if (mlock(pool.memory, bytes) < 0) {
		int r = errno;

		munmap(pool.memory, bytes);
		free(pool.slabs);
		return fail(e, r, "memory: cannot lock %s: %s; lend less, run as root or raise LimitMEMLOCK=",
			    size_format(bytes, a, sizeof(a)), strerror(r));
	}
	/* A restarted donor must not give out generations a borrower remembers. */
	if (getrandom(&pool.generation, sizeof(pool.generation), GRND_NONBLOCK) < 0)
		pool.generation = 1;
	*p = pool;
	return 0;
}

void lend_free(struct lend_pool *p)
{
	if (p->memory)
		munmap(p->memory, p->count * p->slab_size);
	free(p->slabs);
	*p = (struct lend_pool){ 0 };
}

static uint8_t *slab_memory(struct lend_pool *p, uint32_t slab)
{
	return p->memory + (uint64_t)slab * p->slab_size;
}

static void zero_to(struct lend_pool *p, uint32_t slab, uint64_t end)
{
	struct lend_slab *s = &p->slabs[slab];

	memset(slab_memory(p, slab) + s->dirty_from, 0, end - s->dirty_from);
	s->dirty_from = end;
	if (end == p->slab_size) {
		s->state = LEND_CLEAN;
		p->dirty--;
		p->clean++;
	}
}

enum wire_status lend_map(struct lend_pool *p, uint32_t owner, uint32_t *slab,
			  uint32_t *generation)
{
	uint32_t found = p->count;

	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];

		if (s->state == LEND_CLEAN) {
			found = i;
			break;
		}
		if (s->state == LEND_DIRTY && !s->pins && found == p->count)
			found = i;
	}
	if (found == p->count)
		return WIRE_NO_SPACE;
	if (p->slabs[found].state == LEND_DIRTY)
		zero_to(p, found, p->slab_size);
	p->clean--;
	p->slabs[found].state = LEND_LENT;
	p->slabs[found].owner = owner;
	p->slabs[found].generation = ++p->generation;
	*slab = found;
	*generation = p->generation;
	return WIRE_OK;
}

static void release(struct lend_pool *p, struct lend_slab *s)
{
	s->state = LEND_DIRTY;
	s->dirty_from = 0;
	p->dirty++;
}

/* The slab if it is lent to @owner in @generation. */
static enum wire_status find(struct lend_pool *p, uint32_t owner, uint32_t slab,
			     uint32_t generation, struct lend_slab **s)
{
	if (slab >= p->count || p->slabs[slab].state != LEND_LENT ||
	    p->slabs[slab].owner != owner)
		return WIRE_NO_SLAB;
	if (p->slabs[slab].generation != generation)
		return WIRE_STALE;
	*s = &p->slabs[slab];
	return WIRE_OK;
}

enum wire_status lend_unmap(struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation)
{
	struct lend_slab *s;
	enum wire_status st = find(p, owner, slab, generation, &s);

	if (st == WIRE_OK)
		release(p, s);
	return st;
}

uint32_t lend_release_owner(struct lend_pool *p, uint32_t owner)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		if (p->slabs[i].state != LEND_LENT || p->slabs[i].owner != owner)
			continue;
		release(p, &p->slabs[i]);
		n++;
	}
	return n;
}

enum wire_status lend_access(struct lend_pool *p, uint32_t owner, const struct wire_frame *f,
			     void **memory)
{
	struct lend_slab *s;
	enum wire_status st = find(p, owner, f->slab, f->generation, &s);

	if (st != WIRE_OK)
		return st;
	if ((uint64_t)f->offset + f->length > p->slab_size)
		return WIRE_BAD_RANGE;
	*memory = slab_memory(p, f->slab) + f->offset;
	return WIRE_OK;
}

void lend_pin(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].pins++;
}

void lend_unpin(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].pins--;
}

bool lend_zero_some(struct lend_pool *p)
{
	for (uint32_t i = 0; p->dirty && i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];
		uint64_t end = s->dirty_from + ZERO_CHUNK;

		if (s->state != LEND_DIRTY || s->pins)
			continue;
		zero_to(p, i, end < p->slab_size ? end : p->slab_size);
		return true;
	}
	return false;
}
