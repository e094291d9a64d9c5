// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ebbctl device class: cgroups whose pages have donors and copies of their own on a
 * device of the kernel module.  What is told to the module is all there is of it: ebbd,
 * which looks after these donors too, asks the module.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/host/cgroup.h"
#include "lib/control/control.h"
#include "lib/base/files.h"
#include <ebb/page.h>
#include "lib/base/privilege.h"
#include "teardown.h"
#include "kmoddev.h"
#include "lib/kmod/settle.h"
#include "ebbctl/text.h"
#include "ebbctl/run/process.h"
#include "ebbctl/verbs/verbs.h"

struct class_options {
	bool json, remove;
	struct option_list donors;
	const char *durability, *seal;
};

/* One device, the module, and what is wanted of them. */
struct class_call {
	const struct class_options *options;
	struct device_record record;
	struct kmod_link *link;
	struct kmod_care care;      /* of the class it is about */
	struct cgroup_ref cgroup;
};

/* Above 0 the sessions and slabs of c->care.class, too. */
static int look(struct class_call *c, uint32_t class, struct error *e)
{
	c->care.class = class;
	return kmod_look(c->link, &c->care, e);
}

/* The class that the cgroup has by itself, or KMOD_NO_CLASS. */
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

/* Pages tell whose they are on cgroup v2, and of the nearest one that has this controller. */
static int check_cgroup(const struct cgroup_ref *c, struct error *e)
{
	char path[PATH_MAX + 32], controllers[256], *save = NULL;

	if (!c->v2)
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "cgroup %.256s: is of cgroup v1, where pages do not tell theirs; boot with systemd.unified_cgroup_hierarchy=1",
				 c->rel);
	snprintf(path, sizeof(path), "%s/cgroup.controllers", c->path);
	if (file_read(path, controllers, sizeof(controllers)) > 0)
		for (char *word = strtok_r(controllers, " \n", &save); word;
		     word = strtok_r(NULL, " \n", &save))
			if (!strcmp(word, "io"))
				return 0;
	return fail_exit(e, EXIT_REFUSED, EINVAL,
			 "cgroup %.256s: has no io controller, so its pages are taken for its parent's; enable it in the parent's cgroup.subtree_control",
			 c->rel);
}

/* Gives up donors of a class that no cgroup has, as far as nothing is at them alone. */
static int retire(struct class_call *c, uint32_t class, struct error *e)
{
	int r = look(c, class, e);

	for (uint32_t i = 0; !r && i < c->care.now.sessions; i++)
		kmod_disconnect(c->link, c->care.device, c->care.now.session[i].number, NULL);
	return r ? r : look(c, class, e);
}

static enum kmod_seal seal_of(const struct kmod_device *d, uint32_t class)
{
	return d->sealed & 1u << class ? KMOD_SEALED : KMOD_PLAIN;
}

/* A class keeps it for good: pages that are out are as they are.  What is not said is the device's. */
static enum kmod_seal wanted_seal(const struct class_call *c)
{
	if (!c->options->seal)
		return seal_of(&c->care.now, 0);
	return !strcmp(c->options->seal, "on") ? KMOD_SEALED : KMOD_PLAIN;
}

/* A class for the cgroup: its own, one that nobody uses any more, one that is not there yet. */
static int pick_class(struct class_call *c, uint32_t *class, struct error *e)
{
	const struct kmod_device *d = &c->care.now;
	int r = look(c, 0, e);
	uint32_t fresh = 0;

	if (r)
		return r;
	*class = class_of(d, c->cgroup.id);
	if (*class != KMOD_NO_CLASS && *class) {
		if (!c->options->seal || seal_of(d, *class) == wanted_seal(c))
			return 0;
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "cgroup %.256s: whether its pages are sealed cannot change; take it back with --remove first",
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
			      "device %s: its %d classes are in use; take one back with --remove",
			      c->record.name, EBB_SWAP_CLASSES - 1);
	return r;
}

/* enum ebb_swap_copy of the options; without donors pages stay here. */
static int pick_copies(const struct class_call *c, uint32_t *copies, struct error *e)
{
	const struct class_options *o = c->options;
	bool disk = *c->record.backup && (!o->durability || !strcmp(o->durability, "disk"));
	bool two = o->durability && !strcmp(o->durability, "replicas=2");

	if (o->durability && !strcmp(o->durability, "disk") && !*c->record.backup)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: has no backup; use --durability none, or make it with --backup",
				 c->record.name);
	if (!o->donors.n && !disk)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: no donors given; give --donors rdma:HOST[:PORT],...%s",
				 c->record.name, *c->record.backup ? ", or --durability disk" : "");
	*copies = (o->donors.n ? EBB_SWAP_DONOR : 0) | (two ? EBB_SWAP_SECOND : 0) |
		  (disk ? EBB_SWAP_BACKUP : 0);
	return 0;
}

