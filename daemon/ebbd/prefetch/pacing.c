// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/control/device.h"
#include "lib/rules/pace.h"
#include "pacing.h"

#define STEP_NS 100000000ULL
/* A batch this old counts as complete: its donor may be away, or the device have been reset. */
#define LOST_NS 200000000ULL
#define BATCHES 64            /* a power of two */
/*
 * Fewest pages of a call, whose fixed cost is that of several pages.  Calls of 32 would leave the
 * device idle between two of them at the usual limits of 16 to 40: on the device of test_pace a
 * greedy scan keeps 0.4 of its speed with them, 0.8 with calls of 8.
 */
#define CALL 8

struct batch {
	uint64_t mark;        /* count of the device's completed reads at which this is complete */
	uint64_t issued_ns;
	uint32_t pages;
};

struct paced_device {
	uint32_t dev;         /* major << 20 | minor; 0 = unused */
	uint32_t type;        /* swap type, or PACING_UNKNOWN */
	int inflight, stat;   /* files in sysfs, or -1 */
	uint32_t requests;    /* size of its queue, 0 = unknown */
	bool present;         /* has a record */
	struct pace pace;
	struct batch batch[BATCHES];
	uint32_t first, last; /* batches in flight */
	uint32_t pages;       /* in these */
	uint32_t seen[EBB_WAITS]; /* its misses at the last step */
	/* since the last step */
	uint64_t requested;
	bool beside, held;
};

struct pacing {
	const struct plane *plane;
	const struct executor_config *config;
	struct paced_device device[EBB_MAX_DEVICES];
	struct pace_view view;
	uint64_t stepped_ns;
};

static struct paced_device *find_dev(struct pacing *p, uint32_t dev)
{
	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		if (p->device[i].dev == dev)
			return &p->device[i];
	return NULL;
}

/* Returns the device of swap type @type, or the only one whose type is known. */
static struct paced_device *find(const struct pacing *p, uint32_t type)
{
	const struct paced_device *only = NULL;
	uint32_t known = 0;

	for (int i = 0; i < EBB_MAX_DEVICES; i++) {
		const struct paced_device *d = &p->device[i];

		if (!d->dev || d->type == PACING_UNKNOWN)
			continue;
		if (d->type == type)
			return (struct paced_device *)d;
		only = d;
		known++;
	}
	return type == PACING_UNKNOWN && known == 1 ? (struct paced_device *)only : NULL;
}

