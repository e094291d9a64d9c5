// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <ebb/abi.h>
#include <ebb/page.h>
#include "bpf/evict.skel.h"
#include "bpf/exact.skel.h"
#include "bpf/fault.skel.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "plane.h"
#include "self_test.h"

#define PROGS_DIR EBB_PINS "/progs"
#define LINKS_DIR EBB_PINS "/links"
#define BPF_FS_MAGIC_NUMBER 0xcafe4a11

/* Pinned by name: the contract with bpftool and libebbgc. */
static const char *const pinned_maps[] = {
	"meta", "params", "counters", "cgroups", "prefetched", "procs", "devices", "policies",
	"cgroup_stats", "epoch_slots", "epochs", "arrivals", "zswap",
};

/* Logs libbpf's messages one level lower: it also warns about mere attempts. */
static int libbpf_log(enum libbpf_print_level level, const char *fmt, va_list ap)
{
	char text[2048];

	if (level == LIBBPF_DEBUG)
		return 0;
	vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = '\0';
	log_debug("%s", text);
	return 0;
}

static int mount_bpffs(struct plane *p, struct error *e)
{
	struct statfs fs;

	if (statfs(EBB_BPFFS, &fs) == 0 && fs.f_type == BPF_FS_MAGIC_NUMBER)
		return 0;
	if (mount("bpf", EBB_BPFFS, "bpf", 0, "mode=0700") < 0)
		return fail_exit(e, EXIT_UNSUPPORTED, errno,
				 EBB_BPFFS ": no BPF file system and mounting one failed: %m; "
				 "run as root on a kernel with CONFIG_BPF_SYSCALL");
	p->mounted_bpffs = true;
	return 0;
}

static void remove_tree(const char *path)
{
	_cleanup_dir_ DIR *d = opendir(path);
	struct dirent *entry;
	char child[PATH_MAX];

	while (d && (entry = readdir(d))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(child, sizeof(child), "%s/%s", path, entry->d_name);
		if (unlink(child) < 0)
			remove_tree(child);
	}
	rmdir(path);
}

/* Leaves the record of pinned threads, pins.c: without it, none gets its affinity back. */
static void remove_pins(void)
{
	remove_tree(MAPS_DIR);
	remove_tree(PROGS_DIR);
	remove_tree(LINKS_DIR);
	rmdir(EBB_PINS);
}

static int make_dirs(struct error *e)
{
	static const char *const dirs[] = { EBB_PINS, MAPS_DIR, PROGS_DIR, LINKS_DIR };

	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
		if (mkdir(dirs[i], 0700) < 0 && errno != EEXIST)
			return fail(e, errno, "%s: cannot create: %m", dirs[i]);
	return 0;
}

/* Returns whether pins of our own ABI exist; removes those of another. */
static bool pins_usable(void)
{
	_cleanup_close_ int fd = bpf_obj_get(MAPS_DIR "/meta");
	struct ebb_meta m = { 0 };
	uint32_t zero = 0;

	if (fd >= 0 && bpf_map_lookup_elem(fd, &zero, &m) == 0 && m.abi == EBB_ABI)
		return true;
	if (access(MAPS_DIR, F_OK) == 0) {
		log_event(EVENT_PINS_DROPPED, LOG_LVL_WARN,
			  EBB_PINS ": pins of another version (ABI %u, ours is %u); starting empty",
			  m.abi, EBB_ABI);
		remove_pins();
	}
	return false;
}

int plane_load_failed(struct error *e, const char *what, int r)
{
	return fail_exit(
		e, r == -EPERM || r == -EINVAL || r == -EACCES ? EXIT_UNSUPPORTED : EXIT_FAILED, r,
		"bpf/%s: rejected by the kernel: %s; run \"ebbctl doctor\", or ebbd "
		"--verbose for the verifier log",
		what, strerror(-r));
}

int plane_share_maps(struct plane *p, struct bpf_object *to)
{
	struct bpf_map *map, *ours;
	int r;

	bpf_object__for_each_map(map, to) {
		ours = bpf_object__find_map_by_name(p->fault->obj, bpf_map__name(map));
		if (!ours || strchr(bpf_map__name(map), '.'))
			continue;
		r = bpf_map__reuse_fd(map, bpf_map__fd(ours));
		if (r)
			return r;
	}
	return 0;
}

