/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A donor with far memory in the test's own process, at a unix socket and at a loopback port.  Its
 * loop makes a turn when the test says so, or runs in a thread.
 */
#ifndef EBB_FAR_WORLD_H
#define EBB_FAR_WORLD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "donord/donord.h"
#include "donord/loop.h"
#include "ebb/far.h"

enum { FAR_SECTIONS = 4, FAR_SLABS = 6, FAR_ARENAS = 3, FAR_MANY_ARENAS = 200 };
#define FAR_ARENA (FAR_SECTIONS * EBB_FAR_SECTION)

struct far_world {
	struct pool pool;
	struct loop *l;
	char dir[64];
	char local[128], tcp[128]; /* addresses */
	char keys[2][96];          /* key files "one" and "two"; "" = no keys */
	pthread_t thread;
	bool threaded, stop;
};

extern struct far_world world;

/* Setups of cmocka: a donor that the test moves; one with --far 0; one that runs in a thread. */
int with_far_donor(void **state);
int without_far_memory(void **state);
int with_far_thread(void **state);
int with_far_keys(void **state); /* in a thread, with two keys */
int with_many_arenas(void **state); /* in a thread, FAR_MANY_ARENAS of far memory */
int end_far_donor(void **state);

/* Makes turns until nothing is left to do. */
void far_world_turn(void);

#endif
