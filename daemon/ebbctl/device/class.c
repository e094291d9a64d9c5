// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "class.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"
#include "lib/base/files.h"
#include <ebb/page.h>
#include "lib/base/privilege.h"
#include "teardown.h"
#include "kmoddev.h"
#include "lib/kmod/settle.h"
#include "ebbctl/process.h"

/* One device, the kernel module and the request. */
struct class_call {
	const struct class_plan *plan;
	struct device_record record;
	struct kmod_link *link;
	struct kmod_view view;      /* of the class */
	struct cgroup_ref cgroup;
};

/* Reads the device, and for @class above 0 the sessions and slabs of that class. */
static int look(struct class_call *c, uint32_t class, struct error *e)
{
	c->view.class = class;
	return kmod_look(c->link, &c->view, e);
}

/* Returns the class of the cgroup itself, or KMOD_NO_CLASS. */
static uint32_t class_of(const struct kmod_device *d, uint64_t cgroup)
{
	for (uint32_t i = 0; i < d->cgroups; i++)
		if (d->cgroup[i].id == cgroup)
			return d->cgroup[i].class;
	return KMOD_NO_CLASS;
}

static bool has_cgroup(const struct kmod_device *d, uint32_t class)
{
	for (uint32_t i = 0; i < d->cgroups; i++)
		if (d->cgroup[i].class == class)
			return true;
	return false;
}

/* Swap-out is attributed to the nearest cgroup of v2 that has the io controller. */
static int check_cgroup(const struct cgroup_ref *c, struct error *e)
{
	char path[PATH_MAX + 32], controllers[256], *save = NULL;

	if (!c->v2)
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "cgroup %.256s: cgroup v1 does not attribute swap-out to cgroups; boot with systemd.unified_cgroup_hierarchy=1",
				 c->rel);
	snprintf(path, sizeof(path), "%s/cgroup.controllers", c->path);
	if (file_read(path, controllers, sizeof(controllers)) > 0)
		for (char *word = strtok_r(controllers, " \n", &save); word;
		     word = strtok_r(NULL, " \n", &save))
			if (!strcmp(word, "io"))
				return 0;
	return fail_exit(e, EXIT_REFUSED, EINVAL,
			 "cgroup %.256s: no io controller, so the kernel attributes its swap-out to its parent; enable io in the parent's cgroup.subtree_control",
			 c->rel);
}

/* Disconnects donors of a class without cgroups, except those with the only copy of a page. */
static int retire(struct class_call *c, uint32_t class, struct error *e)
{
	int r = look(c, class, e);

	for (uint32_t i = 0; !r && i < c->view.now.sessions; i++)
		kmod_disconnect(c->link, c->view.device, c->view.now.session[i].number, NULL);
	return r ? r : look(c, class, e);
}

static enum kmod_seal seal_of(const struct kmod_device *d, uint32_t class)
{
	return d->sealed & 1u << class ? KMOD_SEALED : KMOD_PLAIN;
}

/* Fixed at creation, because swapped-out pages stay as they are; default: the device's. */
static enum kmod_seal wanted_seal(const struct class_call *c)
{
	if (!c->plan->seal)
		return seal_of(&c->view.now, 0);
	return !strcmp(c->plan->seal, "on") ? KMOD_SEALED : KMOD_PLAIN;
}

/* Picks a class for the cgroup: its own, an unused one, or a new one. */
static int pick_class(struct class_call *c, uint32_t *class, struct error *e)
{
	const struct kmod_device *d = &c->view.now;
	int r = look(c, 0, e);
	uint32_t fresh = 0;

	if (r)
		return r;
	*class = class_of(d, c->cgroup.id);
	if (*class != KMOD_NO_CLASS && *class) {
		if (!c->plan->seal || seal_of(d, *class) == wanted_seal(c))
			return 0;
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "cgroup %.256s: --seal cannot change; remove its class with --remove first",
				 c->cgroup.rel);
	}
	for (*class = 1; !r && *class < EBB_SWAP_CLASSES; ++*class) {
		if (!d->copies[*class])
			fresh = fresh ?: *class;
		else if (!has_cgroup(d, *class))
			r = retire(c, *class, e);
		if (!r && d->copies[*class] && !has_cgroup(d, *class) && !d->sessions &&
		    seal_of(d, *class) == wanted_seal(c))
			return 0;
	}
	*class = fresh;
	if (!r && !fresh)
		r = fail_exit(e, EXIT_REFUSED, ENOSPC,
			      "device %s: all %d classes are in use; remove one with --remove",
			      c->record.name, EBB_SWAP_CLASSES - 1);
	return r;
}

