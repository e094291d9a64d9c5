// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/base/log.h"
#include "rdma_pool.h"

/* Of a slab that is made: frames are answered between two. */
#define PIECE (16ull << 20)
/* What was asked for is waited for, and then not asked for again, so long. */
#define EXPECTED_NS 60000000000ull
#define REST_NS 10000000000ull

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
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	/* MAP_POPULATE would not tell that there was not enough. */
	if (!p->slabs || p->memory == MAP_FAILED || mlock(p->memory, p->count * slab_size) < 0)
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
	return p->present > most(p) ? 0 : p->present - p->lent - p->stuck - (p->coming != NULL);
}

uint32_t rdma_pool_room(const struct rdma_pool *p)
{
	return (p->present > most(p) ? p->present : most(p)) - p->stuck;
}

static bool is_free(const struct rdma_slab *slab)
{
	return !slab->owner && !slab->absent && !slab->stuck;
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
		p->refused |= p->present <= most(p);
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

int rdma_pool_take_back(struct rdma_pool *p, struct rdma_slab *slab)
{
	int r = slab->key ? ibv_dereg_mr(slab->key) : 0;

	p->wanted -= slab->wanted;
	*slab = (struct rdma_slab){ .generation = slab->generation, .dirty = !r, .stuck = r };
	p->dirty += !r;
	p->stuck += r != 0;
	count(&p->lent, -1);
	if (r)
		log_err("rdma-memory: slab %td is withdrawn: its key cannot be invalidated: %s; restart ebb-donord to lend it again",
			slab - p->slabs, strerror(r));
	return -r;
}

/* --- what the machine has -------------------------------------------------------- */

/* False: it stays, as it is. */
static bool give_back(struct rdma_pool *p, struct rdma_slab *slab)
{
	void *memory = rdma_pool_memory(p, slab);

	if (munlock(memory, p->slab_size) < 0 ||
	    madvise(memory, p->slab_size, MADV_DONTNEED) < 0) {
		if (!p->failed)
			log_warn("rdma-memory: a slab cannot be given back: %m");
		p->failed = true;
		return false;
	}
	p->dirty -= slab->dirty;
	slab->dirty = false;
	slab->absent = true;
	count(&p->present, -1);
	return true;
}

static void stop_making(struct rdma_pool *p)
{
	uint8_t *at;

	if (!p->coming)
		return;
	at = rdma_pool_memory(p, p->coming);
	munlock(at, p->slab_size);
	madvise(at, p->slab_size, MADV_DONTNEED);
	p->coming = NULL;
	count(&p->present, -1);
}

/*
 * Goes on making a slab, which counts as present from its first page on: nobody else is to plan
 * with its memory.  False: there is none for it now.
 */
static bool make(struct rdma_pool *p)
{
	uint64_t n;

	if (!p->coming) {
		p->coming = find(p, is_absent);
		p->come = 0;
		count(&p->present, 1);
	}
	n = p->slab_size - p->come < PIECE ? p->slab_size - p->come : PIECE;
	if (mlock(rdma_pool_memory(p, p->coming) + p->come, n) < 0) {
		if (!p->failed)
			log_warn("rdma-memory: no slab can be made now: %m; lending less until there is room");
		p->failed = true;
		stop_making(p);
		return false;
	}
	p->failed = false;
	p->come += n;
	if (p->come == p->slab_size) {
		p->coming->absent = false;
		p->coming = NULL;
	}
	return true;
}

/* --- what is asked back ----------------------------------------------------------- */

void rdma_pool_refused(struct rdma_pool *p, uint32_t slab)
{
	p->slabs[slab].wanted_at = 0;
}

static bool may_be_wanted(const struct rdma_slab *slab, uint64_t now)
{
	return slab->owner && !slab->wanted && now >= slab->rests;
}

/* Those that do not come rest; @n others are wanted, as far as there are so many, and no more. */
static void want(struct rdma_pool *p, uint32_t n, uint64_t now)
{
	bool draining = rdma_pool_draining(p);
	uint32_t able = 0;

	if (!n && !p->wanted)
		return;
	for (uint32_t i = 0; i < p->count; i++) {
		struct rdma_slab *slab = &p->slabs[i];

		if (slab->wanted && !draining && now - slab->wanted_at > EXPECTED_NS) {
			slab->wanted = false;
			slab->rests = now + REST_NS;
			p->wanted--;
		}
		if (draining)
			slab->rests = 0;
		able += may_be_wanted(slab, now);
	}
	while (p->wanted > n || (p->wanted < n && able)) {
		bool more = p->wanted < n;
		uint32_t i = draw_below(&p->seed, p->count);

		while (more ? !may_be_wanted(&p->slabs[i], now) : !p->slabs[i].wanted)
			i = (i + 1) % p->count;
		p->slabs[i].wanted = more;
		p->slabs[i].wanted_at = now;
		p->wanted += more ? 1 : -1u;
		able -= more;
	}
}

bool rdma_pool_turn(struct rdma_pool *p, uint64_t now)
{
	uint32_t limit = most(p);

	want(p, p->lent > limit ? p->lent - limit : 0, now);
	if (p->present > limit)
		stop_making(p);
	if (p->present > limit && p->present > p->lent + p->stuck) {
		if (!give_back(p, find(p, is_free)))
			return false;
	} else if (p->dirty) {
		zero(p, find(p, is_dirty));
	} else if ((p->coming || p->present < limit) && !make(p)) {
		return false;
	}
	return p->dirty || p->coming || p->present < limit ||
	       (p->present > limit && p->present > p->lent + p->stuck);
}
