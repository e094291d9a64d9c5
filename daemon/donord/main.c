// SPDX-License-Identifier: GPL-2.0-or-later
/* ebb-donord: lends memory to borrowers over TCP, by RDMA, or by sharing it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "advertise.h"
#include "control.h"
#include "donord/pool/machine.h"
#include "donord/pool/pool.h"
#include "donord/session/rate.h"
#include "ebb/far.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/options.h"
#include "lib/base/realtime.h"
#include "lib/base/service.h"
#include "lib/base/size.h"
#include "loop.h"

/*
 * The table of an arena fills a part of its first section.  The rest of that section serves extents
 * of one page; larger extents need another section.
 */
#define FAR_SLAB_LEAST (2 * EBB_FAR_SECTION)
/* Tables of one heap. */
#define FAR_JOBS_LEAST (1u << 20)

struct donord_options {
	struct option_list listen;
	const char *memory;
	uint64_t slab;
	const char *rdma, *rdma_kernel;
	struct lending_options lending;
	struct advertise_options advertise;
	struct service service;
};

#define OPTION(option, kind, field, meta, text) \
	{ .name = option, .type = kind, .offset = offsetof(struct donord_options, field), \
	  .metavar = meta, .help = text }

static const struct option_spec specs[] = {
	OPTION("listen", OPTION_LIST, listen, "HOST:PORT|unix:/PATH",
	       "listen address; beyond loopback requires --keys; may be repeated [127.0.0.1:7070]"),
	OPTION("memory", OPTION_STRING, memory, "SIZE",
	       "memory to lend; auto: all but HeadRoom; required"),
	OPTION("headroom", OPTION_SIZE, lending.headroom, "SIZE",
	       "memory to keep free for this machine's programs [none; with auto 10 %, at least 1G]"),
	OPTION("slab", OPTION_SIZE, slab, "SIZE", "unit of lending, a power of two from 1M to 1G [64M]"),
	OPTION("keys", OPTION_LIST, lending.keys, "FILE|DIR",
	       "keys of allowed borrowers; enables TLS; may be repeated"),
	OPTION("rdma", OPTION_STRING, rdma, "HOST:PORT",
	       "accept RDMA from borrowers with a key; HOST must be an address of an RDMA device"),
	OPTION("rdma-kernel", OPTION_STRING, rdma_kernel, "HOST:PORT",
	       "accept kernel modules with a key, by RDMA; HOST as for --rdma"),
	OPTION("far", OPTION_SIZE, lending.far, "SIZE",
	       "lend up to SIZE of --memory as far memory, to programs that use libebbfar [none]"),
	OPTION("far-jobs", OPTION_SIZE, lending.far_jobs, "SIZE",
	       "trace and evacuate heaps in far memory, with up to SIZE for tables, at least 1M [no]"),
	{ .name = "far-jobs-cpu", .type = OPTION_UINT, .offset = offsetof(struct donord_options, lending.far_jobs_cpu),
	  .metavar = "PERCENT", .min = 1, .max = 100,
	  .help = "share of one processor that --far-jobs may use [25]" },
	OPTION("quota", OPTION_SIZE, lending.sessions.quota, "SIZE", "limit of memory per borrower [none]"),
	{ .name = "rate", .type = OPTION_SIZE, .offset = offsetof(struct donord_options, lending.sessions.rate),
	  .metavar = "SIZE", .min = RATE_LEAST,
	  .help = "limit of page traffic per second for each key, or each address without keys; excess requests wait [none]" },
	OPTION("peer-connections", OPTION_UINT, lending.sessions.peer_connections, "N",
	       "limit of connections per address, not counting authenticated ones [64]"),
	OPTION("key-connections", OPTION_UINT, lending.sessions.key_connections, "N",
	       "limit of connections with keys of one name [192]"),
	/* Borrowers are told the grace period in 32 bits of ms. */
	{ .name = "keep", .type = OPTION_DURATION, .offset = offsetof(struct donord_options, lending.sessions.keep),
	  .metavar = "TIME", .max = UINT32_MAX / 3600000 * 3600000000000ull,
	  .help = "session grace period: retain a lost borrower's slabs for TIME [30s]" },
	OPTION("drain-timeout", OPTION_DURATION, lending.drain, "TIME",
	       "after SIGTERM, wait up to TIME for borrowers to move their pages; remaining slabs are lost [60s]"),
	OPTION("overdue", OPTION_DURATION, lending.eviction.overdue, "TIME",
	       "log recalled slabs that are not released within TIME; 0: never [5m]"),
	OPTION("revoke-after", OPTION_DURATION, lending.eviction.revoke, "TIME",
	       "when memory is short, revoke slabs recalled longer than TIME ago; their pages may be lost [never]"),
	OPTION("no-revoke", OPTION_FLAG, lending.eviction.no_emergency, NULL,
	       "when this machine is about to run out of memory, take no emergency measures (drop, recall, revoke): the OOM killer may act"),
	ADVERTISE_OPTIONS(donord_options, advertise),
	OPTION("delay", OPTION_DURATION, lending.sessions.delay, "TIME", "delay replies to reads (for tests)"),
	OPTION("machine", OPTION_STRING, lending.machine, "DIR",
	       "directory of meminfo and pressure/memory (for tests) [/proc]"),
	SERVICE_OPTIONS(donord_options, service),
	OPTIONS_REMOVED,
	{ .name = "rdma-open", .type = OPTION_STRING,
	  .help = "to lend by RDMA use --rdma-kernel with --keys" },
	{ .name = "rdma-memory", .type = OPTION_STRING, .help = "kernel modules borrow from --memory" },
	OPTIONS_END
};

