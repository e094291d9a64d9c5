// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/control/control_server.h"
#include "lib/discovery/thread.h"
#include "lib/host/systemd.h"
#include "lib/kmod/settle.h"
#include "manager.h"

#define MS 1000000ull
/* Interval of looks at a device; events trigger one at once. */
#define LOOK (2 * KMOD_SECOND)
/* Looks at many slabs take at most 1 / this of the time. */
#define LOOK_SHARE 20
/* ns of connects and moves between two answers to requests. */
#define BUDGET (200 * MS)
#define NO_MODULE (5 * KMOD_SECOND)
/* Interval of requests to systemd-logind for a sleep lock. */
#define ASK_LOGIND (60 * KMOD_SECOND)

struct managed {
	struct kmod_manager *manager;
	char name[DEVICE_NAME_MAX];
	char key_file[PATH_MAX];    /* of the record */
	bool keyless;               /* that no keys can be derived has been logged */
	struct kmod_view view;      /* of class 0 */
	struct kmod_view *class[EBB_SWAP_CLASSES]; /* NULL: not seen yet */
	int listen_fd;
	struct control_server *server; /* NULL: no control socket */
	ino_t socket;               /* inode of the socket */
	int awake_fd;               /* inhibits sleep; -1: not yet */
	uint64_t awake_due;         /* ns: time of the next request for that lock */
	uint64_t due;               /* ns: time of the next round */
	bool recorded;              /* at the last reading of the records */
	uint32_t failures;          /* consecutive failed rounds */
	uint32_t unplaced, single;
	uint32_t mapped, migrated, fell_back; /* by rounds that exceeded their budget */
};

struct kmod_manager {
	pthread_t thread;
	int wake;                   /* eventfd */
	bool stop;
	struct kmod_link *calls, *events; /* NULL: no device, or no module */
	struct control_rules rules;
	struct managed *device[EBB_SWAP_DEVICES];
	int devices;
	bool complained;
};

static const char *const read_verbs[] = { "status", "stats", "slab.list", NULL };

/* --- devices ------------------------------------------------------------------------ */

static int serve(void *data, const char *verb, struct json_object *request,
		 struct json_object *answer, struct error *e);

static ino_t socket_of(const char *name)
{
	struct stat st;

	return stat(ebb_device_socket(name), &st) ? 0 : st.st_ino;
}

static void device_drop(struct kmod_manager *m, int i)
{
	struct managed *d = m->device[i];

	control_server_free(&d->server);
	if (d->listen_fd >= 0) {
		/* A device of another frontend may have taken the name, with its own socket. */
		if (socket_of(d->name) == d->socket)
			unlink(ebb_device_socket(d->name));
		close(d->listen_fd);
	}
	if (d->awake_fd >= 0)
		close(d->awake_fd);
	kmod_view_free(&d->view);
	for (uint32_t i = 0; i < EBB_SWAP_CLASSES; i++) {
		if (d->class[i])
			kmod_view_free(d->class[i]);
		free(d->class[i]);
	}
	free(d);
	m->device[i] = m->device[--m->devices];
}

static void device_new(struct kmod_manager *m, const struct device_record *r, uint32_t number)
{
	struct managed *d = m->devices < EBB_SWAP_DEVICES ? calloc(1, sizeof(*d)) : NULL;
	struct error e = { 0 };

	if (!d)
		return;
	d->manager = m;
	d->recorded = true;
	d->awake_fd = -1;
	memcpy(d->name, r->name, sizeof(d->name));
	memcpy(d->key_file, r->key, sizeof(d->key_file));
	d->view.device = number;
	d->view.size = r->size;
	d->view.key_file = d->key_file;
	d->view.donors = kmod_donors_of(r->donor, d->view.donor);
	d->listen_fd = control_listen(ebb_device_socket(d->name), &e);
	if (d->listen_fd >= 0)
		d->socket = socket_of(d->name);
	if (d->listen_fd < 0 ||
	    control_server_new(&d->server, d->listen_fd, &m->rules, serve, d, &e))
		log_warn("device %s: no control socket: %s", d->name, e.text);
	m->device[m->devices++] = d;
}

