// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ebbctl/process.h"
#include "lib/base/process_run.h"
#include "kmoddev.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/wire/key.h"

/* ns: longest delay of an interrupt; slabs go to the donors connected by then. */
#define ROUND 5000000000ull
#define BUSY_MS 5000
#define SECTOR 512

_Static_assert(EBB_SWAP_KEY == KEY_BYTES && EBB_SWAP_KEY_NUMBER == KEY_NUMBER, "a key of a file");

bool kmoddev_is(const struct device_record *d)
{
	return !strcmp(d->frontend, KMOD_FRONTEND);
}

unsigned int kmoddev_number(const struct device_record *d)
{
	unsigned int n = EBB_SWAP_DEVICES;

	sscanf(d->block, "/dev/ebb%u", &n);
	return n;
}

bool kmoddev_there(const struct device_record *d)
{
	char path[64];

	/* Not by netlink, which not every user who may list devices can use. */
	snprintf(path, sizeof(path), "/sys/block/ebb%u/size", kmoddev_number(d));
	return (uint64_t)file_number(path, -1) == d->size / SECTOR;
}

/* --- device number ------------------------------------------------------------------ */

static int is_trace(const struct dirent *entry)
{
	const char *dot = strrchr(entry->d_name, '.');

	return dot && (!strcmp(dot, ".json") || !strcmp(dot, ".partial"));
}

/* Returns whether the record or intent of a device has @block. */
static bool recorded(const char *block)
{
	struct dirent **entries;
	bool found = false;
	int n = scandir(ebb_device_dir(), &entries, is_trace, NULL);

	for (int i = 0; i < n; i++) {
		char path[2 * PATH_MAX], text[4 * PATH_MAX];
		struct json_object *o = NULL;

		snprintf(path, sizeof(path), "%s/%s", ebb_device_dir(), entries[i]->d_name);
		if (file_read(path, text, sizeof(text)) > 0)
			o = json_tokener_parse(text);
		found |= o && !strcmp(json_text(o, "block", ""), block);
		json_object_put(o);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	return found;
}

static bool is_free(unsigned int n, char *block, size_t size)
{
	char path[64];

	snprintf(block, size, "/dev/ebb%u", n);
	snprintf(path, sizeof(path), "/sys/block/ebb%u", n);
	return access(path, F_OK) < 0 && !recorded(block);
}

static int pick_number(const char *name, struct device_record *d, struct error *e)
{
	unsigned int n;
	char rest;

	/* Prefer /dev/ebb3 for ebb3. */
	if (sscanf(name, "ebb%2u%c", &n, &rest) == 1 && n < EBB_SWAP_DEVICES &&
	    is_free(n, d->block, sizeof(d->block)))
		return 0;
	for (n = 0; n < EBB_SWAP_DEVICES; n++)
		if (is_free(n, d->block, sizeof(d->block)))
			return 0;
	return fail_exit(e, EXIT_REFUSED, ENOSPC,
			 "device %s: all %d devices of the kernel module are in use; destroy one", name,
			 EBB_SWAP_DEVICES);
}

/* --- the plan ----------------------------------------------------------------------- */

static int check_module(struct error *e)
{
	struct kmod_link *l = NULL;
	int r = kmod_open(&l, e);

	kmod_close(&l);
	return r;
}

static int check_options(const char *name, const struct device_plan *plan, struct error *e)
{
	bool disk = !strcmp(plan->durability, "disk"), two = !strcmp(plan->durability, "replicas=2");

	if (plan->extras.connections)
		return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
				 "device %s: the kernel module has a connection for each queue; leave out --connections, or use another --frontend",
				 name);
	if (plan->extras.overcommit)
		return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
				 "device %s: the kernel module reserves no capacity at donors; leave out --overcommit",
				 name);
	if (!disk && !two && strcmp(plan->durability, "none"))
		return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
				 "device %s: --frontend kmod supports at most two replicas; use --durability replicas=2, disk or none, or another --frontend",
				 name);
	if (disk && !plan->backup)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --frontend kmod requires a block device as backup; give --backup /dev/..., or --durability replicas=2 or none",
				 name);
	if (!disk && plan->backup)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --backup requires --durability disk, not %s; drop it", name,
				 plan->durability);
	if (plan->slab & (plan->slab - 1) || plan->size % plan->slab)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --slab must be a power of two, and --size a multiple of it",
				 name);
	return 0;
}

