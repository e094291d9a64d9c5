// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>

#include "devices.h"
#include "ebbd/kmod/manager.h"
#include "lib/control/device.h"
#include "scopes.h"

struct present {
	uint32_t dev[EBB_MAX_DEVICES], n;
};

static int add(const struct device_record *r, void *data)
{
	struct present *p = data;

	if (p->n == EBB_MAX_DEVICES)
		return 1;
	p->dev[p->n++] = r->major << 20 | r->minor;
	return 0;
}

static bool has(const struct present *p, uint32_t dev)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->dev[i] == dev)
			return true;
	return false;
}

/* Keeps the swap types of devices that are still there. */
static void tell_programs(int map)
{
	struct present present = { .n = 0 };
	uint32_t gone[EBB_MAX_DEVICES], n = 0, key, unknown = 0, *prev = NULL;

	device_record_each(add, &present);
	while (n < EBB_MAX_DEVICES && bpf_map_get_next_key(map, prev, &key) == 0) {
		if (!has(&present, key))
			gone[n++] = key;
		prev = &key;
	}
	while (n)
		bpf_map_delete_elem(map, &gone[--n]);
	for (uint32_t i = 0; i < present.n; i++)
		bpf_map_update_elem(map, &present.dev[i], &unknown, BPF_NOEXIST);
}

void devices_refresh(struct ebbd *d)
{
	tell_programs(d->plane.devices);
	if (d->discovery)
		discovery_refresh(d->discovery);
	if (d->kmod)
		kmod_manager_refresh(d->kmod);
	/* A new device has limits since before it had a record. */
	if (d->scopes)
		scopes_wake(d->scopes);
}