/* Sets bits of enum ebb_swap_copy; without donors, the backup only. */
static int pick_copies(const struct class_call *c, uint32_t *copies, struct error *e)
{
	const struct class_plan *o = c->plan;
	bool disk = *c->record.backup && (!o->durability || !strcmp(o->durability, "disk"));
	bool two = o->durability && !strcmp(o->durability, "replicas=2");

	if (o->durability && !strcmp(o->durability, "disk") && !*c->record.backup)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: no backup; use --durability none, or create the device with --backup",
				 c->record.name);
	if (!o->donors.n && !disk)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: no donors given; give --donors rdma:HOST[:PORT],...%s",
				 c->record.name, *c->record.backup ? ", or --durability disk" : "");
	*copies = (o->donors.n ? EBB_SWAP_DONOR : 0) | (two ? EBB_SWAP_SECOND : 0) |
		  (disk ? EBB_SWAP_BACKUP : 0);
	return 0;
}

/* Connects the given donors and those that the class has. */
static int connect_donors(struct class_call *c, struct error *e)
{
	struct device_record given = c->record;
	int r;

	*given.donor = '\0';
	r = kmoddev_donors(&c->plan->donors, &given, e);
	if (r)
		return r;
	c->view.donors = c->view.given = kmod_donors_of(given.donor, c->view.donor);
	if (c->plan->durability && !strcmp(c->plan->durability, "replicas=2") && c->view.given < 2)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: replicas=2 needs 2 donors, got 1; name more with --donors",
				 c->record.name);
	return kmoddev_settle(c->link, &c->record, &c->view, e);
}

static void put_class(struct json_object *o, const struct class_call *c, uint32_t class,
		      uint32_t copies)
{
	char text[DEVICE_DONORS * (KMOD_DONOR_TEXT + 1)] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < c->view.now.sessions; i++) {
		struct kmod_donor donor;

		if (c->view.now.session[i].state != EBB_SWAP_LIVE)
			continue;
		kmod_donor_of(&c->view.now.session[i], &donor);
		if (len < sizeof(text))
			len += snprintf(text + len, sizeof(text) - len, "%s%s", len ? "," : "",
					donor.text);
	}
	json_add_int(o, "class", class);
	json_add_text(o, "durability", kmod_durability(copies));
	json_add_bool(o, "sealed", seal_of(&c->view.now, class) == KMOD_SEALED);
	json_add_text(o, "donors", *text ? text : NULL);
}

/* Assigns the cgroup last: its pages arrive from then on and need donors. */
static int give(struct class_call *c, struct json_object *answer, struct error *e)
{
	uint32_t class = 0, copies = 0;
	int r = check_cgroup(&c->cgroup, e);

	if (!r)
		r = pick_copies(c, &copies, e);
	if (!r)
		r = pick_class(c, &class, e);
	if (!r)
		r = kmod_class(c->link, c->view.device, class, copies,
			       c->view.now.copies[class] ? seal_of(&c->view.now, class) :
							   wanted_seal(c),
			       e);
	if (r)
		return r;
	c->view.class = class;
	if (c->plan->donors.n)
		r = connect_donors(c, e);
	if (!r)
		r = kmod_assign(c->link, c->view.device, c->cgroup.id, class, e);
	if (!r)
		r = look(c, class, e);
	else if (!has_cgroup(&c->view.now, class))
		retire(c, class, NULL);
	if (r)
		return r;
	json_add_text(answer, "cgroup", c->cgroup.rel);
	put_class(answer, c, class, copies);
	return 0;
}

static int no_class(const struct class_call *c, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, ENOENT,
			 "cgroup %.256s: no class of its own on device %s; see \"ebbctl device class %s\"",
			 c->cgroup.rel, c->record.name, c->record.name);
}

static int take_back(struct class_call *c, struct json_object *answer, struct error *e)
{
	uint32_t class;
	int r = look(c, 0, e);

	if (r)
		return r;
	class = class_of(&c->view.now, c->cgroup.id);
	if (class == KMOD_NO_CLASS)
		return no_class(c, e);
	r = kmod_assign(c->link, c->view.device, c->cgroup.id, KMOD_NO_CLASS, e);
	if (!r)
		r = look(c, class, e);
	if (!r && class && !has_cgroup(&c->view.now, class))
		r = retire(c, class, e);
	json_add_text(answer, "cgroup", c->cgroup.rel);
	json_add_bool(answer, "removed", true);
	return r;
}