/* Checks that the backup holds no data other than the swap area of an ebb device. */
static int check_content(const char *path, struct error *e)
{
	const char *const blkid[] = { "blkid", "-p", "-o", "full", path, NULL };
	char said[1024] = "";
	bool known = !process_run(blkid, said, sizeof(said), NULL);

	said[strcspn(said, "\n")] = '\0';
	/* blkid prints nothing for an empty device, else a type or an error. */
	if (!known && *said)
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "backup %s: unknown contents (%.200s); run \"wipefs -a %s\" if they are not needed",
				 path, said, path);
	if ((!strstr(said, " TYPE=\"") && !strstr(said, " PTTYPE=\"")) ||
	    (strstr(said, " TYPE=\"swap\"") && strstr(said, " LABEL=\"ebb-")))
		return 0;
	return fail_exit(e, EXIT_REFUSED, EEXIST,
			 "backup %s: not empty (%.200s); run \"wipefs -a %s\" if the contents are not needed", path,
			 strchr(said, ' ') + 1, path);
}

static int check_backup(const struct device_plan *plan, struct error *e)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	if (!plan->backup)
		return 0;
	if (strlen(plan->backup) >= EBB_SWAP_PATH)
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "backup %.64s...: path too long; give a shorter one",
				 plan->backup);
	if (stat(plan->backup, &st) < 0 || !S_ISBLK(st.st_mode))
		return fail_exit(e, EXIT_USAGE, ENOTBLK,
				 "backup %s: not a block device; with --frontend kmod give a partition or volume as large as the device",
				 plan->backup);
	fd = open(plan->backup, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == EPERM)
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "backup %s: not permitted in this unit; add DeviceAllow=%s rw in a drop-in of ebb-device@.service",
				 plan->backup, plan->backup);
	if (fd < 0)
		return fail(e, errno, "backup %s: cannot open: %s", plan->backup, strerror(errno));
	return check_content(plan->backup, e);
}

static int add_donor(const char *text, struct device_record *d, int *n, struct error *e)
{
	struct kmod_donor donor, before[DEVICE_DONORS];
	size_t len = strlen(d->donor);
	int r = kmod_donor_parse(text, "--donors", &donor, e);

	if (r)
		return r;
	for (int i = kmod_donors_of(d->donor, before) - 1; i >= 0; i--)
		if (!strcmp(before[i].text, donor.text))
			return fail_exit(e, EXIT_USAGE, EEXIST, "--donors: %s given twice; drop one", text);
	if (++*n > DEVICE_DONORS)
		return fail_exit(e, EXIT_USAGE, E2BIG,
				 "--donors: too many; give at most %d", DEVICE_DONORS);
	snprintf(d->donor + len, sizeof(d->donor) - len, "%s%s", len ? "," : "", donor.text);
	return 0;
}

int kmoddev_donors(const struct option_list *given, struct device_record *d, struct error *e)
{
	int n = 0, r = 0;

	for (int i = 0; !r && i < given->n; i++) {
		const char *list = given->v[i];

		while (!r && *list) {
			size_t skip = strspn(list, ", "), len = strcspn(list + skip, ", ");
			char one[128];

			snprintf(one, sizeof(one), "%.*s", (int)len, list + skip);
			list += skip + len;
			r = len ? add_donor(one, d, &n, e) : 0;
		}
	}
	if (!r && given->n && !n)
		r = fail_exit(e, EXIT_USAGE, EINVAL, "--donors: empty; give rdma:HOST[:PORT],...");
	return r;
}

static int check_donors(const char *name, const struct device_plan *plan, struct device_record *d,
			struct error *e)
{
	struct kmod_donor donors[DEVICE_DONORS];
	int r;

	strcpy(d->donors_from, "command");
	if (!plan->donors.n)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: no donors given; with --frontend kmod give --donors rdma:HOST[:PORT],...",
				 name);
	r = kmoddev_donors(&plan->donors, d, e);
	if (!r && !strcmp(plan->durability, "replicas=2") && kmod_donors_of(d->donor, donors) < 2)
		r = fail_exit(e, EXIT_USAGE, EINVAL,
			      "device %s: replicas=2 needs 2 donors, got 1; name more with --donors",
			      name);
	return r;
}

static int check_key(const char *name, const struct device_record *d, struct error *e)
{
	struct key key;
	int r;

	if (!strcmp(d->key, "none"))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: RDMA requires a key; pass --key FILE", name);
	r = key_load_own(&key, d->key, e);
	if (!r)
		key_forget(&key);
	return r;
}

int kmoddev_plan(const char *name, const struct device_plan *plan, struct device_record *d,
		 struct error *e)
{
	int r = check_options(name, plan, e);

	if (!r)
		r = check_key(name, d, e);
	if (!r)
		r = check_donors(name, plan, d, e);
	if (!r)
		r = check_backup(plan, e);
	if (!r)
		r = check_module(e);
	return r ? r : pick_number(name, d, e);
}

