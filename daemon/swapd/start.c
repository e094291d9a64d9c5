// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/base/realtime.h"
#include "lib/base/size.h"
#include "lib/link/transport.h"
#include "lib/rules/placement.h"
#include "lib/wire/local.h"
#include "serve.h"
#include "start.h"
#include "swapd/page/shared.h"
#include "swapd/process/failover.h"
#include "swapd/replicas/reservation.h"

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

#define NICE (-10)
/* For several connections to each of MAX_DONORS, the frontend, and slabs being received. */
#define DESCRIPTORS 4096
/* How often a standby allocates what new donors need. */
#define STANDBY_LOOK_MS 1000

static int missing(const char *option, const char *example, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, EINVAL, "--%s: not given; pass --%s %s", option, option,
			 example);
}

static bool durability_is_disk(const struct swapd_options *o)
{
	return !strcmp(o->durability, "disk");
}

/* Parses "replicas=2"; the option table excludes other numbers. */
static int durability_copies(const struct swapd_options *o)
{
	const char *number = strchr(o->durability, '=');

	return number ? atoi(number + 1) : 1;
}

int swapd_options_check(const struct swapd_options *o, struct error *e)
{
	int r;

	if (!o->name)
		return missing("name", "ebb0", e);
	r = device_name_check(o->name, e);
	if (r)
		return r;
	if (!o->size)
		return missing("size", "4G", e);
	if (durability_is_disk(o) && !o->backup)
		return missing("backup", "/var/lib/ebb/ebb0.backup", e);
	if (!durability_is_disk(o) && o->backup)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--backup: not used with --durability %s; leave it out, or pass --durability disk",
				 o->durability);
	if (!o->mount)
		return missing("mount", "/run/ebb/mnt/ebb0", e);
	if (!o->donors.n)
		return missing("donor", "127.0.0.1:7070", e);
	if (o->size % PAGE || o->size / PAGE > INT32_MAX)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--size: must be whole pages of 4096 bytes, less than 8 TiB; round it down");
	if (o->slab % PAGE || o->slab < WIRE_MIN_SLAB || o->slab > WIRE_MAX_SLAB)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--slab: must be 1M to 1G in whole pages; use 64M");
	if (o->slab & (o->slab - 1))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--slab: must be a power of two; use 64M");
	if (o->spread > UINT32_MAX)
		return fail_exit(e, EXIT_USAGE, EINVAL, "--spread: too large; use 8, or 0 for always");
	if (o->choices < 1 || o->choices > PLACE_CHOICES_MAX)
		return fail_exit(e, EXIT_USAGE, EINVAL, "--choices: must be 1 to %d; use 2",
				 PLACE_CHOICES_MAX);
	if (o->repair_rate < PAGE * 10)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--repair-rate: must be at least 40K a second; use 256M");
	if (o->connections < 1 || o->connections > DATA_LINKS)
		return fail_exit(e, EXIT_USAGE, EINVAL, "--connections: must be 1 to %d; use 1",
				 DATA_LINKS);
	if (o->connections > 1 && !o->key)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--connections: requires a key; pass --key FILE, or leave it out");
	if (!o->away_timeout)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--away-timeout: must be longer than 0; use 25s");
	if (o->deadline < 10000000 || o->watchdog < 2 * o->deadline)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--deadline, --watchdog: need at least 10ms, and a watchdog of twice the deadline; use 500ms and 30s");
	return 0;
}

static void log_path(const struct swapd_options *o, char path[static PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/%s.log", ebb_device_dir(), o->name);
}

void swapd_forget_log(const struct swapd_options *o)
{
	char path[PATH_MAX];

	if (o->foreground)
		return;
	log_path(o, path);
	unlink(path);
}

static void detach_output(const struct swapd *s, int flags)
{
	char path[PATH_MAX];

	log_path(&s->options, path);
	service_detach(path, flags);
}

void swapd_ready(struct swapd *s)
{
	char where[PATH_MAX], text[PATH_MAX + 16];

	s->frontend->where(&s->host, where, sizeof(where));
	snprintf(text, sizeof(text), "serving %s", where);
	if (!s->options.foreground)
		detach_output(s, O_TRUNC);
	service_ready(&s->options.service, text);
}

/* Without free descriptors a donor cannot reconnect, and slabs of local donors cannot be mapped. */
static void allow_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= DESCRIPTORS)
		return;
	limit.rlim_cur = limit.rlim_max < DESCRIPTORS ? limit.rlim_max : DESCRIPTORS;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < DESCRIPTORS)
		log_warn("descriptors: %llu are allowed; with many donors raise LimitNOFILE= to %d",
			 (unsigned long long)limit.rlim_cur, DESCRIPTORS);
}

