// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"
#include "common/size.h"
#include "lend.h"

/* About 30 us of memset: what a request may have to wait. */
#define ZERO_CHUNK (256u << 10)

/* Descriptors besides those of slabs. */
#define OTHER_FDS 128
#define HUGE (2ull << 20)

static uint8_t *slab_memory(const struct lend_pool *p, uint32_t slab)
{
	return p->memory + (uint64_t)slab * p->slab_size;
}

/*
 * Maps a new memfd at @at, empty and locked: its pages are locked as they are
 * touched.  It can neither shrink nor grow: a borrower's access to it cannot
 * fail.  Returns its descriptor or -errno.
 */
static int map_memfd(const struct lend_pool *p, uint8_t *at, unsigned int flags)
{
	int fd = memfd_create("ebb-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags), r;

	/* Inaccessible at first, or mlockall(2) would touch all of it at once. */
	if (fd < 0 || ftruncate(fd, (off_t)p->slab_size) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 ||
	    mmap(at, p->slab_size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    mprotect(at, p->slab_size, PROT_READ | PROT_WRITE) < 0 ||
	    mlock2(at, p->slab_size, MLOCK_ONFAULT) < 0) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		return r;
	}
	madvise(at, p->slab_size, MADV_HUGEPAGE);
	madvise(at, p->slab_size, MADV_DONTDUMP);
	return fd;
}

/* Puts a new memfd in @slab's place. */
static int fresh_memfd(struct lend_pool *p, uint32_t slab)
{
	struct lend_slab *s = &p->slabs[slab];
	uint8_t *at = slab_memory(p, slab);
	int fd = -ENOMEM;

	/* Mapping reserves its huge pages, or fails. */
	if (p->slab_size % HUGE == 0)
		fd = map_memfd(p, at, MFD_HUGETLB | MFD_HUGE_2MB);
	if (fd < 0)
		fd = map_memfd(p, at, 0);
	if (fd < 0)
		return fd;
	if (s->fd >= 0)
		close(s->fd);
	s->fd = fd;
	s->handed = false;
	s->dirty_from = 0;
	return 0;
}

/* One memfd each: as many descriptors as slabs. */
static int make_shared(struct lend_pool *p, struct error *e)
{
	struct rlimit limit;
	int r = 0;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < p->count + OTHER_FDS) {
		limit.rlim_cur = p->count + OTHER_FDS;
		if (limit.rlim_max < limit.rlim_cur)
			limit.rlim_max = limit.rlim_cur;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			return fail(e, EMFILE, "memory: %u slabs need as many descriptors: %m; use larger slabs or raise LimitNOFILE=",
				    p->count);
	}
	for (uint32_t i = 0; !r && i < p->count; i++)
		r = fresh_memfd(p, i);
	return r ? fail(e, r, "memory: cannot make a slab: %s; lend less, run as root or raise LimitMEMLOCK=",
			strerror(-r)) : 0;
}

static int make_memory(struct lend_pool *p, struct error *e)
{
	uint64_t bytes = p->count * p->slab_size;
	bool shared = p->kind == LEND_SHARED;
	char a[16];
	void *m = mmap(NULL, bytes + HUGE, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int r;

	if (m == MAP_FAILED)
		return fail(e, errno, "memory: cannot map %s: %m; lend less",
			    size_format(bytes, a, sizeof(a)));
	p->reserved = m;
	p->reserved_size = bytes + HUGE;
	p->memory = (uint8_t *)(((uintptr_t)m + HUGE - 1) & ~(HUGE - 1));
	if (shared) {
		r = make_shared(p, e);
		if (r)
			return r;
		/* Huge pages are not touched by mlock(2). */
		madvise(p->memory, bytes, MADV_POPULATE_WRITE);
	} else {
		if (mprotect(p->memory, bytes, PROT_READ | PROT_WRITE) < 0)
			return fail(e, errno, "memory: cannot map %s: %m; lend less",
				    size_format(bytes, a, sizeof(a)));
		/* Copies between sockets and slabs are half as dear with huge pages. */
		madvise(p->memory, bytes, MADV_HUGEPAGE);
		madvise(p->memory, bytes, MADV_DONTDUMP);
	}
	/* Locking touches every page: nothing is allocated when a request comes. */
	if (mlock(p->memory, bytes) < 0)
		return fail(e, errno, "memory: cannot lock %s: %m; lend less, run as root or raise LimitMEMLOCK=",
			    size_format(bytes, a, sizeof(a)));
	return 0;
}

int lend_init(struct lend_pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e)
{
	struct lend_pool pool = { .slab_size = slab_size, .kind = kind };
	char a[16], b[16];
	int r;

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
	pool.slabs = calloc(pool.count, sizeof(*pool.slabs));
	if (!pool.slabs)
		return fail(e, ENOMEM, "memory: no room for %u slabs", pool.count);
	for (uint32_t i = 0; i < pool.count; i++)
		pool.slabs[i].fd = -1;
	r = make_memory(&pool, e);
	if (r) {
		lend_free(&pool);
		return r;
	}
	/* A restarted donor must not give out generations a borrower remembers. */
	if (getrandom(&pool.generation, sizeof(pool.generation), GRND_NONBLOCK) < 0)
		pool.generation = 1;
	*p = pool;
	return 0;
}

void lend_free(struct lend_pool *p)
{
	if (p->reserved)
		munmap(p->reserved, p->reserved_size);
	for (uint32_t i = 0; i < p->count; i++)
		if (p->slabs[i].fd >= 0)
			close(p->slabs[i].fd);
	free(p->slabs);
	*p = (struct lend_pool){ 0 };
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

/* What others may have mapped makes room for memory that nobody has. */
static bool renew(struct lend_pool *p, uint32_t slab)
{
	struct lend_slab *s = &p->slabs[slab];
	int r = s->handed ? fresh_memfd(p, slab) : 0;

	if (r) {
		log_warn("slab %u: no memory in its place: %s; lending one less", slab,
			 strerror(-r));
		s->state = LEND_GONE;
		p->dirty--;
	}
	return !r;
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
	if (p->slabs[found].state == LEND_DIRTY) {
		if (!renew(p, found))
			return WIRE_NO_SPACE;
		zero_to(p, found, p->slab_size);
	}
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

int lend_hand_over(struct lend_pool *p, uint32_t slab)
{
	p->slabs[slab].handed = true;
	return p->slabs[slab].fd;
}

uint64_t lend_total_bytes(const struct lend_pool *p)
{
	uint32_t gone = 0;

	for (uint32_t i = 0; i < p->count; i++)
		gone += p->slabs[i].state == LEND_GONE;
	return (p->count - gone) * p->slab_size;
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
		if (s->handed) {
			/* To let go of the old one takes as long as to zero a piece. */
			renew(p, i);
			return true;
		}
		zero_to(p, i, end < p->slab_size ? end : p->slab_size);
		return true;
	}
	return false;
}