static int device_recorded(const struct device_record *r, void *data)
{
	struct kmod_manager *m = data;
	unsigned int number;

	if (strcmp(r->frontend, "kmod") || sscanf(r->block, "/dev/ebb%u", &number) != 1)
		return 0;
	for (int i = 0; i < m->devices; i++) {
		struct managed *d = m->device[i];

		/* A device re-created under the name has another number, size or donors. */
		if (!strcmp(d->name, r->name) && d->view.device == number &&
		    d->view.size == r->size) {
			d->view.donors = kmod_donors_of(r->donor, d->view.donor);
			memcpy(d->key_file, r->key, sizeof(d->key_file));
			d->keyless = false;
			d->recorded = true;
			return 0;
		}
	}
	for (int i = m->devices - 1; i >= 0; i--)
		if (!strcmp(m->device[i]->name, r->name))
			device_drop(m, i);
	device_new(m, r, number);
	return 0;
}

static void read_records(struct kmod_manager *m)
{
	for (int i = 0; i < m->devices; i++)
		m->device[i]->recorded = false;
	device_record_each(device_recorded, m);
	for (int i = m->devices - 1; i >= 0; i--)
		if (!m->device[i]->recorded)
			device_drop(m, i);
}

/* --- the module --------------------------------------------------------------------- */

static void disconnect(struct kmod_manager *m)
{
	kmod_close(&m->calls);
	kmod_close(&m->events);
}

static int connect_module(struct kmod_manager *m)
{
	struct error e = { 0 };
	int r;

	if (m->calls)
		return 0;
	r = kmod_open(&m->calls, &e);
	if (!r)
		r = kmod_open(&m->events, &e);
	if (!r)
		r = kmod_listen(m->events, &e);
	if (r) {
		disconnect(m);
		if (!m->complained)
			log_warn("%s; its devices are not managed", e.text);
	}
	m->complained = r != 0;
	return r;
}

/* An event only triggers a round, which reads all: some events are lost. */
static void read_events(struct kmod_manager *m)
{
	struct kmod_event event;
	int r;

	while ((r = kmod_event(m->events, &event)) > 0)
		for (int i = 0; i < m->devices; i++)
			if (m->device[i]->view.device == event.device)
				m->device[i]->due = 0;
	for (int i = 0; r == -ENOBUFS && i < m->devices; i++)
		m->device[i]->due = 0;
	if (r < 0 && r != -ENOBUFS)
		disconnect(m);
}

/* Returns whether to log a failure: once per reason, as a donor may return with another key. */
static bool is_news(struct kmod_patience *p, int error)
{
	bool news = p->failures == 1 || error != p->logged;

	p->logged = error;
	return news;
}

static void log_donors(const char *device, struct kmod_view *v, const struct kmod_round *round)
{
	for (int i = 0; i < v->donors; i++) {
		if (*round->away[i])
			log_warn("device %s: donor %s away: %s; it retains its slabs", device,
				 v->donor[i].text, round->away[i]);
		if (round->back[i])
			log_info("device %s: donor %s: back", device, v->donor[i].text);
		if (*round->lost[i])
			log_warn("device %s: donor %s lost: %s; moving its slabs to other donors", device,
				 v->donor[i].text, round->lost[i]);
		if (round->quarantined[i])
			log_device_event(device, EVENT_DONOR_QUARANTINED, LOG_LVL_ERR,
					 "device %s: donor %s quarantined: it returned a page other than the one written; it gets no slabs until `ebbctl donor trust`",
					 device, v->donor[i].text);
		if (round->connected[i] > 0)
			log_info("device %s: donor %s: connected", device, v->donor[i].text);
		else if (round->connected[i] < 0 && is_news(&v->patience[i], round->connected[i]))
			log_warn("device %s: donor %s: cannot connect: %s; retrying", device,
				 v->donor[i].text, round->refused[i]);
	}
}

