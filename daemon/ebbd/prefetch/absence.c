// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "absence.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/base/small_thread.h"
#include "lib/control/control.h"
#include "lib/control/device.h"
#include "lib/kmod/netlink.h"

#define PERIOD_MS 500
#define ANSWER_MS 500
#define SWAP_TYPES 32
#define STACK (512u << 10)   /* locked */

struct absence {
	int devices;            /* maps/devices */
	int wake;               /* eventfd: stop */
	struct kmod_link *link; /* of the thread; NULL = to be opened */
	uint32_t types;
	pthread_t thread;
};

struct look {
	struct absence *absence;
	uint32_t types;
};

/* Asks the module: its answer waits neither for donors nor for the manager's commands. */
static bool waits_in_kernel(struct absence *a, const struct device_record *r)
{
	struct kmod_device d;
	unsigned int number;

	if (sscanf(r->block, "/dev/ebb%u", &number) != 1)
		return false;
	if (!a->link) {
		if (kmod_open(&a->link, NULL))
			return false;
		kmod_limit(a->link, ANSWER_MS);
	}
	if (kmod_status(a->link, number, &d, NULL)) {
		kmod_close(&a->link);
		return false;
	}
	for (uint32_t i = 0; i < d.sessions; i++)
		if (d.session[i].state == EBB_SWAP_AWAY &&
		    !(d.copies[d.session[i].class] & EBB_SWAP_BACKUP))
			return true;
	return false;
}

static bool waits(struct absence *a, const struct device_record *r)
{
	_cleanup_json_ struct json_object *answer = NULL;

	if (!strcmp(r->frontend, "kmod"))
		return waits_in_kernel(a, r);
	answer = control_ask(ebb_device_socket(r->name), "stats", ANSWER_MS);
	return json_object_get_boolean(json_member(answer, "reads_may_wait"));
}

static int look_at(const struct device_record *r, void *data)
{
	uint32_t dev = r->major << 20 | r->minor, type = 0;
	struct look *l = data;

	if (waits(l->absence, r) && !bpf_map_lookup_elem(l->absence->devices, &dev, &type) &&
	    type >= EBB_SWAP_TYPE)
		l->types |= 1u << (type - EBB_SWAP_TYPE) % SWAP_TYPES;
	return 0;
}

static void *run(void *data)
{
	struct absence *a = data;
	struct pollfd wake = { .fd = a->wake, .events = POLLIN };

	pthread_setname_np(pthread_self(), "ebbd-absence");
	while (poll(&wake, 1, PERIOD_MS) <= 0) {
		struct look l = { .absence = a };

		device_record_each(look_at, &l);
		__atomic_store_n(&a->types, l.types, __ATOMIC_RELAXED);
	}
	return NULL;
}

uint32_t absence_types(const struct absence *a)
{
	return __atomic_load_n(&a->types, __ATOMIC_RELAXED);
}

int absence_start(struct absence **out, int devices, struct error *e)
{
	struct absence *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return fail(e, ENOMEM, "thread for absent donors: out of memory");
	a->devices = devices;
	a->wake = eventfd(0, EFD_CLOEXEC);
	r = a->wake < 0 ? errno : small_thread_create(&a->thread, STACK, run, a);
	if (r) {
		if (a->wake >= 0)
			close(a->wake);
		free(a);
		return fail(e, r, "thread for absent donors: cannot start: %s", strerror(r));
	}
	*out = a;
	return 0;
}

void absence_stop(struct absence **pa)
{
	struct absence *a = *pa;
	uint64_t one = 1;

	if (!a)
		return;
	if (write(a->wake, &one, sizeof(one)) < 0)
		log_err("thread for absent donors: cannot stop: %m");
	pthread_join(a->thread, NULL);
	close(a->wake);
	kmod_close(&a->link);
	free(a);
	*pa = NULL;
}