/* Gives the maps of counters their size: that of the pinned ones, which keep theirs. */
static int size_counters(struct plane *p)
{
	_cleanup_close_ int fd = bpf_obj_get(MAPS_DIR "/counters");
	struct bpf_map_info info = { 0 };
	uint32_t size = sizeof(info);

	p->max_cgroups = plane_cgroups((uint64_t)sysconf(_SC_PHYS_PAGES) * EBB_PAGE, p->cpus);
	if (fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &size) &&
	    info.max_entries <= EBB_MAX_CGROUPS)
		p->max_cgroups = info.max_entries;
	return bpf_map__set_max_entries(p->fault->maps.counters, p->max_cgroups) ?:
	       bpf_map__set_max_entries(p->fault->maps.sources, p->max_cgroups);
}

static int load_objects(struct plane *p, struct error *e)
{
	char path[PATH_MAX];
	struct bpf_map *map;
	int r;

	p->fault = fault_bpf__open();
	p->evict = evict_bpf__open();
	if (!p->fault || !p->evict)
		return plane_load_failed(e, "fault", -errno);
	p->fault->rodata->possible_cpus = p->evict->rodata->possible_cpus = (uint32_t)p->cpus;
	/* libbpf reuses a compatible map at the pin path, or creates and pins one. */
	for (size_t i = 0; i < sizeof(pinned_maps) / sizeof(pinned_maps[0]); i++) {
		map = bpf_object__find_map_by_name(p->fault->obj, pinned_maps[i]);
		snprintf(path, sizeof(path), MAPS_DIR "/%s", pinned_maps[i]);
		if (map && bpf_map__set_pin_path(map, path))
			return plane_load_failed(e, "fault", -errno);
	}
	r = size_counters(p);
	if (!r)
		r = fault_bpf__load(p->fault);
	if (r)
		return plane_load_failed(e, "fault", r);
	r = plane_share_maps(p, p->evict->obj);
	if (!r)
		r = evict_bpf__load(p->evict);
	return r ? plane_load_failed(e, "evict", r) : 0;
}

struct hook {
	struct bpf_program *program;
	struct bpf_link **link;
	const char *name;
};

/* Removes a predecessor's pins: both would count. */
static void unpin_predecessor(const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), LINKS_DIR "/%s", name);
	unlink(path);
	snprintf(path, sizeof(path), PROGS_DIR "/%s", name);
	unlink(path);
}

/* Attaches and pins programs that may outlive ebbd; *@failed names a rejected one. */
static int attach_hooks(const struct hook *hooks, size_t n, const char **failed)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < n; i++) {
		const struct hook *h = &hooks[i];

		unpin_predecessor(h->name);
		*h->link = bpf_program__attach(h->program);
		if (!*h->link) {
			*failed = h->name;
			return -errno;
		}
		snprintf(path, sizeof(path), LINKS_DIR "/%s", h->name);
		bpf_link__pin(*h->link, path);
		snprintf(path, sizeof(path), PROGS_DIR "/%s", h->name);
		bpf_program__pin(h->program, path);
	}
	return 0;
}

static int attach_evict(struct plane *p, struct error *e)
{
	const struct hook hooks[] = {
		{ p->evict->progs.swap_bio, &p->evict->links.swap_bio, "swap_bio" },
		{ p->evict->progs.swap_write, &p->evict->links.swap_write, "swap_write" },
		{ p->evict->progs.proc_exit, &p->evict->links.proc_exit, "proc_exit" },
		{ p->evict->progs.cgroup_gone, &p->evict->links.cgroup_gone, "cgroup_gone" },
	};
	const char *failed;
	int r = attach_hooks(hooks, sizeof(hooks) / sizeof(hooks[0]), &failed);

	return r ? fail_exit(e, EXIT_UNSUPPORTED, r,
			     "bpf/evict: cannot attach %s: %s; the kernel needs BTF and tracepoints",
			     failed, strerror(-r)) : 0;
}

static void close_exact(struct plane *p)
{
	exact_bpf__destroy(p->exact);
	p->exact = NULL;
}

static int try_exact(struct plane *p)
{
	const char *failed;
	int r;

	p->exact = exact_bpf__open();
	if (!p->exact)
		return -errno;
	p->exact->rodata->possible_cpus = (uint32_t)p->cpus;
	r = plane_share_maps(p, p->exact->obj);
	if (!r)
		r = exact_bpf__load(p->exact);
	if (!r) {
		const struct hook hooks[] = {
			{ p->exact->progs.exact_in, &p->exact->links.exact_in, "exact_in" },
			{ p->exact->progs.exact_out, &p->exact->links.exact_out, "exact_out" },
		};

		r = attach_hooks(hooks, sizeof(hooks) / sizeof(hooks[0]), &failed);
	}
	return r;
}

