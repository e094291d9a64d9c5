// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A heap whose regions are at donors, to test their jobs.
 *
 *	far_jobs trace SEED REGIONS DONOR...
 *		a far cycle; of every third region the program has the objects; compares the marks
 *		with those of a local trace
 *	far_jobs copies SEED REGIONS DONOR DONOR
 *		the regions at both, evacuated at both, compared, placed again and traced
 *	far_jobs speed SEED REGIONS DONOR
 *		times the donor's trace and one in this process; *_cpu_s: of this process
 *
 * Options: --key FILE; --kill PID:N, with trace: kills that process before message N is sent, or,
 * if N is negative, after its reply.  Prints one line of JSON.  Exit status 0; 1: an error; 3: the
 * cycle was abandoned, and no mark was used.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/heap_image.h"
#include "userlib/far/cycle.h"

enum { DONORS = 4, VERSION = 1, NUMBER = 7, LOCAL = -1 };

struct place {
	int donor; /* or LOCAL */
	struct ebbfar_extent extent;
	uint32_t base;
};

/* What waits to be traced by this process. */
struct queue {
	uint64_t *word;
	size_t n, room;
};

/* Marks of a region that the cycle has found. */
struct got {
	uint64_t marks[TABLET_WORDS], named[TABLET_WORDS];
};

static struct {
	struct image image;
	ebbfar_t *far[DONORS];
	uint32_t donors;
	struct place *places, *second;
	struct got *got;
	struct queue queue;
	struct cycle *cycle;
	uint32_t regions_with_marks;
	pid_t victim;
	long kill_at, message;
	long number[DONORS]; /* of the last message to each */
	uint64_t local;
} heap;

static void fail_with(const char *what, int r)
{
	fprintf(stderr, "%s: %s\n", what, strerror(-r));
	exit(1);
}

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- the heap --------------------------------------------------------------------- */

static void open_donor(const char *address, const char *key)
{
	struct ebbfar_options o = { .size = sizeof(o), .donor = address, .key = key, .pool = "heap",
				    .flags = EBBFAR_CREATE | EBBFAR_JOBS, .timeout_ms = 20000,
				    .resume_ms = 300 };
	const struct jobs_type types[] = {
		{ IMAGE_PAIR, image_pair }, { IMAGE_ARRAY, image_array },
		{ IMAGE_LEAF, image_leaf },
	};
	struct wire_job_limits limits;
	int r;

	if (heap.donors == DONORS || ebbfar_open(&o, &heap.far[heap.donors])) {
		fprintf(stderr, "%s\n", o.error);
		exit(1);
	}
	r = jobs_heap(heap.far[heap.donors++], IMAGE_BASE, IMAGE_MASK, heap.image.count, types, 3,
		      &limits);
	if (r)
		fail_with("heap", r);
}

/* Writes the regions that @places has at @donor into extents of 2 MiB. */
static void write_regions(int donor, struct place *places)
{
	struct ebbfar_extent extent = { 0 };
	uint32_t used = UINT32_MAX;
	int r;

	for (uint32_t i = 0; i < heap.image.count; i++) {
		const struct image_region *region = &heap.image.regions[i];
		uint32_t bytes = region->objects * region->slot_bytes;

		if (places[i].donor != donor)
			continue;
		if (used > EBBFAR_EXTENT_MOST || used + bytes > EBBFAR_EXTENT_MOST) {
			r = ebbfar_alloc(heap.far[donor], EBBFAR_EXTENT_MOST, &extent);
			if (r)
				fail_with("alloc", r);
			used = 0;
		}
		r = ebbfar_write(heap.far[donor], &extent, used, region->bytes, bytes);
		if (r)
			fail_with("write", r);
		places[i] = (struct place){ donor, extent, used };
		used += bytes;
	}
}

static void place_regions(int donor, const struct place *places, uint32_t version)
{
	struct jobs_place *list = calloc(heap.image.count, sizeof(*list));
	uint32_t n = 0;
	int r;

	for (uint32_t i = 0; i < heap.image.count; i++) {
		const struct image_region *region = &heap.image.regions[i];

		if (places[i].donor == donor)
			list[n++] = (struct jobs_place){
				.region = i, .version = version, .slot_bytes = region->slot_bytes,
				.base = places[i].base, .leaf = region->type == IMAGE_LEAF,
				.extent = places[i].extent, .live = region->live };
	}
	r = jobs_place(heap.far[donor], list, n);
	if (r)
		fail_with("place", r);
	free(list);
}

static struct place *spread(uint32_t of)
{
	struct place *places = calloc(heap.image.count, sizeof(*places));

