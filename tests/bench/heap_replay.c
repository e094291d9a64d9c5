// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Replays a recorded heap (heap_trace.h) for `make bench-heap` (heap.py); prints a line of JSON:
 *
 *   heap_replay count TRACE LIMIT...       swap-ins and swap-outs with LIMIT bytes of local memory
 *   heap_replay plain TRACE                at the recorded places, in plain memory
 *   heap_replay far TRACE BUDGET DONOR NAMES FEW HOME NEIGHBOURS HEAL DELAY_NS
 *                                          in a far store (heap_far.h); DONOR: an address of
 *                                          ebb-donord, or "memory"; NAMES: a file
 *                                          of 16 bytes per object, so that the program's references
 *                                          do not count as its memory, or "-"
 *
 * "plain" and "far" store a pattern in every object and check it at each touch.  Times are those of
 * the replay without reading the trace, which bypasses the page cache: that would count as the
 * program's memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "ebbfar.h"
#include "heap_far.h"
#include "heap_pages.h"
#include "../../daemon/sim/heap_trace.h"

#define BATCH (1u << 20)	/* bytes of the trace in memory */
/* Of a process without its heap: what the limit holds besides. */
#define REST (UINT64_C(2) << 20)
/* A fetch followed another if the event of the other is at most so many before. */
#define FOLLOWS 4

static void fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void fail(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fputs("heap_replay: ", stderr);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	exit(2);
}

static void *map(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		fail("%" PRIu64 " bytes: cannot map: %s", bytes, strerror(errno));
	madvise(p, bytes, MADV_NOHUGEPAGE);
	return p;
}

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- the trace ------------------------------------------------------------------------------ */

struct replay {
	const char *path;
	int fd;
	struct heap_trace_head head;
	uint64_t *batch;
	uint64_t left;		/* events that are not read yet */
	double wall, cpu;	/* of the replay so far */
	double wall_at, cpu_at; /* of this batch's begin */
	double built_wall, built_cpu;
	uint64_t touches;
};

static void replay_open(struct replay *r, const char *path)
{
	ssize_t n;

	r->path = path;
	r->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (r->fd < 0)
		fail("%s: cannot open without the page cache: %s; use a file system with O_DIRECT",
		     path, strerror(errno));
	r->batch = map(BATCH);
	n = pread(r->fd, r->batch, HEAP_TRACE_HEAD, 0);
	if (n != HEAP_TRACE_HEAD || memcpy(&r->head, r->batch, sizeof(r->head)) != &r->head ||
	    r->head.magic != HEAP_TRACE_MAGIC)
		fail("%s: no complete trace; record it again", path);
	if (lseek(r->fd, HEAP_TRACE_HEAD, SEEK_SET) < 0)
		fail("%s: %s", path, strerror(errno));
	r->left = r->head.events;
}

/* Reads the next events; returns how many there are, 0 at the end. */
static size_t replay_next(struct replay *r)
{
	size_t want = r->left < BATCH / 8 ? r->left : BATCH / 8, got = 0;

	if (r->wall_at != 0) {
		r->wall += now(CLOCK_MONOTONIC) - r->wall_at;
		r->cpu += now(CLOCK_THREAD_CPUTIME_ID) - r->cpu_at;
	}
	while (got < want * 8) {
		/* All but the last read are whole batches: offsets stay aligned. */
		ssize_t n = read(r->fd, (char *)r->batch + got, BATCH - got);

		if (n <= 0)
			fail("%s: cut short; record it again", r->path);
		got += (size_t)n;
	}
	r->left -= want;
	r->wall_at = now(CLOCK_MONOTONIC);
	r->cpu_at = now(CLOCK_THREAD_CPUTIME_ID);
	return want;
}

static void replay_mark(struct replay *r, uint64_t event)
{
	if (heap_number(event) != HEAP_BUILT || event & HEAP_REFERENCE)
		return;
	r->built_wall = r->wall + now(CLOCK_MONOTONIC) - r->wall_at;
	r->built_cpu = r->cpu + now(CLOCK_THREAD_CPUTIME_ID) - r->cpu_at;
}

static uint64_t place_of(const struct replay *r, uint64_t event)
{
	return heap_place(event) - r->head.low;
}

