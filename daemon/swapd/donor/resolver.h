/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What donors' names mean now.  A thread of its own asks, because a name server may take
 * seconds to answer and the loop never waits; the control thread has others to answer.
 */
#ifndef EBB_RESOLVER_H
#define EBB_RESOLVER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/address.h"

/* Addresses of one name that are tried. */
#define RESOLVER_PLACES 8

struct lookup {
	uint32_t state;  /* enum in resolver.c: whose the rest is */
	char text[128];
	struct address found[RESOLVER_PLACES];
	int result;      /* how many, or -errno */
};

struct resolver {
	/* address_resolve(), or a test's. */
	int (*look_up)(const char *text, struct address *found, int most);
	struct lookup *lookups; /* owned; NULL = no resolver: names keep their addresses */
	int count;
	sem_t wanted;
	pthread_t thread;
	bool running;
};

/* @count names at a time at most. */
int resolver_start(struct resolver *r, int count, struct error *e);
/* At the end of the process: what is being asked for is given up. */
void resolver_stop(struct resolver *r);

/* Loop thread: starts a lookup of name number @i, which is @text, unless one is in flight. */
void resolver_ask(struct resolver *r, int i, const char *text);

/*
 * The addresses of @text, in the order they are to be tried, to @to, of RESOLVER_PLACES.
 * How many; 0 = no answer yet, or it was never asked; -errno.  Each answer comes once.
 */
int resolver_take(struct resolver *r, int i, const char *text, struct address *to);

#endif
