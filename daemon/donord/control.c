// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "control.h"
#include "donord/far/far_census.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/base/small_thread.h"
#include "lib/control/control_server.h"
#include "lib/discovery/registration.h"
#include "lib/discovery/thread.h"
#include "status.h"

#define STACK (512u << 10)
#define PROGRESS_MS 1000
/* The loop answers at once, unless the machine is in trouble. */
#define ANSWER_MS 5000

enum donor_request { DONOR_STATUS, DONOR_DRAIN, DONOR_END, DONOR_UNDRAIN };

struct donor_control {
	struct loop *loop;
	struct registration *registration;
	pthread_t thread;
	struct control_rules rules;
	int listen_fd; /* -1 = the thread only logs */
	struct control_server *server;
	int wake_fd;   /* eventfd: log lines, drain, stop */
	bool stop;
	/* The control thread's request to the loop; under the lock. */
	pthread_mutex_t lock; /* the loop takes it if .pending, and lends its priority meanwhile */
	pthread_cond_t answered;
	bool pending;         /* set under the lock, tested without it as well */
	enum donor_request request;
	struct donor_status status;
};

/* Verbs of readers (lib/control/peer.h); all others are the owner's. */
static const char *const read_verbs[] = { "status", NULL };

static struct json_object *slabs_json(const struct donor_status *s)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "lent", s->in[LEND_LENT]);
	json_add_int(o, "clean", s->in[LEND_CLEAN]);
	json_add_int(o, "dirty", s->in[LEND_DIRTY]);
	json_add_int(o, "coming", s->in[LEND_COMING]);
	json_add_int(o, "going", s->in[LEND_GOING]);
	json_add_int(o, "asked_back", s->asked_back);
	json_add_int(o, "refused", s->refused);
	json_add_int(o, "overdue", s->overdue);
	json_add_int(o, "withdrawn", s->in[LEND_WITHDRAWN]);
	json_add_int(o, "backed", s->backed);
	return o;
}

static struct json_object *machine_json(const struct donor_status *s)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "memory", s->sample.memory);
	json_add_int(o, "available", s->sample.available);
	json_add_double(o, "pressure", s->sample.pressure);
	if (s->sample.limited) {
		json_add_int(o, "limit", s->sample.limit);
		json_add_int(o, "left", s->sample.own);
	}
	return o;
}

static struct json_object *evictions_json(const struct eviction_counts *n)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "rounds", n->rounds);
	json_add_int(o, "silent", n->silent);
	json_add_int(o, "asked", n->asked);
	json_add_int(o, "promised", n->promised);
	json_add_int(o, "refused", n->refused);
	json_add_int(o, "returned", n->returned);
	json_add_int(o, "revoked", n->revoked);
	json_add_int(o, "revoked_backed", n->revoked_backed);
	return o;
}

static struct json_object *borrower_json(const struct donor_status *s,
					 const struct borrower_status *b)
{
	struct json_object *o = json_object_new_object();
	json_add_text(o, "name", b->name);
	if (*b->key)
		json_add_text(o, "key", b->key);
	json_add_text(o, "peer", b->peer);
	json_add_text(o, "transport", b->transport);
	json_add_int(o, "slabs", b->slabs);
	json_add_int(o, "bytes", b->slabs * s->slab_size);
	json_add_int(o, "quota", b->quota);
	json_add_int(o, "reserved", b->reserved * s->slab_size);
	json_add_int(o, "asked_back", b->asked_back);
	json_add_int(o, "refused", b->refused);
	json_add_int(o, "overdue", b->overdue);
	json_add_int(o, "reads", b->reads);
	json_add_int(o, "writes", b->writes);
	json_add_int(o, "connected", b->connected);
	return o;
}

static struct json_object *throttled_json(const struct donor_status *s)
{
	struct json_object *list = json_object_new_array();

	for (uint32_t i = 0; i < s->payer_count; i++) {
		struct json_object *o = json_object_new_object();

		json_add_text(o, "name", s->payers[i].name);
		json_add_int(o, "ms", s->payers[i].waited);
		json_object_array_add(list, o);
	}
	return list;
}