static void report(const struct replay *r)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"built_seconds\": %.6f, "
	       "\"built_cpu_seconds\": %.6f, \"touches\": %" PRIu64 ", \"objects\": %" PRIu64
	       ", \"born_bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64 ", \"major_faults\": %ld, "
	       "\"minor_faults\": %ld, \"max_rss_kib\": %ld",
	       r->wall, r->cpu, r->built_wall, r->built_cpu, r->touches, r->head.objects,
	       r->head.born_bytes, r->head.peak_bytes, u.ru_majflt, u.ru_minflt, u.ru_maxrss);
}

/* --- an object's pattern: number and size at its begin, their complement at its end ----------- */

static uint64_t pattern(uint32_t number, uint64_t size)
{
	return (uint64_t)number << 32 | size;
}

static void stamp(void *object, uint32_t number, uint64_t size)
{
	uint64_t *first = object;

	*first = pattern(number, size);
	first[size / 8 - 1] = ~pattern(number, size);
}

/* Checks an object and, to write, stores the pattern again. */
static void check(void *object, uint32_t number, bool write)
{
	volatile uint64_t *first = object;
	uint64_t size = *first & UINT32_MAX;

	if (*first >> 32 != number || size > HEAP_SMALL_MOST || first[size / 8 - 1] != ~*first)
		fail("object %u has other contents than it was given", number);
	if (write) {
		*first = pattern(number, size);
		first[size / 8 - 1] = ~pattern(number, size);
	}
}

/* A word of a large object: its number, once it is written. */
static void check_word(void *word, uint32_t number, bool write)
{
	volatile uint64_t *w = word;

	if (*w && *w != number + UINT64_C(1))
		fail("large object %u has other contents than it was given", number);
	if (write)
		*w = number + UINT64_C(1);
}

/* --- pages, counted --------------------------------------------------------------------------- */

enum { LIMITS_MOST = 8 };

struct counted {
	uint64_t limit;
	struct heap_pages *exact, *kernel;
};

static void touch_pages(const struct counted *c, size_t n, uint64_t place, uint64_t size,
			bool write, bool born)
{
	for (uint64_t page = place / HEAP_PAGE; page <= (place + size - 1) / HEAP_PAGE; page++)
		for (size_t i = 0; i < n; i++) {
			heap_pages_touch(c[i].exact, page, write, born);
			heap_pages_touch(c[i].kernel, page, write, born);
		}
}

static void print_counts(const char *name, struct heap_pages *p)
{
	struct heap_page_counts c = heap_pages_counts(p);

	printf("\"%s\": {\"swapped_in\": %" PRIu64 ", \"swapped_out\": %" PRIu64
	       ", \"zeroed\": %" PRIu64 ", \"born_in\": %" PRIu64 "}",
	       name, c.swapped_in, c.swapped_out, c.zeroed, c.born_in);
}

static void count(struct replay *r, char **limits, size_t n)
{
	struct counted c[LIMITS_MOST];
	uint64_t pages = (r->head.bytes + HEAP_PAGE - 1) / HEAP_PAGE + 1;
	uint32_t *sizes = map(r->head.objects * sizeof(*sizes) + 1), number = 0;

	if (n > LIMITS_MOST)
		fail("at most %d limits", LIMITS_MOST);
	for (size_t i = 0; i < n; i++) {
		uint64_t limit = c[i].limit = strtoull(limits[i], NULL, 10);
		uint64_t room = limit > REST ? (limit - REST) / HEAP_PAGE : 0;

		c[i].exact = heap_pages_new(pages, room, HEAP_LRU_EXACT);
		c[i].kernel = heap_pages_new(pages, room, HEAP_LRU_KERNEL);
		if (!c[i].exact || !c[i].kernel)
			fail("a limit of %" PRIu64 " bytes: too small, or no memory", limit);
	}
	for (size_t events; (events = replay_next(r)) > 0;) {
		for (size_t i = 0; i < events; i++) {
			uint64_t e = r->batch[i], place = place_of(r, e);

			switch (heap_kind(e)) {
			case HEAP_BORN:
				sizes[number++] = (uint32_t)heap_size(e);
				touch_pages(c, n, place, heap_size(e), true, true);
				break;
			case HEAP_READ:
			case HEAP_WRITE:
				touch_pages(c, n, place, sizes[heap_number(e)],
					    heap_kind(e) == HEAP_WRITE, false);
				r->touches++;
				break;
			case HEAP_READ_LARGE:
			case HEAP_WRITE_LARGE:
				touch_pages(c, n, place, 8, heap_kind(e) == HEAP_WRITE_LARGE,
					    false);
				r->touches++;
				break;
			case HEAP_DROP:
				for (size_t j = 0; j < n; j++) {
					heap_pages_drop(c[j].exact, place / HEAP_PAGE);
					heap_pages_drop(c[j].kernel, place / HEAP_PAGE);
				}
				break;
			case HEAP_DIED:
			case HEAP_MARK:
				break;
			}
		}
	}
	report(r);
	printf(", \"events\": %" PRIu64 ", \"pages\": %" PRIu64 ", \"limits\": [", r->head.events,
	       r->head.peak_pages);
	for (size_t i = 0; i < n; i++) {
		printf("%s{\"limit\": %" PRIu64 ", ", i ? ", " : "", c[i].limit);
		print_counts("exact", c[i].exact);
		printf(", ");
		print_counts("kernel", c[i].kernel);
		printf("}");
	}
	printf("]}\n");
}

