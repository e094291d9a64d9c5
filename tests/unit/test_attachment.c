// SPDX-License-Identifier: GPL-2.0-or-later
/* Attachments whose cgroup changes: its limit while it is idle, and its removal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ebbd/attach/attachment.h"
#include "ebbd/attach/benefit.h"
#include "ebbd/plane/policy_object.h"
#include "ebbd/plane/policy_store.h"
#include "lib/base/clock.h"
#include "lib/base/lock.h"

#define MIB (1ULL << 20)
#define SECOND 1000000000ULL
#define HEADROOM 8
#define PATH "/tmp/ebb-test-attachment.XXXXXX"

enum { CGROUPS = 1, PARAMS, COUNTERS, STATS };

static struct {
	char path[sizeof(PATH)];
	bool watched;            /* events of major faults are open */
	bool unwatchable;
	bool removed;            /* as soon as its path was resolved */
	uint64_t limit;          /* bytes */
	uint32_t limit_reads;
	struct ebb_cgroup entry; /* of maps/cgroups */
	int entries[STATS + 1];  /* in each map */
	uint64_t stray;          /* a further key, */
	int strays[STATS + 1];   /* in each map */
} world;

static struct ebb_active active;
static struct plane plane = { .cpus = 1, .max_cgroups = EBB_MAX_CGROUPS,
			      .cgroups = CGROUPS, .params = PARAMS,
			      .counters = COUNTERS, .cgroup_stats = STATS, .active = &active };
static const struct executor_config config = { .headroom = HEADROOM };
static struct attachments attachments;

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags)
{
	if (fd == CGROUPS)
		memcpy(&world.entry, value, sizeof(world.entry));
	world.entries[fd] = 1;
	return 0;
}

int bpf_map_delete_elem(int fd, const void *key)
{
	if (*(const uint64_t *)key == world.stray)
		world.strays[fd] = 0;
	else
		world.entries[fd] = 0;
	return 0;
}

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	if (fd == CGROUPS)
		memcpy(value, &world.entry, sizeof(world.entry));
	else if (fd == STATS)
		snprintf(((struct ebb_cgroup_stats *)value)->path, sizeof(world.path), "%s", world.path);
	return 0;
}

/* First the stray one, then the attached cgroup's. */
int bpf_map_get_next_key(int fd, const void *key, void *next)
{
	const uint64_t *k = key;

	if (!k && world.strays[fd])
		*(uint64_t *)next = world.stray;
	else if (world.entries[fd] && (!k || *k == world.stray))
		*(uint64_t *)next = attachments.item[0]->cgroup.id;
	else
		return -(errno = ENOENT);
	return 0;
}

int cgroup_resolve(const char *name, struct cgroup_ref *c, struct error *e)
{
	struct stat st;

	assert_int_equal(stat(name, &st), 0);
	memset(c, 0, sizeof(*c));
	strcpy(c->path, name);
	strcpy(c->twin, name);
	strcpy(c->rel, "/x");
	c->id = st.st_ino;
	c->v2 = true;
	if (world.removed)
		rmdir(name);
	return 0;
}

void cgroup_find_ids(const uint64_t *ids, char **path, uint32_t n)
{
}

uint64_t cgroup_limit(const struct cgroup_ref *c)
{
	world.limit_reads++;
	return world.limit;
}

const struct policy *plane_policy(const struct plane *p, const char *name, uint32_t *slot)
{
	static const struct policy policy = { .name = "leap" };

	*slot = 1;
	return &policy;
}

void plane_counters(const struct plane *p, uint64_t owner, struct ebb_counters *sum)
{
	memset(sum, 0, sizeof(*sum));
}

void plane_sources(const struct plane *p, uint64_t owner, struct ebb_source_counters *sum)
{
	memset(sum, 0, sizeof(*sum));
}

void plane_flush_cache(struct plane *p)
{
}

void plane_flush_late(struct plane *p)
{
}

void plane_wait_programs(void)
{
}

int policies_need(struct plane *p, const struct policy *policy, struct error *e)
{
	return 0;
}

