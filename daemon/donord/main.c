// SPDX-License-Identifier: GPL-2.0-or-later
/* ebb-donord: lends memory to borrowers over TCP, or by sharing it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/files.h"
#include "common/log.h"
#include "common/options.h"
#include "common/realtime.h"
#include "common/size.h"
#include "lender.h"

struct donord_options {
	struct option_list listen;
	uint64_t memory, slab, delay, ready_fd;
	bool version;
};

#define OPTION(option, kind, field, meta, text) \
	{ .name = option, .type = kind, .offset = offsetof(struct donord_options, field), \
	  .metavar = meta, .help = text }

static const struct option_spec specs[] = {
	OPTION("listen", OPTION_LIST, listen, "HOST:PORT|unix:/PATH",
	       "where to listen: loopback, or a socket through which borrowers on this machine\n"
	       "map what they are lent; may be repeated [127.0.0.1:7070]"),
	OPTION("memory", OPTION_SIZE, memory, "SIZE", "memory to lend"),
	OPTION("slab", OPTION_SIZE, slab, "SIZE", "unit of lending, 1M to 1G [64M]"),
	OPTION("delay", OPTION_DURATION, delay, "TIME", "hold every read back (for tests)"),
	OPTION("ready-fd", OPTION_UINT, ready_fd, "N", "write READY to this descriptor"),
	OPTION("version", OPTION_FLAG, version, NULL, "show the version"),
	OPTIONS_END
};

static const struct command command = {
	.help = "Lends memory to borrowers, over TCP or by sharing it, until it gets SIGTERM",
	.example = "ebb-donord --listen 127.0.0.1:7070 --memory 4G",
	.options = specs,
};

/* What holds other machines' pages is the last thing to kill or to swap. */
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

/* Whether borrowers may come by one of the addresses to map slabs; parses them all. */
static int parse_places(const struct option_list *list, struct address *a, enum lend_memory *kind,
			struct error *e)
{
	*kind = LEND_PRIVATE;
	for (int i = 0; i < list->n; i++) {
		int r = address_parse(list->v[i], "listen", &a[i], e);

		if (r)
			return r;
		if (address_is_local(&a[i]))
			*kind = LEND_SHARED;
	}
	return 0;
}

static int serve(const struct donord_options *o, char **argv, struct error *e)
{
	struct address places[OPTION_LIST_MAX];
	struct lend_pool pool = { 0 };
	struct lender *l = NULL;
	enum lend_memory kind;
	char total[16], slab[16];
	int r = parse_places(&o->listen, places, &kind, e);

	if (!r)
		r = lender_new(&l, &pool, o->delay, e);
	/* An address that cannot be had is told before memory is taken. */
	for (int i = 0; !r && i < o->listen.n; i++)
		r = lender_listen(l, &places[i], e);
	if (!r)
		r = lend_init(&pool, o->memory, o->slab, kind, e);
	if (!r) {
		protect(argv);
		for (int i = 0; i < o->listen.n; i++)
			log_info("lending %s in %u slabs of %s on %s",
				 size_format(pool.count * pool.slab_size, total, sizeof(total)),
				 pool.count, size_format(pool.slab_size, slab, sizeof(slab)),
				 places[i].text);
		if (o->ready_fd && dprintf((int)o->ready_fd, "READY\n") < 0)
			log_warn("ready-fd %d: %m", (int)o->ready_fd);
		r = lender_run(l);
		if (r)
			fail(e, r, "event loop: %s", strerror(-r));
	}
	lender_free(&l);
	lend_free(&pool);
	return r;
}

int main(int argc, char **argv)
{
	struct donord_options o = { .slab = 64 << 20 };
	struct error e = { 0 };
	int nargs, r;

	log_setup("ebb-donord", LOG_LVL_INFO);
	r = options_parse(specs, argc - 1, argv + 1, &o, false, &nargs, &e);
	if (r == OPTIONS_HELP) {
		options_usage("ebb-donord", &command);
		return EXIT_OK;
	}
	if (!e.code && o.version) {
		puts("ebb-donord " EBB_VERSION);
		return EXIT_OK;
	}
	if (!e.code && nargs)
		fail_exit(&e, EXIT_USAGE, EINVAL, "%s: unexpected argument; see --help", argv[1]);
	if (!e.code && !o.memory)
		fail_exit(&e, EXIT_USAGE, EINVAL, "memory: not given; say how much to lend, --memory 4G");
	if (!o.listen.n)
		o.listen = (struct option_list){ { "127.0.0.1:7070" }, 1 };
	if (!e.code)
		serve(&o, argv, &e);
	if (e.code) {
		log_err("%s", e.text);
		return e.exit_status;
	}
	return EXIT_OK;
}
