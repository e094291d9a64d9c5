// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/place.skel.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "pins.h"
#include "plane.h"

#define DIR_PINS EBB_PINS "/placement"
#define PASS_US 20000           /* between passes over threads that start meanwhile */
#define HEARD 256               /* new threads that are read from the ring buffer at once */
/* Owners among which the entries are divided, at least and at most. */
#define OWNERS_MIN 8
#define OWNERS_MAX 32
#define STAT_FLAGS 9            /* of /proc/PID/stat: PF_... of include/linux/sched.h */
#define PF_EXITING 0x4
#define PF_NO_SETAFFINITY 0x04000000

struct pins {
	struct place_bpf *bpf;  /* NULL while a predecessor's record is restored */
	struct ring_buffer *born;
	int map, look;          /* link of the iterator; owned by .bpf unless that is NULL */
	struct ebb_pin *row;
	size_t rows, space;
	bool forking;           /* released threads may be creating others */
	uint64_t lost;          /* reported so far */
	bool refused;           /* as was an affinity that could not be restored */
	uint64_t owner[EBB_MAX_CGROUPS]; /* of each number of entries in bpf/place */
	uint32_t heard[HEARD];  /* threads that have inherited an affinity, */
	uint32_t heards, told;  /* how many, and how many pins_next_born() has returned */
	uint64_t walks, walk_ns; /* over all tasks: how many, and how long the last one took */
};

static const char *const names[] = { "pinned", "born", "exit", "exec", "read" };

static void unpin(void)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[sizeof(DIR_PINS) + 16];

		snprintf(path, sizeof(path), DIR_PINS "/%s", names[i]);
		unlink(path);
	}
	rmdir(DIR_PINS);
}

/* The rest stays in the ring buffer. */
static int on_born(void *data, void *record, size_t size)
{
	struct pins *p = data;

	memcpy(&p->heard[p->heards++], record, sizeof(p->heard[0]));
	return p->heards < HEARD ? 0 : -EAGAIN;
}

/* --- how many entries each owner has -------------------------------------------- */

static uint32_t held_by(const struct pins *p, uint32_t slot)
{
	return __atomic_load_n(&p->bpf->bss->held[slot % EBB_MAX_CGROUPS], __ATOMIC_RELAXED);
}

/* bpf/place counts, too. */
static void count(struct pins *p, uint32_t slot, int change)
{
	__atomic_fetch_add(&p->bpf->bss->held[slot % EBB_MAX_CGROUPS], change, __ATOMIC_RELAXED);
	__atomic_fetch_add(&p->bpf->bss->entries, change, __ATOMIC_RELAXED);
}

/* Divides the record among the owners, and leaves room for another one to be pinned. */
static void set_share(struct pins *p)
{
	uint32_t owners = 1;

	for (uint32_t i = 0; i < EBB_MAX_CGROUPS; i++)
		owners += held_by(p, i) != 0;
	owners = owners < OWNERS_MIN ? OWNERS_MIN : owners > OWNERS_MAX ? OWNERS_MAX : owners;
	p->bpf->bss->share = EBB_MAX_PINNED / owners;
}

/* Returns the slot of the number of @owner's entries, or -ENOSPC. */
static int slot_of(struct pins *p, uint64_t owner)
{
	int found = -ENOSPC;

	for (uint32_t i = 0; i < EBB_MAX_CGROUPS; i++) {
		if (p->owner[i] == owner)
			return (int)i;
		if (found < 0 && !held_by(p, i))
			found = (int)i;
	}
	if (found >= 0)
		p->owner[found] = owner;
	return found;
}

bool pins_crowded(const struct pins *p, uint64_t owner)
{
	uint32_t share = p->bpf->bss->share;

	for (uint32_t i = 0; i < EBB_MAX_CGROUPS; i++)
		if (p->owner[i] == owner)
			return held_by(p, i) > share / 2;
	return false;
}

