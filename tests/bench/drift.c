// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * drift PROVIDER PATTERN TOLD MIB SECONDS: compares libebbgc's page residency with PAGEMAP_SCAN and
 * mincore(2), at each age of a scan in AGES.  One thread accesses MIB of memory; with TOLD 1 it
 * reports the pages that it touches, as tracers and programs with the barrier do.  Prints a JSON
 * line for each age, in pages.  Run it with less local memory than MIB.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "residency.h"
#include "os.h"

#define ASKED 256		/* pages checked after each look */
#define WRITTEN 64		/* rescan: one page in this many is written */
#define MS UINT64_C(1000000)

/* ms: from a heap's shortest interval between scans to that of a large heap. */
static const unsigned AGES[] = { 5, 50, 500 };

struct tally {
	uint64_t looks, pages, out, cached;
	uint64_t scan_unseen, scan_stale;	/* right after a scan */
	uint64_t unseen, stale;			/* held as in but out, and vice versa */
	uint64_t asked, asked_wrong;
};

struct drift {
	struct residency held, truth;
	unsigned char *memory, *in;
	size_t bytes, pages, next;
	uint64_t random;
	bool writes, told;
};

static int broken(const char *what, int error)
{
	fprintf(stderr, "drift: %s: %s\n", what, strerror(error));
	return 1;
}

static uint64_t draw(struct drift *d)
{
	d->random ^= d->random << 13;
	d->random ^= d->random >> 7;
	d->random ^= d->random << 17;
	return d->random;
}

static void touch(struct drift *d)
{
	size_t page = d->writes ? draw(d) % d->pages : d->next++ % d->pages;
	volatile unsigned char *p = d->memory + page * PAGE_BYTES;

	if (d->writes || draw(d) % WRITTEN == 0)
		*p = (unsigned char)(*p + 1);
	else
		(void)*p;
	if (d->told)
		residency_touched(&d->held, page);
}

/* Reads the kernel's view.  Returns 0 or an errno. */
static int look(struct drift *d)
{
	int64_t r = residency_scan(&d->truth, d->bytes);

	if (r < 0)
		return (int)-r;
	return mincore(d->memory, d->bytes, d->in) ? errno : 0;
}

static bool swapped(const struct drift *d, size_t page)
{
	return d->truth.last[page >> 6] >> (page & 63) & 1;
}

/* Returns whether touching the page would wait for a read. */
static bool away(const struct drift *d, size_t page)
{
	return swapped(d, page) && !(d->in[page] & 1);
}

/* Accepts either state for a page in the swap cache: it is not mapped, and takes no read. */
static void compare(const struct drift *d, uint64_t *unseen, uint64_t *stale)
{
	for (size_t page = 0; page < d->pages; page++) {
		bool out = residency_state(&d->held, page) == PAGE_SWAPPED_OUT;

		*unseen += !out && away(d, page);
		*stale += out && !swapped(d, page);
	}
}

static void count(const struct drift *d, struct tally *t)
{
	t->looks++;
	t->pages += d->pages;
	for (size_t page = 0; page < d->pages; page++) {
		t->out += swapped(d, page);
		t->cached += swapped(d, page) && (d->in[page] & 1);
	}
}

/* Checks pages as a tracer does before touching them. */
static void ask(struct drift *d, struct tally *t)
{
	residency_tick(&d->held, os_now());
	for (int i = 0; i < ASKED; i++) {
		size_t page = draw(d) % d->pages;
		bool out = residency_is_out(&d->held, page);

		t->asked++;
		t->asked_wrong += out ? !swapped(d, page) : away(d, page);
	}
}

static int measure(struct drift *d, uint64_t age, uint64_t span, struct tally *t)
{
	uint64_t end = os_now() + span;

	while (os_now() < end) {
		int64_t r = residency_scan(&d->held, d->bytes);
		uint64_t scanned = os_now();
		int e = r < 0 ? (int)-r : look(d);

		if (e)
			return e;
		compare(d, &t->scan_unseen, &t->scan_stale);
		residency_tick(&d->held, scanned);
		while (os_now() - scanned < age) {
			touch(d);
			residency_tick(&d->held, os_now());
		}
		e = look(d);
		if (e)
			return e;
		count(d, t);
		compare(d, &t->unseen, &t->stale);
		ask(d, t);
	}
	return 0;
}

static int kind_of(const char *name)
{
	static const char *const names[] = { "pagemap_scan", "pagemap", "mincore" };

	for (int i = 0; i < 3; i++)
		if (!strcmp(name, names[i]))
			return EBBGC_RESIDENCY_PAGEMAP_SCAN + i;
	return -1;
}

int main(int argc, char **argv)
{
	struct drift d = { .random = 0x9e3779b97f4a7c15u };
	int kind = argc == 6 ? kind_of(argv[1]) : -1;
	uint64_t span;

	if (kind < 0) {
		fprintf(stderr, "usage: drift pagemap_scan|pagemap|mincore write|rescan 0|1 MIB SECONDS\n");
		return 2;
	}
	d.writes = !strcmp(argv[2], "write");
	d.told = atoi(argv[3]);
	d.bytes = (size_t)atoi(argv[4]) << 20;
	d.pages = d.bytes >> PAGE_SHIFT;
	span = (uint64_t)atoi(argv[5]) * 1000 * MS;
	d.memory = os_map(d.bytes);
	d.in = malloc(d.pages);
	if (!d.memory || !d.in)
		return broken("memory", ENOMEM);
	/* Pages are swapped individually. */
	if (madvise(d.memory, d.bytes, MADV_NOHUGEPAGE))
		return broken("madvise", errno);
	for (size_t i = 0; i < d.pages; i++)
		memset(d.memory + i * PAGE_BYTES, (int)(i % 255 + 1), PAGE_BYTES);
	if (residency_open(&d.held, (enum ebbgc_residency)kind, d.memory, d.bytes) ||
	    residency_open(&d.truth, EBBGC_RESIDENCY_PAGEMAP_SCAN, d.memory, d.bytes))
		return broken("residency", ENOMEM);
	if (d.held.kind != (enum ebbgc_residency)kind ||
	    d.truth.kind != EBBGC_RESIDENCY_PAGEMAP_SCAN)
		return broken(argv[1], ENOSYS);
	/* Swap out all pages once before counting. */
	for (size_t i = 0; i < 2 * d.pages; i++)
		touch(&d);
	for (size_t i = 0; i < sizeof(AGES) / sizeof(AGES[0]); i++) {
		struct tally t = { 0 };
		int e = measure(&d, AGES[i] * MS, span, &t);

		if (e)
			return broken("scan", e);
		printf("{\"age_ms\":%u,\"looks\":%lu,\"pages\":%lu,\"out\":%lu,\"cached\":%lu,\"scan_unseen\":%lu,"
		       "\"scan_stale\":%lu,\"unseen\":%lu,\"stale\":%lu,\"asked\":%lu,\"asked_wrong\":%lu}\n",
		       AGES[i], t.looks, t.pages, t.out, t.cached, t.scan_unseen, t.scan_stale,
		       t.unseen, t.stale, t.asked, t.asked_wrong);
	}
	return 0;
}
