// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "native.h"
#include "resident.h"

struct resident {
	uint32_t tgid;       /* 0 in a free entry */
	uint32_t serial;     /* of the code its state belongs to */
	uint64_t used_ns;
	size_t size;
	struct ebb_policy_sim sim;
};

struct residents {
	struct resident process[RESIDENT_MAX];
	size_t state;        /* bytes in all */
};

/* What a policy asks for in one call. */
struct asked {
	struct ebb_list_request *out;
	uint32_t n, pages;
};

struct residents *residents_new(void)
{
	return calloc(1, sizeof(struct residents));
}

static void forget(struct residents *r, struct resident *p)
{
	free(p->sim.state);
	r->state -= p->size;
	memset(p, 0, sizeof(*p));
}

void residents_free(struct residents **r)
{
	for (int i = 0; *r && i < RESIDENT_MAX; i++)
		forget(*r, &(*r)->process[i]);
	free(*r);
	*r = NULL;
}

static int ask(void *data, const struct ebb_request *request)
{
	struct asked *a = data;

	if (a->n == RESIDENT_REQUESTS)
		return -ENOSPC;
	if (request->op == EBB_OP_LIST || request->op == EBB_OP_COLD_LIST)
		a->out[a->n] = *(const struct ebb_list_request *)request;
	else
		a->out[a->n].head = *request;
	a->n++;
	if (request->op == EBB_OP_PREFETCH || request->op == EBB_OP_LIST)
		a->pages += request->count;
	return 0;
}

static struct resident *find(struct residents *r, uint32_t tgid, const struct native *native)
{
	struct resident *oldest = &r->process[0], *p;
	size_t size = native->policy->state_size;

	for (p = r->process; p < r->process + RESIDENT_MAX; p++) {
		if (p->tgid == tgid && p->serial == native->serial)
			return p;
		/* Of other code, which may be gone by now. */
		if (p->tgid == tgid)
			forget(r, p);
		if (p->used_ns < oldest->used_ns)
			oldest = p;
	}
	p = oldest;
	forget(r, p);
	if (r->state + size > RESIDENT_STATE)
		return NULL;
	p->sim.state = calloc(1, size ? size : 1);
	if (!p->sim.state)
		return NULL;
	p->tgid = tgid;
	p->serial = native->serial;
	p->size = size;
	p->sim.request = ask;
	r->state += size;
	return p;
}

uint32_t resident_fault(struct residents *r, struct attachment *t, const struct ebb_fault *f,
			struct ebb_list_request out[RESIDENT_REQUESTS])
{
	const struct native *native = t->policy->native;
	struct asked asked = { .out = out };
	uint64_t start = now_ns();
	struct resident *p;

	if (!native || t->place != RUN_DAEMON || !f->tgid)
		return 0;
	p = find(r, f->tgid, native);
	if (!p)
		return 0;
	p->used_ns = start;
	p->sim.params = t->params;
	p->sim.data = &asked;
	native->policy->run(&p->sim, f);
	t->calls++;
	t->call_ns += now_ns() - start;
	t->request_pages += asked.pages;
	for (uint32_t i = 0; i < asked.n; i++)
		t->requests += out[i].head.op == EBB_OP_PREFETCH || out[i].head.op == EBB_OP_LIST;
	return asked.n;
}

void residents_sweep(struct residents *r)
{
	for (struct resident *p = r->process; p < r->process + RESIDENT_MAX; p++)
		if (p->tgid && kill((pid_t)p->tgid, 0) < 0 && errno == ESRCH)
			forget(r, p);
}

uint32_t residents_count(const struct residents *r)
{
	uint32_t n = 0;

	for (int i = 0; i < RESIDENT_MAX; i++)
		n += r->process[i].tgid != 0;
	return n;
}