/* Adds or replaces an entry.  Returns -ESRCH if the thread has exited, or -ENOSPC. */
static int put(struct pins *p, uint32_t tid, const struct ebb_pinned *e)
{
	struct ebb_pinned old;
	bool replaces = !bpf_map_lookup_elem(p->map, &tid, &old);
	int r;

	count(p, e->slot, 1);
	if (!bpf_map_update_elem(p->map, &tid, e, replaces ? BPF_EXIST : BPF_NOEXIST)) {
		if (replaces)
			count(p, old.slot, -1);
		return 0;
	}
	r = -errno;
	count(p, e->slot, -1);
	return r == -E2BIG ? -ENOSPC : r == -ENOENT || r == -EEXIST ? -ESRCH : r;
}

static void drop(struct pins *p, uint32_t tid)
{
	struct ebb_pinned e;

	if (!bpf_map_lookup_elem(p->map, &tid, &e) && !bpf_map_delete_elem(p->map, &tid))
		count(p, e.slot, -1);
}

/* --- the record ----------------------------------------------------------------- */

static int attach_all(struct place_bpf *b)
{
	struct {
		struct bpf_program *program;
		struct bpf_link **link;
		const char *path;
	} hook[] = {
		{ b->progs.place_born, &b->links.place_born, DIR_PINS "/born" },
		{ b->progs.place_exit, &b->links.place_exit, DIR_PINS "/exit" },
		{ b->progs.place_exec, &b->links.place_exec, DIR_PINS "/exec" },
		{ b->progs.place_read, &b->links.place_read, DIR_PINS "/read" },
	};

	for (size_t i = 0; i < sizeof(hook) / sizeof(hook[0]); i++) {
		*hook[i].link = bpf_program__attach(hook[i].program);
		if (!*hook[i].link || bpf_link__pin(*hook[i].link, hook[i].path))
			return -errno;
	}
	return 0;
}

/* Requires that nothing is recorded. */
static int create_record(struct pins *p, struct error *e)
{
	int r;

	p->map = bpf_map__fd(p->bpf->maps.pinned);
	set_share(p);
	if (mkdir(DIR_PINS, 0700) || bpf_map__pin(p->bpf->maps.pinned, DIR_PINS "/pinned"))
		return fail(e, errno, DIR_PINS ": cannot record pinned threads: %m");
	r = attach_all(p->bpf);
	if (r)
		return fail(e, -r, "bpf/place: cannot attach: %s", strerror(-r));
	p->born = ring_buffer__new(bpf_map__fd(p->bpf->maps.born), on_born, p, NULL);
	if (!p->born)
		return fail(e, errno, "placement: cannot read the ring buffer: %m");
	p->look = bpf_link__fd(p->bpf->links.place_read);
	return 0;
}

/* Loads the programs, which read and write a cpu_set_t. */
static int load(struct pins *p, struct error *e)
{
	uint32_t bytes = ((uint32_t)libbpf_num_possible_cpus() + 63) / 64 * sizeof(uint64_t);
	int r;

	if (bytes > sizeof(cpu_set_t))
		return fail(e, ENOTSUP, "placement: more than %d CPUs", CPU_SETSIZE);
	p->bpf = place_bpf__open();
	if (p->bpf)
		p->bpf->rodata->mask_bytes = bytes;
	r = p->bpf ? place_bpf__load(p->bpf) : -errno;
	return r ? plane_load_failed(e, "place", r) : 0;
}

int pins_open(struct pins **out, struct error *e)
{
	struct pins *p;
	uint32_t kept;
	int r = pins_recover(&kept);

	if (kept)
		return fail(e, EBUSY,
			    "placement: cannot restore the CPU affinity of threads that a previous "
			    "ebbd pinned: %u; run \"ebbd --restore\"",
			    kept);
	if (r < 0 && r != -ENOENT)
		return fail(e, -r, DIR_PINS ": cannot read the record of a previous ebbd: %s",
			    strerror(-r));
	p = calloc(1, sizeof(*p));
	if (!p)
		return fail(e, ENOMEM, "placement: out of memory");
	p->look = -1;
	r = load(p, e);
	if (!r) {
		r = create_record(p, e);
		if (r)
			unpin();
	}
	if (r) {
		pins_close(&p);
		return r;
	}
	*out = p;
	return 0;
}

bool pins_empty(struct pins *p)
{
	return !pins_read(p) && !p->rows && !p->forking;
}

