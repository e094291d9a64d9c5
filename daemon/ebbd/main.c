// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbd: options, prerequisites, start, loop, stop. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "devices.h"
#include "ebbd.h"
#include "ebbd/attach/benefit.h"
#include "ebbd/attach/colocation.h"
#include "ebbd/attach/offload.h"
#include "ebbd/attach/stats.h"
#include "ebbd/kmod/manager.h"
#include "ebbd/plane/policy_store.h"
#include "ebbd/plane/roles.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/options.h"
#include "lib/base/paths.h"
#include "lib/base/privilege.h"
#include "lib/base/service.h"
#include "lib/control/control_server.h"
#include "scopes.h"
#include "server.h"

#define TICK_USEC 100000
#define TICKS_A_SECOND 10
#define HUNG_USEC 30000000      /* without WatchdogSec= */

struct options {
	const char *config, *policy_dir;
	struct service service;
	bool daemon, verbose, check_config, purge, restore;
};

static const struct option_spec specs[] = {
	{ "config", 'c', OPTION_STRING, offsetof(struct options, config), "FILE",
	  "read FILE instead of " EBB_CONF " and its drop-ins", 0, 0 },
	{ "check-config", 0, OPTION_FLAG, offsetof(struct options, check_config), NULL,
	  "check the configuration, print the first error and exit", 0, 0 },
	{ "policy-dir", 0, OPTION_STRING, offsetof(struct options, policy_dir), "DIR",
	  "load policies from DIR", 0, 0 },
	{ "daemon", 'd', OPTION_FLAG, offsetof(struct options, daemon), NULL,
	  "run in the background once ready", 0, 0 },
	{ "purge", 0, OPTION_FLAG, offsetof(struct options, purge), NULL,
	  "remove all pins at exit: the next ebbd starts empty", 0, 0 },
	{ "restore", 0, OPTION_FLAG, offsetof(struct options, restore), NULL,
	  "restore the CPU affinity of programs that a crashed ebbd had pinned, and exit", 0, 0 },
	{ "verbose", 'v', OPTION_FLAG, offsetof(struct options, verbose), NULL,
	  "log debug messages, the verifier log included", 0, 0 },
	SERVICE_OPTIONS(options, service),
	OPTIONS_END
};

static const struct command usage = {
	.help = "Attach policies to cgroups and carry out their prefetch requests, until SIGTERM",
	.options = specs,
};

static int on_control(sd_event_source *s, int fd, uint32_t events, void *data)
{
	control_server_turn(((struct ebbd *)data)->server);
	return 0;
}

static int on_cgroups(sd_event_source *s, int fd, uint32_t events, void *data)
{
	declared_events(((struct ebbd *)data)->declared);
	return 0;
}

/* Of threads that are not replaced: systemd's watchdog sees the main thread only. */
static void watch_threads(struct ebbd *d)
{
	struct worker *const worker[] = { executor_worker(d->executor),
					  offload_worker(d->offload) };
	uint64_t usec = HUNG_USEC;
	bool guarded = sd_watchdog_enabled(0, &usec) > 0;
	const char *end = guarded ? "; aborting, for systemd to restart ebbd" : "";

	for (size_t i = 0; i < sizeof(worker) / sizeof(worker[0]); i++) {
		if (worker_tick(worker[i]) != usec / TICK_USEC)
			continue;
		log_err("%s: no progress for %llu s, the last call was on the memory of process %u%s; if this "
			"recurs, detach the policy of that process's cgroup", worker_work(worker[i]),
			(unsigned long long)(usec / 1000000), worker_at(worker[i]), end);
		if (guarded)
			abort();
	}
}