static struct json_object *far_requests_json(const struct far_counts *n)
{
	static const char *const names[] = {
		"pool", [WIRE_FAR_LIST - WIRE_FAR_POOL] = "list",
		[WIRE_FAR_ARENA - WIRE_FAR_POOL] = "arena", [WIRE_FAR_READ - WIRE_FAR_POOL] = "read",
		[WIRE_FAR_WRITE - WIRE_FAR_POOL] = "write", [WIRE_FAR_CAS - WIRE_FAR_POOL] = "cas",
		[WIRE_FAR_ADD - WIRE_FAR_POOL] = "add",
		[WIRE_FAR_NOTIFY - WIRE_FAR_POOL] = "notify",
		[WIRE_FAR_DEAD - WIRE_FAR_POOL] = "dead",
	};
	struct json_object *o = json_object_new_object();

	for (uint32_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		json_add_int(o, names[i], n->requests[i]);
	return o;
}

static struct json_object *job_requests_json(const struct job_counts *n)
{
	static const char *const names[WIRE_JOB_OPS - WIRE_JOB_HEAP] = {
		"heap", [WIRE_JOB_PLACE - WIRE_JOB_HEAP] = "place",
		[WIRE_JOB_BEGIN - WIRE_JOB_HEAP] = "begin",
		[WIRE_JOB_TRACE - WIRE_JOB_HEAP] = "trace",
		[WIRE_JOB_END - WIRE_JOB_HEAP] = "end",
		[WIRE_JOB_EVACUATE - WIRE_JOB_HEAP] = "evacuate",
	};
	struct json_object *o = json_object_new_object();

	for (uint32_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		json_add_int(o, names[i], n->requests[i]);
	return o;
}

static struct json_object *jobs_json(const struct donor_status *s)
{
	const struct job_counts *n = &s->job_counts;
	struct json_object *o = json_object_new_object();

	json_add_int(o, "limit", s->jobs);
	json_add_int(o, "used", s->jobs_used);
	json_add_int(o, "percent", s->jobs_percent);
	json_add_int(o, "heaps", s->job_heaps);
	json_add_int(o, "regions", s->job_regions);
	json_add_int(o, "cycles", n->cycles);
	json_add_int(o, "abandoned", n->abandoned);
	json_add_int(o, "marked", n->marked);
	json_add_int(o, "references", n->references);
	json_add_int(o, "evacuated", n->evacuated);
	json_add_int(o, "busy_us", n->busy / 1000);
	json_add_int(o, "postponed", n->postponed);
	json_object_object_add(o, "requests", job_requests_json(n));
	return o;
}

static struct json_object *far_json(const struct donor_status *s)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_add_int(o, "limit", s->far);
	json_add_int(o, "used", s->far_used);
	json_add_int(o, "fences", s->far_counts.fences);
	json_add_int(o, "recovered", s->far_counts.recovered);
	json_add_int(o, "freed", s->far_counts.freed);
	json_object_object_add(o, "requests", far_requests_json(&s->far_counts));
	for (uint32_t i = 0; i < s->far_pool_count; i++) {
		const struct far_status *f = &s->far_pools[i];
		struct json_object *p = json_object_new_object();

		json_add_text(p, "name", f->pool.name);
		if (*f->key)
			json_add_text(p, "key", f->key);
		json_add_int(p, "bytes", f->pool.arenas * s->slab_size);
		json_add_int(p, "metadata", f->metadata);
		json_add_bool(p, "shared", f->pool.flags & WIRE_FAR_SHARED);
		json_add_int(p, "live", f->pool.live);
		json_add_int(p, "away", f->pool.away);
		json_add_int(p, "dead", f->pool.dead);
		json_add_int(p, "recovering", f->recovering);
		json_add_int(p, "extents", f->extents);
		json_add_int(p, "extent_bytes", f->extent_bytes);
		json_object_array_add(list, p);
	}
	json_object_object_add(o, "pools", list);
	if (s->jobs)
		json_object_object_add(o, "jobs", jobs_json(s));
	return o;
}

static void add_registration(struct registration *r, struct json_object *o)
{
	char cause[256];

	json_add_text(o, "etcd", registration_state_text(registration_state(r, cause, sizeof(cause))));
	if (*cause)
		json_add_text(o, "etcd_error", cause);
}

static void status_json(const struct donor_control *c, struct json_object *o)
{
	const struct places *places = &c->loop->places;
	const struct donor_status *s = &c->status;
	struct json_object *listen = json_object_new_array(), *list = json_object_new_array();

	json_add_int(o, "pid", (uint64_t)getpid());
	json_add_int(o, "slab_size", s->slab_size);
	json_object_object_add(o, "machine", machine_json(s));
	json_add_int(o, "headroom", s->headroom);
	json_add_int(o, "rate", s->rate);
	json_add_int(o, "total", s->total);
	json_add_int(o, "free", s->free);
	json_add_int(o, "promised", s->promised);
	json_add_int(o, "lendable", s->lendable);
	json_add_int(o, "lent", s->in[LEND_LENT] * s->slab_size);
	json_object_object_add(o, "slabs", slabs_json(s));
	json_add_int(o, "keys", s->keys);
	json_add_int(o, "shared_keys", s->shared_keys);
	json_add_bool(o, "draining", s->draining);
	json_add_bool(o, "ending", s->ending);
	if (s->ending)
		json_add_int(o, "ends_in", s->ends_in);
	if (c->registration)
		add_registration(c->registration, o);
	json_object_object_add(o, "evictions", evictions_json(&s->evictions));
	for (int i = 0; i < places->count; i++)
		json_object_array_add(listen, json_object_new_string(places->a[i].text));
	json_object_object_add(o, "listen", listen);
	for (uint32_t i = 0; i < s->borrower_count; i++)
		json_object_array_add(list, borrower_json(s, &s->borrowers[i]));
	json_object_object_add(o, "borrowers", list);
	json_object_object_add(o, "throttled", throttled_json(s));
	if (s->far)
		json_object_object_add(o, "far", far_json(s));
}

/* Passes @request to the loop and waits until c->status has the answer. */
static int ask_loop(struct donor_control *c, enum donor_request request)
{
	struct timespec until = clock_in_ms(ANSWER_MS);
	int r = 0;

	pthread_mutex_lock(&c->lock);
	c->request = request;
	__atomic_store_n(&c->pending, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&c->lock);
	/* The loop takes the lock as soon as it wakes up. */
	eventfd_write(c->loop->wake_fd, 1);
	pthread_mutex_lock(&c->lock);
	while (c->pending && !r)
		r = c->stop ? ESHUTDOWN : pthread_cond_timedwait(&c->answered, &c->lock, &until);
	__atomic_store_n(&c->pending, false, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&c->lock);
	return -r;
}

static int handle(void *data, const char *verb, struct json_object *request,
		  struct json_object *answer, struct error *e)
{
	struct donor_control *c = data;
	enum donor_request what = DONOR_STATUS;
	struct json_object *end;
	int r;