/* Protects the process from the OOM killer and raises its priority: page faults depend on it. */
static void protect(struct swapd *s, char **argv)
{
	/* The standby waits for the server's exit, which a core dump would delay. */
	prctl(PR_SET_DUMPABLE, 0);
	argv[0][0] = '@'; /* systemd-shutdown(8) spares it until swap is off */
	/* Before any threads exist, as they inherit it. */
	s->io_flusher = prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0;
	if (!s->io_flusher)
		log_warn("PR_SET_IO_FLUSHER: %m (CAP_SYS_RESOURCE); use this device for limited cgroups only");
	s->oom_protected = file_write("/proc/self/oom_score_adj", "-1000") == 0;
	s->nice = setpriority(PRIO_PROCESS, 0, NICE) == 0;
	s->realtime = realtime_enter() == 0;
}

/* Not resolved: the owner of a symbolic link matters, too. */
static int settle_key(struct swapd *s, struct error *e)
{
	char here[PATH_MAX];

	if (!s->options.key || *s->options.key == '/')
		return 0;
	if (!getcwd(here, sizeof(here)))
		return fail(e, errno, "key %s: %m; give its path from the root", s->options.key);
	if (snprintf(s->key_path, sizeof(s->key_path), "%s/%s", here, s->options.key) >=
	    (int)sizeof(s->key_path))
		return fail(e, ENAMETOOLONG, "key %s: path too long; give a shorter one",
			    s->options.key);
	s->options.key = s->key_path;
	return 0;
}

/* Makes paths absolute, because a daemon changes to the root directory. */
static int settle_paths(struct swapd *s, struct error *e)
{
	char directory[PATH_MAX], *slash;
	int r = settle_key(s, e);

	if (r)
		return r;

	if (!realpath(s->options.mount, s->mount))
		return fail(e, errno, "mount %s: %m; create the directory first", s->options.mount);
	s->options.mount = s->mount;
	if (!s->options.backup)
		return s->options.foreground || chdir("/") == 0 ? 0 : fail(e, errno, "/: %m");
	if (strlen(s->options.backup) >= sizeof(directory))
		return fail(e, ENAMETOOLONG, "backup: path too long");
	strcpy(directory, s->options.backup);
	slash = strrchr(directory, '/');
	if (slash)
		*slash = '\0';
	if (!realpath(!slash ? "." : slash == directory ? "/" : directory, s->backup_path))
		return fail(e, errno, "backup %s: %m; create its directory first", s->options.backup);
	slash = strrchr(s->options.backup, '/');
	strncat(s->backup_path, "/", sizeof(s->backup_path) - strlen(s->backup_path) - 1);
	strncat(s->backup_path, slash ? slash + 1 : s->options.backup,
		sizeof(s->backup_path) - strlen(s->backup_path) - 1);
	s->options.backup = s->backup_path;
	return s->options.foreground || chdir("/") == 0 ? 0 : fail(e, errno, "/: %m");
}

/* Returns whether pages are sealed: with "auto", unless every donor is on this machine. */
static bool seal_wanted(const struct swapd_options *o)
{
	if (strcmp(o->seal, "auto"))
		return !strcmp(o->seal, "on");
	for (int i = 0; i < o->donors.n; i++)
		if (!local_is(o->donors.v[i]))
			return true;
	return false;
}

static int seal_device(struct swapd *s, struct error *e)
{
	if (seal_wanted(&s->options))
		return sealing_init(&s->engine.sealing, s->engine.map->pages, e);
	s->donors.local_only = strcmp(s->options.seal, "off") != 0;
	return 0;
}