static int on_tick(sd_event_source *s, uint64_t usec, void *data)
{
	struct ebbd *d = data;
	static unsigned int ticks;

	plane_heartbeat(&d->plane);
	attachments_tick(&d->attachments);
	watch_threads(d);
	if (++ticks % TICKS_A_SECOND == 0) {
		attachments_sweep(&d->attachments);
		declared_again(d->declared);
		scopes_follow(d->scopes, declared_changes(d->declared));
		stats_publish(&d->attachments);
	}
	sd_event_source_set_time_relative(s, TICK_USEC);
	return sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

static int on_stop(sd_event_source *s, const struct signalfd_siginfo *info, void *data)
{
	return sd_event_exit(sd_event_source_get_event(s), 0);
}

static int on_reload(sd_event_source *s, const struct signalfd_siginfo *info, void *data)
{
	struct ebbd *d = data;
	struct config fresh;
	struct error e = { 0 };

	sd_notify(0, "RELOADING=1");
	config_defaults(&fresh);
	if (config_load(&fresh, d->config_file, &e) ||
	    declared_check(&d->attachments, &fresh.declared, &e) ||
	    discovery_configure(d->discovery, &fresh.donors, &e)) {
		log_event(EVENT_CONFIG_REFUSED, LOG_LVL_ERR, "%s; keeping the old configuration", e.text);
		config_free(&fresh);
	} else {
		config_free(&d->config);
		d->config.declared = fresh.declared;
		declared_apply(d->declared);
		log_info("configuration read; [prefetch], [epochs] and [bpf] take effect at the next start");
	}
	devices_refresh(d);
	sd_notify(0, "READY=1");
	return 0;
}

/*
 * For one ebbd per machine, whatever its run directory: pins are machine-wide, and two would count
 * everything twice.
 */
#define LOCK_DIR "/run/ebb"
#define LOCK_FILE LOCK_DIR "/ebbd.lock"

static int lock_machine(int *lock, struct error *e)
{
	/* Local users read the records of devices there, whatever UMask= is. */
	mode_t mask = umask(022);

	if (mkdir(ebb_run_dir(), 0755) < 0 && errno != EEXIST)
		return fail(e, errno, "%s: cannot create: %m", ebb_run_dir());
	if (mkdir(ebb_device_dir(), 0755) < 0 && errno != EEXIST)
		return fail(e, errno, "%s: cannot create: %m", ebb_device_dir());
	if (mkdir(LOCK_DIR, 0755) < 0 && errno != EEXIST)
		return fail(e, errno, LOCK_DIR ": cannot create: %m");
	umask(mask);
	*lock = open(LOCK_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (*lock < 0)
		return fail(e, errno, LOCK_FILE ": %m");
	if (flock(*lock, LOCK_EX | LOCK_NB) < 0)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 LOCK_FILE ": another ebbd runs; see ebbctl status");
	return 0;
}

/* Call before any thread exists: one without the mask would die of the signal. */
static void block_signals(void)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
}

/* An attached cgroup takes four descriptors per processor while its hits are detected. */
static void allow_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int start(struct ebbd *d, const struct options *o, struct error *e)
{
	const struct plane_wish wish = {
		.epoch_percent = d->config.epoch_percent, .hooks = d->config.hooks,
	};
	int r;

	colocation_recover();
	r = plane_open(&d->plane, &wish, e);
	if (r)
		return r;
	r = policies_open(&d->plane, o->policy_dir ? o->policy_dir : ebb_policy_dir(), e);
	if (r)
		return r;
	r = roles_write(&d->plane, e);
	if (r)
		return r;
	d->budgets = budget_table_new(&d->plane, &d->config.executor);
	if (!d->budgets)
		return fail(e, ENOMEM, "ebbd: out of memory");
	attachments_init(&d->attachments, &d->plane, d->budgets);
	devices_refresh(d);
	if (d->plane.took_over)
		attachments_restore(&d->attachments);
	r = executor_start(&d->executor, &d->plane, d->budgets, &d->config.executor, e);
	if (!r)
		r = offload_start(&d->offload, &d->attachments, e);
	if (!r)
		r = colocation_start(&d->colocation, &d->attachments, e);
	if (!r)
		r = benefit_start(&d->benefit, &d->attachments, e);
	if (!r)
		r = recordings_new(&d->recordings, &d->attachments, e);
	if (!r)
		r = declared_check(&d->attachments, &d->config.declared, e);
	if (!r)
		r = declared_new(&d->declared, &d->attachments, &d->config.declared, e);
	if (!r)
		declared_apply(d->declared);
	if (!r)
		r = discovery_start(&d->discovery, &d->config.donors, e);
	if (!r)
		r = kmod_manager_start(&d->kmod, e);
	if (!r)
		r = scopes_start(&d->scopes, e);
	server_rules(&d->rules);
	if (!r)
		r = d->control = control_listen(ebb_control_socket(), e);
	if (r >= 0)
		r = control_server_new(&d->server, d->control, &d->rules, server_handle, d, e);
	return r < 0 ? r : 0;
}

