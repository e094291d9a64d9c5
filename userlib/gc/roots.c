// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include "object.h"
#include "os.h"
#include "roots.h"

struct ebbgc_handle {
	ebbgc_ref_t ref;		/* null while free */
	struct ebbgc_handle *next_free;
};

#define HANDLES_PER_CHUNK 127
struct handle_chunk {
	struct handle_chunk *next;
	struct ebbgc_handle handles[HANDLES_PER_CHUNK];
};

struct root_call {
	struct root_call *next;
	ebbgc_roots_fn fn;
	void *arg;
};

struct root_range {
	struct root_range *next;
	ebbgc_ref_t *slots;
	size_t count;
};

/* Reads another thread's stack, poisoned and racy words included. */
static __attribute__((noinline, no_sanitize("address", "thread")))
uint64_t stack_word(const char *p)
{
	return *(const volatile uint64_t *)p;
}

static void stack_each(struct ebbgc_heap *h, struct mutator *m, ebbgc_visit_fn fn, void *arg)
{
	const char *p = (const char *)((uintptr_t)m->stack_top & -(uintptr_t)8);

	for (; p + 8 <= m->stack_base; p += 8) {
		ebbgc_ref_t found = { object_containing(h, stack_word(p)) };

		if (!found.bits)
			continue;
		found.bits |= h->tag;
		fn(arg, &found);
	}
}

static void slots_each(ebbgc_ref_t *slots, size_t count, ebbgc_visit_fn fn, void *arg)
{
	for (size_t i = 0; i < count; i++)
		fn(arg, &slots[i]);
}

struct calling {
	struct ebbgc_edges edges;	/* first */
	struct ebbgc_heap *h;
	ebbgc_visit_fn fn;
	void *arg;
};

static void call_strong(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	const struct calling *c = (const struct calling *)edges;

	(void)slot;
	if (object_at(c->h, value.bits & EBBGC_ADDRESS_MASK))
		c->fn(c->arg, &value);
}

static void call_weak(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		      enum ebbgc_clear when)
{
	(void)when;
	call_strong(edges, slot, value);
}

static void call_ephemeron(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			   ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	(void)when;
	call_strong(edges, key_slot, key);
	call_strong(edges, value_slot, value);
}

void roots_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg)
{
	struct calling calling = { { call_strong, call_weak, call_ephemeron }, h, fn, arg };

	for (struct root_call *c = h->calls; c; c = c->next)
		c->fn(c->arg, &calling.edges);
	for (struct mutator *m = h->mutators; m; m = m->next) {
		for (struct ebbgc_frame *f = m->public.frames; f; f = f->up)
			slots_each(f->slots, f->count, fn, arg);
		for (struct ebbgc_entered *e = m->public.fibres; e; e = e->up)
			fn(arg, &e->fibre);
	}
	for (struct root_range *r = h->ranges; r; r = r->next)
		slots_each(r->slots, r->count, fn, arg);
	for (struct handle_chunk *c = h->handle_chunks; c; c = c->next)
		for (size_t i = 0; i < HANDLES_PER_CHUNK; i++)
			fn(arg, &c->handles[i].ref);
	for (size_t i = h->finalizers_ready.first; i < h->finalizers_ready.count; i++) {
		ebbgc_ref_t object = { h->finalizers_ready.items[i].object };

		fn(arg, &object);
	}
}

void stacks_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg)
{
	if (h->options.stacks != EBBGC_CONSERVATIVE)
		return;
	for (struct mutator *m = h->mutators; m; m = m->next)
		stack_each(h, m, fn, arg);
}

void roots_destroy(struct ebbgc_heap *h)
{
	while (h->ranges) {
		struct root_range *r = h->ranges;

		h->ranges = r->next;
		free(r);
	}
	while (h->calls) {
		struct root_call *c = h->calls;

		h->calls = c->next;
		free(c);
	}
	while (h->handle_chunks) {
		struct handle_chunk *c = h->handle_chunks;

		h->handle_chunks = c->next;
		free(c);
	}
}

/* The world cannot stop while the calling thread runs: no scan sees its changes under the lock. */
ebbgc_handle_t *ebbgc_handle_new(ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct ebbgc_handle *handle = NULL;

	if (os_forked(h->pid))
		return NULL;
	pthread_mutex_lock(&h->lock);
	if (!h->handle_free) {
		struct handle_chunk *c = calloc(1, sizeof(*c));

		if (!c)
			goto out;
		for (size_t i = 0; i < HANDLES_PER_CHUNK; i++) {
			c->handles[i].next_free = h->handle_free;
			h->handle_free = &c->handles[i];
		}
		c->next = h->handle_chunks;
		h->handle_chunks = c;
	}
	handle = h->handle_free;
	h->handle_free = handle->next_free;
	handle->ref = ref;
out:
	pthread_mutex_unlock(&h->lock);
	return handle;
}

void ebbgc_handle_free(ebbgc_mutator_t *mutator, ebbgc_handle_t *handle)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;

	if (!handle || os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	handle->ref = EBBGC_NULL;
	handle->next_free = h->handle_free;
	h->handle_free = handle;
	pthread_mutex_unlock(&h->lock);
}

ebbgc_ref_t ebbgc_handle_get(const ebbgc_handle_t *handle)
{
	return handle->ref;
}

void ebbgc_handle_set(ebbgc_handle_t *handle, ebbgc_ref_t ref)
{
	handle->ref = ref;
}

int ebbgc_roots_add(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots, size_t count)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct root_range *r;

	if (os_forked(h->pid))
		return -ECHILD;
	r = malloc(sizeof(*r));
	if (!r)
		return -ENOMEM;
	pthread_mutex_lock(&h->lock);
	*r = (struct root_range){ h->ranges, slots, count };
	h->ranges = r;
	pthread_mutex_unlock(&h->lock);
	return 0;
}

int ebbgc_roots_remove(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct root_range *found = NULL;

	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	for (struct root_range **link = &h->ranges; *link; link = &(*link)->next) {
		if ((*link)->slots == slots) {
			found = *link;
			*link = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&h->lock);
	free(found);
	return found ? 0 : -ENOENT;
}

int ebbgc_roots_call(ebbgc_mutator_t *mutator, ebbgc_roots_fn fn, void *arg)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct root_call *c;

	if (!fn)
		return -EINVAL;
	if (os_forked(h->pid))
		return -ECHILD;
	c = malloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	pthread_mutex_lock(&h->lock);
	*c = (struct root_call){ h->calls, fn, arg };
	h->calls = c;
	pthread_mutex_unlock(&h->lock);
	return 0;
}

int ebbgc_roots_call_end(ebbgc_mutator_t *mutator, ebbgc_roots_fn fn, void *arg)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct root_call *found = NULL;

	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	for (struct root_call **link = &h->calls; *link; link = &(*link)->next) {
		if ((*link)->fn == fn && (*link)->arg == arg) {
			found = *link;
			*link = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&h->lock);
	free(found);
	return found ? 0 : -ENOENT;
}