void pins_close(struct pins **pp)
{
	struct pins *p = *pp;

	if (!p)
		return;
	if (p->look >= 0 && pins_empty(p))
		unpin();
	ring_buffer__free(p->born);
	place_bpf__destroy(p->bpf);
	free(p->row);
	free(p);
	*pp = NULL;
}

int pins_fd(const struct pins *p)
{
	return ring_buffer__epoll_fd(p->born);
}

void pins_born(struct pins *p)
{
	p->heards = p->told = 0;
	ring_buffer__consume(p->born);
}

bool pins_next_born(struct pins *p, struct ebb_pin *t)
{
	while (p->told < p->heards) {
		*t = (struct ebb_pin){ .tid = p->heard[p->told++] };
		if (!bpf_map_lookup_elem(p->map, &t->tid, &t->e) &&
		    !(t->e.flags & EBB_PINNED_RELEASED))
			return true;
	}
	return false;
}

bool pins_look(struct pins *p, struct ebb_pin *t)
{
	uint32_t tid = t->tid;
	union bpf_iter_link_info one = { .task.tid = t->tid };
	LIBBPF_OPTS(bpf_link_create_opts, options, .iter_info = &one, .iter_info_len = sizeof(one));
	_cleanup_close_ int link = bpf_link_create(bpf_program__fd(p->bpf->progs.place_read), 0,
						   BPF_TRACE_ITER, &options);
	_cleanup_close_ int fd = link < 0 ? -1 : bpf_iter_create(link);

	/* Older kernels ignore .tid: their first thread is another one. */
	return fd >= 0 && read(fd, t, sizeof(*t)) == sizeof(*t) && t->tid == tid &&
	       !(t->e.flags & EBB_PINNED_RELEASED);
}

static void tell_lost(struct pins *p)
{
	uint64_t lost = p->bpf->bss->lost;

	if (lost != p->lost)
		log_warn("placement: threads that inherited a CPU affinity and are not recorded: "
			 "%llu, of a program that starts very many; run \"taskset -p\" for those "
			 "that keep it", (unsigned long long)(lost - p->lost));
	p->lost = lost;
}

/* Doubles the space for rows if it is full. */
static int grow(struct pins *p)
{
	size_t space = p->space ? 2 * p->space : 64;
	struct ebb_pin *row;

	if (p->rows < p->space)
		return 0;
	row = realloc(p->row, space * sizeof(*row));
	if (!row)
		return -ENOMEM;
	p->row = row;
	p->space = space;
	return 0;
}

static int by_tid(const void *a, const void *b)
{
	const struct ebb_pin *x = a, *y = b;

	return x->tid < y->tid ? -1 : x->tid > y->tid;
}

/* Drops threads that are released: only bpf/place uses their entries. */
static void drop_released(struct pins *p)
{
	size_t n = 0;

	for (size_t i = 0; i < p->rows; i++)
		if (!(p->row[i].e.flags & EBB_PINNED_RELEASED))
			p->row[n++] = p->row[i];
	p->forking = n < p->rows;
	p->rows = n;
}

static int read_all(struct pins *p)
{
	_cleanup_close_ int fd = bpf_iter_create(p->look);
	size_t part = 0;
	ssize_t got = 1;

	p->rows = 0;
	if (fd < 0)
		return -errno;
	while (got) {
		if (grow(p))
			return -ENOMEM;
		got = read(fd, (char *)&p->row[p->rows] + part,
			   (p->space - p->rows) * sizeof(*p->row) - part);
		if (got < 0 && errno != EINTR && errno != EAGAIN)
			return -errno;
		part += got > 0 ? (size_t)got : 0;
		p->rows += part / sizeof(*p->row);
		part %= sizeof(*p->row);
	}
	return 0;
}

int pins_read(struct pins *p)
{
	uint64_t begun = now_ns();
	int r = read_all(p);

	p->walks++;
	p->walk_ns = now_ns() - begun;
	if (r)
		return r;
	/* A predecessor's programs count for themselves. */
	if (p->bpf) {
		set_share(p);
		tell_lost(p);
	}
	drop_released(p);
	qsort(p->row, p->rows, sizeof(*p->row), by_tid);
	return 0;
}

uint64_t pins_walks(const struct pins *p)
{
	return p->walks;
}