/* Attaches bpf/exact as a whole or not at all: partial counts would be worse than none. */
static int attach_exact(struct plane *p, enum hooks_wish wish, struct error *e)
{
	int r = wish == HOOKS_TRACEPOINTS ? -ENOSYS : try_exact(p);

	if (!r)
		return 0;
	close_exact(p);
	unpin_predecessor("exact_in");
	unpin_predecessor("exact_out");
	if (wish == HOOKS_FENTRY)
		return fail_exit(e, EXIT_UNSUPPORTED, r,
				 "[bpf] hooks = fentry: cannot attach to do_swap_page and try_to_unmap_one: %s; "
				 "write auto or tracepoints", strerror(-r));
	if (wish == HOOKS_AUTO)
		log_debug("fentry: %s; tracepoints do its work", strerror(-r));
	return 0;
}

const char *plane_hooks(const struct plane *p)
{
	return p->exact ? "fentry" : "tracepoints";
}

/* Returns the first @size bytes of an array map, or NULL. */
static void *map_entry(const struct bpf_map *map, size_t size)
{
	void *x = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);

	return x == MAP_FAILED ? NULL : x;
}

static int open_meta(struct plane *p, const struct plane_wish *wish, struct error *e)
{
	struct ebb_meta m = {
		.abi = EBB_ABI, .epoch_percent = wish->epoch_percent, .heartbeat_ns = now_ns(),
		.daemon_tgid = getpid(), .version = EBB_VERSION,
		.hooks = p->exact ? EBB_HOOKS_FENTRY : EBB_HOOKS_TRACEPOINTS,
	};
	uint32_t zero = 0;

	if (bpf_map_update_elem(p->meta, &zero, &m, BPF_ANY))
		return fail(e, errno, "maps/meta: cannot write: %m");
	p->fault->bss->hooks = m.hooks;
	p->executor = map_entry(p->fault->maps.executor, EBB_PAGE);
	p->active = map_entry(p->fault->maps.active, EBB_PAGE);
	p->waits = map_entry(p->fault->maps.waits, sizeof(*p->waits));
	return p->executor && p->active && p->waits ? 0 : fail(e, errno, "maps: cannot map: %m");
}

static void test_programs(struct plane *p)
{
	p->tested = self_test(p->misread, sizeof(p->misread));
	if (p->tested == -EILSEQ)
		log_err("bpf: %s; this kernel has changed a field that ebb reads: use a kernel that "
			"ebb supports, or a newer ebb", p->misread);
	else if (p->tested)
		log_warn("bpf: cannot verify the fields that the programs read: %s", p->misread);
}

const char *plane_self_test(const struct plane *p)
{
	return !p->tested ? "passed" : p->tested == -EILSEQ ? "failed" : "skipped";
}

int plane_open(struct plane *p, const struct plane_wish *wish, struct error *e)
{
	int r;

	libbpf_set_print(libbpf_log);
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	p->cpus = libbpf_num_possible_cpus();
	r = mount_bpffs(p, e);
	if (r)
		return r;
	p->took_over = pins_usable();
	r = make_dirs(e);
	if (!r)
		r = load_objects(p, e);
	if (r)
		goto out;
	p->meta = bpf_map__fd(p->fault->maps.meta);
	p->params = bpf_map__fd(p->fault->maps.params);
	p->counters = bpf_map__fd(p->fault->maps.counters);
	p->sources = bpf_map__fd(p->fault->maps.sources);
	p->requests = bpf_map__fd(p->fault->maps.requests);
	p->cgroups = bpf_map__fd(p->fault->maps.cgroups);
	p->governors = bpf_map__fd(p->fault->maps.governors);
	p->procs = bpf_map__fd(p->fault->maps.procs);
	p->epoch_slots = bpf_map__fd(p->fault->maps.epoch_slots);
	p->epochs = bpf_map__fd(p->fault->maps.epochs);
	p->trace = bpf_map__fd(p->fault->maps.trace);
	p->devices = bpf_map__fd(p->fault->maps.devices);
	p->roles = bpf_map__fd(p->fault->maps.roles);
	p->programs = bpf_map__fd(p->fault->maps.policies);
	p->zswap = bpf_map__fd(p->fault->maps.zswap);
	p->filter = (uint64_t *)p->fault->bss->filter;
	p->batch = (struct ebb_batch *)&p->fault->bss->batch;
	p->look = (struct ebb_look *)&p->fault->bss->look;
	p->cgroup_stats = bpf_map__fd(p->fault->maps.cgroup_stats);
	r = attach_exact(p, wish->hooks, e);
	if (!r)
		r = open_meta(p, wish, e);
	if (!r)
		r = attach_evict(p, e);
	if (!r)
		test_programs(p);
out:
	if (r)
		plane_close(p, p->took_over ? KEEP_PINS : DROP_PINS);
	return r;
}

