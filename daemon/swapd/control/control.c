// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "commands.h"
#include "control.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/base/small_thread.h"
#include "lib/link/transport.h"
#include "status.h"
#include "swapd/replicas/drain_estimate.h"
#include "swapd/swapd.h"

#define STACK (512u << 10)

/* Verbs of readers (lib/control/peer.h); all others are the owner's. */
static const char *const read_verbs[] = { "status", "stats", "slab.list", NULL };

/* --- verbs that change something -------------------------------------------------- */

/* Finds the donor that a request names. */
static int named_donor(struct swapd *s, struct json_object *request, const char *key,
		       struct donor **d, struct error *e)
{
	const char *text = json_text(request, key, "");

	*d = donor_find(&s->donors, text);
	return *d ? 0 : fail_exit(e, EXIT_USAGE, ENOENT,
				  "donor %s: not one of device %s; see its status", text,
				  s->options.name);
}

static int donor_command(struct swapd *s, struct json_object *request, enum command_kind kind,
		       struct json_object *answer, struct error *e)
{
	struct device_command o = { .kind = kind };
	struct donor *d;
	char what[160];
	int r = named_donor(s, request, "donor", &d, e);

	if (r)
		return r;
	o.donor = d->index;
	snprintf(what, sizeof(what), "donor %s", d->address.text);
	r = commands_give(&s->commands, &o, what, e);
	if (!r && kind == COMMAND_DRAIN)
		device_drain_estimate(s, d, answer);
	return r;
}

static int forget(struct swapd *s, struct json_object *request, struct json_object *answer,
		  struct error *e)
{
	bool force = json_object_get_boolean(json_member(request, "force"));
	struct device_command o = { .kind = COMMAND_FORGET, .force = force };
	struct donor *d;
	uint64_t pages;
	char what[160];
	int r = named_donor(s, request, "donor", &d, e);

	if (r)
		return r;
	snprintf(what, sizeof(what), "donor %s", d->address.text);
	o.donor = d->index;
	/* Before the estimate: the loop refuses if that may be out of date. */
	o.epoch = loss_epoch(&s->replicas);
	if (!donor_is_away(d) || donor_up(d))
		return fail_exit(e, EXIT_REFUSED, EINVAL, "%s: not away; nothing to do", what);
	pages = loss_estimate(&s->replicas, d);
	if (pages && !force)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "donor %s: has the only copy of %llu pages of device %s; wait until it is back, or use --force, which loses them",
				 d->address.text, (unsigned long long)pages, s->options.name);
	json_add_int(answer, "pages_lost", pages);
	return commands_give(&s->commands, &o, what, e);
}

static int migrate(struct swapd *s, struct json_object *request, struct error *e)
{
	int64_t slab = json_int(request, "slab", -1);
	struct device_command o = { .kind = COMMAND_MIGRATE, .donor = -1 };
	struct donor *d;
	char what[32];
	int r;

	if (slab < 0 || slab >= s->engine.table.count)
		return fail_exit(e, EXIT_USAGE, EINVAL, "slab %lld: device %s has 0 to %u",
				 (long long)slab, s->options.name, s->engine.table.count - 1);
	if (json_text(request, "to", NULL)) {
		r = named_donor(s, request, "to", &d, e);
		if (r)
			return r;
		o.donor = d->index;
	}
	o.slab = (uint32_t)slab;
	snprintf(what, sizeof(what), "slab %u", o.slab);
	return commands_give(&s->commands, &o, what, e);
}

/* The donors that a request lists. */
struct listed {
	struct address at[MAX_DONORS];
	int n;
	bool keep; /* the others keep their slabs */
};

static int parse_listed(const struct swapd *s, struct json_object *list, struct listed *l,
			struct error *e)
{
	if (json_object_array_length(list) > MAX_DONORS)
		return fail_exit(e, EXIT_USAGE, E2BIG, "donors: more than %d; leave some out", MAX_DONORS);
	for (l->n = 0; l->n < (int)json_object_array_length(list); l->n++) {
		struct json_object *donor = json_object_array_get_idx(list, (size_t)l->n);
		int r;

		if (!json_object_is_type(donor, json_type_string))
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "donors: a member of the list is not a string; write HOST:PORT, rdma:HOST:PORT or unix:/PATH");
		r = donor_check(&s->donors, json_object_get_string(donor), &l->at[l->n], e);
		if (r)
			return r;
	}
	return 0;
}

static bool is_listed(const struct listed *l, const struct address *a)
{
	for (int i = 0; i < l->n; i++)
		if (!strcmp(l->at[i].text, a->text) || address_same(&l->at[i], a))
			return true;
	return false;
}