struct named {
	uint64_t id;
	const char *mount;
	char rel[PATH_MAX];
};

static int is_it(const char *dir, void *data)
{
	struct named *n = data;
	struct stat st;

	if (stat(dir, &st) || st.st_ino != n->id)
		return 0;
	snprintf(n->rel, sizeof(n->rel), "%s", dir + strlen(n->mount));
	return 1;
}

/* Adds the cgroup's path, or its number when it does not exist. */
static void put_cgroup(struct json_object *row, uint64_t id)
{
	struct named n = { .id = id, .mount = cgroup_memory_mount(NULL) ?: "" };

	if (cgroup_each(is_it, &n) != 1)
		snprintf(n.rel, sizeof(n.rel), "%llu", (unsigned long long)id);
	json_add_text(row, "cgroup", *n.rel ? n.rel : "/");
}

static int list(struct class_call *c, struct json_object *answer, struct error *e)
{
	struct json_object *rows = json_object_new_array();
	int r = look(c, 0, e);
	uint32_t cgroups = r ? 0 : c->view.now.cgroups;

	json_object_object_add(answer, "classes", rows);
	if (!r && c->cgroup.id && class_of(&c->view.now, c->cgroup.id) == KMOD_NO_CLASS)
		return no_class(c, e);
	for (uint32_t i = 0; !r && i < cgroups && i < c->view.now.cgroups; i++) {
		struct json_object *row;
		uint32_t class = c->view.now.cgroup[i].class;
		uint64_t live = 0, mapped = 0;

		if (c->cgroup.id && c->view.now.cgroup[i].id != c->cgroup.id)
			continue;
		row = json_object_new_object();
		json_object_array_add(rows, row);
		put_cgroup(row, c->view.now.cgroup[i].id);
		r = look(c, class, e);
		for (uint32_t j = 0; !r && j < c->view.slab_count; j++) {
			live += c->view.slabs[j].written;
			mapped += (c->view.slabs[j].session != KMOD_NO_SESSION) +
				  (c->view.slabs[j].second != KMOD_NO_SESSION);
		}
		put_class(row, c, class, c->view.now.copies[class]);
		json_add_int(row, "live", (int64_t)live * EBB_PAGE);
		json_add_int(row, "mapped", (int64_t)(mapped * c->view.now.slab));
	}
	return r;
}

static int open_device(struct class_call *c, const char *name, struct error *e)
{
	int r = need_root("device class", e);

	if (!r)
		r = device_record_read(name, &c->record, e);
	if (!r && !kmoddev_is(&c->record))
		r = fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
			      "device %s: only kernel-module devices have classes; create it with --frontend kmod", name);
	c->view.device = r ? 0 : kmoddev_number(&c->record);
	c->view.size = c->record.size;
	c->view.key_file = c->record.key;
	return r ? r : kmod_open(&c->link, e);
}

typedef int class_action(struct class_call *c, struct json_object *answer, struct error *e);

/* Calls @what with the locked device @name and, unless NULL, @cgroup. */
static int with_device(const char *name, const char *cgroup, const struct class_plan *plan,
		       class_action *what, struct json_object *answer, struct error *e)
{
	struct class_call *c = calloc(1, sizeof(*c));
	int lock = -1, r;

	if (!c)
		return fail(e, ENOMEM, "device class: out of memory");
	c->plan = plan;
	r = open_device(c, name, e);
	if (!r && cgroup)
		r = cgroup_resolve(cgroup, &c->cgroup, e);
	if (!r) {
		process_defer_signals();
		lock = device_lock(PATIENCE_UNTIL_INTERRUPTED, e);
		r = lock < 0 ? lock : 0;
	}
	json_add_text(answer, "device", name);
	if (!r)
		r = what(c, answer, e);
	if (lock >= 0)
		close(lock);
	kmod_close(&c->link);
	kmod_view_free(&c->view);
	free(c);
	return r;
}

int device_class_set(const char *device, const char *cgroup, const struct class_plan *plan,
		     struct json_object *answer, struct error *e)
{
	return with_device(device, cgroup, plan, give, answer, e);
}

int device_class_remove(const char *device, const char *cgroup, struct json_object *answer,
			struct error *e)
{
	return with_device(device, cgroup, NULL, take_back, answer, e);
}

int device_class_list(const char *device, const char *cgroup, struct json_object *answer,
		      struct error *e)
{
	return with_device(device, cgroup, NULL, list, answer, e);
}