static int make_tables(struct swapd *s, struct error *e)
{
	uint64_t slabs = (s->options.size + s->options.slab - 1) / s->options.slab;
	struct slab *slab = shared_new(slabs * sizeof(*slab));
	int r;

	if (!slab)
		return fail(e, ENOMEM, "device %s: no memory for its tables", s->options.name);
	slab_init(&s->engine.table, slab, (uint32_t)slabs, (uint32_t)(s->options.slab / PAGE));
	s->donors.replicas = s->replicas.wanted = durability_copies(&s->options);
	s->replicas.choices = (int)s->options.choices;
	s->replicas.spread = (uint32_t)s->options.spread;
	s->replicas.slots_reserved = SLOTS_RESERVED;
	s->replicas.reserves = !durability_is_disk(&s->options) && !s->options.overcommit;
	s->engine.backlog_most = SLOT_COUNT - s->frontend->slots;
	s->engine.map = page_map_new((uint32_t)(s->options.size / PAGE), s->engine.table.pages,
				     s->options.backup != NULL);
	if (!s->engine.map)
		return fail(e, ENOMEM, "device %s: no memory for its tables", s->options.name);
	r = unmappings_init(&s->replicas.unmappings,
			    (uint32_t)slabs * (uint32_t)s->replicas.wanted, e);
	if (!r)
		r = seal_device(s, e);
	if (!r)
		r = slots_init(&s->engine.slots,
			       s->options.backup ? SLOT_COUNT : s->frontend->slots, e);
	s->donors.env.memory = s->engine.slots.memory;
	s->donors.env.memory_size = s->engine.slots.memory_size;
	return r;
}

static int make_shared(struct swapd *s, struct error *e)
{
	s->shared = shared_new(sizeof(*s->shared));
	if (!s->shared)
		return fail(e, errno, "shared memory: %m");
	s->count = &s->shared->counters;
	s->shared->supervisor = (uint32_t)getpid();
	return 0;
}

/* Warns if the loss of a machine takes too many copies with it. */
static void look_at_machines(const struct swapd *s)
{
	int machines = 0;

	for (int i = 0; i < s->donors.count; i++) {
		uint32_t machine = wire_machine(s->donors.donor[i].identity);
		bool seen = false;

		for (int j = 0; j < i; j++)
			seen |= machine && wire_machine(s->donors.donor[j].identity) == machine;
		machines += !seen;
	}
	if (machines < s->replicas.wanted)
		log_warn("device %s: its %d donors are on %d machine%s: %s survives the loss of a donor, but not of a machine; add donors on other machines",
			 s->options.name, s->donors.count, machines, machines > 1 ? "s" : "",
			 s->options.durability);
}

/* Lists in @text what each donor could lend, while it fits; returns the sum for this device. */
static uint64_t list_room(const struct swapd *s, char *text, size_t size)
{
	uint64_t slabs = s->engine.table.count, sum = 0;
	size_t at = 0;

	*text = '\0';
	for (int i = 0; i < s->donors.count; i++) {
		const struct donor *d = &s->donors.donor[i];
		uint64_t room = d->leaving || !donor_up(d) ? 0 : d->room, fit;
		char have[16], more[160];
		int n;

		fit = room ? room / d->link.slab_size : 0;
		sum += fit < slabs ? fit : slabs;
		n = snprintf(more, sizeof(more), "%s%s at %.100s", i ? ", " : "",
			     size_format(room, have, sizeof(have)), d->address.text);
		if (at + (size_t)n + sizeof(", ...") > size) {
			strcpy(text + at, ", ...");
			size = 0;
		}
		if (size)
			at += (size_t)snprintf(text + at, size - at, "%s", more);
	}
	return sum * s->options.slab;
}

/*
 * Reserves room for all replicas at the donors.  With a backup the disk, which has room for all, is
 * enough.
 */
