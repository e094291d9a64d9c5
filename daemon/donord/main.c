// SPDX-License-Identifier: GPL-2.0-or-later
/* ebb-donord: lends memory to borrowers over TCP. */
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
#include "wire/tcp.h"

struct donord_options {
	const char *listen;
	uint64_t memory, slab, delay, ready_fd;
	bool version;
};

#define OPTION(option, kind, field, meta, text) \
	{ .name = option, .type = kind, .offset = offsetof(struct donord_options, field), \
	  .metavar = meta, .help = text }

static const struct option_spec specs[] = {
	OPTION("listen", OPTION_STRING, listen, "HOST:PORT",
	       "address to listen on, loopback only [127.0.0.1:7070]"),
	OPTION("memory", OPTION_SIZE, memory, "SIZE", "memory to lend"),
	OPTION("slab", OPTION_SIZE, slab, "SIZE", "unit of lending, 1M to 1G [64M]"),
	OPTION("delay", OPTION_DURATION, delay, "TIME", "hold every read back (for tests)"),
	OPTION("ready-fd", OPTION_UINT, ready_fd, "N", "write READY to this descriptor"),
	OPTION("version", OPTION_FLAG, version, NULL, "show the version"),
	OPTIONS_END
};

static const struct command command = {
	.help = "Lends memory to borrowers over TCP until it gets SIGTERM",
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

static int serve(const struct donord_options *o, char **argv, struct error *e)
{
	struct tcp_address a;
	struct lend_pool pool = { 0 };
	struct lender *l = NULL;
	char total[16], slab[16];
	int fd, r;

	r = tcp_parse(o->listen, "listen", &a, e);
	if (r)
		return r;
	fd = tcp_listen(&a, e);
	if (fd < 0)
		return fd;
	r = lend_init(&pool, o->memory, o->slab, e);
	if (r) {
		close(fd);
		return r;
	}
	r = lender_new(&l, fd, &pool, o->delay, e);
	if (!r) {
		protect(argv);
		log_info("lending %s in %u slabs of %s on %s",
			 size_format(pool.count * pool.slab_size, total, sizeof(total)),
			 pool.count, size_format(pool.slab_size, slab, sizeof(slab)), a.text);
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
	struct donord_options o = { .listen = "127.0.0.1:7070", .slab = 64 << 20 };
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
	if (!e.code)
		serve(&o, argv, &e);
	if (e.code) {
		log_err("%s", e.text);
		return e.exit_status;
	}
	return EXIT_OK;
}
