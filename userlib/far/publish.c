// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Words by which members find each other, and what the donor has left. */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "lib/rules/far_memory.h"
#include "member.h"

static_assert(EBBFAR_MEMBERS == EBB_FAR_MEMBERS, "one number");

/* Bytes of the records of members. */
#define RECORDS ((uint32_t)(EBB_FAR_MEMBERS * sizeof(struct ebb_far_member)))

static int enter(ebbfar_t *far)
{
	int r = member_check(far);

	if (r)
		return r;
	pthread_mutex_lock(&far->lock);
	r = far->client.lost;
	if (r)
		pthread_mutex_unlock(&far->lock);
	return r;
}

static int leave(ebbfar_t *far, int result)
{
	pthread_mutex_unlock(&far->lock);
	return result;
}

/* Makes sure that arena 0, which has the records, can be accessed. */
static int reach_records(ebbfar_t *far)
{
	int r = member_reach(far, 0);

	return r == -EINVAL ? member_grow(far) : r;
}

static int publish(ebbfar_t *far, uint64_t word)
{
	uint64_t at = ebb_far_published_at(far->member);
	uint8_t payload[sizeof(word)], *base;
	int r = reach_records(far);

	if (r)
		return r;
	put64(payload, word);
	base = member_memory(far, 0);
	if (base) {
		far_copy_in(base, at, payload, sizeof(payload));
		return 0;
	}
	r = client_push(&far->client,
			(struct wire_frame){ .op = WIRE_FAR_WRITE, .offset = (uint32_t)at,
					     .length = sizeof(payload) },
			payload, (struct client_reply){ 0 });
	return r ?: client_settle(&far->client);
}

int ebbfar_publish(ebbfar_t *far, uint64_t word)
{
	int r = enter(far);

	return r ?: leave(far, publish(far, word));
}

static int read_records(ebbfar_t *far, struct ebb_far_member *records)
{
	uint8_t *base = member_memory(far, 0);
	int r;

	if (base) {
		far_copy_out(records, base, EBB_FAR_MEMBERS_AT, RECORDS);
		return 0;
	}
	r = client_push(&far->client,
			(struct wire_frame){ .op = WIRE_FAR_READ, .offset = EBB_FAR_MEMBERS_AT,
					     .length = RECORDS },
			NULL, (struct client_reply){ .length = RECORDS, .to = records });
	return r ?: client_settle(&far->client);
}

int ebbfar_published(ebbfar_t *far, uint64_t words[EBBFAR_MEMBERS])
{
	struct ebb_far_member records[EBB_FAR_MEMBERS] = { 0 };
	int r = enter(far);

	if (r)
		return r;
	r = member_reach(far, 0);
	if (!r)
		r = read_records(far, records);
	/* A pool without memory has no records: its members show nothing. */
	if (leave(far, r) && r != -EINVAL)
		return r;
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS; i++) {
		uint32_t state = le32toh(records[i].state);

		words[i] = state == EBB_FAR_LIVE || state == EBB_FAR_AWAY ?
				   le64toh(records[i].published) : 0;
	}
	return 0;
}

/* --- room ------------------------------------------------------------------------- */

static int ask_donor(ebbfar_t *far, uint8_t *told, uint8_t *list, uint32_t *length)
{
	int r = client_push(&far->client, (struct wire_frame){ .op = WIRE_PING }, NULL,
			    (struct client_reply){ .length = WIRE_DONOR_SIZE, .to = told });

	if (!r)
		r = client_push(&far->client, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL,
				(struct client_reply){
					.length = WIRE_FAR_POOLS * WIRE_FAR_LISTED_SIZE,
					.to = list, .any = true, .got = length });
	return r ?: client_settle(&far->client);
}

int ebbfar_room(ebbfar_t *far, struct ebbfar_memory *room)
{
	uint8_t told[WIRE_DONOR_SIZE], list[WIRE_FAR_POOLS * WIRE_FAR_LISTED_SIZE];
	struct ebbfar_memory now = { .size = room->size };
	struct wire_far_listed l;
	struct wire_donor d;
	uint32_t length = 0;
	int r = enter(far);

	if (r)
		return r;
	r = leave(far, ask_donor(far, told, list, &length));
	if (!r)
		r = wire_parse_donor(told, sizeof(told), &d);
	if (r)
		return r;
	now.total = d.total;
	now.free = d.free;
	now.memory = d.memory;
	now.used = d.used;
	for (uint32_t i = 0; i < length / WIRE_FAR_LISTED_SIZE; i++)
		if (!wire_parse_far_listed(list + (size_t)i * WIRE_FAR_LISTED_SIZE,
					   WIRE_FAR_LISTED_SIZE, &l) &&
		    l.identity == far->identity)
			now.pool = (uint64_t)l.arenas * far->sections * EBB_FAR_SECTION;
	memcpy(room, &now, room->size < sizeof(now) ? room->size : sizeof(now));
	return 0;
}
