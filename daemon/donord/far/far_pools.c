// SPDX-License-Identifier: GPL-2.0-or-later
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "far_pools.h"
#include "lib/rules/far_memory.h"

static void granted(struct borrower *b, const struct wire_frame *request,
		    const struct lend_grant *g)
{
}

/* Arenas are neither recalled nor revoked. */
static bool ask(struct borrower *b, const struct wire_frame *f, const void *payload)
{
	return false;
}

static void give_up(struct borrower *b, const char *why)
{
}

static const struct borrower_ops lent_ops = { granted, ask, give_up, NULL };

int far_pools_new(struct far **out, struct pool *pool, struct donor_log *log,
		  const struct far_ops *ops, uint64_t bytes, uint64_t key_quota)
{
	uint64_t most = bytes / pool->slab_size;
	struct far *f = calloc(1, sizeof(*f));
	int r = 0;

	if (!f)
		return -ENOMEM;
	*f = (struct far){
		.pool = pool, .log = log, .ops = ops, .key_quota = key_quota,
		.most = (uint32_t)(most < pool->count ? most : pool->count),
		.sections = (uint32_t)(pool->slab_size / EBB_FAR_SECTION),
		.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
		.export = { .ops = &export_stream, .pool = pool },
	};
	if (f->epoll_fd < 0)
		r = -errno;
	for (uint32_t i = 0; i < FAR_POOLS && !r; i++) {
		f->pools[i].far = f;
		f->pools[i].slabs = calloc(f->most ?: 1, sizeof(*f->pools[i].slabs));
		r = f->pools[i].slabs ? 0 : -ENOMEM;
	}
	if (r) {
		far_pools_free(&f);
		return r;
	}
	*out = f;
	return 0;
}

static void close_members(struct far_pool *fp)
{
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS; i++) {
		if (fp->members[i].state != EBB_FAR_VACANT && fp->members[i].pidfd >= 0)
			close(fp->members[i].pidfd);
		fp->members[i].pidfd = -1;
	}
}

static void end_pool(struct far_pool *fp)
{
	close_members(fp);
	pool_remove(fp->far->pool, &fp->borrower);
	fp->far->used -= fp->arenas;
	*fp = (struct far_pool){ .far = fp->far, .slabs = fp->slabs };
}

void far_pools_free(struct far **fp)
{
	struct far *f = *fp;

	*fp = NULL;
	if (!f)
		return;
	for (uint32_t i = 0; i < FAR_POOLS; i++) {
		if (*f->pools[i].name)
			end_pool(&f->pools[i]);
		free(f->pools[i].slabs);
	}
	if (f->epoll_fd >= 0)
		close(f->epoll_fd);
	free(f);
}

struct far_pool *far_find(struct far *far, const char *key, const char *name)
{
	for (uint32_t i = 0; i < FAR_POOLS; i++) {
		struct far_pool *fp = &far->pools[i];

		if (*fp->name && !strcmp(fp->name, name) && !strcmp(fp->borrower.key, key))
			return fp;
	}
	return NULL;
}

/* Returns a place for one more pool of @key, or NULL. */
static struct far_pool *find_unused(struct far *far, const char *key)
{
	struct far_pool *unused = NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < FAR_POOLS; i++) {
		struct far_pool *fp = &far->pools[i];

		if (!*fp->name)
			unused = unused ?: fp;
		else
			n += !strcmp(fp->borrower.key, key);
	}
	return n < WIRE_FAR_POOLS ? unused : NULL;
}

uint16_t far_create(struct far *far, const char *key, const struct wire_far_pool *p)
{
	struct far_pool *fp = find_unused(far, key);

	if (p->domain != WIRE_FAR_CPU)
		return WIRE_OTHER_DOMAIN;
	if (far_find(far, key, p->name))
		return WIRE_POOL_EXISTS;
	if (!fp || getrandom(&fp->identity, sizeof(fp->identity), 0) != sizeof(fp->identity))
		return WIRE_NO_SPACE;
	memcpy(fp->name, p->name, sizeof(fp->name));
	fp->flags = p->flags;
	fp->borrower = (struct borrower){ .quota = far->key_quota, .export = &far->export,
					  .ops = &lent_ops };
	strcpy(fp->borrower.key, key);
	memcpy(fp->borrower.name, "far pool", sizeof("far pool"));
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS; i++)
		fp->members[i] = (struct far_member){ .pool = fp, .number = i + 1, .pidfd = -1 };
	pool_add(far->pool, &fp->borrower);
	donor_say(far->log, LOG_LVL_INFO, "far pool %s: created", fp->name);
	return WIRE_OK;
}