const struct ebb_param_info *policy_param(const struct ebb_policy_info *info, const char *name)
{
	return NULL;
}

void policy_defaults(const struct ebb_policy_info *info, struct ebb_params *params)
{
	memset(params, 0, sizeof(*params));
}

int events_open(struct plane *p, const struct cgroup_ref *cgroup, struct event_set **set,
		struct error *e)
{
	return 0;
}

void events_close(struct event_set **set)
{
}

int events_watch(struct plane *p, struct error *e)
{
	if (world.unwatchable)
		return fail(e, EMFILE, "no events");
	world.watched = true;
	return 0;
}

static uint64_t slept;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long r = syscall(SYS_clock_gettime, clock, t);

	if (clock == CLOCK_BOOTTIME)
		t->tv_sec += (time_t)slept;
	return (int)r;
}

void events_unwatch(struct plane *p, enum events_pins pins)
{
	world.watched = false;
}

void events_detect_on(struct event_set *set)
{
}

void events_detect_off(struct event_set *set)
{
}

bool events_detecting(const struct event_set *set)
{
	return false;
}

void events_refresh(struct event_set *set)
{
}

void events_sweep_pins(void)
{
}

static int begin(void **unused)
{
	memset(&world, 0, sizeof(world));
	strcpy(world.path, PATH);
	world.limit = 64 * MIB;
	memset(&active, 0, sizeof(active));
	attachments_init(&attachments, &plane, budget_table_new(&plane, &config));
	return mkdtemp(world.path) && attachments.budgets ? 0 : -1;
}

static int end(void **unused)
{
	attachments_close(&attachments);
	budget_table_free(&attachments.budgets);
	return world.removed ? 0 : rmdir(world.path);
}

static int attach_it(void)
{
	struct error e = { 0 };

	return attach(&attachments, world.path,
		      &(struct attach_wish){ .policy = "leap", .by = BY_COMMAND }, &e);
}

static uint32_t room_of(uint64_t limit)
{
	return (uint32_t)(limit / 4096 / HEADROOM);
}

/* As a fault in the cgroup. */
static void count(void)
{
	uint32_t bit = ebb_active_bit(attachments.item[0]->cgroup.id);

	active.counted[bit / 64] |= 1ULL << (bit & 63);
}

static void a_limit_that_changed_while_idle_counts_with_the_first_fault(void **unused)
{
	assert_int_equal(attach_it(), 0);
	assert_int_equal(world.entry.room, room_of(64 * MIB));
	world.limit = 16 * MIB;
	world.limit_reads = 0;
	attachments_tick(&attachments);
	assert_int_equal(world.limit_reads, 0);
	count();
	attachments_tick(&attachments);
	assert_int_equal(world.entry.room, room_of(16 * MIB));
	assert_int_equal(budget_room(attachments.item[0]->budget), room_of(16 * MIB));
	/* A tick of a busy one reads none: that is done once a second. */
	world.limit = 8 * MIB;
	count();
	attachments_tick(&attachments);
	assert_int_equal(world.limit_reads, 1);
	attachments_sweep(&attachments);
	assert_int_equal(world.entry.room, room_of(8 * MIB));
}

/* No BPF program tells of its removal: it had no entry yet. */
static void a_cgroup_removed_during_its_attach_is_not_attached(void **unused)
{
	world.removed = true;
	assert_int_equal(attach_it(), -ENOENT);
	assert_int_equal(attachments.n, 0);
	for (int map = CGROUPS; map <= STATS; map++)
		assert_int_equal(world.entries[map], 0);
}

static void a_cgroup_removed_later_is_forgotten_at_the_next_sweep(void **unused)
{
	uint32_t bit;

	assert_int_equal(attach_it(), 0);
	assert_true(world.watched);
	bit = ebb_active_bit(attachments.item[0]->cgroup.id);
	world.removed = true;
	assert_int_equal(rmdir(world.path), 0);
	active.removed[bit / 64] |= 1ULL << (bit & 63);
	attachments_sweep(&attachments);
	assert_int_equal(attachments.n, 0);
	assert_false(world.watched);
	for (int map = CGROUPS; map <= STATS; map++)
		assert_int_equal(world.entries[map], 0);
}

