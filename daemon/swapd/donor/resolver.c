// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "lib/base/small_thread.h"
#include "resolver.h"

/* The stack is locked; getaddrinfo(3) needs some 64 KiB. */
#define STACK (256u << 10)

enum { LOOKUP_NONE, LOOKUP_WANTED /* the thread's */, LOOKUP_DONE };

static void look_up(struct resolver *r, struct lookup *l)
{
	if (__atomic_load_n(&l->state, __ATOMIC_ACQUIRE) != LOOKUP_WANTED)
		return;
	l->result = r->look_up(l->text, l->found, RESOLVER_PLACES);
	__atomic_store_n(&l->state, LOOKUP_DONE, __ATOMIC_RELEASE);
}

static void *resolver_main(void *data)
{
	struct resolver *r = data;

	prctl(PR_SET_NAME, "ebb-resolver");
	for (;;) {
		while (sem_wait(&r->wanted) < 0)
			;
		for (int i = 0; i < r->count; i++)
			look_up(r, &r->lookups[i]);
	}
	return NULL;
}

int resolver_start(struct resolver *r, int count, struct error *e)
{
	int error;

	if (!r->look_up)
		r->look_up = address_resolve;
	r->count = count;
	r->lookups = calloc((size_t)count, sizeof(*r->lookups));
	if (!r->lookups)
		return fail(e, ENOMEM, "resolver: out of memory");
	sem_init(&r->wanted, 0, 0);
	error = small_thread_create(&r->thread, STACK, resolver_main, r);
	r->running = !error;
	return error ? fail(e, error, "resolver thread: %s", strerror(error)) : 0;
}

void resolver_stop(struct resolver *r)
{
	if (r->running) {
		/* The process ends, and unreachable name servers take long to time out. */
		pthread_cancel(r->thread);
		pthread_join(r->thread, NULL);
		r->running = false;
	}
	free(r->lookups);
	r->lookups = NULL;
}

void resolver_ask(struct resolver *r, int i, const char *text)
{
	struct lookup *l = r->lookups ? &r->lookups[i] : NULL;

	if (!l || __atomic_load_n(&l->state, __ATOMIC_ACQUIRE) == LOOKUP_WANTED)
		return;
	strncpy(l->text, text, sizeof(l->text) - 1);
	__atomic_store_n(&l->state, LOOKUP_WANTED, __ATOMIC_RELEASE);
	sem_post(&r->wanted);
}

int resolver_take(struct resolver *r, int i, const char *text, struct address *to)
{
	struct lookup *l = r->lookups ? &r->lookups[i] : NULL;
	int n;

	if (!l || __atomic_load_n(&l->state, __ATOMIC_ACQUIRE) != LOOKUP_DONE)
		return 0;
	/* The entry belonged to another donor at the time of the request. */
	n = strcmp(l->text, text) ? 0 : l->result;
	for (int j = 0; j < n; j++)
		to[j] = l->found[j];
	l->state = LOOKUP_NONE;
	return n;
}