/* Does all that may fail, before the first donor is added or removed. */
static int reserve_listed(struct swapd *s, const struct listed *l, struct error *e)
{
	int n = 0;

	for (int i = 0; i < l->n; i++)
		n += !donor_at(&s->donors, &l->at[i]);
	for (int i = 0; i < l->n; i++) {
		int r = transport_prepare(&s->donors.env, &l->at[i], e);

		if (r)
			return r;
	}
	return donors_reserve(&s->donors, n, e);
}

static int use_donor(struct swapd *s, const struct address *a, struct error *e)
{
	struct donor *d = donor_at(&s->donors, a);
	struct device_command o = { .kind = COMMAND_USE,
				    .donor = d ? d->index : donor_make(&s->donors, a) };

	return commands_give(&s->commands, &o, a->text, e);
}

/* Returns whether @l omits @d, which has not been told so before. */
static bool is_omitted(const struct listed *l, const struct donor *d)
{
	return d->state != DONOR_ABSENT && !(d->leaving & DONOR_REMOVED) &&
	       !(l->keep && d->unlisted) && !is_listed(l, &d->address);
}

/* Returns whether @l differs from the donors in use; ebbd repeats its list every few seconds. */
static bool is_news(struct swapd *s, const struct listed *l)
{
	for (int i = 0; i < l->n; i++) {
		const struct donor *d = donor_at(&s->donors, &l->at[i]);

		if (!d || d->unlisted || d->leaving & DONOR_REMOVED)
			return true;
	}
	for (int i = 0; i < s->donors.count; i++)
		if (is_omitted(l, &s->donors.donor[i]))
			return true;
	return false;
}

static int set_listed(struct swapd *s, struct json_object *list, struct listed *l, struct error *e)
{
	int r = parse_listed(s, list, l, e);
	bool news;

	if (r)
		return r;
	news = is_news(s, l);
	r = reserve_listed(s, l, e);
	for (int i = 0; i < l->n && !r; i++)
		r = use_donor(s, &l->at[i], e);
	for (int i = 0; i < s->donors.count && !r; i++) {
		struct device_command o = { .kind = l->keep ? COMMAND_UNLIST : COMMAND_REMOVE,
					    .donor = i };
		const struct donor *d = &s->donors.donor[i];

		if (is_omitted(l, d))
			r = commands_give(&s->commands, &o, d->address.text, e);
	}
	return r ?: news ? 0 : CONTROL_UNCHANGED;
}

static int set_donors(struct swapd *s, struct json_object *request, struct error *e)
{
	struct json_object *list;
	struct listed *l;
	int r;

	if (!json_object_object_get_ex(request, "donors", &list) ||
	    !json_object_is_type(list, json_type_array) || !json_object_array_length(list))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "donors: a list of HOST:PORT, rdma:HOST:PORT or unix:/PATH is needed; to use none, destroy the device");
	l = calloc(1, sizeof(*l));
	if (l)
		l->keep = json_object_get_boolean(json_member(request, "keep"));
	r = l ? set_listed(s, list, l, e) : fail(e, ENOMEM, "donors: out of memory");
	free(l);
	return r;
}

static int handle(void *data, const char *verb, struct json_object *request,
		  struct json_object *answer, struct error *e)
{
	static const struct { const char *verb; enum command_kind kind; } donor_verbs[] = {
		{ "donor.drain", COMMAND_DRAIN },
		{ "donor.undrain", COMMAND_UNDRAIN },
		{ "donor.trust", COMMAND_TRUST },
	};
	struct swapd *s = data;
	int64_t from;

	for (size_t i = 0; i < sizeof(donor_verbs) / sizeof(*donor_verbs); i++)
		if (!strcmp(verb, donor_verbs[i].verb))
			return donor_command(s, request, donor_verbs[i].kind, answer, e);
	if (!strcmp(verb, "donor.forget"))
		return forget(s, request, answer, e);
	if (!strcmp(verb, "slab.migrate"))
		return migrate(s, request, e);
	if (!strcmp(verb, "donors.set"))
		return set_donors(s, request, e);
	if (!strcmp(verb, "status")) {
		device_status(s, answer);
	} else if (!strcmp(verb, "stats")) {
		device_stats(s, answer);
	} else if (!strcmp(verb, "slab.list")) {
		from = json_int(request, "from", 0);
		device_slabs(s, from > 0 ? (uint32_t)from : 0, answer);
	} else {
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: unknown verb; use status, stats, slab.list, slab.migrate, donor.drain, donor.undrain, donor.trust, donor.forget or donors.set",
				 verb);
	}
	return 0;
}