static const struct command command = {
	.help = "Lend memory to borrowers over TCP, by RDMA or by shared mappings, until SIGTERM",
	.example = "ebb-donord --listen 127.0.0.1:7070 --memory 4G\nebb-donord --memory auto",
	.options = specs,
};

/* Other machines' pages depend on this process: the OOM killer and swap spare it. */
static void protect(char **argv)
{
	argv[0][0] = '@'; /* systemd-shutdown(8) spares it until swap is off */
	if (mlockall(MCL_CURRENT | MCL_FUTURE) < 0)
		log_warn("memory: cannot lock the program itself: %m");
	if (file_write("/proc/self/oom_score_adj", "-1000"))
		log_debug("oom_score_adj: not allowed");
	if (realtime_enter())
		log_debug("SCHED_FIFO: not allowed");
}

/* Parses all addresses.  *@shared: borrowers at one of them map slabs. */
static int parse_places(const struct option_list *list, struct address *a, bool *shared,
			struct error *e)
{
	*shared = false;
	for (int i = 0; i < list->n; i++) {
		int r = address_parse(list->v[i], "--listen", &a[i], e);

		if (!r && address_is_rdma(&a[i]))
			r = fail_exit(e, EXIT_USAGE, EINVAL,
				      "--listen: %s is an address for borrowers; listen at HOST:PORT and pass --rdma, too",
				      list->v[i]);
		if (r)
			return r;
		*shared = *shared || address_is_local(&a[i]);
	}
	return 0;
}