static void log_key(struct managed *d, const struct kmod_round *round)
{
	if (*round->no_key && !d->keyless)
		log_warn("device %s: connecting to donors with the key that they share: %s", d->name,
			 round->no_key);
	d->keyless |= *round->no_key != 0;
}

static void log_moves(struct managed *d, const struct kmod_round *round)
{
	d->mapped += round->mapped;
	d->migrated += round->migrated;
	d->fell_back += round->fell_back;
	if (round->left)
		return;
	if (d->mapped || d->migrated || d->fell_back)
		log_info("device %s: %u slabs placed at donors, %u migrated, %u moved to the backup alone",
			 d->name, d->mapped, d->migrated, d->fell_back);
	d->mapped = d->migrated = d->fell_back = 0;
	if (round->unplaced && !d->unplaced)
		log_warn("device %s: no donor has free capacity for %u slabs; %s", d->name, round->unplaced,
			 *d->view.now.backup ? "they are on the backup alone" :
					       "writes to them fail; start another ebb-donord");
	d->unplaced = round->unplaced;
	if (round->single && !d->single)
		log_warn("device %s: no donor has free capacity for the second replica of %u slabs; start another ebb-donord",
			 d->name, round->single);
	d->single = round->single;
}

/* Returns NULL without memory; the next round tries again. */
static struct kmod_view *class_view(struct managed *d, uint32_t class)
{
	if (!d->class[class]) {
		d->class[class] = calloc(1, sizeof(*d->class[class]));
		if (d->class[class])
			*d->class[class] = (struct kmod_view){
				.device = d->view.device, .size = d->view.size, .class = class,
				.key_file = d->key_file,
			};
	}
	return d->class[class];
}

/* Settles the classes that the look at class 0 found; adds their results to @all. */
static int settle_classes(struct managed *d, struct kmod_round *all, struct error *e)
{
	int r = 0;

	for (uint32_t i = 1; !r && i < EBB_SWAP_CLASSES; i++) {
		struct kmod_view *v = d->view.now.copies[i] & EBB_SWAP_DONOR ? class_view(d, i) :
									       NULL;
		struct kmod_round round;

		if (!v)
			continue;
		r = kmod_settle(d->manager->calls, v, BUDGET, &round, e);
		if (r)
			continue;
		log_donors(d->name, v, &round);
		all->mapped += round.mapped;
		all->migrated += round.migrated;
		all->fell_back += round.fell_back;
		all->unplaced += round.unplaced;
		all->single += round.single;
		all->left += round.left;
	}
	return r;
}

/* A machine that sleeps loses the connections to its donors. */
static void inhibit_sleep(struct managed *d)
{
	if (d->awake_fd >= 0 || now_ns() < d->awake_due)
		return;
	d->awake_fd = sleep_lock_take(d->name);
	if (d->awake_fd >= 0)
		fcntl(d->awake_fd, F_SETFD, FD_CLOEXEC);
	else if (d->awake_fd != -EOPNOTSUPP && !d->awake_due)
		log_warn("device %s: systemd-logind does not inhibit sleep: %s; destroy the device before the machine sleeps",
			 d->name, strerror(-d->awake_fd));
	/* From the end of the request: one longer than ASK_LOGIND would repeat forever. */
	d->awake_due = now_ns() + ASK_LOGIND;
}

static void run_round(struct managed *d)
{
	uint64_t begun = now_ns(), took;
	struct kmod_round round;
	struct error e = { 0 };
	int r = kmod_settle(d->manager->calls, &d->view, BUDGET, &round, &e);

	if (!r) {
		log_donors(d->name, &d->view, &round);
		log_key(d, &round);
		r = settle_classes(d, &round, &e);
	}
	took = now_ns() - begun;
	d->due = begun + (took * LOOK_SHARE > LOOK ? took * LOOK_SHARE : LOOK);
	d->failures = r ? d->failures + 1 : 0;
	if (r) {
		/* The module destroys a device just before its record is removed. */
		if (d->failures == 2)
			log_warn("device %s: not managed: %s", d->name, e.text);
	} else {
		log_moves(d, &round);
		if (round.left)
			d->due = 0;
	}
	/* The module was unloaded, and may be loaded again. */
	if (r == -ENOENT)
		disconnect(d->manager);
}

