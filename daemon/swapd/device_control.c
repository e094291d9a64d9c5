// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/control.h"
#include "common/files.h"
#include "common/paths.h"
#include "device_control.h"
#include "fuse_file.h"
#include "swapd.h"

#define STACK (512u << 10)
#define LOG_INTERVAL_MS 200

static void add_int(struct json_object *o, const char *key, uint64_t v)
{
	json_object_object_add(o, key, json_object_new_int64((int64_t)v));
}

static void add_text(struct json_object *o, const char *key, const char *v)
{
	json_object_object_add(o, key, json_object_new_string(v));
}

static void add_bool(struct json_object *o, const char *key, bool v)
{
	json_object_object_add(o, key, json_object_new_boolean(v));
}

static struct json_object *slabs_json(const struct swapd *s)
{
	static const char *const names[SLAB_STATES] = {
		[SLAB_UNMAPPED] = "unmapped",
		[SLAB_MAPPING] = "mapping",
		[SLAB_MAPPED] = "mapped",
		[SLAB_LOST] = "lost",
	};
	struct json_object *o = json_object_new_object();

	add_int(o, "total", s->table.count);
	for (int i = 0; i < SLAB_STATES; i++)
		add_int(o, names[i], slab_count(&s->table, i, -1));
	return o;
}

static struct json_object *donors_json(const struct swapd *s)
{
	struct json_object *list = json_object_new_array();

	for (int i = 0; i < s->donor_count; i++) {
		const struct donor *d = &s->donors[i];
		struct json_object *o = json_object_new_object();
		uint8_t state = __atomic_load_n(&d->state, __ATOMIC_RELAXED);

		add_text(o, "address", d->address.text);
		add_text(o, "transport", d->transport->name);
		add_text(o, "state", donor_state_text(state));
		add_int(o, "total", count_get(&d->total));
		add_int(o, "free", count_get(&d->free));
		add_int(o, "slabs", slab_count(&s->table, SLAB_MAPPED, i));
		add_int(o, "connects", d->connects);
		add_int(o, "losses", d->losses);
		if (d->losses)
			add_text(o, "last_loss", d->why);
		json_object_array_add(list, o);
	}
	return list;
}

static struct json_object *backup_json(const struct swapd *s)
{
	struct json_object *o = json_object_new_object();

	add_text(o, "path", s->backup.path);
	add_bool(o, "direct", s->backup.direct);
	add_bool(o, "failing", count_get(&s->count->backup_errors) > 0);
	add_int(o, "errors", count_get(&s->count->backup_errors));
	add_int(o, "queue", backup_queued(&s->backup));
	return o;
}

static void status(const struct swapd *s, struct json_object *a)
{
	char file[PATH_MAX];

	snprintf(file, sizeof(file), "%s/" FUSE_FILE_NAME, s->options.mount);
	add_text(a, "name", s->options.name);
	add_int(a, "pid", (uint64_t)getpid());
	add_text(a, "file", file);
	add_text(a, "mount", s->options.mount);
	add_int(a, "size", (uint64_t)s->pages * PAGE);
	add_int(a, "slab", s->options.slab);
	add_int(a, "open", __atomic_load_n(&s->opened, __ATOMIC_RELAXED));
	add_int(a, "fuse_connection", s->connection);
	add_bool(a, "aborted", __atomic_load_n(&s->shared->aborted, __ATOMIC_RELAXED));
	add_bool(a, "watchdog", s->watchdog_works);
	add_int(a, "watchdog_ms", s->options.watchdog / 1000000);
	add_int(a, "deadline_ms", s->options.deadline / 1000000);
	add_bool(a, "io_flusher", s->io_flusher);
	add_bool(a, "locked", s->locked);
	add_bool(a, "oom_protected", s->oom_protected);
	add_bool(a, "nice", s->nice);
	add_bool(a, "realtime", s->realtime);
	json_object_object_add(a, "backup", backup_json(s));
	json_object_object_add(a, "slabs", slabs_json(s));
	json_object_object_add(a, "donors", donors_json(s));
}

