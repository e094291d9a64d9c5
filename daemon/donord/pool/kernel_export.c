// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_export.h"
#include "lib/wire/wire_rdma.h"

enum key_state { KEY_NONE, KEY_COMING, KEY_VALID, KEY_GOING };

struct kernel_key {
	struct pool_task task;     /* registers or invalidates */
	struct kernel_export *x;
	enum key_state state;
	bool ended;                /* the loan ended while the slab was being registered */
	struct ibv_mr *mr;
	int result;                /* of the task */
	/*
	 * A slab of a resumed session: its key in the old session's domain, which has no queue
	 * pairs any more.  It stays until there is a new one.
	 */
	struct ibv_mr *old;
	struct kernel_domain *old_domain;
	struct borrower *old_borrower;
	int old_result;
	struct borrower *borrower; /* may be removed during KEY_GOING */
	struct kernel_domain *domain;
	struct wire_frame request;
};

/*
 * Pins the slab until the task is done.  A MAP waits for its own registration, but not for the
 * thousands of keys of an ended session.
 */
static void start(struct kernel_key *k, enum key_state state)
{
	k->state = state;
	pool_pin(k->x->x.pool, k->request.slab);
	if (state == KEY_COMING)
		pool_task(k->x->x.pool, &k->task);
	else
		pool_task_later(k->x->x.pool, &k->task);
}

static void run(struct pool_task *t)
{
	struct kernel_key *k = (struct kernel_key *)t;
	const struct pool *p = k->x->x.pool;

	if (k->state == KEY_GOING) {
		k->result = ibv_dereg_mr(k->mr);
		return;
	}
	k->mr = ibv_reg_mr(k->domain->pd, pool_memory(p, k->request.slab), p->slab_size,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_REMOTE_WRITE);
	k->result = k->mr ? 0 : errno;
	k->old_result = k->mr && k->old ? ibv_dereg_mr(k->old) : 0;
}

static void done(struct pool_task *t);

static enum wire_status grant(struct export *x, struct borrower *b,
			      const struct wire_frame *request)
{
	struct kernel_export *kx = (struct kernel_export *)x;
	struct kernel_key *k = &kx->keys[request->slab];
	struct kernel_key old = *k;

	if (request->op == WIRE_REMAP && (k->state != KEY_VALID || k->domain == b->priv))
		return WIRE_STALE;
	*k = (struct kernel_key){ .task = { .run = run, .done = done }, .x = kx, .borrower = b,
				  .domain = b->priv, .request = *request };
	if (request->op == WIRE_REMAP) {
		k->old = old.mr;
		k->old_domain = old.domain;
		k->old_borrower = old.borrower;
	}
	k->domain->keys++;
	start(k, KEY_COMING);
	return WIRE_OK;
}

static void revoke(struct export *x, struct borrower *b, uint32_t slab)
{
	struct kernel_key *k = &((struct kernel_export *)x)->keys[slab];

	if (k->state == KEY_COMING)
		k->ended = true;
	else if (k->state == KEY_VALID)
		start(k, KEY_GOING);
}

static void registered(struct kernel_key *k)
{
	struct kernel_export *x = k->x;
	uint8_t payload[WIRE_RDMA_GRANT_SIZE];
	struct wire_rdma_grant g;

	if (k->ended && k->mr) {
		start(k, KEY_GOING);
		return;
	}
	k->state = k->mr ? KEY_VALID : KEY_NONE;
	if (!k->mr)
		k->domain->keys--;
	if (k->ended)
		return;
	if (k->result) {
		donor_say(x->log, LOG_LVL_WARN,
			  "borrower %s: cannot register a slab: %s; raise LimitMEMLOCK=",
			  k->borrower->name, strerror(k->result));
		if (k->mr)
			pool_not_again(x->x.pool, &k->request);
		else
			pool_granted(x->x.pool, &k->request, NULL);
		return;
	}
	g = (struct wire_rdma_grant){ .address = (uintptr_t)k->mr->addr, .key = k->mr->rkey,
				      .length = x->x.pool->slab_size };
	wire_build_rdma_grant(payload, &g);
	pool_granted(x->x.pool, &k->request,
		     &(struct lend_grant){ .bytes = payload, .length = sizeof(payload), .fd = -1 });
}

/* A slab of a resumed session cannot be registered: the next resumption tries again. */
static void put_back(struct kernel_key *k)
{
	k->domain->keys--;
	k->mr = k->old;
	k->domain = k->old_domain;
	/* It lives as long as its domain. */
	k->borrower = k->old_borrower;
}

static void done(struct pool_task *t)
{
	struct kernel_key *k = (struct kernel_key *)t;

	pool_unpin(k->x->x.pool, k->request.slab);
	if (k->state == KEY_COMING) {
		/* Its domain outlives a key that stays. */
		if (k->old && k->result)
			put_back(k);
		else if (k->old && !k->old_result)
			k->old_domain->keys--;
		k->old = NULL;
		registered(k);
		return;
	}
	k->state = KEY_NONE;
	if (!k->result) {
		k->domain->keys--;
		return;
	}
	/* The domain keeps the key: its borrower may still use it. */
	pool_withdraw(k->x->x.pool, k->request.slab);
	donor_say(k->x->log, LOG_LVL_ERR,
		  "slab %u is withdrawn: its RDMA key cannot be invalidated: %s; restart ebb-donord to lend it again",
		  k->request.slab, strerror(k->result));
	k->borrower->ops->fail(k->borrower, "a key cannot be invalidated");
}

static const struct export_ops ops = { .grant = grant, .revoke = revoke };

int kernel_export_init(struct kernel_export *x, struct pool *pool, struct donor_log *log)
{
	*x = (struct kernel_export){ .x = { .ops = &ops, .pool = pool }, .log = log };
	x->keys = calloc(pool->count, sizeof(*x->keys));
	return x->keys ? 0 : -ENOMEM;
}

void kernel_export_free(struct kernel_export *x)
{
	free(x->keys);
	x->keys = NULL;
}
