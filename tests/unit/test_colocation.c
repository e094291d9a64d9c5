// SPDX-License-Identifier: GPL-2.0-or-later
/* The placement thread, with a record of pinned threads and programs of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ebbd/attach/affinity.h"
#include "ebbd/attach/colocation.h"
#include "lib/base/clock.h"

#define OWNER 42
#define CPU 1
#define MS 1000000ull
#define PERIOD_MS 250
#define CHILD 4711

static struct plane plane;
static struct attachment attachment = {
	.cgroup = { .id = OWNER, .path = "/" }, .placement = PLACEMENT_TOGETHER, .placements = 1,
};
static struct attachments attachments = {
	.plane = &plane, .lock = PTHREAD_MUTEX_INITIALIZER, .item = { &attachment }, .n = 1,
	.placed = -1,
};

/* The record, and the programs. */
static struct {
	int fd;                 /* always readable: threads start all the while */
	uint64_t walk_ns;       /* how long each walk takes, as the record says */
	atomic_int walks, looks, released, frees;
	atomic_bool crowded;
	atomic_int pinned;      /* what affinity_pin() returns */
	bool told;              /* the thread of this pins_born() has been */
} world;

static struct pins *const record = (struct pins *)&world;

int __wrap_pins_open(struct pins **p, struct error *e);
void __wrap_pins_close(struct pins **p);
int __wrap_pins_fd(const struct pins *p);
void __wrap_pins_born(struct pins *p);
bool __wrap_pins_next_born(struct pins *p, struct ebb_pin *t);
bool __wrap_pins_look(struct pins *p, struct ebb_pin *t);
bool __wrap_pins_crowded(const struct pins *p, uint64_t owner);
int __wrap_pins_read(struct pins *p);
uint64_t __wrap_pins_walk_ns(const struct pins *p);
bool __wrap_pins_empty(struct pins *p);
const struct ebb_pin *__wrap_pins_at(const struct pins *p, uint32_t i);
bool __wrap_pins_release(struct pins *p, const struct ebb_pin *t);
int __wrap_pins_release_all(struct pins *p);
int __wrap_affinity_init(struct affinity *a, uint64_t owner, const char *path,
			 const struct plane *plane);
void __wrap_affinity_close(struct affinity *a);
enum affinity_state __wrap_affinity_look(struct affinity *a, const struct pins *pins);
void __wrap_affinity_confined(const struct affinity *a, const struct pins *pins, cpu_set_t *set);
int __wrap_affinity_pin(struct affinity *a, struct pins *pins);
void __wrap_affinity_free(struct affinity *a, struct pins *pins);
struct attachment *__wrap_attachments_find(const struct attachments *a, uint64_t id);
bool __wrap_attachment_wants_placing(const struct attachment *t);
void __wrap_budget_place(struct budget *b, int cpu);
uint64_t __wrap_budget_prefetched(const struct budget *b);

int __wrap_pins_open(struct pins **p, struct error *e)
{
	*p = record;
	return 0;
}

void __wrap_pins_close(struct pins **p)
{
	*p = NULL;
}

int __wrap_pins_fd(const struct pins *p)
{
	return world.fd;
}

void __wrap_pins_born(struct pins *p)
{
	world.told = false;
}

/* A process that a pinned thread has started. */
bool __wrap_pins_next_born(struct pins *p, struct ebb_pin *t)
{
	*t = (struct ebb_pin){ .tid = CHILD, .e = { .owner = OWNER, .cpu = CPU,
						    .flags = EBB_PINNED_BORN } };
	if (world.told)
		return false;
	world.told = true;
	return true;
}

bool __wrap_pins_look(struct pins *p, struct ebb_pin *t)
{
	assert_int_equal(t->tid, CHILD);
	world.looks++;
	return true;
}

bool __wrap_pins_crowded(const struct pins *p, uint64_t owner)
{
	assert_int_equal(owner, OWNER);
	return world.crowded;
}

int __wrap_pins_read(struct pins *p)
{
	world.walks++;
	return 0;
}

uint64_t __wrap_pins_walk_ns(const struct pins *p)
{
	return world.walk_ns;
}

bool __wrap_pins_empty(struct pins *p)
{
	return true;
}

const struct ebb_pin *__wrap_pins_at(const struct pins *p, uint32_t i)
{
	return NULL;
}

bool __wrap_pins_release(struct pins *p, const struct ebb_pin *t)
{
	assert_int_equal(t->tid, CHILD);
	world.released++;
	return true;
}

int __wrap_pins_release_all(struct pins *p)
{
	return 0;
}

int __wrap_affinity_init(struct affinity *a, uint64_t owner, const char *path,
			 const struct plane *unused)
{
	*a = (struct affinity){ .owner = owner, .cpu = AFFINITY_NONE, .busiest = CPU };
	return 0;
}