	for (uint32_t i = 0; i < heap.image.count; i++)
		places[i].donor = i % of < heap.donors ? (int)(i % of) : LOCAL;
	for (uint32_t d = 0; d < heap.donors; d++) {
		write_regions((int)d, places);
		place_regions((int)d, places, VERSION);
	}
	return places;
}

/* --- a far cycle ------------------------------------------------------------------ */

static uint32_t slot_of(uint32_t region, uint32_t granule)
{
	const struct image_region *r = &heap.image.regions[region];
	uint32_t slot = region < heap.image.count ?
			tablet_slot_at(granule * TABLET_GRANULE, r->slot_bytes) : 0;

	if (region >= heap.image.count || slot == r->slots || !tablet_has(r->live, slot))
		fail_with("a donor reached what is no object", -EBADMSG);
	return slot;
}

static int named(void *data, uint32_t region, uint32_t granule)
{
	uint32_t slot = slot_of(region, granule);

	heap.got[region].named[slot / 64] |= 1ull << slot % 64;
	return 0;
}

static int reached(void *data, uint32_t region, uint32_t granule)
{
	uint32_t slot = slot_of(region, granule);

	if (heap.places[region].donor != LOCAL)
		return heap.places[region].donor;
	heap.got[region].marks[slot / 64] |= 1ull << slot % 64;
	if (heap.queue.n == heap.queue.room) {
		heap.queue.room = 2 * heap.queue.room + 64;
		heap.queue.word = realloc(heap.queue.word, heap.queue.room * 8);
	}
	heap.queue.word[heap.queue.n++] = (uint64_t)region << 32 | slot;
	heap.local++;
	return LOCAL;
}

static void take_marks(void *data, uint32_t donor, const struct wire_job_bits *b)
{
	if (b->region >= heap.image.count || heap.places[b->region].donor != (int)donor ||
	    b->words != heap.image.regions[b->region].words)
		fail_with("marks of another region", -EBADMSG);
	heap.regions_with_marks++;
	for (uint32_t i = 0; i < b->words; i++) {
		heap.got[b->region].marks[i] |= get64(b->bits + 8 * i);
		heap.got[b->region].named[i] |= get64(b->bits + 8 * (b->words + i));
	}
}

static void message(void *data, uint32_t donor, enum far_cycle_message m, bool replied)
{
	if (!replied)
		heap.number[donor] = ++heap.message;
	if (heap.victim && heap.number[donor] == (replied ? -heap.kill_at : heap.kill_at)) {
		kill(heap.victim, SIGKILL);
		/* Until its sockets are closed. */
		usleep(50000);
		heap.victim = 0;
	}
}

static const struct cycle_ops ops = { .named = named, .reached = reached,
					  .message = message, .marks = take_marks };

static int push(uint64_t reference)
{
	uint64_t offset = (reference & IMAGE_MASK) - IMAGE_BASE;

	return reference & IMAGE_MASK ?
	       cycle_push(heap.cycle, (uint32_t)(offset / TABLET_REGION),
			  (uint32_t)(offset % TABLET_REGION / TABLET_GRANULE)) : 0;
}

/* Traces the objects of this process. */
static int trace_local(void)
{
	static uint64_t references[LAYOUT_REFERENCES];

	while (heap.queue.n) {
		uint64_t word = heap.queue.word[--heap.queue.n];
		const struct image_region *r = &heap.image.regions[word >> 32];
		uint32_t slot = (uint32_t)word;
		int n = layout_references(image_layout(r->type),
					  image_object(r, slot) + LAYOUT_HEADER,
					  r->slot_bytes - LAYOUT_HEADER, references);

		for (int i = 0; i < n; i++) {
			uint64_t offset = (references[i] & IMAGE_MASK) - IMAGE_BASE;

			if (references[i] & IMAGE_MASK) {
				named(NULL, (uint32_t)(offset / TABLET_REGION),
				      (uint32_t)(offset % TABLET_REGION / TABLET_GRANULE));
				if (push(references[i]))
					return -ENOMEM;
			}
		}
	}
	return 0;
}

/* Returns 0, or -errno: abandoned. */
static int far_cycle(uint32_t number, const uint64_t *roots, uint32_t n)
{
	int r = cycle_new(&heap.cycle, heap.far, heap.donors, number, heap.image.count, &ops,
			  NULL);

	heap.got = calloc(heap.image.count, sizeof(*heap.got));
	heap.regions_with_marks = 0;
	for (uint32_t i = 0; i < n && !r; i++)
		r = push(roots[i]);
	while (!r && (heap.queue.n || !r)) {
		size_t before = heap.queue.n;

		r = trace_local();
		if (!r)
			r = cycle_run(heap.cycle, CYCLE_WAITS);
		if (!before && !heap.queue.n)
			break;
	}
	return r ?: cycle_end(heap.cycle, CYCLE_WAITS);
}