static void stop(struct ebbd *d, enum plane_pins pins)
{
	if (!d->plane.fault)
		return;
	control_server_free(&d->server);
	if (d->control >= 0) {
		close(d->control);
		unlink(ebb_control_socket());
	}
	scopes_stop(&d->scopes);
	kmod_manager_stop(&d->kmod);
	discovery_stop(&d->discovery);
	declared_free(&d->declared);
	recordings_free(&d->recordings);
	benefit_stop(&d->benefit);
	colocation_stop(&d->colocation);
	offload_stop(&d->offload);
	executor_stop(&d->executor);
	stats_publish_all(&d->attachments);
	attachments_close(&d->attachments);
	budget_table_free(&d->budgets);
	policies_close(&d->plane);
	plane_close(&d->plane, pins);
}

static int loop(struct ebbd *d, struct error *e)
{
	_cleanup_(sd_event_unrefp) sd_event *event = NULL;
	int r;

	r = sd_event_default(&event);
	if (r >= 0)
		r = sd_event_add_io(event, NULL, control_server_fd(d->server), EPOLLIN, on_control,
				    d);
	if (r >= 0)
		r = sd_event_add_io(event, NULL, declared_fd(d->declared), EPOLLIN, on_cgroups, d);
	if (r >= 0)
		r = sd_event_add_time_relative(event, NULL, CLOCK_INTERVALS, TICK_USEC, 1000,
					       on_tick, d);
	if (r >= 0)
		r = sd_event_add_signal(event, NULL, SIGTERM, on_stop, d);
	if (r >= 0)
		r = sd_event_add_signal(event, NULL, SIGINT, on_stop, d);
	if (r >= 0)
		r = sd_event_add_signal(event, NULL, SIGHUP, on_reload, d);
	sd_event_set_watchdog(event, 1);
	if (r >= 0) {
		r = sd_event_loop(event);
	}
	sd_notify(0, "STOPPING=1");
	return r < 0 ? fail(e, r, "event loop: %s", strerror(-r)) : 0;
}

static void detach_output(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/ebbd.log", ebb_run_dir());
	service_detach(path, 0);
}

int main(int argc, char **argv)
{
	struct ebbd d = { .control = -1, .started_ns = now_ns() };
	struct options o = { .config = NULL };
	_cleanup_close_ int lock = -1;
	struct error e = { 0 };
	int status, r;

	if (!service_options(&usage, "ebbd", argc, argv, &o, &o.service, &status))
		return status;
	/* Large memory, such as the verifier's log, is not kept, and locked, when it is freed. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	etcd_global_init();
	log_setup("ebbd", o.verbose ? LOG_LVL_DEBUG : LOG_LVL_INFO);
	d.config_file = o.config;
	config_defaults(&d.config);
	r = config_load(&d.config, o.config, &e);
	if (!r && o.check_config)
		r = config_check_policies(&d.config, o.policy_dir ? o.policy_dir : ebb_policy_dir(),
					  &e);
	if (r || o.check_config)
		goto out;
	r = need_root("ebbd", &e);
	if (!r)
		r = need_initial_pids("ebbd", &e);
	if (r)
		goto out;
	if (o.restore) {
		r = lock_machine(&lock, &e);
		if (!r)
			colocation_recover();
		goto out;
	}
	if (o.daemon)
		r = service_daemonise(&o.service, &e);
	if (!r)
		r = lock_machine(&lock, &e);
	block_signals();
	allow_descriptors();
	if (!r)
		r = start(&d, &o, &e);
	if (!r) {
		/* Memory of the load, such as the kernel's types. */
		malloc_trim(0);
		/* A prefetcher must not be swapped out itself. */
		if (mlockall(MCL_CURRENT | MCL_FUTURE) < 0)
			log_warn("memory: cannot lock: %m; raise LimitMEMLOCK=");
		log_event(EVENT_READY, LOG_LVL_INFO, "ready: %u policies, %u cgroups%s", d.plane.policies,
			  d.attachments.n, d.plane.took_over ? ", taken over" : "");
		if (o.daemon)
			detach_output();
		service_ready(&o.service, NULL);
		r = loop(&d, &e);
	}
	stop(&d, o.purge || (r && !d.plane.took_over) ? DROP_PINS : KEEP_PINS);
out:
	config_free(&d.config);
	return service_end(&e);
}
