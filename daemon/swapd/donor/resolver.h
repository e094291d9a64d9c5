/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Resolves donors' names in a separate thread, because a name server may take seconds to answer:
 * the loop never waits, and the control thread has other requests to answer.
 */
#ifndef EBB_RESOLVER_H
#define EBB_RESOLVER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/address.h"

/* Addresses per name that are tried. */
#define RESOLVER_PLACES 8

struct lookup {
	uint32_t state;  /* enum in resolver.c: which thread owns the rest */
	char text[128];
	struct address found[RESOLVER_PLACES];
	int result;      /* number of addresses, or -errno */
};

struct resolver {
	/* address_resolve(), or a test's replacement */
	int (*look_up)(const char *text, struct address *found, int most);
	struct lookup *lookups; /* owned; NULL = no resolver: names keep their addresses */
	int count;
	sem_t wanted;
	pthread_t thread;
	bool running;
};

/* Starts with up to @count names at a time. */
int resolver_start(struct resolver *r, int count, struct error *e);
/* Stops at the end of the process; lookups in flight are abandoned. */
void resolver_stop(struct resolver *r);

/* Loop thread: starts a lookup of name number @i, @text, unless one is in flight. */
void resolver_ask(struct resolver *r, int i, const char *text);

/*
 * Stores the addresses of @text in @to (RESOLVER_PLACES), in the order to try them.  Returns their
 * number; 0 = no answer yet, or never asked; -errno.  Returns each answer once.
 */
int resolver_take(struct resolver *r, int i, const char *text, struct address *to);

#endif