static void stats(const struct swapd *s, struct json_object *a)
{
	const struct counters *c = s->count;
	struct json_object *histogram = json_object_new_array();
	const struct { const char *key; uint64_t value; } list[] = {
		{ "requests", count_get(&c->received) },
		{ "read_requests", count_get(&c->read_requests) },
		{ "write_requests", count_get(&c->write_requests) },
		{ "pages_read_donor", count_get(&c->read_donor) },
		{ "pages_read_backup", count_get(&c->read_backup) },
		{ "pages_read_zero", count_get(&c->read_zero) },
		{ "pages_read_failed", count_get(&c->read_failed) },
		{ "pages_written_donor", count_get(&c->written_donor) },
		{ "pages_written_backup_only", count_get(&c->written_backup_only) },
		{ "pages_write_failed", count_get(&c->write_failed) },
		{ "bytes_read_donor", count_get(&c->read_donor) * PAGE },
		{ "bytes_read_backup", count_get(&c->read_backup) * PAGE },
		{ "bytes_written_donor", count_get(&c->written_donor) * PAGE },
		{ "conflicts", count_get(&c->conflicts) },
		{ "donor_losses", count_get(&c->donor_losses) },
		{ "donor_errors", count_get(&c->donor_errors) },
		{ "late_replies", count_get(&c->late_replies) },
		{ "backup_errors", count_get(&c->backup_errors) },
		{ "backup_queue", backup_queued(&s->backup) },
		{ "fuse_errors", count_get(&c->fuse_errors) },
		{ "slab_maps", count_get(&c->maps) },
		{ "slab_map_refusals", count_get(&c->map_refusals) },
		{ "slab_map_failures", count_get(&c->map_failures) },
		{ "slabs_mapped", slab_count(&s->table, SLAB_MAPPED, -1) },
		{ "waiting", count_get(&c->received) - count_get(&c->completed) },
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
		add_int(a, list[i].key, list[i].value);
	add_bool(a, "io_flusher", s->io_flusher);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		json_object_array_add(histogram,
				      json_object_new_int64((int64_t)count_get(&c->latency[i])));
	/* [i]: donor reads that took 2^i .. 2^(i+1)-1 ns. */
	json_object_object_add(a, "donor_read_ns_log2", histogram);
	json_object_object_add(a, "donors", donors_json(s));
}

static int handle(void *data, const char *verb, struct json_object *request,
		  struct json_object *answer, struct error *e)
{
	struct swapd *s = data;

	if (!strcmp(verb, "status"))
		status(s, answer);
	else if (!strcmp(verb, "stats"))
		stats(s, answer);
	else
		return fail_exit(e, EXIT_USAGE, EINVAL, "%s: unknown verb; use status or stats", verb);
	return 0;
}

/* The loop goes on serving meanwhile: umount(2) may need it. */
static void try_to_stop(struct swapd *s)
{
	if (umount2(s->options.mount, UMOUNT_NOFOLLOW) == 0)
		return;
	log_warn("device %s: not stopped: %s is %s; swapoff, losetup -d, then try again",
		 s->options.name, s->options.mount, errno == EBUSY ? "in use" : strerror(errno));
}

static void *control_main(void *data)
{
	struct device_control *c = data;
	struct swapd *s = c->s;
	struct pollfd p[] = {
		{ .fd = c->listen_fd, .events = POLLIN },
		{ .fd = c->stop_fd, .events = POLLIN },
	};
	uint32_t stops = 0;

	prctl(PR_SET_NAME, "ebb-control");
	for (;;) {
		int n = poll(p, 2, LOG_INTERVAL_MS);

		notes_log(&s->notes);
		if (n > 0 && p[1].revents)
			return NULL;
		if (stops != __atomic_load_n(&s->stop_requests, __ATOMIC_RELAXED)) {
			stops = __atomic_load_n(&s->stop_requests, __ATOMIC_RELAXED);
			try_to_stop(s);
		}
		if (n > 0 && p[0].revents)
			control_serve_one(c->listen_fd, handle, s);
	}
}

/* Whether somebody answers at @path. */
static bool in_use(const char *path)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	strncpy(sa.sun_path, path, sizeof(sa.sun_path) - 1);
	return connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;
}

int device_control_open(struct device_control *c, struct swapd *s, struct error *e)
{
	const char *path = ebb_device_socket(s->options.name);
	int r;

	*c = (struct device_control){ .s = s, .listen_fd = -1, .stop_fd = -1 };
	if (strlen(path) >= sizeof(c->path))
		return fail(e, ENAMETOOLONG, "%s: too long for a socket; choose a shorter EBB_RUN_DIR",
			    path);
	r = file_make_dirs(ebb_device_dir(), 0755);
	if (r)
		return fail(e, r, "%s: %s", ebb_device_dir(), strerror(-r));
	if (in_use(path))
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "device %s: another ebb-swapd serves it; choose another name or destroy it first",
				 s->options.name);
	strcpy(c->path, path);
	c->stop_fd = eventfd(0, EFD_CLOEXEC);
	c->listen_fd = control_listen(path, e);
	return c->listen_fd < 0 ? c->listen_fd : 0;
}

int device_control_start(struct device_control *c, struct error *e)
{
	pthread_attr_t attr;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	r = pthread_create(&c->thread, &attr, control_main, c);
	pthread_attr_destroy(&attr);
	if (r)
		c->thread = 0;
	return r ? fail(e, r, "control thread: %s", strerror(r)) : 0;
}

void device_control_close(struct device_control *c)
{
	uint64_t one = 1;

	if (c->thread && write(c->stop_fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(c->thread, NULL);
	c->thread = 0;
	if (c->listen_fd >= 0) {
		close(c->listen_fd);
		unlink(c->path);
	}
	if (c->stop_fd >= 0)
		close(c->stop_fd);
	c->listen_fd = c->stop_fd = -1;
}