/* --- plain memory ----------------------------------------------------------------------------- */

static void plain(struct replay *r)
{
	uint8_t *memory = map(r->head.bytes + HEAP_PAGE);
	uint32_t number = 0;
	/* Pages without objects, not yet dropped: one call for neighbours. */
	uint64_t drop = 0, drop_end = 0;

	for (size_t events; (events = replay_next(r)) > 0;) {
		for (size_t i = 0; i < events; i++) {
			uint64_t e = r->batch[i], place = place_of(r, e);
			enum heap_kind kind = heap_kind(e);

			switch (kind) {
			case HEAP_BORN:
				if (drop_end != drop)
					madvise(memory + drop, drop_end - drop, MADV_DONTNEED);
				drop = drop_end = 0;
				memset(memory + place, 0, heap_size(e));
				if (!heap_is_large(heap_size(e)))
					stamp(memory + place, number, heap_size(e));
				number++;
				break;
			case HEAP_READ:
			case HEAP_WRITE:
				check(memory + place, heap_number(e), kind == HEAP_WRITE);
				r->touches++;
				break;
			case HEAP_READ_LARGE:
			case HEAP_WRITE_LARGE:
				check_word(memory + place, heap_number(e),
					   kind == HEAP_WRITE_LARGE);
				r->touches++;
				break;
			case HEAP_DROP:
				if (place != drop_end) {
					if (drop_end != drop)
						madvise(memory + drop, drop_end - drop,
							MADV_DONTNEED);
					drop = place;
				}
				drop_end = place + HEAP_PAGE;
				break;
			case HEAP_MARK:
				replay_mark(r, e);
				break;
			case HEAP_DIED:
				break;
			}
		}
	}
	report(r);
	printf("}\n");
}

/* --- a far store ------------------------------------------------------------------------------ */

static int far_put(void *arg, const void *bytes, size_t size, void *place)
{
	struct ebbfar_extent x;
	int r = ebbfar_alloc(arg, size < EBBFAR_EXTENT_LEAST ? EBBFAR_EXTENT_LEAST : size, &x);

	if (!r)
		r = ebbfar_write(arg, &x, 0, bytes, size);
	memcpy(place, &x, sizeof(x));
	return r;
}

static int far_get(void *arg, const void *place, size_t offset, void *to, size_t size)
{
	struct ebbfar_extent x;

	memcpy(&x, place, sizeof(x));
	return ebbfar_read(arg, &x, offset, to, size);
}

static int far_drop(void *arg, const void *place)
{
	struct ebbfar_extent x;

	memcpy(&x, place, sizeof(x));
	return ebbfar_free(arg, &x);
}

_Static_assert(sizeof(struct ebbfar_extent) == HEAP_PLACE, "a place holds an extent's name");

static void donor_open(struct heap_donor *donor, const char *address)
{
	struct ebbfar_options o = { .size = sizeof(o), .donor = address, .pool = "heap",
				    .flags = EBBFAR_CREATE | EBBFAR_NO_RESUME };
	ebbfar_t *far;

	if (!strcmp(address, "memory")) {
		heap_donor_memory(donor);
		return;
	}
	if (ebbfar_open(&o, &far))
		fail("%s", o.error);
	*donor = (struct heap_donor){ far, far_put, far_get, far_drop };
}