uint64_t pins_walk_ns(const struct pins *p)
{
	return p->walk_ns;
}

const struct ebb_pin *pins_at(const struct pins *p, uint32_t i)
{
	return p && i < p->rows ? &p->row[i] : NULL;
}

const struct ebb_pin *pins_find(const struct pins *p, pid_t tid)
{
	const struct ebb_pin key = { .tid = (uint32_t)tid };

	return p && p->rows ? bsearch(&key, p->row, p->rows, sizeof(key), by_tid) : NULL;
}

bool pins_has(const struct pins *p, pid_t tid)
{
	struct ebb_pinned e;

	return p && !bpf_map_lookup_elem(p->map, &tid, &e) && !(e.flags & EBB_PINNED_RELEASED);
}

uint64_t stat_field(const char *text, int n)
{
	const char *at = strrchr(text, ')');

	for (int i = 2; at && i < n; i++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	return at ? strtoull(at, NULL, 10) : 0;
}

bool cpus_only(const cpu_set_t *set, int cpu)
{
	return cpu >= 0 && CPU_COUNT(set) == 1 && CPU_ISSET(cpu, set);
}

_Static_assert(sizeof(cpu_set_t) == sizeof(((struct ebb_pin *)0)->mask), "as long as the kernel's");

/* Returns whether the affinity is the one that ebbd sets, even if another program has set it. */
static bool has_only(const struct ebb_pin *t)
{
	cpu_set_t mask;

	if (t->now && !(t->e.flags & EBB_PINNED_LATE))
		memcpy(&mask, t->mask, sizeof(mask));
	else if (sched_getaffinity((pid_t)t->tid, sizeof(mask), &mask))
		return false;
	return cpus_only(&mask, t->e.cpu);
}

bool pins_ours(const struct ebb_pin *t)
{
	return (!(t->e.flags & EBB_PINNED_SET) || t->now == t->e.id) && has_only(t);
}

/* Returns whether the thread has not exited, and is none of the kernel, as those of io_uring. */
static bool takes_affinity(pid_t tgid, pid_t tid)
{
	char path[64], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", tgid, tid);
	return file_read(path, text, sizeof(text)) > 0 &&
	       !(stat_field(text, STAT_FLAGS) & (PF_EXITING | PF_NO_SETAFFINITY));
}

int pins_plan(struct pins *p, uint64_t owner, pid_t tgid, pid_t tid, int cpu)
{
	struct ebb_pinned e = { .owner = owner, .tgid = (uint32_t)tgid, .cpu = cpu };
	int r;

	if (pins_has(p, tid))
		return 0;
	r = slot_of(p, owner);
	if (r < 0)
		return r;
	e.slot = (uint32_t)r;
	if (held_by(p, e.slot) >= p->bpf->bss->share)
		return -E2BIG;
	r = put(p, (uint32_t)tid, &e);
	if (r)
		return r;
	/* After that, so that bpf/place deletes it when the thread exits. */
	if (takes_affinity(tgid, tid))
		return 0;
	drop(p, (uint32_t)tid);
	return -ESRCH;
}

static bool is_planned(const struct ebb_pin *t, uint64_t owner)
{
	return t->e.owner == owner && !(t->e.flags & (EBB_PINNED_SET | EBB_PINNED_LATE));
}

/* Returns 1, 0 if the thread cannot be pinned, or -errno. */
static int pin(struct pins *p, const struct ebb_pin *t)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(t->e.cpu, &one);
	if (!sched_setaffinity((pid_t)t->tid, sizeof(one), &one))
		return 1;
	if (errno != ESRCH && errno != EINVAL)
		return -errno;
	/* It exited, or its cpuset lost the CPU. */
	drop(p, t->tid);
	return 0;
}

/* Takes the thread out of the record, where its entry remains for forks that have begun. */
static void retire(struct pins *p, const struct ebb_pin *t)
{
	struct ebb_pinned e = t->e;

	e.flags |= EBB_PINNED_RELEASED;
	e.released = now_ns();
	/* If it has exited, it has no entry any more. */
	bpf_map_update_elem(p->map, &t->tid, &e, BPF_EXIST);
}