/* The donors that are given, and those that the class has already. */
static int connect_donors(struct class_call *c, struct error *e)
{
	struct device_record given = c->record;
	int r;

	*given.donor = '\0';
	r = kmoddev_donors(&c->options->donors, &given, e);
	if (r)
		return r;
	c->care.donors = c->care.given = kmod_donors_of(given.donor, c->care.donor);
	if (c->options->durability && !strcmp(c->options->durability, "replicas=2") && c->care.given < 2)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: replicas=2 needs as many donors, and there is 1; name more with --donors",
				 c->record.name);
	return kmoddev_settle(c->link, &c->record, &c->care, e);
}

static void put_class(struct json_object *o, const struct class_call *c, uint32_t class,
		      uint32_t copies)
{
	char text[DEVICE_DONORS * (KMOD_DONOR_TEXT + 1)] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < c->care.now.sessions; i++) {
		struct kmod_donor donor;

		if (c->care.now.session[i].state != EBB_SWAP_LIVE)
			continue;
		kmod_donor_of(&c->care.now.session[i], &donor);
		if (len < sizeof(text))
			len += snprintf(text + len, sizeof(text) - len, "%s%s", len ? "," : "",
					donor.text);
	}
	json_add_int(o, "class", class);
	json_add_text(o, "durability", kmod_durability(copies));
	json_add_bool(o, "sealed", seal_of(&c->care.now, class) == KMOD_SEALED);
	json_add_text(o, "donors", *text ? text : NULL);
}

/* Last the cgroup: from then on its pages come, and have somewhere to go. */
static int give(struct class_call *c, struct json_object *answer, struct error *e)
{
	uint32_t class = 0, copies = 0;
	int r = check_cgroup(&c->cgroup, e);

	if (!r)
		r = pick_copies(c, &copies, e);
	if (!r)
		r = pick_class(c, &class, e);
	if (!r)
		r = kmod_class(c->link, c->care.device, class, copies,
			       c->care.now.copies[class] ? seal_of(&c->care.now, class) : wanted_seal(c), e);
	if (r)
		return r;
	c->care.class = class;
	if (c->options->donors.n)
		r = connect_donors(c, e);
	if (!r)
		r = kmod_assign(c->link, c->care.device, c->cgroup.id, class, e);
	if (!r)
		r = look(c, class, e);
	else if (!has_cgroup(&c->care.now, class))
		retire(c, class, NULL);
	if (r)
		return r;
	json_add_text(answer, "cgroup", c->cgroup.rel);
	put_class(answer, c, class, copies);
	return 0;
}

static int take_back(struct class_call *c, struct json_object *answer, struct error *e)
{
	uint32_t class;
	int r = look(c, 0, e);

	if (r)
		return r;
	class = class_of(&c->care.now, c->cgroup.id);
	if (class == KMOD_NO_CLASS)
		return fail_exit(e, EXIT_USAGE, ENOENT,
				 "cgroup %.256s: has no class on device %s; see ebbctl device class %s",
				 c->cgroup.rel, c->record.name, c->record.name);
	r = kmod_assign(c->link, c->care.device, c->cgroup.id, KMOD_NO_CLASS, e);
	if (!r)
		r = look(c, class, e);
	if (!r && class && !has_cgroup(&c->care.now, class))
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

/* Its number, when there is none of it any more. */
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
	uint32_t cgroups = r ? 0 : c->care.now.cgroups;

	json_object_object_add(answer, "classes", rows);
	for (uint32_t i = 0; !r && i < cgroups && i < c->care.now.cgroups; i++) {
		struct json_object *row = json_object_new_object();
		uint32_t class = c->care.now.cgroup[i].class;
		uint64_t live = 0, mapped = 0;

		json_object_array_add(rows, row);
		put_cgroup(row, c->care.now.cgroup[i].id);
		r = look(c, class, e);
		for (uint32_t j = 0; !r && j < c->care.slab_count; j++) {
			live += c->care.slabs[j].written;
			mapped += (c->care.slabs[j].session != KMOD_NO_SESSION) +
				  (c->care.slabs[j].second != KMOD_NO_SESSION);
		}
		put_class(row, c, class, c->care.now.copies[class]);
		json_add_int(row, "live", (int64_t)live * EBB_PAGE);
		json_add_int(row, "mapped", (int64_t)(mapped * c->care.now.slab));
	}
	return r;
}