	if (!strcmp(verb, "drain"))
		what = json_object_object_get_ex(request, "end", &end) &&
		       json_object_get_boolean(end) ? DONOR_END : DONOR_DRAIN;
	else if (!strcmp(verb, "undrain"))
		what = DONOR_UNDRAIN;
	else if (strcmp(verb, "status"))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "verb %s: unknown; use status, drain or undrain", verb);
	r = ask_loop(c, what);
	if (r)
		return fail(e, r, "ebb-donord: %s; see its log",
			    r == -ESHUTDOWN ? "it is exiting" : "its event loop does not answer");
	/* Only this thread sends requests, so the loop does not write the status now. */
	status_json(c, answer);
	return 0;
}

/* Returns whether the request must wait for a count, which calls answer_request() again. */
static bool waits_for_count(const struct donor_control *c)
{
	return c->request == DONOR_STATUS && c->loop->far && !far_counted(c->loop->far);
}

/*
 * Loop thread: answers the pending request, if any.  Most wakes bring none, and the loop must not
 * wait for a thread of lower priority then.
 */
static void answer_request(void *data)
{
	struct donor_control *c = data;

	if (!__atomic_load_n(&c->pending, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&c->lock);
	if (c->pending && !waits_for_count(c)) {
		if (c->request == DONOR_UNDRAIN)
			loop_undrain(c->loop);
		else if (c->request != DONOR_STATUS)
			loop_drain(c->loop, c->request == DONOR_END ? LOOP_END : LOOP_STAY);
		loop_status(c->loop, &c->status);
		__atomic_store_n(&c->pending, false, __ATOMIC_RELEASE);
		pthread_cond_signal(&c->answered);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Extends systemd's stop timeout to that of the drain. */
static void tell_systemd(const struct loop *l, bool *told)
{
	if (!__atomic_load_n(&l->pool->draining, __ATOMIC_RELAXED))
		return;
	if (!*told && __atomic_load_n(&l->ending, __ATOMIC_RELAXED)) {
		sd_notifyf(0, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu",
			   (unsigned long long)((l->options.drain + 10 * SECOND) / 1000));
		*told = true;
	}
	sd_notifyf(0, "STATUS=draining, %u slabs are still lent",
		   __atomic_load_n(&l->still_lent, __ATOMIC_RELAXED));
}

/* Withdraws a draining donor from etcd, so that new borrowers choose others. */
static void tell_etcd(const struct donor_control *c, bool draining, bool *told)
{
	if (c->registration && draining != *told)
		(draining ? registration_withdraw : registration_return)(c->registration);
	*told = draining;
}

static void *control_main(void *data)
{
	struct donor_control *c = data;
	struct loop *l = c->loop;
	struct pollfd p[] = {
		{ .fd = c->wake_fd, .events = POLLIN },
		/* poll(2) ignores -1. */
		{ .fd = control_server_fd(c->server), .events = POLLIN },
	};
	bool told = false, told_etcd = false;
	eventfd_t ignored;

	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
		bool draining = __atomic_load_n(&l->pool->draining, __ATOMIC_RELAXED);

		p[1].revents = 0;
		if (poll(p, 2, draining ? PROGRESS_MS : -1) > 0 && p[0].revents)
			eventfd_read(c->wake_fd, &ignored);
		notes_log(&l->log.notes);
		tell_systemd(l, &told);
		tell_etcd(c, __atomic_load_n(&l->pool->draining, __ATOMIC_RELAXED), &told_etcd);
		if (p[1].revents)
			control_server_turn(c->server);
	}
	return NULL;
}

/* Returns whether a donor answers at @path. */
static bool is_served(const char *path)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	if (fd < 0 || strlen(path) >= sizeof(sa.sun_path))
		return false;
	strcpy(sa.sun_path, path);
	return connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;
}

/* Returns -1 and logs why when there is no control socket; the donor lends without one. */
static int listen_there(const char *path)
{
	struct error e = { 0 };
	int fd;

	if (is_served(path)) {
		log_warn("%s: another ebb-donord answers there, so this one has no control socket; set EBB_RUN_DIR",
			 path);
		return -1;
	}
	file_make_dirs(ebb_run_dir(), 0755);
	fd = control_listen(path, &e);
	if (fd < 0)
		log_warn("%s; there is no control socket", e.text);
	return fd < 0 ? -1 : fd;
}

static int start_thread(struct donor_control *c, struct error *e)
{
	int r = small_thread_create(&c->thread, STACK, control_main, c);

	return r ? fail(e, r, "control thread: %s", strerror(r)) : 0;
}

/* While the loop waits for it, the thread that has it runs with the loop's priority. */
static void make_lock(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
	/* Without futexes that inherit, a lock without it. */
	if (pthread_mutex_init(lock, &attr))
		pthread_mutex_init(lock, NULL);
	pthread_mutexattr_destroy(&attr);
}

int donor_control_start(struct donor_control **out, struct loop *l,
			struct registration *registration, struct error *e)
{
	struct donor_control *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return fail(e, ENOMEM, "out of memory");
	c->loop = l;
	c->registration = registration;
	make_lock(&c->lock);
	/* Uses CLOCK_MONOTONIC, which cannot be set. */
	thread_cond_init(&c->answered);
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0) {
		r = fail(e, errno, "eventfd: %m");
		free(c);
		return r;
	}
	c->rules.read = read_verbs;
	peer_groups_find(&c->rules.groups);
	c->listen_fd = listen_there(ebb_donor_socket());
	r = c->listen_fd < 0 ? 0 :
	    control_server_new(&c->server, c->listen_fd, &c->rules, handle, c, e);
	if (!r)
		r = start_thread(c, e);
	if (r) {
		close(c->wake_fd);
		control_server_free(&c->server);
		close_fdp(&c->listen_fd);
		free(c);
		return r;
	}
	l->woken_data = c;
	l->woken = answer_request;
	l->log.wake_fd = c->wake_fd;
	*out = c;
	return 0;
}

void donor_control_stop(struct donor_control **cp)
{
	struct donor_control *c = *cp;

	*cp = NULL;
	if (!c)
		return;
	c->loop->woken = NULL;
	c->loop->log.wake_fd = -1;
	pthread_mutex_lock(&c->lock);
	__atomic_store_n(&c->stop, true, __ATOMIC_RELEASE);
	pthread_cond_signal(&c->answered);
	pthread_mutex_unlock(&c->lock);
	eventfd_write(c->wake_fd, 1);
	pthread_join(c->thread, NULL);
	close(c->wake_fd);
	control_server_free(&c->server);
	if (c->listen_fd >= 0) {
		close(c->listen_fd);
		unlink(ebb_donor_socket());
	}
	free(c);
}