static int open_file(uint32_t dev, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s", dev >> 20, dev & 0xfffff, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Returns the first number in the file, or 0. */
static uint64_t read_number(int fd)
{
	char text[64];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = '\0';
	return strtoull(text, NULL, 10);
}

static void close_device(struct paced_device *d)
{
	if (d->inflight >= 0)
		close(d->inflight);
	if (d->stat >= 0)
		close(d->stat);
	*d = (struct paced_device){ .inflight = -1, .stat = -1, .type = PACING_UNKNOWN };
}

static void open_device(struct paced_device *d, uint32_t dev)
{
	int fd = open_file(dev, "queue/nr_requests");

	d->dev = dev;
	d->inflight = open_file(dev, "inflight");
	d->stat = open_file(dev, "stat");
	d->requests = (uint32_t)read_number(fd);
	if (fd >= 0)
		close(fd);
	pace_init(&d->pace);
}

/* Returns whether another disk has got the number of @d since this was opened. */
static bool is_replaced(const struct paced_device *d)
{
	char c;

	return d->stat < 0 || pread(d->stat, &c, sizeof(c), 0) <= 0;
}

static int see(const struct device_record *r, void *data)
{
	uint32_t dev = r->major << 20 | r->minor, type;
	struct pacing *p = data;
	struct paced_device *d = find_dev(p, dev);

	if (!dev)
		return 0;
	if (d && is_replaced(d))
		close_device(d);
	else if (d)
		d->present = true;
	if (!d || !d->dev) {
		d = find_dev(p, 0);
		/* Later records may be of devices that are known. */
		if (!d)
			return 0;
		open_device(d, dev);
	}
	d->present = true;
	if (!bpf_map_lookup_elem(p->plane->devices, &dev, &type) && type >= EBB_SWAP_TYPE &&
	    type - EBB_SWAP_TYPE < EBB_SWAP_TYPES && type - EBB_SWAP_TYPE != d->type) {
		d->type = type - EBB_SWAP_TYPE;
		memcpy(d->seen, p->plane->waits->misses[d->type], sizeof(d->seen));
	}
	return 0;
}

void pacing_refresh(struct pacing *p)
{
	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		p->device[i].present = false;
	device_record_each(see, p);
	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		if (p->device[i].dev && !p->device[i].present)
			close_device(&p->device[i]);
}

/* A quarter of the device's queue is left to misses: where it is full, they wait for room. */
static struct pace_range range_of(const struct pacing *p, const struct paced_device *d)
{
	struct pace_range r = { p->config->beside, p->config->inflight };

	if (d->requests && d->requests / 4 * 3 < r.most)
		r.most = d->requests / 4 * 3;
	if (r.most < r.least)
		r.most = r.least;
	return r;
}

static void publish(struct pacing *p)
{
	for (int i = 0; i < EBB_MAX_DEVICES; i++) {
		const struct paced_device *d = &p->device[i];
		struct device_view *v = &p->view.device[i];

		v->dev = d->dev;
		v->limit = d->pace.limit;
		v->miss_ns = d->pace.now.median;
		v->idle_miss_ns = d->pace.idle.median;
	}
}

static void step(struct pacing *p, struct paced_device *d, uint64_t ns)
{
	struct pace_seen seen = { .ns = ns, .pages = d->requested, .waiting = d->beside,
				  .held = d->held };
	uint32_t now;

	for (uint32_t i = 0; i < EBB_WAITS; i++) {
		now = __atomic_load_n(&p->plane->waits->misses[d->type][i], __ATOMIC_RELAXED);
		seen.misses[i] = now - d->seen[i];
		d->seen[i] = now;
	}
	d->requested = 0;
	d->beside = d->held = false;
	pace_step(&d->pace, range_of(p, d), &seen);
}

void pacing_adapt(struct pacing *p, uint64_t now)
{
	uint64_t ns = now - p->stepped_ns;

	/* Switched off. */
	if (ns < STEP_NS || p->config->beside >= p->config->inflight)
		return;
	p->stepped_ns = now;
	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		if (p->device[i].dev && p->device[i].type != PACING_UNKNOWN)
			step(p, &p->device[i], ns);
	publish(p);
}

bool pacing_limits(const struct pacing *p, uint32_t type)
{
	const struct paced_device *d = find(p, type);

	return d && d->pace.limit != PACE_NONE;
}

/* Drops the batches that are complete. */
static void drop_complete(struct paced_device *d, uint64_t now)
{
	uint64_t completed = read_number(d->stat);

	while (d->first != d->last) {
		struct batch *b = &d->batch[d->first % BATCHES];

		if (b->mark > completed && now - b->issued_ns < LOST_NS)
			return;
		d->pages -= b->pages;
		d->first++;
	}
}

/*
 * Returns the pages of a call: half of the limit, so that the device reads one half while the other
 * is requested, but not less than CALL.
 */
static uint32_t call_of(uint32_t limit)
{
	return limit >= 2 * CALL ? limit / 2 : limit < CALL ? limit : CALL;
}

uint32_t pacing_take(struct pacing *p, uint32_t type, uint32_t wanted, uint64_t now)
{
	struct paced_device *d = find(p, type);
	uint32_t n;

	if (!d || d->pace.limit == PACE_NONE)
		return wanted;
	n = call_of(d->pace.limit);
	n = wanted < n ? wanted : n;
	drop_complete(d, now);
	if (d->pages + n > d->pace.limit || d->last - d->first == BATCHES)
		n = 0;
	/* A shorter call, too: the thread may be too slow with such. */
	d->held |= n < wanted;
	return n;
}

void pacing_requested(struct pacing *p, uint32_t type, uint32_t pages, bool beside, uint64_t now)
{
	struct paced_device *d = find(p, type);
	uint64_t completed;

	if (!d || !pages)
		return;
	d->requested += pages;
	d->beside |= beside;
	if (d->pace.limit == PACE_NONE || d->last - d->first == BATCHES)
		return;
	/* In this order: a read that completes in between is missing rather than counted twice. */
	completed = read_number(d->stat);
	d->batch[d->last++ % BATCHES] = (struct batch){
		.mark = completed + read_number(d->inflight), .issued_ns = now, .pages = pages,
	};
	d->pages += pages;
}

uint64_t pacing_reads(const struct pacing *p)
{
	uint64_t sum = 0;

	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		if (p->device[i].inflight >= 0)
			sum += read_number(p->device[i].inflight);
	return sum;
}

const struct pace_view *pacing_view(const struct pacing *p)
{
	return &p->view;
}

struct pacing *pacing_new(const struct plane *plane, const struct executor_config *config)
{
	struct pacing *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->plane = plane;
	p->config = config;
	for (int i = 0; i < EBB_MAX_DEVICES; i++) {
		p->device[i].inflight = p->device[i].stat = -1;
		close_device(&p->device[i]);
	}
	return p;
}

void pacing_free(struct pacing **p)
{
	for (int i = 0; *p && i < EBB_MAX_DEVICES; i++)
		close_device(&(*p)->device[i]);
	free(*p);
	*p = NULL;
}