/* Remembers which affinity is ours, unless another program has set one meanwhile. */
static void identify(struct pins *p, struct ebb_pin *t)
{
	if (!has_only(t)) {
		retire(p, t);
		return;
	}
	t->e.id = t->now;
	t->e.flags |= EBB_PINNED_SET;
	bpf_map_update_elem(p->map, &t->tid, &t->e, BPF_EXIST);
}

int pins_apply(struct pins *p, uint64_t owner)
{
	int n = 0, r = pins_read(p);

	for (size_t i = 0; i < p->rows && r >= 0; i++) {
		r = is_planned(&p->row[i], owner) ? pin(p, &p->row[i]) : 0;
		n += r > 0;
	}
	if (r >= 0)
		r = pins_read(p);
	if (r < 0)
		return r;
	for (size_t i = 0; i < p->rows; i++)
		if (is_planned(&p->row[i], owner))
			identify(p, &p->row[i]);
	return n;
}

/* Returns whether the affinity set before is in force, or that of another program, or it exited. */
static bool restore(struct pins *p, const struct ebb_pin *t)
{
	cpu_set_t mask;

	if (!pins_ours(t))
		return true;
	memcpy(&mask, t->e.user, sizeof(mask));
	if (!CPU_COUNT(&mask))
		memset(&mask, 0xff, sizeof(mask));
	if (!sched_setaffinity((pid_t)t->tid, sizeof(mask), &mask) || errno == ESRCH)
		return true;
	if (!p->refused)
		log_warn("placement: thread %u: cannot restore its CPU affinity: %m; ebbd tries "
			 "again, or run \"taskset -p\"", t->tid);
	p->refused = true;
	return false;
}

bool pins_release(struct pins *p, const struct ebb_pin *t)
{
	retire(p, t);
	if (restore(p, t))
		return true;
	bpf_map_update_elem(p->map, &t->tid, &t->e, BPF_EXIST);
	return false;
}

int pins_release_all(struct pins *p)
{
	uint64_t end = now_ns() + 2 * EBB_PINNED_FORK_NS;
	bool again = true;
	int r = 0;

	while (again && !(r = pins_read(p)) && now_ns() < end) {
		again = p->forking;
		for (size_t i = 0; i < p->rows; i++)
			again |= pins_release(p, &p->row[i]);
		if (again)
			usleep(PASS_US);
	}
	return r;
}

/* Opens a predecessor's record.  Returns -ENOENT without one. */
static int open_record(struct pins *p)
{
	struct bpf_map_info info = { 0 };
	uint32_t size = sizeof(info);

	p->map = bpf_obj_get(DIR_PINS "/pinned");
	p->look = bpf_obj_get(DIR_PINS "/read");
	if (p->map < 0 || p->look < 0)
		return -errno;
	if (bpf_obj_get_info_by_fd(p->map, &info, &size))
		return -errno;
	return info.value_size == sizeof(struct ebb_pinned) ? 0 : -EPROTO;
}

/* Returns to the record threads that a predecessor released, but was killed before it restored. */
static int reclaim_released(struct pins *p)
{
	int r = read_all(p);

	for (size_t i = 0; !r && i < p->rows; i++) {
		struct ebb_pin *t = &p->row[i];

		if (!(t->e.flags & EBB_PINNED_RELEASED) || !pins_ours(t))
			continue;
		t->e.flags &= ~EBB_PINNED_RELEASED;
		bpf_map_update_elem(p->map, &t->tid, &t->e, BPF_EXIST);
	}
	return r;
}

int pins_recover(uint32_t *kept)
{
	struct pins p = { .map = -1, .look = -1 };
	int n = 0, r = open_record(&p);

	if (!r)
		r = reclaim_released(&p);
	if (!r)
		r = pins_read(&p);
	n = (int)p.rows;
	if (!r)
		r = pins_release_all(&p);
	*kept = (uint32_t)p.rows;
	/* An ebbd that crashed before it pinned anything leaves an incomplete one. */
	if (r == -ENOENT || (!r && !p.rows))
		unpin();
	if (p.map >= 0)
		close(p.map);
	if (p.look >= 0)
		close(p.look);
	free(p.row);
	return r ? r : n > (int)p.rows ? n - (int)p.rows : 0;
}