void __wrap_affinity_close(struct affinity *a)
{
}

enum affinity_state __wrap_affinity_look(struct affinity *a, const struct pins *pins)
{
	a->threads = 1;
	CPU_ZERO(&a->allowed);
	CPU_SET(CPU, &a->allowed);
	CPU_SET(CPU + 1, &a->allowed);
	return AFFINITY_FREE;
}

void __wrap_affinity_confined(const struct affinity *a, const struct pins *pins, cpu_set_t *set)
{
	CPU_ZERO(set);
}

int __wrap_affinity_pin(struct affinity *a, struct pins *pins)
{
	assert_int_equal(a->cpu, CPU);
	return world.pinned;
}

void __wrap_affinity_free(struct affinity *a, struct pins *pins)
{
	a->cpu = AFFINITY_NONE;
	world.frees++;
}

struct attachment *__wrap_attachments_find(const struct attachments *a, uint64_t id)
{
	return id == OWNER ? &attachment : NULL;
}

bool __wrap_attachment_wants_placing(const struct attachment *t)
{
	return true;
}

void __wrap_budget_place(struct budget *b, int cpu)
{
}

uint64_t __wrap_budget_prefetched(const struct budget *b)
{
	return 0;
}

static enum colocation_state state(void)
{
	enum colocation_state now;

	pthread_mutex_lock(&attachments.lock);
	now = attachment.colocation.state;
	pthread_mutex_unlock(&attachments.lock);
	return now;
}

static void wait_for(enum colocation_state wanted)
{
	for (uint64_t end = now_ns() + 30000 * MS; state() != wanted; usleep(1000))
		assert_true(now_ns() < end);
}

static int begin(void **unused)
{
	memset(&world, 0, sizeof(world));
	attachment.placing = false;
	attachment.colocation = (struct colocation_report){ 0 };
	world.fd = eventfd(1, EFD_CLOEXEC);
	return world.fd < 0;
}

static int end(void **unused)
{
	close(world.fd);
	return 0;
}

/* Returns how many walks over all tasks there were in @ms, and stores how long those were. */
static int walks_in(unsigned int ms, unsigned int *took)
{
	uint64_t begun = now_ns();
	int before = world.walks;

	usleep(ms * 1000);
	*took = (unsigned int)((now_ns() - begun) / MS);
	return world.walks - before;
}

/* Each new thread is looked up, but that is no reason to look at all others. */
static void new_threads_are_no_walks(void **unused)
{
	struct colocation *c;
	struct error e = { 0 };
	unsigned int took;
	int walks;

	assert_int_equal(colocation_start(&c, &attachments, &e), 0);
	wait_for(COLOCATION_TOGETHER);
	walks = walks_in(1000, &took);
	assert_in_range(walks, 0, took / PERIOD_MS + 2);
	/* Released all the same. */
	for (uint64_t end = now_ns() + 30000 * MS; world.released < 10; usleep(1000))
		assert_true(now_ns() < end);
	assert_true(world.looks >= 10);
	/* On a machine with very many threads. */
	world.walk_ns = 400 * MS;
	walks_in(500, &took);
	walks = walks_in(1000, &took);
	assert_in_range(walks, 0, took / 1600 + 1);
	colocation_stop(&c);
}

static void a_crowd_is_unpinned(void **unused)
{
	struct colocation *c;
	struct error e = { 0 };
	uint64_t begun;
	int frees;

	assert_int_equal(colocation_start(&c, &attachments, &e), 0);
	wait_for(COLOCATION_TOGETHER);
	assert_int_equal(world.frees, 0);
	world.crowded = true;
	wait_for(COLOCATION_MANY);
	begun = now_ns();
	/* For four seconds: several rounds, unless the machine is too busy to tell. */
	usleep(600000);
	frees = world.frees;
	if (now_ns() - begun < 2000 * MS)
		assert_int_equal(frees, 1);
	assert_true(frees >= 1);
	colocation_stop(&c);
}

static void a_full_record_is_not_many_threads(void **unused)
{
	struct colocation *c;
	struct error e = { 0 };

	world.pinned = -ENOSPC;
	assert_int_equal(colocation_start(&c, &attachments, &e), 0);
	wait_for(COLOCATION_FULL);
	colocation_stop(&c);
	assert_string_equal(colocation_state_name(COLOCATION_FULL), "record full");
	begin(NULL);
	world.pinned = -E2BIG;
	assert_int_equal(colocation_start(&c, &attachments, &e), 0);
	wait_for(COLOCATION_MANY);
	colocation_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(new_threads_are_no_walks, begin, end),
		cmocka_unit_test_setup_teardown(a_crowd_is_unpinned, begin, end),
		cmocka_unit_test_setup_teardown(a_full_record_is_not_many_threads, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
