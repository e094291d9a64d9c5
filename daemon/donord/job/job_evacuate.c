// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "job_evacuate.h"
#include "lib/base/bytes.h"
#include "lib/rules/pack.h"

static bool same_extent(const struct far_extent *a, const struct far_extent *b)
{
	return a->arena == b->arena && a->at < b->at + ebb_far_bytes(b->class) &&
	       b->at < a->at + ebb_far_bytes(a->class);
}

/* Finds the region and its bits; @target is where they are copied to. */
static uint16_t check(const struct job_heap *h, const struct wire_job_bits *b,
		      const struct far_extent *target, uint64_t keep[static TABLET_WORDS],
		      struct job_region **out)
{
	struct job_region *r = job_region_find(h, b->region);

	if (!r || b->words != r->words || same_extent(&r->extent, target))
		return WIRE_BAD_REGION;
	if (r->version != b->version)
		return WIRE_OLD_VERSION;
	for (uint32_t i = 0; i < r->words; i++) {
		keep[i] = get64(b->bits + 8 * i);
		if (keep[i] & ~r->live[i])
			return WIRE_BAD_REGION;
	}
	*out = r;
	return WIRE_OK;
}

/* Checks all regions, and that what is kept of them fits @room bytes. */
static int check_all(const struct job_heap *h, const uint8_t *payload, uint32_t length,
		     const struct far_extent *target, uint64_t room, uint16_t *status)
{
	size_t at = WIRE_JOB_EVACUATE_SIZE;
	uint64_t keep[TABLET_WORDS], bytes = 0;
	struct job_region *region;
	struct wire_job_bits b;
	int r;

	while ((r = wire_next_job_bits(payload, length, &at, 1, &b)) > 0 && *status == WIRE_OK) {
		*status = check(h, &b, target, keep, &region);
		if (*status == WIRE_OK)
			bytes += tablet_bytes(keep, region->slots, region->slot_bytes);
	}
	if (*status == WIRE_OK && bytes > room)
		*status = WIRE_BAD_REGION;
	return r < 0 ? r : 0;
}

/* Copies a region, unless JOB_BYTES are @seen with it; returns false if it does not. */
static bool copy(struct job_heap *h, const struct wire_job_bits *b, const struct far_extent *target,
		 uint8_t *to, uint64_t *seen, struct wire_job_evacuated *done, uint16_t *status)
{
	uint64_t keep[TABLET_WORDS];
	struct job_region *r;
	const uint8_t *from;

	if (check(h, b, target, keep, &r) != WIRE_OK)
		return false;
	from = job_region_memory(h, r);
	if (!from)
		*status = WIRE_STALE;
	*seen += tablet_bytes(r->live, r->slots, r->slot_bytes);
	if (!from || (done->regions && *seen > JOB_BYTES))
		return false;
	done->bytes += pack_region(to + done->bytes, from, r->live, keep, r->slots, r->slot_bytes,
				   &done->crc);
	done->regions++;
	return true;
}

int job_evacuate(struct job_heap *h, const uint8_t *payload, uint32_t length,
		 struct wire_job_evacuated *done, uint16_t *status)
{
	size_t at = WIRE_JOB_EVACUATE_SIZE;
	struct wire_job_evacuate e;
	struct far_extent target;
	struct wire_job_bits b;
	uint64_t seen = 0;
	uint8_t *memory;
	int r;

	if (wire_parse_job_evacuate(payload, length, &e))
		return -EPROTO;
	target = (struct far_extent){ e.arena, e.class, e.at, e.generation };
	*done = (struct wire_job_evacuated){ .job = e.job, .crc = e.crc };
	*status = far_cycle_runs(&h->cycle) ? WIRE_CYCLE_RUNS :
					      far_extent_memory(h->member, &target, &memory);
	if (*status != WIRE_OK)
		return 0;
	if (e.base % TABLET_GRANULE || e.base > ebb_far_bytes(e.class)) {
		*status = WIRE_BAD_REGION;
		return 0;
	}
	r = check_all(h, payload, length, &target, ebb_far_bytes(e.class) - e.base, status);
	if (r || *status != WIRE_OK)
		return r;
	while (wire_next_job_bits(payload, length, &at, 1, &b) > 0 &&
	       copy(h, &b, &target, memory + e.base, &seen, done, status))
		;
	h->jobs->counts.evacuated += done->bytes;
	return 0;
}
