// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/draw.h"
#include "common/log.h"
#include "rdma_pool.h"

int rdma_pool_init(struct rdma_pool *p, uint64_t memory, uint64_t slab_size, struct error *e)
{
	*p = (struct rdma_pool){ .slab_size = slab_size, .count = (uint32_t)(memory / slab_size),
				 .seed = now_ns() | 1 };
	if (!p->count)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "rdma-memory: less than a slab; give more, or --slab less");
	p->most = p->present = p->count;
	p->slabs = calloc(p->count, sizeof(*p->slabs));
	p->memory = mmap(NULL, p->count * slab_size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1, 0);
	if (!p->slabs || p->memory == MAP_FAILED)
		return fail(e, ENOMEM, "rdma-memory: cannot be had or locked; see ulimit -l");
	/* A child of fork would take pages away from the network device. */
	madvise(p->memory, p->count * slab_size, MADV_DONTFORK);
	madvise(p->memory, p->count * slab_size, MADV_DONTDUMP);
	return 0;
}

void rdma_pool_free(struct rdma_pool *p)
{
	if (p->memory && p->memory != MAP_FAILED)
		munmap(p->memory, p->count * p->slab_size);
	free(p->slabs);
	*p = (struct rdma_pool){ 0 };
}

/* What others may read meanwhile. */
static void count(uint32_t *value, int by)
{
	__atomic_fetch_add(value, (uint32_t)by, __ATOMIC_RELAXED);
}

/* How many there may be. */
static uint32_t most(const struct rdma_pool *p)
{
	uint32_t n = __atomic_load_n(&p->most, __ATOMIC_RELAXED);

	return rdma_pool_draining(p) ? 0 : n < p->count ? n : p->count;
}

uint32_t rdma_pool_idle(const struct rdma_pool *p)
{
	return p->present > most(p) ? 0 : p->present - p->lent;
}

uint32_t rdma_pool_room(const struct rdma_pool *p)
{
	return p->present > most(p) ? p->present : most(p);
}

static bool is_free(const struct rdma_slab *slab)
{
	return !slab->owner && !slab->absent;
}

static void zero(struct rdma_pool *p, struct rdma_slab *slab)
{
	memset(rdma_pool_memory(p, slab), 0, p->slab_size);
	slab->dirty = false;
	p->dirty--;
}

struct rdma_slab *rdma_pool_lend(struct rdma_pool *p, struct rdma_session *owner,
				 struct ibv_pd *pd)
{
	struct rdma_slab *slab = p->slabs;

	if (rdma_pool_idle(p) == 0) {
		errno = ENOSPC;
		return NULL;
	}
	while (!is_free(slab))
		slab++;
	if (slab->dirty)
		zero(p, slab);
	slab->key = ibv_reg_mr(pd, rdma_pool_memory(p, slab), p->slab_size,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			       IBV_ACCESS_REMOTE_WRITE);
	if (!slab->key)
		return NULL;
	slab->owner = owner;
	slab->generation = ++p->generation;
	count(&p->lent, 1);
	return slab;
}

void rdma_pool_take_back(struct rdma_pool *p, struct rdma_slab *slab)
{
	if (slab->key)
		ibv_dereg_mr(slab->key);
	p->wanted -= slab->wanted;
	*slab = (struct rdma_slab){ .generation = slab->generation, .dirty = true };
	p->dirty++;
	count(&p->lent, -1);
}

static void give_back(struct rdma_pool *p, struct rdma_slab *slab)
{
	void *memory = rdma_pool_memory(p, slab);

	p->dirty -= slab->dirty;
	slab->dirty = false;
	slab->absent = true;
	count(&p->present, -1);
	munlock(memory, p->slab_size);
	if (madvise(memory, p->slab_size, MADV_DONTNEED) < 0)
		log_warn("rdma-memory: a slab cannot be given back: %m");
}

/* Touched and locked before it is lent. */
static bool make(struct rdma_pool *p, struct rdma_slab *slab)
{
	void *memory = rdma_pool_memory(p, slab);

	if (mlock(memory, p->slab_size) < 0) {
		if (!p->failed)
			log_warn("rdma-memory: no slab can be made now: %m; lending less until there is room");
		p->failed = true;
		munlock(memory, p->slab_size);
		madvise(memory, p->slab_size, MADV_DONTNEED);
		return false;
	}
	p->failed = false;
	slab->absent = false;
	count(&p->present, 1);
	return true;
}

/* So many lent slabs are wanted, and no others. */
static void want(struct rdma_pool *p, uint32_t n)
{
	while (p->wanted != n) {
		bool more = p->wanted < n;
		uint32_t i = draw_below(&p->seed, p->count);

		while (!p->slabs[i].owner || p->slabs[i].wanted == more)
			i = (i + 1) % p->count;
		p->slabs[i].wanted = more;
		p->wanted += more ? 1 : -1u;
	}
}

static bool is_dirty(const struct rdma_slab *slab)
{
	return slab->dirty;
}

static bool is_absent(const struct rdma_slab *slab)
{
	return slab->absent;
}

/* The last of its kind: there is one. */
static struct rdma_slab *find(const struct rdma_pool *p, bool (*kind)(const struct rdma_slab *))
{
	struct rdma_slab *slab = p->slabs + p->count - 1;

	while (!kind(slab))
		slab--;
	return slab;
}

bool rdma_pool_turn(struct rdma_pool *p)
{
	uint32_t limit = most(p);

	want(p, p->lent > limit ? p->lent - limit : 0);
	if (p->present > limit && p->present > p->lent)
		give_back(p, find(p, is_free));
	else if (p->dirty)
		zero(p, find(p, is_dirty));
	else if (p->present < limit && !make(p, find(p, is_absent)))
		return false;
	return p->dirty || p->present < limit || (p->present > limit && p->present > p->lent);
}
