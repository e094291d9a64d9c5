// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "far_world.h"
#include "lib/base/files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

struct far_world world;

/* Slabs that are not locked: that would take root. */
static void make_slabs(struct pool *p)
{
	for (uint32_t i = 0; i < p->count; i++) {
		int fd = memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);

		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, FAR_ARENA), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
		assert_true(mmap(pool_memory(p, i), FAR_ARENA, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
		p->slabs[i].fd = fd;
		p->slabs[i].state = LEND_CLEAN;
	}
	p->in[LEND_ABSENT] = 0;
	p->in[LEND_CLEAN] = p->count;
}

static void listen_at(char *text, size_t size, const char *where)
{
	struct error e = { 0 };
	struct address a;

	if (address_parse(where, "listen", &a, &e) || loop_listen(world.l, &a, &e))
		fail_msg("%s", e.text);
	if (address_is_local(&a))
		snprintf(text, size, "%s", a.text);
	else
		snprintf(text, size, "127.0.0.1:%u",
			 ntohs(((const struct sockaddr_in *)&a.sa)->sin_port));
}

static void make_keys(struct option_list *list)
{
	static const char *const names[] = { "one", "two" };
	struct error e = { 0 };

	for (int i = 0; i < 2; i++) {
		struct key k;

		snprintf(world.keys[i], sizeof(world.keys[i]), "%s/%s.key", world.dir, names[i]);
		if (key_make(&k, names[i], &e) || key_save(&k, world.keys[i], &e))
			fail_msg("%s", e.text);
		list->v[list->n++] = world.keys[i];
	}
}

enum keys { WITHOUT_KEYS, WITH_KEYS };

static int start(uint64_t slabs, uint64_t bytes, enum keys keys)
{
	struct lending_options o = {
		.far = bytes, .far_jobs = bytes ? 1 << 20 : 0, .far_jobs_cpu = 100,
		.headroom = FAR_ARENA, .drain = 1000 * SECOND,
		.sessions.keep = 10 * SECOND, .eviction.overdue = 1000 * SECOND,
	};
	char path[96];
	struct error e = { 0 };

	world = (struct far_world){ .dir = "/tmp/ebb-far-XXXXXX" };
	assert_non_null(mkdtemp(world.dir));
	snprintf(path, sizeof(path), "%s/meminfo", world.dir);
	assert_int_equal(file_replace(path, "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n"), 0);
	o.machine = world.dir;
	if (keys == WITH_KEYS)
		make_keys(&o.keys);
	if (loop_new(&world.l, &world.pool, &o, &e))
		fail_msg("%s", e.text);
	snprintf(path, sizeof(path), "unix:%s/donor.sock", world.dir);
	listen_at(world.local, sizeof(world.local), path);
	listen_at(world.tcp, sizeof(world.tcp), "127.0.0.1:0");
	if (pool_init(&world.pool, slabs * FAR_ARENA, FAR_ARENA, LEND_SHARED, &e) ||
	    loop_start(world.l, &e))
		fail_msg("%s", e.text);
	make_slabs(&world.pool);
	/* The tests say when a second has passed. */
	timerfd_settime(world.l->timer_fd, 0, &(struct itimerspec){ 0 }, NULL);
	return 0;
}

int with_far_donor(void **state)
{
	return start(FAR_SLABS, FAR_ARENAS * FAR_ARENA, WITHOUT_KEYS);
}

int without_far_memory(void **state)
{
	return start(FAR_SLABS, 0, WITHOUT_KEYS);
}

static void *run_loop(void *data)
{
	while (!__atomic_load_n(&world.stop, __ATOMIC_ACQUIRE))
		loop_turn(world.l, SECOND);
	return NULL;
}

static int start_thread(uint64_t slabs, uint64_t arenas, enum keys keys)
{
	start(slabs, arenas * FAR_ARENA, keys);
	world.threaded = true;
	return -pthread_create(&world.thread, NULL, run_loop, NULL);
}

int with_far_thread(void **state)
{
	return start_thread(FAR_SLABS, FAR_ARENAS, WITHOUT_KEYS);
}

int with_far_keys(void **state)
{
	return start_thread(FAR_SLABS, FAR_ARENAS, WITH_KEYS);
}

int with_many_arenas(void **state)
{
	return start_thread(FAR_MANY_ARENAS, FAR_MANY_ARENAS, WITHOUT_KEYS);
}

int end_far_donor(void **state)
{
	char path[96];

	if (world.threaded) {
		__atomic_store_n(&world.stop, true, __ATOMIC_RELEASE);
		eventfd_write(world.l->wake_fd, 1);
		pthread_join(world.thread, NULL);
	}
	loop_free(&world.l);
	assert_int_equal(world.pool.in[LEND_LENT], 0);
	pool_free(&world.pool);
	snprintf(path, sizeof(path), "%s/meminfo", world.dir);
	unlink(path);
	for (int i = 0; i < 2; i++)
		unlink(world.keys[i]);
	return rmdir(world.dir);
}

void far_world_turn(void)
{
	for (int i = 0; i < 8; i++)
		assert_int_equal(loop_turn(world.l, 0), 0);
}