/* Borrowers' slabs are powers of two: with another size, memory would lie idle. */
static int check_slab(const struct donord_options *o, struct error *e)
{
	char a[16], b[16];

	if (o->slab < WIRE_MIN_SLAB || o->slab > WIRE_MAX_SLAB || o->slab & (o->slab - 1))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--slab: %s is no power of two from 1M to 1G; use 64M",
				 size_format(o->slab, a, sizeof(a)));
	if (o->lending.far && o->slab < FAR_SLAB_LEAST)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--slab: %s are too small for far memory; use 4M or more",
				 size_format(o->slab, a, sizeof(a)));
	if (o->lending.far && o->lending.far < o->slab)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--far: %s are less than a slab of %s; raise it, or lower --slab",
				 size_format(o->lending.far, a, sizeof(a)),
				 size_format(o->slab, b, sizeof(b)));
	if (o->lending.far_jobs && !o->lending.far)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--far-jobs: there is no far memory to work in; pass --far SIZE, too");
	if (o->lending.far_jobs && o->lending.far_jobs < FAR_JOBS_LEAST)
		return fail_exit(e, EXIT_USAGE, EINVAL, "--far-jobs: %s are less than 1M; raise it",
				 size_format(o->lending.far_jobs, a, sizeof(a)));
	if (o->lending.sessions.quota && o->lending.sessions.quota < o->slab)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--quota: %s is less than one slab of %s; raise it or use smaller slabs",
				 size_format(o->lending.sessions.quota, a, sizeof(a)),
				 size_format(o->slab, b, sizeof(b)));
	return 0;
}

/* Shared slabs may use reserved huge pages, which MemAvailable does not count. */
static bool may_be_huge(bool shared)
{
	return shared && file_number("/proc/sys/vm/nr_hugepages", 0) > 0;
}

/* Refuses memory that the machine lacks before the OOM killer finds out. */
static int check_memory(const struct donord_options *o, uint64_t memory, bool shared,
			struct error *e)
{
	struct headroom_sample sample;
	struct machine machine;
	uint64_t most;
	char a[16], b[16];

	/* With HeadRoom, --memory is an upper bound only. */
	if (o->lending.headroom)
		return 0;
	machine_find(&machine, o->lending.machine ?: "/proc");
	if (machine_sample(&machine, &sample, NULL))
		return 0;
	most = sample.own > HEADROOM_SELF ? sample.own - HEADROOM_SELF : 0;
	if (sample.limited && memory > most && !may_be_huge(shared))
		return fail_exit(e, EXIT_REFUSED, ENOMEM,
				 "--memory: %s are more than the %s that this process's cgroups still allow (%s); lend less, or raise MemoryMax= of its unit",
				 size_format(memory, a, sizeof(a)), size_format(most, b, sizeof(b)),
				 machine.cgroup);
	most = shared ? sample.memory : sample.available;
	return memory <= most ? 0 :
	       fail_exit(e, EXIT_REFUSED, ENOMEM,
			 "--memory: %s are more than the %s that this machine has %s; lend less, or --memory auto",
			 size_format(memory, a, sizeof(a)), size_format(most, b, sizeof(b)),
			 shared ? "in all" : "available");
}

/* Sets *@memory, the most to lend, and the default HeadRoom of --memory auto. */
static int parse_memory(struct donord_options *o, bool shared, uint64_t *memory, struct error *e)
{
	struct headroom_sample sample;
	struct machine machine;
	char a[16], b[16];
	int r;

	if (strcmp(o->memory, "auto")) {
		r = size_parse(o->memory, "--memory", memory, e);
		return r ? r : check_memory(o, *memory, shared, e);
	}
	machine_find(&machine, o->lending.machine ?: "/proc");
	r = machine_sample(&machine, &sample, e);
	if (r)
		return r;
	if (!o->lending.headroom)
		o->lending.headroom = headroom_default(sample.memory);
	if (o->lending.headroom >= sample.memory)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--headroom: %s of %s leave nothing to lend; choose less",
				 size_format(o->lending.headroom, a, sizeof(a)),
				 size_format(sample.memory, b, sizeof(b)));
	*memory = sample.memory - o->lending.headroom;
	if (sample.limited && *memory > sample.limit)
		*memory = sample.limit;
	return 0;
}

static void say_what(const struct donord_options *o, const struct pool *pool)
{
	char total[16], slab[16], headroom[16];

	for (int i = 0; i < o->listen.n; i++) {
		size_format(pool->count * pool->slab_size, total, sizeof(total));
		size_format(pool->slab_size, slab, sizeof(slab));
		if (o->lending.headroom)
			log_info("lending up to %s in slabs of %s on %s, %s stay free", total, slab,
				 o->listen.v[i],
				 size_format(o->lending.headroom, headroom, sizeof(headroom)));
		else
			log_info("lending %s in %u slabs of %s on %s", total, pool->count, slab,
				 o->listen.v[i]);
	}
}

