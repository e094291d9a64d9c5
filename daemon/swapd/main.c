// SPDX-License-Identifier: GPL-2.0-or-later
/* ebb-swapd: serves a file or block device whose pages are on donors. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/rules/placement.h"
#include "start.h"
#include "swapd/frontend/frontend.h"
#include "swapd/process/supervisor.h"

#define OPTION(option, kind, field, meta, text) \
	{ .name = option, .type = kind, .offset = offsetof(struct swapd_options, field), \
	  .metavar = meta, .help = text }

static const struct option_spec specs[] = {
	OPTION("name", OPTION_STRING, name, "NAME", "name of the device; required"),
	OPTION("size", OPTION_SIZE, size, "SIZE", "size of the device; required"),
	OPTION("slab", OPTION_SIZE, slab, "SIZE", "unit of placement, a power of two from 1M to 1G [64M]"),
	OPTION("donor", OPTION_LIST, donors, "HOST:PORT|rdma:HOST:PORT|unix:/PATH",
	       "donor address; required; may be repeated"),
	OPTION("durability", OPTION_STRING, durability, "disk|replicas=2|replicas=3|none",
	       "redundancy if a donor is lost: local disk, replicas or none [disk]"),
	OPTION("key", OPTION_STRING, key, "FILE",
	       "key of this borrower, from which donors' keys are derived; enables TLS"),
	OPTION("backup", OPTION_STRING, backup, "FILE", "backup file on a local disk; required with durability disk"),
	OPTION("seal", OPTION_STRING, seal, "auto|on|off",
	       "encrypt pages; auto: unless all donors are unix: [auto]"),
	OPTION("frontend", OPTION_STRING, frontend, "fuse|ublk",
	       "type of device: a file for a loop device, or /dev/ublkbN [fuse]"),
	OPTION("mount", OPTION_STRING, mount, "DIR", "mount point of the file \"swap\"; required"),
	OPTION("deadline", OPTION_DURATION, deadline, "TIME",
	       "disconnect a donor after TIME without a reply [500ms]"),
	OPTION("away-timeout", OPTION_DURATION, away_timeout, "TIME",
	       "fail reads that waited TIME for a donor that is away [25s]"),
	OPTION("repair-delay", OPTION_DURATION, repair_delay, "TIME",
	       "replace the replicas of a donor that has been away for TIME [10s]"),
	OPTION("watchdog", OPTION_DURATION, watchdog, "TIME",
	       "without progress, replace the server after half of TIME, abort the device after TIME [30s]"),
	OPTION("choices", OPTION_UINT, choices, "N", "donors sampled for each slab, 1 to 8 [2]"),
	OPTION("spread", OPTION_UINT, spread, "N",
	       "prefer donors without a slab of the device until N have one; 0: always [8]"),
	OPTION("overcommit", OPTION_FLAG, overcommit, NULL,
	       "with replicas or none: reserve no capacity; writes fail when the donors are full"),
	OPTION("repair-rate", OPTION_SIZE, repair_rate, "SIZE",
	       "limit of bytes copied per second when slabs migrate [256M]"),
	OPTION("connections", OPTION_UINT, connections, "N",
	       "data connections to each donor, with --key, 1 to 8 [1]"),
	OPTION("spin", OPTION_UINT, spin, "USEC", "poll for USEC before sleeping while I/O is in flight [0]"),
	OPTION("foreground", OPTION_FLAG, foreground, NULL, "stay in the foreground"),
	SERVICE_OPTIONS(swapd_options, service),
	OPTIONS_REMOVED,
	{ .name = "hot-slab", .type = OPTION_STRING,
	  .help = "each slab is placed on a donor at its first page" },
	OPTIONS_END
};

static const struct command command = {
	.help = "Serve one swap device whose pages are stored at donors",
	.example = "ebb-swapd --name ebb0 --size 4G --donor 127.0.0.1:7070 \\\n"
		   "    --backup /var/lib/ebb/ebb0.backup --mount /run/ebb/mnt/ebb0",
	.options = specs,
};

static int serve(const struct swapd_options *o, char **argv, struct error *e)
{
	struct swapd *s = calloc(1, sizeof(*s));
	struct device_control c = { .listen_fd = -1, .stop_fd = -1 };
	char where[PATH_MAX];
	struct supervisor h;
	int r;

	if (!s)
		return fail(e, ENOMEM, "out of memory");
	s->options = *o;
	log_field("EBB_DEVICE", o->name);
	r = o->foreground ? 0 : service_daemonise(&s->options.service, e);
	if (r) {
		free(s);
		return r;
	}
	r = swapd_prepare(s, &c, argv, e);
	if (!r)
		r = supervisor_start(&h, s, &c, e);
	if (r) {
		swapd_stop(s, &c);
		free(s);
		return r;
	}
	s->frontend->where(&s->host, where, sizeof(where));
	log_info("device %s: serving %s", o->name, where);
	swapd_ready(s);
	/* The server has cleaned up and logged why it ended. */
	exit(supervisor_run(&h, o->foreground ? OUTPUT_AS_IS : OUTPUT_DETACHED));
}

int main(int argc, char **argv)
{
	struct swapd_options o = { .slab = 64 << 20, .deadline = 500000000,
				   .watchdog = 30000000000, .frontend = "fuse", .durability = "disk", .seal = "auto",
				   .choices = PLACE_CHOICES, .spread = PLACE_SPREAD,
				   .repair_rate = 256 << 20,
				   .away_timeout = 25000000000, .repair_delay = 10000000000,
				   .connections = 1 };
	struct error e = { 0 };
	int status;

	if (!service_options(&command, "ebb-swapd", argc, argv, &o, &o.service, &status))
		return status;
	if (!swapd_options_check(&o, &e))
		serve(&o, argv, &e);
	return service_end(&e);
}