/* Of the regions that @places has anywhere. */
static void compare(void)
{
	uint32_t far_regions = 0;

	for (uint32_t i = 0; i < heap.image.count; i++) {
		const struct image_region *r = &heap.image.regions[i];

		far_regions += heap.places[i].donor != LOCAL;
		if (memcmp(heap.got[i].marks, r->marks, 8 * r->words) ||
		    memcmp(heap.got[i].named, r->named, 8 * r->words)) {
			fprintf(stderr, "region %u: other marks than those of a local trace\n", i);
			exit(1);
		}
	}
	if (heap.regions_with_marks != far_regions)
		fail_with("marks are missing", -EBADMSG);
}

static uint32_t choose_roots(uint64_t seed, uint64_t roots[static 4])
{
	for (uint32_t i = 0; i < 4; i++)
		do
			roots[i] = image_reference(&heap.image, &seed);
		while (!roots[i]);
	return 4;
}

static int trace(uint64_t seed)
{
	uint64_t roots[4], visited;
	uint32_t n = choose_roots(seed + 99, roots);
	struct cycle_counts c;
	int r;

	heap.places = spread(3);
	r = far_cycle(NUMBER, roots, n);
	c = cycle_counts(heap.cycle);
	printf("{\"messages\": %ld, \"batches\": %llu, \"sent\": %llu, \"received\": %llu, "
	       "\"visited\": %llu, \"local\": %llu, \"result\": %d, \"marks\": %u}\n",
	       heap.message, (unsigned long long)c.batches, (unsigned long long)c.sent,
	       (unsigned long long)c.received, (unsigned long long)c.visited,
	       (unsigned long long)heap.local, r, heap.regions_with_marks);
	if (r)
		return cycle_phase(heap.cycle) == FAR_CYCLE_ABANDONED ? 3 : 1;
	visited = image_trace(&heap.image, roots, n);
	compare();
	if (visited != c.visited + heap.local)
		fail_with("a number of objects", -EBADMSG);
	return 0;
}

/* --- evacuation ------------------------------------------------------------------- */

/* Evacuates all regions of the donor to new extents, in sections; the marks say what lives. */
static struct jobs_copy evacuate(uint32_t donor, struct ebbfar_extent *to, uint8_t *bytes)
{
	struct jobs_keep *keep = calloc(heap.image.count, sizeof(*keep));
	struct jobs_copy copy;
	int r;

	for (uint32_t i = 0; i < heap.image.count; i++)
		keep[i] = (struct jobs_keep){ i, VERSION, heap.image.regions[i].words,
					      heap.image.regions[i].marks };
	r = ebbfar_alloc(heap.far[donor], EBBFAR_EXTENT_MOST, to);
	if (!r)
		r = jobs_evacuate(heap.far[donor], 1, to, 0, keep, heap.image.count, JOBS_WAITS,
				  &copy);
	if (!r)
		r = ebbfar_read(heap.far[donor], to, 0, bytes, copy.bytes);
	if (r)
		fail_with("evacuate", r);
	free(keep);
	return copy;
}

/* The regions are now where the copy is: new tablets, places and versions; old extents are free. */
static void flip(uint32_t donor, const struct ebbfar_extent *to, const uint8_t *bytes)
{
	struct place *old = donor ? heap.second : heap.places;
	struct ebbfar_extent last = { 0 };
	uint32_t base = 0;
	int r;

	for (uint32_t i = 0; i < heap.image.count; i++) {
		struct image_region *region = &heap.image.regions[i];
		struct ebbfar_extent was = old[i].extent;

		if (!donor) {
			memcpy(region->live, region->marks, sizeof(region->live));
			region->objects = tablet_index(region->live, region->slots,
						       region->before);
			memcpy(region->bytes, bytes + base, region->objects * region->slot_bytes);
		}
		old[i] = (struct place){ (int)donor, *to, base };
		base += region->objects * region->slot_bytes;
		old[i].extent = *to;
		if (was.place != last.place && last.size)
			r = ebbfar_free(heap.far[donor], &last);
		else
			r = 0;
		if (r)
			fail_with("free", r);
		last = was;
	}
	place_regions((int)donor, old, VERSION + 1);
}