/* @text NULL: the option was not given. */
static int listen_rdma(const char *text, const char *option, struct loop *l,
		       int (*listen)(struct loop *, const struct address *, struct error *),
		       struct error *e)
{
	struct address a;
	int r;

	if (!text)
		return 0;
	r = address_parse(text, option, &a, e);
	if (!r && (address_is_local(&a) || address_is_rdma(&a)))
		r = fail_exit(e, EXIT_USAGE, EINVAL, "%s: not an address of RDMA; write HOST:PORT",
			      option);
	return r ? r : listen(l, &a, e);
}

static int run(struct donord_options *o, struct loop *l, const struct pool *pool,
	       struct registration *registration, char **argv, struct error *e)
{
	struct donor_control *control = NULL;
	int r = donor_control_start(&control, l, registration, e);

	if (r)
		return r;
	protect(argv);
	say_what(o, pool);
	service_ready(&o->service, NULL);
	if (registration)
		registration_return(registration);
	r = loop_run(l);
	donor_control_stop(&control);
	return r ? fail(e, r, "event loop: %s", strerror(-r)) : 0;
}

static int serve(struct donord_options *o, char **argv, struct error *e)
{
	struct address places[OPTION_LIST_MAX];
	struct pool pool = { 0 };
	struct loop *l = NULL;
	struct registration *registration = NULL;
	uint64_t memory = 0;
	bool shared;
	int r = parse_places(&o->listen, places, &shared, e);

	if (!r)
		r = check_slab(o, e);
	if (!r)
		r = parse_memory(o, shared, &memory, e);
	if (!r)
		r = advertise_begin(&o->advertise, o->slab, memory, &registration, e);
	/* Reserved huge pages are of no use to other programs. */
	if (!o->lending.headroom && may_be_huge(shared))
		o->lending.eviction.no_emergency = true;
	if (!r)
		r = loop_new(&l, &pool, &o->lending, e);
	/* Reports an address in use before memory is allocated. */
	for (int i = 0; !r && i < o->listen.n; i++)
		r = loop_listen(l, &places[i], e);
	if (!r)
		r = pool_init(&pool, memory, o->slab, !shared ? LEND_PRIVATE :
			      o->lending.headroom ? LEND_SHARED : LEND_SHARED_HUGE, e);
	if (!r)
		r = listen_rdma(o->rdma, "--rdma", l, loop_listen_rdma, e);
	if (!r)
		r = listen_rdma(o->rdma_kernel, "--rdma-kernel", l, loop_listen_kernels, e);
	if (!r)
		r = loop_start(l, e);
	if (!r)
		r = run(o, l, &pool, registration, argv, e);
	else if (r == -EINTR && !e->code)
		log_info("stopped before its memory was allocated");
	loop_free(&l);
	pool_free(&pool);
	registration_stop(&registration);
	return r;
}

int main(int argc, char **argv)
{
	struct donord_options o = {
		.slab = 64 << 20,
		.lending = {
			.sessions = { .peer_connections = 64, .key_connections = 192,
				      .keep = 30000000000ull },
			.drain = 60000000000ull,
			.far_jobs_cpu = 25,
			.eviction.overdue = 300000000000ull,
		},
	};
	struct error e = { 0 };
	int status;

	if (!service_options(&command, "ebb-donord", argc, argv, &o, &o.service, &status))
		return status;
	etcd_global_init();
	if (!o.memory)
		fail_exit(&e, EXIT_USAGE, EINVAL, "--memory: not given; pass --memory 4G or --memory auto");
	if (!o.listen.n)
		o.listen = (struct option_list){ { "127.0.0.1:7070" }, 1 };
	if (!e.code)
		serve(&o, argv, &e);
	return service_end(&e);
}