static int check_capacity(struct swapd *s, struct error *e)
{
	char want[16], have[16], list[224];
	uint64_t room;

	if (durability_is_disk(&s->options))
		return 0;
	if (s->donors.count < s->replicas.wanted)
		return fail_exit(e, EXIT_REFUSED, ENOSPC,
				 "device %s: %s needs %d donors, %d are named; add --donor, or choose another --durability",
				 s->options.name, s->options.durability, s->replicas.wanted,
				 s->donors.count);
	if (!s->replicas.reserves || reservation_open(&s->replicas)) {
		look_at_machines(s);
		return 0;
	}
	room = list_room(s, list, sizeof(list));
	/* Not EXIT_REFUSED: other donors may be about to start, or devices to release theirs. */
	return fail(e, ENOSPC,
		    "device %s: %s in %d replica%s are more than its donors can lend it (%s): %s; make it smaller (--size), add donors, or use --durability disk or --overcommit",
		    s->options.name, size_format(s->options.size, want, sizeof(want)),
		    s->replicas.wanted, s->replicas.wanted > 1 ? "s" : "",
		    size_format(room, have, sizeof(have)), list);
}

static int load_key(struct swapd *s, struct error *e)
{
	struct key k;
	int r;

	if (!s->options.key)
		return 0;
	prctl(PR_SET_DUMPABLE, 0);
	r = key_load_own(&k, s->options.key, e);
	if (!r)
		r = tls_borrower(&s->donors.env.tls, &k, e);
	key_forget(&k);
	return r ? r : tls_reserve(MAX_DONORS, e);
}

static int name_donors(struct swapd *s, struct error *e)
{
	uint64_t number;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return fail(e, errno, "getrandom: %m");
	s->replicas.seed = s->donors.jitter = number | 1;
	for (int i = 0; i < s->options.donors.n; i++) {
		int r = donor_new(&s->donors, s->options.donors.v[i], e);

		if (r < 0)
			return r;
		/* Marks the entry as used, so that the next donor gets another one. */
		s->donors.donor[r].state = DONOR_DOWN;
	}
	return 0;
}

/* Locks present memory, with the 132 KiB of stack of every program, and that of later threads. */
static void lock_memory(struct swapd *s)
{
	s->locked = mlockall(MCL_CURRENT | MCL_FUTURE) == 0;
	if (!s->locked)
		log_warn("memory: cannot be locked: %m; the server itself may be paged out and hang");
}

int swapd_prepare(struct swapd *s, struct device_control *c, char **argv, struct error *e)
{
	int r;

	s->host.fd = s->donors.env.epoll_fd = s->timer_fd = s->signal_fd = s->wake_fd = -1;
	s->engine.backup.fd = s->engine.backup.shared_fd = -1;
	s->frontend = frontend_find(s->options.frontend);
	s->commands.post_fd = s->commands.done_fd = -1;
	c->listen_fd = c->stop_fd = -1;
	allow_descriptors();
	protect(s, argv);
	serve_signals();
	r = settle_paths(s, e);
	if (!r)
		r = make_shared(s, e);
	if (!r)
		wiring_events(s);
	if (!r)
		r = device_control_open(c, s, e);
	if (!r)
		r = make_tables(s, e);
	if (!r)
		r = load_key(s, e);
	if (!r)
		r = name_donors(s, e);
	if (!r && s->options.backup)
		r = backup_open(&s->engine.backup, s->options.backup, s->options.size, e);
	s->donors.backup = backup_there(&s->engine.backup);
	if (!r)
		wiring_frontend(s);
	if (!r)
		r = s->frontend->open(&s->host, e);
	if (!r)
		lock_memory(s);
	return r;
}

/* Makes each process's own threads and state, in locked memory. */
static int make_own(struct swapd *s, struct device_control *c, struct error *e)
{
	int r;

	/* First: after fork its pages are no longer locked by its parent. */
	lock_memory(s);
	r = s->options.backup ? backup_start(&s->engine.backup, &s->engine.slots, e) : 0;
	if (!r)
		r = resolver_start(&s->donors.resolver, MAX_DONORS, e);
	if (!r)
		r = device_control_start(c, e);
	return r;
}

static int make_loop(struct swapd *s, struct error *e)
{
	int r = serve_init(s, e);

	if (!r)
		r = commands_open(&s->commands, e);
	for (int i = 0; i < s->donors.count && !r; i++)
		if (s->donors.donor[i].link.transport->prepare)
			r = s->donors.donor[i].link.transport->prepare(&s->donors.env, e);
	return r ? r : s->frontend->prepare(&s->host, e);
}