static int copies(uint64_t seed)
{
	static uint8_t bytes[2][EBBFAR_EXTENT_MOST];
	struct ebbfar_extent to[2];
	struct jobs_copy copy[2];
	uint64_t roots[4];
	uint32_t n;

	if (heap.donors != 2)
		fail_with("two donors", -EINVAL);
	heap.places = calloc(heap.image.count, sizeof(*heap.places));
	heap.second = calloc(heap.image.count, sizeof(*heap.second));
	for (uint32_t i = 0; i < heap.image.count; i++)
		heap.second[i].donor = 1;
	for (int d = 0; d < 2; d++) {
		write_regions(d, d ? heap.second : heap.places);
		place_regions(d, d ? heap.second : heap.places, VERSION);
	}
	n = choose_roots(seed + 99, roots);
	image_trace(&heap.image, roots, n);
	for (uint32_t d = 0; d < 2; d++)
		copy[d] = evacuate(d, &to[d], bytes[d]);
	if (copy[0].bytes != copy[1].bytes || copy[0].crc != copy[1].crc ||
	    memcmp(bytes[0], bytes[1], copy[0].bytes))
		fail_with("copies differ", -EBADMSG);
	for (uint32_t d = 0; d < 2; d++)
		flip(d, &to[d], bytes[d]);
	/* The first donor alone traces: it has every region. */
	heap.donors = 1;
	if (far_cycle(NUMBER, roots, n))
		fail_with("trace", -EIO);
	compare();
	printf("{\"bytes\": %u, \"crc\": %u, \"requests\": %u}\n", copy[0].bytes, copy[0].crc,
	       copy[0].requests);
	return 0;
}

/* --- speed ------------------------------------------------------------------------ */

static int speed(uint64_t seed)
{
	uint64_t roots[4], visited, bytes = 0;
	uint32_t n = choose_roots(seed + 99, roots);
	double there, here, there_cpu, here_cpu;
	struct cycle_counts c;

	heap.places = spread(heap.donors);
	there = -seconds(CLOCK_MONOTONIC);
	there_cpu = -seconds(CLOCK_PROCESS_CPUTIME_ID);
	if (far_cycle(NUMBER, roots, n))
		fail_with("trace", -EIO);
	there += seconds(CLOCK_MONOTONIC);
	there_cpu += seconds(CLOCK_PROCESS_CPUTIME_ID);
	here = -seconds(CLOCK_MONOTONIC);
	here_cpu = -seconds(CLOCK_PROCESS_CPUTIME_ID);
	visited = image_trace(&heap.image, roots, n);
	here += seconds(CLOCK_MONOTONIC);
	here_cpu += seconds(CLOCK_PROCESS_CPUTIME_ID);
	compare();
	for (uint32_t i = 0; i < heap.image.count; i++)
		bytes += (uint64_t)heap.image.regions[i].slot_bytes *
			 tablet_live(heap.image.regions[i].marks, heap.image.regions[i].slots);
	c = cycle_counts(heap.cycle);
	printf("{\"objects\": %llu, \"mb\": %.1f, \"donor_s\": %.4f, \"local_s\": %.4f, "
	       "\"far_cycle_cpu_s\": %.4f, \"local_cpu_s\": %.4f, \"batches\": %llu, \"paused_us\": %llu}\n",
	       (unsigned long long)visited, (double)bytes / 1e6, there, here, there_cpu, here_cpu,
	       (unsigned long long)c.batches, (unsigned long long)c.paused);
	return 0;
}

int main(int argc, char **argv)
{
	const char *key = NULL;
	int at = 1, status;

	for (; at + 1 < argc && !strncmp(argv[at], "--", 2); at += 2) {
		if (!strcmp(argv[at], "--key"))
			key = argv[at + 1];
		else if (sscanf(argv[at + 1], "%d:%ld", &heap.victim, &heap.kill_at) != 2)
			return 2;
	}
	if (argc - at < 4)
		return 2;
	image_make(&heap.image, (uint32_t)atoi(argv[at + 2]), strtoull(argv[at + 1], NULL, 0), 2);
	for (int i = at + 3; i < argc; i++)
		open_donor(argv[i], key);
	status = !strcmp(argv[at], "trace") ? trace(strtoull(argv[at + 1], NULL, 0)) :
		 !strcmp(argv[at], "copies") ? copies(strtoull(argv[at + 1], NULL, 0)) :
		 !strcmp(argv[at], "speed") ? speed(strtoull(argv[at + 1], NULL, 0)) : 2;
	cycle_free(&heap.cycle);
	for (uint32_t i = 0; i < DONORS; i++)
		ebbfar_close(heap.far[i]);
	free(heap.places);
	free(heap.second);
	free(heap.got);
	free(heap.queue.word);
	image_free(&heap.image);
	return status;
}
