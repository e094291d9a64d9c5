// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heap_file.h"

#define EVENTS_MOST (UINT64_C(1) << 31)

static int refuse(const char *path, const char *why, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, EINVAL, "%.200s: %s", path, why);
}

static int map_file(struct heap_file *f, const char *path, struct error *e)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC), r;

	if (fd < 0 || fstat(fd, &st) < 0) {
		r = errno;
		if (fd >= 0)
			close(fd);
		return fail_exit(e, EXIT_USAGE, r, "%.200s: cannot read: %s; give a recorded heap",
				 path, strerror(r));
	}
	if (S_ISREG(st.st_mode) && st.st_size > (off_t)HEAP_TRACE_HEAD) {
		f->map_bytes = (size_t)st.st_size;
		f->map = mmap(NULL, f->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	}
	r = errno;
	close(fd);
	if (f->map == MAP_FAILED) {
		f->map = NULL;
		return fail(e, r, "%.200s: cannot map: %s", path, strerror(r));
	}
	if (f->map)
		memcpy(&f->head, f->map, sizeof(f->head));
	if (f->head.magic != HEAP_TRACE_MAGIC)
		return refuse(path, "not a recorded heap; record one with make heap-programs and HEAP_TRACE=FILE", e);
	if (f->head.events != (f->map_bytes - HEAP_TRACE_HEAD) / 8 ||
	    f->head.events > EVENTS_MOST || f->head.objects > f->head.events ||
	    f->head.objects > HEAP_OBJECTS_MOST)
		return refuse(path, "cut short; record it again", e);
	f->event = (const uint64_t *)((const char *)f->map + HEAP_TRACE_HEAD);
	f->events = f->head.events;
	return 0;
}

static bool is_alive(const struct heap_file *f, uint32_t object)
{
	return object < f->objects && f->died[object] == UINT32_MAX;
}

/* Is event @i, the first half of a pair, possible?  What it refers to is alive. */
static bool is_pair(const struct heap_file *f, size_t i)
{
	struct heap_pair p;
	uint32_t owner;

	if (i + 1 >= f->events || heap_kind(f->event[i + 1]) != HEAP_MARK ||
	    !(f->event[i + 1] & HEAP_REFERENCE) || heap_place(f->event[i + 1]) / 8 > HEAP_ROOT)
		return false;
	owner = heap_number(f->event[i]);
	if (owner >= f->objects)
		return heap_place(f->event[i + 1]) / 8 == HEAP_ROOT && !owner;
	p = heap_file_pair(f, i);
	if (p.access != HEAP_CLEARED && !is_alive(f, p.target))
		return false;
	return p.access == HEAP_ROOT ||
	       (is_alive(f, p.owner) && heap_place(f->event[i]) >= f->place[p.owner] &&
		p.slot && p.slot < f->size[p.owner] / 8);
}

/* Returns the number of events that are used, 0 if @i cannot be. */
static size_t check_event(struct heap_file *f, size_t i)
{
	uint64_t e = f->event[i], place = heap_place(e);
	uint32_t number = heap_number(e);

	switch (heap_kind(e)) {
	case HEAP_BORN:
		if (f->objects >= f->head.objects || heap_size(e) < 8)
			return 0;
		f->size[f->objects] = (uint32_t)heap_size(e);
		f->place[f->objects] = place;
		f->died[f->objects++] = UINT32_MAX;
		f->live += heap_size(e);
		return 1;
	case HEAP_READ:
	case HEAP_WRITE:
		return is_alive(f, number);
	case HEAP_READ_LARGE:
	case HEAP_WRITE_LARGE:
		return is_alive(f, number) && place >= f->place[number] &&
		       place - f->place[number] < f->size[number];
	case HEAP_DIED:
		if (!is_alive(f, number))
			return 0;
		f->died[number] = (uint32_t)i;
		f->live -= f->size[number];
		return 1;
	case HEAP_DROP:
		return 1;
	case HEAP_MARK:
		if (e & HEAP_REFERENCE) {
			f->references++;
			return is_pair(f, i) ? 2 : 0;
		}
		f->collections += number == HEAP_COLLECTED;
		return 1;
	}
	return 0;
}

static int check_events(struct heap_file *f, const char *path, struct error *e)
{
	size_t n = f->head.objects + 1;

	f->size = calloc(n, sizeof(*f->size));
	f->died = calloc(n, sizeof(*f->died));
	f->place = calloc(n, sizeof(*f->place));
	if (!f->size || !f->died || !f->place)
		return fail(e, ENOMEM, "%.200s: too large for this machine's memory", path);
	for (size_t i = 0, used; i < f->events; i += used) {
		used = check_event(f, i);
		if (!used)
			return fail_exit(e, EXIT_USAGE, EINVAL, "%.200s: event %zu is damaged; record it again",
					 path, i);
		if (f->live > HEAP_LIVE_MOST)
			return refuse(path, "more than 16 GiB alive; record a smaller program", e);
	}
	if (f->objects != f->head.objects)
		return refuse(path, "cut short; record it again", e);
	if (!f->references || !f->collections)
		return refuse(path, "no references or no collection in it; record it with HEAP_REFERENCES=1 and a smaller HEAP_EVERY", e);
	return 0;
}

int heap_file_open(struct heap_file *f, const char *path, struct error *e)
{
	int r;

	memset(f, 0, sizeof(*f));
	r = map_file(f, path, e);
	return r ? r : check_events(f, path, e);
}

void heap_file_close(struct heap_file *f)
{
	if (f->map)
		munmap(f->map, f->map_bytes);
	free(f->size);
	free(f->died);
	free(f->place);
	memset(f, 0, sizeof(*f));
}