int swapd_begin(struct swapd *s, struct device_control *c, struct error *e)
{
	int r = make_loop(s, e);

	s->shared->server = (uint32_t)getpid();
	for (int i = 0; i < s->donors.count && !r; i++)
		r = donor_join(&s->donors.donor[i], e);
	if (!r)
		r = check_capacity(s, e);
	if (r)
		return r;
	donors_record(&s->donors);
	r = s->frontend->begin(&s->host, e);
	if (!r)
		r = make_own(s, c, e);
	if (!r && backup_there(&s->engine.backup))
		s->shared->no_claim = backup_claim(&s->engine.backup) != 0;
	if (r)
		s->frontend->end(&s->host);
	return r;
}

/* Serves to the end, which is made known before anything else ends. */
static __attribute__((noreturn)) void serve_out(struct swapd *s, struct device_control *c)
{
	int r;

	__atomic_store_n(s->life, LIFE_SERVES, __ATOMIC_RELAXED);
	device_control_go(c);
	r = serve_run(s);
	__atomic_store_n(&s->shared->ended, 1, __ATOMIC_SEQ_CST);
	if (r)
		log_err("device %s: aborted (%s); programs with pages there get SIGBUS; swapoff, then destroy it",
			s->options.name, strerror(-r));
	/* Its thread logs them, too. */
	device_control_close(c);
	notes_log(&s->notes);
	swapd_stop(s, c);
	/* After a failure the log stays, for the operator. */
	if (!r)
		swapd_forget_log(&s->options);
	_exit(r ? EXIT_FAILED : EXIT_OK);
}

void swapd_serve(struct swapd *s, struct device_control *c, enum swapd_output output)
{
	service_forget(&s->options.service);
	if (output == OUTPUT_DETACHED)
		detach_output(s, 0);
	serve_out(s, c);
}

void swapd_stand_by(struct swapd *s, struct device_control *c, int alive_fd)
{
	struct pollfd p[2] = { { .fd = alive_fd, .events = POLLIN }, { .events = POLLIN } };
	struct error e = { 0 };

	prctl(PR_SET_NAME, "ebb-standby");
	if (make_loop(s, &e) || make_own(s, c, &e)) {
		/* Not to the log: without a server, the write may wait for a swapped-out page. */
		snprintf(s->shared->last_words, sizeof(s->shared->last_words), "%.159s", e.text);
		_exit(EXIT_FAILED);
	}
	p[1].fd = s->signal_fd;
	while (poll(p, 2, STANDBY_LOOK_MS) <= 0 || !p[0].revents) {
		/* systemctl stop signals all processes of a unit: only count it. */
		serve_take_signals(s);
		/* New donors may need memory: allocate it now. */
		donors_prepare(&s->donors);
	}
	if (__atomic_load_n(&s->shared->ended, __ATOMIC_SEQ_CST))
		_exit(EXIT_OK);
	prctl(PR_SET_NAME, "ebb-swapd");
	__atomic_store_n(&s->shared->server, (uint32_t)getpid(), __ATOMIC_RELAXED);
	__atomic_store_n(&s->shared->failovers, s->shared->failovers + 1, __ATOMIC_RELAXED);
	__atomic_store_n(s->life, LIFE_TAKES_OVER, __ATOMIC_RELAXED);
	if (failover(s))
		_exit(EXIT_FAILED);
	note(&s->notes, LOG_LVL_ERR,
	     "device %s: the server died; the standby serves it now (pid %d, after %llu ms, failover %u)",
	     s->options.name, getpid(), (unsigned long long)(s->shared->failover_ns / 1000000),
	     s->shared->failovers);
	serve_out(s, c);
}

void swapd_stop(struct swapd *s, struct device_control *c)
{
	device_control_close(c);
	s->frontend->end(&s->host);
	resolver_stop(&s->donors.resolver);
	transports_stop(&s->donors.env);
	backup_close(&s->engine.backup);
	donors_free(&s->donors);
	tls_context_free(&s->donors.env.tls);
	serve_free(s);
	commands_close(&s->commands);
	slots_free(&s->engine.slots);
	shared_free(s->engine.table.slabs, s->engine.table.count * sizeof(*s->engine.table.slabs));
	page_map_free(&s->engine.map);
	sealing_free(&s->engine.sealing);
	unmappings_free(&s->replicas.unmappings);
	/* struct shared stays, and shows that this is the end. */
}
