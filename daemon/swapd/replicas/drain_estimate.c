// SPDX-License-Identifier: GPL-2.0-or-later
#include "drain_estimate.h"
#include "replicas.h"
#include "slab_mapping.h"

/* Capacity of the donors that a slab could go to. */
struct rooms {
	uint64_t left[MAX_DONORS]; /* slabs */
	bool any_donor, any_room;  /* at the start */
};

static void look_at_rooms(const struct replicas *rs, const struct donor *leaving, struct rooms *r)
{
	int count = __atomic_load_n(&rs->donors->count, __ATOMIC_ACQUIRE);

	*r = (struct rooms){ .any_donor = false };
	for (int i = 0; i < count; i++) {
		const struct donor *d = &rs->donors->donor[i];

		if (d == leaving || !donor_takes(d))
			continue;
		r->left[i] = count_get(&d->room) / (d->link.slab_size ?: rs->donors->env.slab);
		r->any_donor = true;
		r->any_room = r->any_room || r->left[i];
	}
}

/* Takes capacity for @slab at the donor that has most and no copy of it. */
static bool take_room(const struct slab *slab, struct rooms *r)
{
	int best = -1;

	for (int i = 0; i < MAX_DONORS; i++)
		if (r->left[i] && slab_copy_at(slab, (uint16_t)i) < 0 &&
		    (best < 0 || r->left[i] > r->left[best]))
			best = i;
	if (best >= 0)
		r->left[best]--;
	return best >= 0;
}

/* Returns whether enough copies of slab @index, made or being made, stay. */
static bool has_enough(const struct replicas *rs, uint32_t index)
{
	const struct slab *slab = slab_at(rs, index);
	int n = 0;

	for (int c = 0; c < SLAB_COPIES; c++)
		n += slab->copy[c].state != COPY_NONE && !mapping_leaving(rs, index, c);
	return n >= rs->wanted;
}

void drain_estimate(const struct replicas *rs, const struct donor *d, struct drain_estimate *o)
{
	struct rooms rooms;

	*o = (struct drain_estimate){ .slabs = 0 };
	look_at_rooms(rs, d, &rooms);
	for (uint32_t i = 0; i < rs->engine->table.count; i++) {
		const struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c < 0 || slab->copy[c].state != COPY_MAPPED)
			continue;
		o->slabs++;
		if (!page_map_live(rs->engine->map, i) || has_enough(rs, i) ||
		    take_room(slab, &rooms))
			o->move++;
		else if (backup_there(&rs->engine->backup))
			o->disk++;
		else
			o->stuck++;
	}
	if (!o->stuck)
		return;
	o->why = !rooms.any_donor ? "no other donor is up; start or add one" :
		 !rooms.any_room ? "no other donor has free capacity; lend more there or add a donor" :
		 rs->wanted > 1 ? "each donor with free capacity has a replica already; add a donor" :
				 "other donors have too little free capacity; lend more there or add a donor";
}

uint64_t loss_epoch(const struct replicas *rs)
{
	const struct engine *e = rs->engine;

	return __atomic_load_n(&e->map->gone, __ATOMIC_ACQUIRE) +
	       count_get(&e->counters->donor_absences) + count_get(&e->counters->bad_donor);
}

uint64_t loss_estimate(const struct replicas *rs, const struct donor *d)
{
	uint64_t pages = 0;

	for (uint32_t i = 0; i < rs->engine->table.count; i++) {
		const struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c >= 0)
			pages += page_map_count_only(rs->engine->map, i, c,
						     slab_mapped(slab) | slab_away(slab));
	}
	return pages;
}
