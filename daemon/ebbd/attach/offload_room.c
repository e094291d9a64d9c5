// SPDX-License-Identifier: GPL-2.0-or-later
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "offload_room.h"

#define LOOK_NS 1000000000ULL
/* Pause after a donor was lost, in which its slabs get new donors. */
#define QUIET_NS 30000000000ULL
#define MARGIN 16               /* 1 / this of a device stays free for the kernel's own reclaim */
#define ANSWER_MS 500

struct found {
	char block[OFFLOAD_DEVICES][64];
	char name[OFFLOAD_DEVICES][DEVICE_NAME_MAX];
	uint32_t n;
};

/* /dev/ebb0 may be listed as "/ebb0" if a unit's ebbctl switched it on (swaps.c of ebbctl). */
static bool is_listed(const char *block, const char *path)
{
	return !strcmp(path, block) ||
	       (!strncmp(block, "/dev/", 5) && !strcmp(path, block + 4));
}

uint64_t offload_room_parse(const char *swaps, const char (*block)[64], uint32_t n)
{
	uint64_t room = 0, size, used;
	int top = INT_MIN, priority;
	bool foreign = false;
	char path[256];

	for (const char *line = strchr(swaps, '\n'); line && line[1];
	     line = strchr(line + 1, '\n')) {
		bool ours = false;

		if (sscanf(line + 1, "%255s %*s %lu %lu %d", path, &size, &used, &priority) != 4)
			continue;
		for (uint32_t i = 0; i < n; i++)
			ours |= is_listed(block[i], path);
		used += size / MARGIN;
		if (used >= size || priority < top)
			continue;
		if (priority > top) {
			room = 0;
			foreign = false;
		}
		top = priority;
		foreign |= !ours;
		room += (size - used) << 10;
	}
	return foreign ? 0 : room;
}

static int add(const struct device_record *d, void *data)
{
	struct found *f = data;

	if (f->n == OFFLOAD_DEVICES)
		return 1;
	snprintf(f->block[f->n], sizeof(f->block[0]), "%s", d->block);
	snprintf(f->name[f->n], sizeof(f->name[0]), "%s", d->name);
	f->n++;
	return 0;
}

/* Returns donors lost or away plus pages that no donor took, so far; -1 without an answer. */
static int64_t troubles(const char *name)
{
	_cleanup_json_ struct json_object *answer =
		control_ask(ebb_device_socket(name), "stats", ANSWER_MS);

	return answer ? json_int(answer, "donor_losses", 0) +
			json_int(answer, "donor_absences", 0) +
			json_int(answer, "pages_written_backup_only", 0) : -1;
}

static bool in_trouble(struct offload_room *r, const struct found *f)
{
	bool trouble = false;

	for (uint32_t i = 0; i < f->n; i++) {
		struct offload_device *d = &r->device[i];
		int64_t n = troubles(f->name[i]);

		if (n < 0)
			continue;
		if (strcmp(d->name, f->name[i]))
			snprintf(d->name, sizeof(d->name), "%s", f->name[i]);
		else
			trouble |= (uint64_t)n > d->troubles;
		d->troubles = (uint64_t)n;
	}
	return trouble;
}

void offload_room_look(struct offload_room *r, uint64_t now_ns)
{
	struct found f = { .n = 0 };
	char swaps[4096];

	if (r->looked_ns && now_ns - r->looked_ns < LOOK_NS)
		return;
	r->looked_ns = now_ns;
	device_record_each(add, &f);
	if (in_trouble(r, &f))
		r->quiet_ns = now_ns + QUIET_NS;
	if (file_read("/proc/swaps", swaps, sizeof(swaps)) < 0)
		*swaps = '\0';
	r->bytes = offload_room_parse(swaps, f.block, f.n);
	r->why = OFFLOAD_NO_ROOM;
	if (now_ns < r->quiet_ns) {
		r->bytes = 0;
		r->why = OFFLOAD_DONOR_LOST;
	}
}