/*
 * What programs of 0.1.0 cached in maps/cgroups, or an ebbd left that died during an attach, takes
 * no room of attachments, and nothing of those that there are goes.
 */
static void entries_without_an_attachment_go_at_the_start(void **unused)
{
	assert_int_equal(attach_it(), 0);
	world.entries[STATS] = 0;
	world.stray = 7;
	for (int map = CGROUPS; map < STATS; map++)
		world.strays[map] = 1;
	attachments_restore(&attachments);
	for (int map = CGROUPS; map < STATS; map++) {
		assert_int_equal(world.strays[map], 0);
		assert_int_equal(world.entries[map], 1);
	}
}

/* Sleep takes processors offline and on again: their events are dead, and nothing else tells. */
static void events_are_opened_again_after_sleep(void **unused)
{
	assert_int_equal(attach_it(), 0);
	attachments_sweep(&attachments);
	world.watched = false;
	attachments_sweep(&attachments);
	assert_false(world.watched);
	slept += 5;
	world.unwatchable = true;
	attachments_sweep(&attachments);
	assert_false(world.watched);
	/* What fails then is tried again. */
	world.unwatchable = false;
	attachments_sweep(&attachments);
	assert_true(world.watched);
}

/* A small virtual machine may declare many processors, and each cgroup has counters for each. */
static void counters_take_little_of_a_small_machine(void **unused)
{
	const uint64_t gib = 1ULL << 30;
	uint32_t few = plane_cgroups(4 * gib, 240);

	assert_int_equal(plane_cgroups(4 * gib, 2), EBB_MAX_CGROUPS);
	assert_int_equal(plane_cgroups(1024 * gib, 512), EBB_MAX_CGROUPS);
	assert_in_range(few, 64, EBB_MAX_CGROUPS - 1);
	assert_true(few * 240 * sizeof(struct ebb_counters) <= 4 * gib / 200);
	assert_int_equal(plane_cgroups(gib / 4, 512), 64);
}

static void the_limit_of_attachments_is_stated(void **unused)
{
	struct attachment *t;
	struct error e = { 0 };

	assert_int_equal(attach_it(), 0);
	t = attachments.item[0];
	t->cgroup.id++;
	attachments.n = EBB_MAX_CGROUPS;
	for (uint32_t i = 1; i < EBB_MAX_CGROUPS; i++)
		attachments.item[i] = t;
	assert_int_equal(attach(&attachments, world.path,
				&(struct attach_wish){ .policy = "leap", .by = BY_COMMAND }, &e),
			 -ENOSPC);
	assert_non_null(strstr(e.text, "1024 cgroups are attached"));
	attachments.n = 1;
	/* Another one goes on to change. */
	t->cgroup.id--;
	assert_int_equal(attach_it(), 0);
}

static int set_benefit(uint64_t value)
{
	static const char *const names[] = { "benefit" };
	struct error e = { 0 };

	return attach_set(&attachments, world.path,
			  &(struct attach_wish){ .n = 1, .names = names, .values = &value }, &e);
}

/* Returns the paused sources in maps/cgroups. */
static uint32_t paused(void)
{
	HOLD(&attachments.lock);

	return world.entry.flags >> EBB_CGROUP_PAUSED_SHIFT;
}

static void a_paused_source_is_in_the_map(void **unused)
{
	struct attachment *t;

	assert_int_equal(attach_it(), 0);
	assert_int_equal(world.entry.flags & EBB_CGROUP_BENEFIT, 0);
	assert_true(set_benefit(2) < 0);
	assert_int_equal(set_benefit(1), 0);
	assert_int_equal(world.entry.flags & EBB_CGROUP_BENEFIT, EBB_CGROUP_BENEFIT);
	t = attachments.item[0];
	assert_int_equal(attachment_pause(&attachments, t, 1 << EBB_SOURCE_NEAR), 0);
	assert_int_equal(paused(), 1 << EBB_SOURCE_NEAR);
	/* Settings that stay leave it. */
	assert_int_equal(set_benefit(1), 0);
	assert_int_equal(paused(), 1 << EBB_SOURCE_NEAR);
	/* The next ebbd resumes it. */
	world.entries[STATS] = 1;
	attachments_restore(&attachments);
	assert_int_equal(world.entry.flags & EBB_CGROUP_BENEFIT, EBB_CGROUP_BENEFIT);
	assert_int_equal(paused(), 0);
	assert_int_equal(attachment_pause(&attachments, t, 1 << EBB_SOURCE_NEAR), 0);
	assert_int_equal(set_benefit(0), 0);
	assert_int_equal(world.entry.flags & EBB_CGROUP_BENEFIT, 0);
	assert_int_equal(paused(), 0);
}