/* The references of the program, which are no part of the store; and the places of objects. */
struct known {
	struct heap_name name;
	uint64_t place;
};

static struct known *known_open(const char *path, uint64_t objects)
{
	uint64_t bytes = objects * sizeof(struct known);
	void *p;
	int fd;

	if (!strcmp(path, "-"))
		return map(bytes);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail("%s: %s", path, strerror(errno));
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		fail("%s: cannot map: %s", path, strerror(errno));
	close(fd);
	return p;
}

static void far_born(struct heap_far *f, struct known *k, uint32_t number, uint64_t size,
		     uint64_t place)
{
	void *p = heap_far_born(f, size, &k->name);

	k->place = place;
	if (!heap_is_large(size))
		stamp(p, number, size);
}

static void far(struct replay *r, char **argv)
{
	struct heap_far_options o = { .budget = strtoull(argv[0], NULL, 10),
				      .few = (uint32_t)strtoul(argv[3], NULL, 10),
				      .home = strtoull(argv[4], NULL, 10),
				      .neighbours = atoi(argv[5]) != 0,
				      .heal = atoi(argv[6]) != 0,
				      .delay_ns = strtoull(argv[7], NULL, 10) };
	struct known *known = known_open(argv[2], r->head.objects);
	uint64_t event = 0, fetches = 0, last_fetch = 0, followed = 0;
	const struct heap_far_stats *s;
	struct heap_far *f;
	uint32_t number = 0;

	donor_open(&o.donor, argv[1]);
	f = heap_far_new(&o);
	if (!f)
		fail("a budget of %" PRIu64 " bytes: too small, or no address space", o.budget);
	s = heap_far_stats(f);
	for (size_t events; (events = replay_next(r)) > 0;) {
		for (size_t i = 0; i < events; i++, event++) {
			uint64_t e = r->batch[i], place = place_of(r, e);
			enum heap_kind kind = heap_kind(e);
			uint32_t n = heap_number(e);

			switch (kind) {
			case HEAP_BORN:
				far_born(f, &known[number], number, heap_size(e), place);
				number++;
				break;
			case HEAP_READ:
			case HEAP_WRITE:
				check(heap_far_touch(f, &known[n].name, 0), n, kind == HEAP_WRITE);
				r->touches++;
				if (s->fetches == fetches)
					break;
				fetches = s->fetches;
				/* The donor could have sent it with the one before. */
				followed += (e & HEAP_VIA) && last_fetch &&
					    event - last_fetch <= FOLLOWS;
				last_fetch = event;
				break;
			case HEAP_READ_LARGE:
			case HEAP_WRITE_LARGE:
				check_word(heap_far_touch(f, &known[n].name,
							  place - known[n].place),
					   n, kind == HEAP_WRITE_LARGE);
				r->touches++;
				break;
			case HEAP_DIED:
				heap_far_died(f, &known[n].name);
				break;
			case HEAP_MARK:
				replay_mark(r, e);
				break;
			case HEAP_DROP:
				break;
			}
		}
	}
	report(r);
#define FIELD(name) printf(", \"" #name "\": %" PRIu64, s->name)
	FIELD(fetches); FIELD(fetched_bytes); FIELD(homes); FIELD(home_bytes); FIELD(rescues);
	FIELD(left); FIELD(left_bytes); FIELD(left_empty); FIELD(slow); FIELD(forwards_most);
	FIELD(bytes_most); FIELD(tables_most); FIELD(far_most);
#undef FIELD
	printf(", \"budget\": %" PRIu64 ", \"followed\": %" PRIu64 "}\n", o.budget, followed);
	heap_far_free(f);
	if (o.donor.arg)
		ebbfar_close(o.donor.arg);
}

int main(int argc, char **argv)
{
	struct replay r = { 0 };

	if (argc < 3)
		fail("usage: heap_replay count|plain|far TRACE ...");
	replay_open(&r, argv[2]);
	if (!strcmp(argv[1], "count"))
		count(&r, argv + 3, (size_t)argc - 3);
	else if (!strcmp(argv[1], "plain") && argc == 3)
		plain(&r);
	else if (!strcmp(argv[1], "far") && argc == 11)
		far(&r, argv + 3);
	else
		fail("usage: heap_replay count|plain|far TRACE ...");
	return 0;
}