/* --- the loop ----------------------------------------------------------------------- */

static int serve(void *data, const char *verb, struct json_object *request,
		 struct json_object *answer, struct error *e)
{
	struct managed *d = data;

	if (connect_module(d->manager))
		return fail_exit(e, EXIT_UNSUPPORTED, ENODEV,
				 "device %s: the kernel module ebb_swap cannot be reached; see ebbd's log",
				 d->name);
	/* The next round shows what the command changes. */
	d->due = 0;
	return kmod_command(d->manager->calls, &d->view, d->name, verb, request, answer, e);
}

/* Returns the ms until a device is due; -1: no device. */
static int patience(const struct kmod_manager *m)
{
	uint64_t now = now_ns(), next = UINT64_MAX;

	if (!m->devices)
		return -1;
	for (int i = 0; i < m->devices; i++)
		next = m->device[i]->due < next ? m->device[i]->due : next;
	return next <= now ? 0 : (int)((next - now) / MS + 1);
}

static void run_rounds(struct kmod_manager *m)
{
	if (!m->devices) {
		disconnect(m);
		return;
	}
	for (int i = 0; i < m->devices; i++) {
		struct managed *d = m->device[i];

		if (now_ns() < d->due)
			continue;
		inhibit_sleep(d);
		if (connect_module(m))
			d->due = now_ns() + NO_MODULE;
		else
			run_round(d);
	}
}

static void *run(void *data)
{
	struct kmod_manager *m = data;
	struct pollfd p[EBB_SWAP_DEVICES + 2];

	prctl(PR_SET_NAME, "ebb-kmod");
	read_records(m);
	for (;;) {
		struct managed *served[EBB_SWAP_DEVICES];
		uint64_t count;
		int n = 0;

		run_rounds(m);
		p[n++] = (struct pollfd){ .fd = m->wake, .events = POLLIN };
		p[n++] = (struct pollfd){ .fd = m->events ? kmod_fd(m->events) : -1,
					  .events = POLLIN };
		for (int i = 0; i < m->devices; i++) {
			served[i] = m->device[i];
			p[n++] = (struct pollfd){ .fd = control_server_fd(m->device[i]->server),
						  .events = POLLIN };
		}
		if (poll(p, (nfds_t)n, patience(m)) <= 0)
			continue;
		for (int i = 2; i < n; i++)
			if (p[i].revents)
				control_server_turn(served[i - 2]->server);
		if (p[1].revents && m->events)
			read_events(m);
		if (!p[0].revents || read(m->wake, &count, sizeof(count)) < 0)
			continue;
		if (__atomic_load_n(&m->stop, __ATOMIC_ACQUIRE))
			return NULL;
		read_records(m);
	}
}

void kmod_manager_refresh(struct kmod_manager *m)
{
	eventfd_write(m->wake, 1);
}

int kmod_manager_start(struct kmod_manager **out, struct error *e)
{
	struct kmod_manager *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return fail(e, ENOMEM, "ebb_swap: out of memory");
	m->rules.read = read_verbs;
	peer_groups_find(&m->rules.groups);
	m->wake = eventfd(0, EFD_CLOEXEC);
	r = m->wake < 0 ? fail(e, errno, "eventfd: %s", strerror(errno)) :
			  thread_start(&m->thread, run, m, e);
	if (r) {
		if (m->wake >= 0)
			close(m->wake);
		free(m);
		return r;
	}
	*out = m;
	return 0;
}

void kmod_manager_stop(struct kmod_manager **out)
{
	struct kmod_manager *m = *out;

	if (!m)
		return;
	__atomic_store_n(&m->stop, true, __ATOMIC_RELEASE);
	eventfd_write(m->wake, 1);
	pthread_join(m->thread, NULL);
	while (m->devices)
		device_drop(m, 0);
	disconnect(m);
	close(m->wake);
	free(m);
	*out = NULL;
}