/* Runs a program, which is in user mode half of the time, for a moment. */
static void run_once(int stat, enum ebb_source source)
{
	uint32_t now = paused();
	char text[64];

	assert_true(!now || now == 1u << source);
	if (!now)
		budget_predicted(attachments.item[0]->budget, source, 16);
	snprintf(text, sizeof(text), "usage_usec 1\nuser_usec %020llu\n",
		 (unsigned long long)now_ns() / 2000);
	assert_int_equal(pwrite(stat, text, strlen(text), 0), strlen(text));
	count();
	attachments_tick(&attachments);
	usleep(5000);
}

/* Runs it until @source is paused as @wanted. */
static void run_until(int stat, enum ebb_source source, bool wanted)
{
	uint64_t until = now_ns() + 60 * SECOND;

	while ((paused() == 1u << source) != wanted) {
		assert_true(now_ns() < until);
		run_once(stat, source);
	}
}

/* The thread tries the source that is in use, for a short time, and resumes it when it ends. */
static void trials(void **unused)
{
	struct benefit_report judged = { 0 };
	struct benefit *b;
	struct error e;
	char path[64];
	int stat;

	assert_int_equal(attach_it(), 0);
	assert_int_equal(benefit_start(&b, &attachments, &e), 0);
	assert_int_equal(set_benefit(1), 0);
	snprintf(path, sizeof(path), "%s/cpu.stat", world.path);
	stat = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(stat >= 0);
	/* On a busy machine, its periods differ too much to count. */
	for (int i = 0; i < 20 && (judged.state != BENEFIT_MEASURES ||
				   !judged.source[EBB_SOURCE_REPLAY].trials); i++) {
		run_until(stat, EBB_SOURCE_REPLAY, true);
		run_until(stat, EBB_SOURCE_REPLAY, false);
		/* Its trial counts after the period that follows. */
		for (int k = 0; k < 60; k++)
			run_once(stat, EBB_SOURCE_REPLAY);
		pthread_mutex_lock(&attachments.lock);
		judged = attachments.item[0]->judged;
		pthread_mutex_unlock(&attachments.lock);
	}
	assert_int_equal(judged.state, BENEFIT_MEASURES);
	assert_true(judged.source[EBB_SOURCE_REPLAY].trials >= 1);
	assert_int_equal(judged.source[EBB_SOURCE_STREAMS].trials, 0);
	run_until(stat, EBB_SOURCE_REPLAY, true);
	benefit_stop(&b);
	assert_int_equal(paused(), 0);
	close(stat);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_limit_that_changed_while_idle_counts_with_the_first_fault, begin, end),
		cmocka_unit_test_setup_teardown(a_cgroup_removed_during_its_attach_is_not_attached,
						begin, end),
		cmocka_unit_test_setup_teardown(
			a_cgroup_removed_later_is_forgotten_at_the_next_sweep, begin, end),
		cmocka_unit_test_setup_teardown(entries_without_an_attachment_go_at_the_start,
						begin, end),
		cmocka_unit_test_setup_teardown(events_are_opened_again_after_sleep, begin, end),
		cmocka_unit_test(counters_take_little_of_a_small_machine),
		cmocka_unit_test_setup_teardown(the_limit_of_attachments_is_stated, begin, end),
		cmocka_unit_test_setup_teardown(a_paused_source_is_in_the_map, begin, end),
		cmocka_unit_test_setup_teardown(trials, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