void plane_close(struct plane *p, enum plane_pins pins)
{
	if (p->executor)
		munmap(p->executor, EBB_PAGE);
	if (p->active)
		munmap(p->active, EBB_PAGE);
	if (p->waits)
		munmap((void *)p->waits, sizeof(*p->waits));
	p->executor = NULL;
	p->active = NULL;
	p->waits = NULL;
	close_exact(p);
	evict_bpf__destroy(p->evict);
	fault_bpf__destroy(p->fault);
	p->evict = NULL;
	p->fault = NULL;
	if (pins == KEEP_PINS)
		return;
	remove_pins();
	if (p->mounted_bpffs)
		umount(EBB_BPFFS);
}

int plane_map(const struct plane *p, const char *name)
{
	return bpf_object__find_map_fd_by_name(p->fault->obj, name);
}

struct bpf_program *plane_program(struct plane *p, enum plane_program which)
{
	return which == PLANE_ENTER ? p->fault->progs.fault_enter :
	       which == PLANE_MINOR ? p->fault->progs.fault_minor :
	       which == PLANE_MAJOR ? p->fault->progs.fault_major :
	       which == PLANE_BATCH ? p->fault->progs.set_batch : p->fault->progs.look_shared;
}

void plane_heartbeat(struct plane *p)
{
	struct ebb_meta m;
	uint32_t zero = 0;

	if (bpf_map_lookup_elem(p->meta, &zero, &m))
		return;
	m.heartbeat_ns = now_ns();
	bpf_map_update_elem(p->meta, &zero, &m, BPF_ANY);
}

const struct policy *plane_policy(const struct plane *p, const char *name, uint32_t *slot)
{
	for (uint32_t i = 0; i < p->policies; i++)
		if (*name && !strcmp(p->policy[i].name, name)) {
			if (slot)
				*slot = i;
			return &p->policy[i];
		}
	return NULL;
}

/* Adds up the @n numbers that a map has of @owner for each CPU. */
static void sum_up(const struct plane *p, int map, uint64_t owner, uint64_t *sum, size_t n)
{
	uint64_t each[(size_t)p->cpus * n];

	memset(sum, 0, n * sizeof(*sum));
	if (bpf_map_lookup_elem(map, &owner, each))
		return;
	for (size_t i = 0; i < (size_t)p->cpus * n; i++)
		sum[i % n] += each[i];
}

void plane_counters(const struct plane *p, uint64_t owner, struct ebb_counters *sum)
{
	sum_up(p, p->counters, owner, (uint64_t *)sum, sizeof(*sum) / sizeof(uint64_t));
}

void plane_sources(const struct plane *p, uint64_t owner, struct ebb_source_counters *sum)
{
	sum_up(p, p->sources, owner, (uint64_t *)sum, sizeof(*sum) / sizeof(uint64_t));
}

/* Returns whether the cache was emptied; logs the first of several failures. */
static bool flush(struct plane *p)
{
	uint32_t in = 0, out, n;
	void *from = NULL;
	int r;

	/* A call for each entry would make the cost of an attach grow with their number. */
	do {
		n = EBB_MAX_GOVERNORS;
		r = bpf_map_lookup_and_delete_batch(p->governors, from, &out, p->entries.id,
						    p->entries.owner, &n, NULL);
		if (r && errno != ENOENT) {
			if (!p->unflushed)
				log_warn("bpf/governors: cannot empty: %m; changed policies may not reach the "
					 "cgroups below until ebbd can empty it; it tries once a second");
			p->unflushed = true;
			return false;
		}
		in = out;
		from = &in;
	} while (!r);
	p->unflushed = false;
	return true;
}

/* Waits for a grace period of RCU, which covers programs on faults; not with nohz_full. */
void plane_wait_programs(void)
{
	syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
}

void plane_flush_cache(struct plane *p)
{
	p->flushes = 2;
	flush(p);
}

void plane_flush_late(struct plane *p)
{
	if (!p->flushes)
		return;
	if (flush(p))
		p->flushes--;
}