static const char *sealed(struct json_object *o)
{
	return json_object_get_boolean(json_member(o, "sealed")) ? "yes" : "no";
}

static void print_list(struct json_object *o)
{
	static const struct column columns[] = {
		{ "cgroup", "CGROUP", COLUMN_TEXT }, { "class", "CLASS", COLUMN_COUNT },
		{ "durability", "DURABILITY", COLUMN_TEXT }, { "sealed", "SEALED", COLUMN_TEXT },
		{ "live", "LIVE", COLUMN_BYTES },
		{ "mapped", "LENT", COLUMN_BYTES }, { "donors", "DONORS", COLUMN_TEXT },
		{ NULL },
	};

	struct json_object *rows = json_member(o, "classes");

	for (size_t i = 0; i < json_object_array_length(rows); i++)
		json_add_text(json_object_array_get_idx(rows, i), "sealed",
			      sealed(json_object_array_get_idx(rows, i)));
	output_table(rows, columns, "no cgroup has a class of its own");
}

static void print_given(struct json_object *o)
{
	const char *cgroup = json_text(o, "cgroup", ""), *donors = json_text(o, "donors", NULL);

	if (json_member(o, "removed"))
		printf("cgroup %s: its pages are its parent's again\n", cgroup);
	else
		printf("cgroup %s: class %d, durability %s, sealed: %s, %s\n", cgroup,
		       (int)json_int(o, "class", 0), json_text(o, "durability", ""),
		       sealed(o), donors ?: "on the backup alone");
}

static int open_device(struct class_call *c, const char *name, struct error *e)
{
	int r = need_root("device class", e);

	if (!r)
		r = device_record_read(name, &c->record, e);
	if (!r && !kmoddev_is(&c->record))
		r = fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
			      "device %s: does not see whose a page is; make it with --frontend kmod", name);
	c->care.device = r ? 0 : kmoddev_number(&c->record);
	c->care.size = c->record.size;
	return r ? r : kmod_open(&c->link, e);
}

static int check_words(const struct class_options *o, int argc, struct error *e)
{
	bool told = o->donors.n || o->durability || o->seal;

	if ((argc == 1 && (told || o->remove)) || (told && o->remove))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device class: NAME shows, NAME CGROUP with --donors or --durability sets, with --remove takes back");
	return 0;
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = json_object_new_object();
	struct class_call *c = calloc(1, sizeof(*c));
	const struct class_options *o = options;
	int lock = -1, r = c ? check_words(o, argc, e) : fail(e, ENOMEM, "device class: out of memory");

	if (!c)
		return r;
	c->options = o;
	if (!r)
		r = open_device(c, argv[0], e);
	if (!r && argc == 2)
		r = cgroup_resolve(argv[1], &c->cgroup, e);
	if (!r) {
		process_defer_signals();
		lock = device_lock(PATIENCE_UNTIL_INTERRUPTED, e);
		r = lock < 0 ? lock : 0;
	}
	json_add_text(answer, "device", argv[0]);
	if (!r)
		r = argc == 1 ? list(c, answer, e) : o->remove ? take_back(c, answer, e) :
								   give(c, answer, e);
	if (lock >= 0)
		close(lock);
	kmod_close(&c->link);
	kmod_care_free(&c->care);
	free(c);
	if (!r)
		output(o->json, answer, argc == 1 ? print_list : print_given);
	return r;
}

static const struct option_spec specs[] = {
	OPTION(class_options, donors, "donors", OPTION_LIST, "ADDRESS,...",
	       .help = "who has the cgroup's pages [nobody: they stay on the backup]"),
	OPTION(class_options, durability, "durability", OPTION_STRING, "disk|replicas=2|none",
	       .help = "what keeps a page when its donor is lost [disk, with a backup]"),
	OPTION(class_options, seal, "seal", OPTION_STRING, "on|off",
	       .help = "encrypt pages before they leave, also to the backup [as the device]"),
	OPTION(class_options, remove, "remove", OPTION_FLAG, NULL,
	       .help = "its pages are its parent's again, from now on"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_device_class = {
	.object = "device", .action = "class", .arguments = "NAME [CGROUP]",
	.help = "Gives a cgroup's pages donors and durability of their own",
	.example = "  ebbctl device class ebb0 /spark.slice --durability none \\\n"
		   "      --donors rdma:10.9.0.8:7070\n",
	.options = specs, .options_size = sizeof(struct class_options), .run = run, .min_args = 1,
	.max_args = 2,
};
