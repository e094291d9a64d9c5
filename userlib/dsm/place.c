// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* At which donor a new object lies. */
#include <errno.h>

#include "dsm.h"

/* What is known of donors may be as old, ms. */
#define ROOM_MS 1000

/*
 * Asks a donor for its room; of the pool's memory, what the first @peers have is in use, without
 * any all.  With .look held.
 */
static int ask_room(ebbdsm_t *dsm, uint32_t donor, uint32_t peers)
{
	struct dsm_tasks *t = &dsm->tasks;
	struct link *l = &dsm->link[donor];
	struct ebbfar_memory room = { .size = sizeof(room) };
	uint64_t bytes = 0;
	int r = ebbfar_room(l->far, &room);

	t->room[donor] = (struct choose_donor){ 0 };
	if (r)
		return link_error(r);
	pthread_mutex_lock(&l->lock);
	l->round_trips += !l->maps;
	pthread_mutex_unlock(&l->lock);
	for (uint32_t i = 0; i < peers; i++)
		bytes += peer_desk(&t->peer[i])->load.bytes[donor];
	t->room[donor].total = room.total;
	t->room[donor].used = room.total - (room.free < room.total ? room.free : room.total);
	if (peers && bytes < room.pool)
		t->room[donor].used -= room.pool - bytes < t->room[donor].used ?
					       room.pool - bytes : t->room[donor].used;
	return 0;
}

/* Asks all donors, at most once in ROOM_MS.  With .look held. */
static void ask_rooms(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;
	int64_t now = bell_now();

	if (t->rooms_at && now - t->rooms_at < ROOM_MS)
		return;
	desk_look(dsm, ROOM_MS);
	for (uint32_t i = 0; i < dsm->donors; i++)
		ask_room(dsm, i, t->peers);
	t->rooms_at = now;
}

/* Returns the emptiest donor that is not in @tried, or -1.  Gives the lock up meanwhile. */
static int emptiest(ebbdsm_t *dsm, uint32_t tried)
{
	int donor;

	dsm_leave(dsm, 0);
	pthread_mutex_lock(&dsm->tasks.look);
	ask_rooms(dsm);
	donor = choose_donor(dsm->tasks.room, dsm->donors, tried);
	pthread_mutex_unlock(&dsm->tasks.look);
	dsm_enter(dsm);
	return donor;
}

int dsm_donor_of(ebbdsm_t *dsm, uint64_t where, uint32_t *donor)
{
	int d = where == EBBDSM_EMPTIEST ? emptiest(dsm, 0) : (int)(where >> 61);

	if (d < 0)
		return -EIO;
	if ((uint32_t)d >= dsm->donors)
		return -EINVAL;
	*donor = (uint32_t)d;
	return 0;
}

int dsm_place_at(ebbdsm_t *dsm, uint32_t donor, size_t size, uint64_t *at, struct slot **slot)
{
	int r = heap_new(&dsm->heap, donor, size, at, slot);

	if (r != -ENOSPC)
		return r;
	dsm_leave(dsm, 0);
	/* What that frees is for the place, not for twins. */
	dsm_settle(dsm);
	dsm_enter(dsm);
	return heap_new(&dsm->heap, donor, size, at, slot);
}

/* Returns whether more than CHOOSE_FULL of the home donor's memory is in use. */
static bool is_home_full(ebbdsm_t *dsm)
{
	struct dsm_tasks *t = &dsm->tasks;
	uint32_t home = dsm->home->number;
	int64_t now = bell_now();
	bool full;

	dsm_leave(dsm, 0);
	pthread_mutex_lock(&t->look);
	if (!t->home_at || now - t->home_at >= ROOM_MS) {
		/* Without the desks, all that pools have counts as in use. */
		t->home_full = !ask_room(dsm, home, 0) && choose_is_full(&t->room[home]);
		if (t->home_full) {
			desk_look(dsm, ROOM_MS);
			t->home_full = !ask_room(dsm, home, t->peers) &&
				       choose_is_full(&t->room[home]);
		}
		t->home_at = now;
	}
	full = t->home_full;
	pthread_mutex_unlock(&t->look);
	dsm_enter(dsm);
	return full;
}

int dsm_place(ebbdsm_t *dsm, size_t size, uint64_t *at, struct slot **slot)
{
	return dsm_place_at(dsm, dsm->home->number, size, at, slot);
}

/* Returns whether another donor may have a place that one has not, for @r. */
static bool may_be_elsewhere(const ebbdsm_t *dsm, int r)
{
	return r == -ENOSPC || (r == -EIO && dsm->heap.replicas);
}

int dsm_place_best(ebbdsm_t *dsm, size_t size, uint64_t *at, struct slot **slot)
{
	uint32_t home = dsm->home->number, tried = 0;
	bool is_lost = dsm->heap.replicas && link_is_lost(dsm->home);
	int donor = (int)home, r;

	if (dsm->donors == 1 || (!is_lost && heap_has_place(&dsm->heap, home, size)))
		return dsm_place_at(dsm, home, size, at, slot);
	if (is_lost || is_home_full(dsm))
		donor = emptiest(dsm, 0);
	do {
		if (donor < 0)
			r = is_lost ? -EIO : -ENOSPC;
		else
			r = dsm_place_at(dsm, (uint32_t)donor, size, at, slot);
		tried |= donor < 0 ? 0 : 1u << donor;
		donor = may_be_elsewhere(dsm, r) ? emptiest(dsm, tried) : -1;
	} while (donor >= 0);
	return r;
}