uint16_t far_destroy(struct far *far, const char *key, const struct wire_far_pool *p)
{
	struct far_pool *fp = far_find(far, key, p->name);

	if (!fp)
		return WIRE_NO_POOL;
	if (fp->in[EBB_FAR_LIVE] + fp->in[EBB_FAR_AWAY] + fp->in[EBB_FAR_DEAD])
		return WIRE_POOL_IN_USE;
	donor_say(far->log, LOG_LVL_INFO, "far pool %s: destroyed; %u slabs reclaimed", fp->name,
		  fp->arenas);
	end_pool(fp);
	return WIRE_OK;
}

void far_describe(const struct far_pool *fp, struct wire_far_listed *l)
{
	*l = (struct wire_far_listed){
		.identity = fp->identity, .arenas = fp->arenas, .flags = fp->flags,
		.live = fp->in[EBB_FAR_LIVE], .away = fp->in[EBB_FAR_AWAY],
		.dead = fp->in[EBB_FAR_DEAD],
	};
	memcpy(l->name, fp->name, sizeof(l->name));
}

uint64_t far_metadata(const struct far_pool *fp)
{
	const struct far *far = fp->far;

	return fp->arenas * ebb_far_table(far->sections) + sizeof(*fp) +
	       far->most * sizeof(*fp->slabs);
}

uint32_t far_list(const struct far *far, const char *key,
		  struct wire_far_listed list[static WIRE_FAR_POOLS])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < FAR_POOLS; i++)
		if (*far->pools[i].name && !strcmp(far->pools[i].borrower.key, key))
			far_describe(&far->pools[i], &list[n++]);
	return n;
}

void far_tell(const struct far *far, struct wire_donor *d)
{
	uint64_t left = (uint64_t)(far->most - far->used) * far->pool->slab_size;

	d->total = (uint64_t)far->most * far->pool->slab_size;
	d->free = d->free < left ? d->free : left;
}

/* --- arenas ----------------------------------------------------------------------- */

/* Returns NULL while the pool has no arena. */
static struct ebb_far_member *record_of(const struct far_member *m)
{
	if (!m->pool->arenas)
		return NULL;
	return (void *)(far_base(m->pool, 0) + EBB_FAR_MEMBERS_AT +
			(m->number - 1) * sizeof(struct ebb_far_member));
}

void far_put_word(const struct far_member *m)
{
	struct ebb_far_member *record = record_of(m);

	if (record)
		__atomic_store_n(&record->notify, htole64(m->word), __ATOMIC_RELEASE);
}

static void put_record(const struct far_member *m)
{
	struct ebb_far_member *record = record_of(m);

	if (!record)
		return;
	record->incarnation = htole32(m->incarnation);
	if (m->state == EBB_FAR_VACANT)
		__atomic_store_n(&record->published, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&record->state, htole32(m->state), __ATOMIC_RELEASE);
	far_put_word(m);
}

void far_set_state(struct far_member *m, enum ebb_far_member_state state)
{
	m->pool->in[m->state] -= m->state != EBB_FAR_VACANT;
	m->pool->in[state] += state != EBB_FAR_VACANT;
	m->state = (uint8_t)state;
	put_record(m);
}

bool far_may_grow(const struct far_pool *fp)
{
	return pool_may_lend(fp->far->pool, &fp->borrower);
}

uint16_t far_arena(struct far_pool *fp, uint32_t index)
{
	struct wire_frame request = { .op = WIRE_MAP };
	struct far *far = fp->far;
	enum wire_status st;

	if (index < fp->arenas)
		return WIRE_OK;
	if (index > fp->arenas)
		return WIRE_NO_SLAB;
	if (far->used == far->most)
		return WIRE_OVER_QUOTA;
	st = pool_lend(far->pool, &fp->borrower, &request);
	if (st != WIRE_OK)
		return st;
	fp->slabs[index] = request.slab;
	far_format_table(far_base(fp, index), far->sections, fp->identity, index);
	fp->arenas++;
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS && !index; i++)
		put_record(&fp->members[i]);
	far->used++;
	return WIRE_OK;
}
