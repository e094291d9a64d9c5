// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>

#include "devices.h"
#include "ebbd/kmod/manager.h"
#include "lib/control/device.h"

static int set_device(const struct device_record *r, void *data)
{
	struct { int map; uint32_t index; } *d = data;
	uint32_t dev = r->major << 20 | r->minor, index = ++d->index;

	bpf_map_update_elem(d->map, &dev, &index, BPF_ANY);
	return 0;
}

void devices_refresh(struct ebbd *d)
{
	struct { int map; uint32_t index; } data = { d->plane.devices, 0 };
	uint32_t key;

	while (bpf_map_get_next_key(d->plane.devices, NULL, &key) == 0)
		bpf_map_delete_elem(d->plane.devices, &key);
	device_record_each(set_device, &data);
	if (d->discovery)
		discovery_refresh(d->discovery);
	if (d->kmod)
		kmod_manager_refresh(d->kmod);
}