/* --- creation ----------------------------------------------------------------------- */

/* Returns @text without "/dev/ebbN: ": the user knows the device by its name. */
static const char *cause(const char *text)
{
	const char *colon = strstr(text, ": ");

	return colon ? colon + 2 : text;
}

static bool all_connected(const struct kmod_view *v)
{
	return v->now.sessions >= (uint32_t)v->donors;
}

static int check_round(const struct device_record *d, const struct kmod_view *v,
		       const struct kmod_round *round, struct error *e)
{
	for (int i = 0; i < v->donors; i++) {
		int r = round->connected[i];

		/* A donor that rejects us or fails authentication is reachable: report that. */
		if (r == -EACCES || r == -EKEYREJECTED)
			return fail(e, r, "device %s: donor %s: %s", d->name, v->donor[i].text,
				    cause(round->refused[i]));
		if (r < 0)
			return fail(e, r,
				    "device %s: donor %s: cannot connect: %s; start ebb-donord --rdma-kernel there, or name other --donors",
				    d->name, v->donor[i].text, cause(round->refused[i]));
	}
	/* With a backup, slabs move to donors later, when these have capacity. */
	if (round->unplaced && !round->left && all_connected(v) && !*d->backup)
		return fail(e, ENOSPC,
			    "device %s: donors lack capacity for %u of %u slabs; give a smaller --size, more --donors, or a --backup",
			    d->name, round->unplaced, v->slab_count);
	if (round->single && !round->left && all_connected(v))
		return fail(e, ENOSPC,
			    "device %s: donors lack capacity for the second replica of %u of %u slabs; give a smaller --size, or more --donors",
			    d->name, round->single, v->slab_count);
	return 0;
}

int kmoddev_settle(struct kmod_link *l, const struct device_record *d, struct kmod_view *v,
		   struct error *e)
{
	struct kmod_round round;
	bool again, before = false;
	int r;

	do {
		struct error refused = { 0 };

		again = false;
		r = kmod_settle(l, v, ROUND, &round, e);
		if (!r) {
			r = check_round(d, v, &round, &refused);
			/*
			 * ebbd may have mapped slabs of the class concurrently; then the module
			 * refuses.
			 */
			again = r == -ENOSPC && v->class && !before;
			before |= again;
			if (r && !again)
				*e = refused;
		}
		if ((!r || again) && process_interrupted())
			return fail(e, EINTR, "device %s: interrupted; try again", d->name);
	} while (again || (!r && (round.left || !all_connected(v))));
	return r;
}

static int settle(struct kmod_link *l, const struct device_record *d, struct error *e)
{
	struct kmod_view v = { .device = kmoddev_number(d), .size = d->size, .key_file = d->key };
	int r;

	v.donors = kmod_donors_of(d->donor, v.donor);
	r = kmoddev_settle(l, d, &v, e);
	kmod_view_free(&v);
	return r;
}

int kmoddev_make(const struct device_record *d, struct error *e)
{
	struct kmod_settings s = {
		.device = kmoddev_number(d), .size = d->size, .slab = d->slab,
		.backup = *d->backup ? d->backup : NULL,
		.copies = strcmp(d->durability, "replicas=2") ? 0 : EBB_SWAP_DONOR | EBB_SWAP_SECOND,
		.seal = strcmp(d->seal, "off") != 0,
	};
	struct kmod_link *l = NULL;
	struct key key;
	int r = key_load_own(&key, d->key, e);

	if (r)
		return r;
	s.key = key.bytes;
	key_number(&key, s.key_number);
	r = kmod_open(&l, e);
	if (!r)
		r = kmod_create(l, &s, e);
	/* From here on the module owns it. */
	key_forget(&key);
	if (!r)
		r = settle(l, d, e);
	kmod_close(&l);
	return r;
}

int kmoddev_remove(const struct device_record *d, struct error *e)
{
	const struct timespec tick = { .tv_nsec = 50000000 };
	struct kmod_link *l = NULL;
	struct error last = { 0 };
	int r;

	if (!*d->block || !kmoddev_there(d))
		return 0;
	r = kmod_open(&l, e);
	if (r)
		return r;
	r = kmod_destroy(l, kmoddev_number(d), &last);
	/* udev opens every new block device briefly. */
	for (int ms = 0; r == -EBUSY && ms < BUSY_MS; ms += 50) {
		nanosleep(&tick, NULL);
		last = (struct error){ 0 };
		r = kmod_destroy(l, kmoddev_number(d), &last);
	}
	kmod_close(&l);
	return !r || r == -ENODEV ? 0 : fail(e, r, "device %s: %s", d->name, last.text);
}