/* Runs while the loop serves: stopping may need it. */
static void try_to_stop(struct device_control *c)
{
	struct swapd *s = c->s;
	char where[PATH_MAX];
	int r = c->stopped ? 0 : s->frontend->stop(&s->host);

	if (!r) {
		c->stopped = true;
		return;
	}
	s->frontend->where(&s->host, where, sizeof(where));
	log_warn("device %s: cannot stop: %s is %s; swapoff (and losetup -d of its loop device, if any), then retry",
		 s->options.name, where, r == -EBUSY ? "in use" : strerror(-r));
}

/* A server that dies in try_to_stop() leaves the stop to the next one. */
static void look_for_stop(struct device_control *c)
{
	struct shared *shared = c->s->shared;
	uint32_t wanted = __atomic_load_n(&shared->stops, __ATOMIC_ACQUIRE);

	if (wanted == shared->stops_tried)
		return;
	try_to_stop(c);
	__atomic_store_n(&shared->stops_tried, wanted, __ATOMIC_RELEASE);
}

/* Logs that the supervisor exited: the next server needs it. */
static void miss_supervisor(struct device_control *c)
{
	if (c->supervisor_missed || !c->s->shared->supervisor ||
	    getppid() == (pid_t)c->s->shared->supervisor)
		return;
	c->supervisor_missed = true;
	log_err("device %s: the supervisor exited: no watchdog and no further standby; swapoff, then re-create the device",
		c->s->options.name);
}

/* Returns a descriptor that is readable once the supervisor has exited; -1: it has, or none is. */
static int watch_supervisor(const struct device_control *c)
{
	uint32_t pid = c->s->shared->supervisor;

	return pid ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static void *control_main(void *data)
{
	struct device_control *c = data;
	struct swapd *s = c->s;
	struct pollfd p[] = {
		{ .fd = control_server_fd(c->server), .events = POLLIN },
		{ .fd = c->stop_fd, .events = POLLIN },
		{ .fd = s->wake_fd, .events = POLLIN },
		{ .fd = -1, .events = POLLIN },
	};
	_cleanup_close_ int supervisor = -1;
	eventfd_t ignored;
	bool seconds;

	prctl(PR_SET_NAME, "ebb-control");
	while (sem_wait(&c->go) < 0)
		;
	p[3].fd = supervisor = watch_supervisor(c);
	/* First without an event: a predecessor may have died before it handled one. */
	for (;;) {
		notes_log(&s->notes);
		miss_supervisor(c);
		if (p[1].revents)
			return NULL;
		look_for_stop(c);
		if (p[0].revents)
			control_server_turn(c->server);
		if (c->supervisor_missed)
			p[3].fd = -1;
		/* Without a descriptor, as when there are too many, it looks for the supervisor. */
		seconds = s->shared->supervisor && supervisor < 0 && !c->supervisor_missed;
		if (poll(p, 4, seconds ? 1000 : -1) > 0 && p[2].revents && !p[1].revents)
			eventfd_read(s->wake_fd, &ignored);
	}
}

/* Returns whether a server answers at @path. */
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
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->wake_fd < 0)
		return fail(e, errno, "eventfd: %m");
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
	c->rules.read = read_verbs;
	peer_groups_find(&c->rules.groups);
	c->listen_fd = control_listen(path, e);
	return c->listen_fd < 0 ? c->listen_fd : 0;
}

int device_control_start(struct device_control *c, struct error *e)
{
	int r = control_server_new(&c->server, c->listen_fd, &c->rules, handle, c->s, e);

	if (r)
		return r;
	c->stop_fd = eventfd(0, EFD_CLOEXEC);
	sem_init(&c->go, 0, 0);
	r = small_thread_create(&c->thread, STACK, control_main, c);
	if (r)
		c->thread = 0;
	return r ? fail(e, r, "control thread: %s", strerror(r)) : 0;
}

void device_control_go(struct device_control *c)
{
	sem_post(&c->go);
}

void device_control_close(struct device_control *c)
{
	uint64_t one = 1;

	if (c->thread)
		sem_post(&c->go);
	if (c->thread && write(c->stop_fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(c->thread, NULL);
	c->thread = 0;
	control_server_free(&c->server);
	if (c->listen_fd >= 0) {
		close(c->listen_fd);
		unlink(c->path);
	}
	if (c->stop_fd >= 0)
		close(c->stop_fd);
	if (c->s && c->s->wake_fd >= 0)
		close(c->s->wake_fd);
	if (c->s)
		c->s->wake_fd = -1;
	c->listen_fd = c->stop_fd = -1;
}
