// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Ephemerons, weak references and finalizers of several threads at once.  Each thread allocates
 * objects with a property that leads back to them (an ephemeron) and a finalizer, keeps some and
 * drops the rest.  In the end every dropped object was finalized exactly once, no kept one was, and
 * every property died with its object.
 *
 *	afterlife [-t THREADS] [-n OBJECTS] [-m concurrent|stop]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ebbgc.h"

#define KEEP_EVERY 10

struct object {
	ebbgc_ref_t next;
	uint64_t number;
};

struct record {
	uint64_t length;
	ebbgc_ref_t slots[];
};

struct thread {
	pthread_t id;
	unsigned char *finalized;	/* times, by number */
	unsigned long wrong;
};

static ebbgc_heap_t *heap;
static ebbgc_type_t object_type, record_type;
static uint64_t objects = 20000;

static struct object *object_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

static void finalize(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	struct thread *t = data;

	/* On any thread. */
	__atomic_fetch_add(&t->finalized[object_of(object)->number], 1, __ATOMIC_RELAXED);
}

static ebbgc_ref_t property(ebbgc_mutator_t *m, ebbgc_ref_t object)
{
	ebbgc_ref_t slots[2] = { object, { 0 } };
	struct ebbgc_frame frame;
	ebbgc_ref_t ephemeron;

	ebbgc_frame_push(m, &frame, slots, 2);
	slots[1] = ebbgc_alloc(m, object_type);
	object_of(slots[1])->number = object_of(slots[0])->number + 1000000;
	ebbgc_init(&object_of(slots[1])->next, slots[0]);
	ephemeron = ebbgc_ephemeron_new(m, slots[0], slots[1]);
	ebbgc_frame_pop(m, &frame);
	return ephemeron;
}

static void verify(ebbgc_mutator_t *m, struct thread *t, ebbgc_ref_t kept, ebbgc_ref_t properties)
{
	for (uint64_t i = 0; i < objects; i++) {
		ebbgc_ref_t object = ebbgc_load(m, kept,
						&((struct record *)ebbgc_ptr(kept))->slots[i]);
		ebbgc_ref_t ephemeron = ebbgc_load(m, properties,
			&((struct record *)ebbgc_ptr(properties))->slots[i]);
		ebbgc_ref_t value = ebbgc_ephemeron_value(m, ephemeron);
		int times = __atomic_load_n(&t->finalized[i], __ATOMIC_RELAXED);

		if (i % KEEP_EVERY == 0)
			t->wrong += times != 0 || ebbgc_is_null(value) ||
				    object_of(value)->number != i + 1000000 ||
				    !ebbgc_same(ebbgc_load(m, value, &object_of(value)->next),
						object);
		else
			t->wrong += times != 1 || !ebbgc_is_null(value);
	}
}

static void *run(void *arg)
{
	struct thread *t = arg;
	ebbgc_ref_t roots[3] = { 0 };	/* objects kept, all properties, the object in hand */
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;

	if (ebbgc_attach(heap, &m))
		exit(2);
	ebbgc_frame_push(m, &frame, roots, 3);
	roots[0] = ebbgc_alloc_length(m, record_type, objects);
	roots[1] = ebbgc_alloc_length(m, record_type, objects);
	for (uint64_t i = 0; i < objects; i++) {
		roots[2] = ebbgc_alloc(m, object_type);
		if (ebbgc_is_null(roots[2]) || ebbgc_finalizer_add(m, roots[2], finalize, t))
			exit(2);
		object_of(roots[2])->number = i;
		ebbgc_store(m, roots[1], &((struct record *)ebbgc_ptr(roots[1]))->slots[i],
			    property(m, roots[2]));
		if (i % KEEP_EVERY == 0)
			ebbgc_store(m, roots[0], &((struct record *)ebbgc_ptr(roots[0]))->slots[i],
				    roots[2]);
		if (i % 1000 == 0)
			ebbgc_collect_start(m);
		if (i % 64 == 0)
			ebbgc_finalizers_run(m, 16);
	}
	roots[2] = EBBGC_NULL;
	/* Two collections: another thread may be about to run some of this one's. */
	for (int i = 0; i < 2; i++) {
		ebbgc_collect(m);
		while (ebbgc_finalizers_run(m, 1000))
			;
	}
	ebbgc_frame_pop(m, &frame);
	{
		/* Other threads may be running the last finalizers. */
		ebbgc_frame_push(m, &frame, roots, 2);
		for (int i = 0; i < 2000; i++) {
			t->wrong = 0;
			verify(m, t, roots[0], roots[1]);
			if (!t->wrong)
				break;
			ebbgc_poll(m);
			ebbgc_finalizers_run(m, 1000);
			usleep(1000);
		}
		ebbgc_frame_pop(m, &frame);
	}
	ebbgc_detach(m);
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct ebbgc_layout object = {
		.name = "object", .size = sizeof(struct object), .bitmap = 1,
	};
	static const struct ebbgc_run slots = { sizeof(struct record), EBBGC_COUNT_LENGTH, 8 };
	static const struct ebbgc_layout record = {
		.name = "record", .size = sizeof(struct record), .element_size = 8,
		.length_width = 8, .runs = &slots, .run_count = 1,
	};
	struct thread threads[16] = { 0 };
	struct ebbgc_options options;
	struct ebbgc_stats stats;
	unsigned long wrong = 0;
	int o, count = 4;

	ebbgc_options_init(&options);
	options.check = true;
	while ((o = getopt(argc, argv, "t:n:m:")) != -1) {
		switch (o) {
		case 't': count = atoi(optarg); break;
		case 'n': objects = strtoull(optarg, NULL, 10); break;
		case 'm': options.mode = strcmp(optarg, "stop") ? EBBGC_CONCURRENT : EBBGC_STOP_WORLD; break;
		default: return 2;
		}
	}
	if (count < 1 || count > 16 || objects < 1 || objects > 1000000 ||
	    ebbgc_heap_create(&options, &heap) ||
	    ebbgc_type_register(heap, &object, &object_type) ||
	    ebbgc_type_register(heap, &record, &record_type))
		return 2;
	for (int i = 0; i < count; i++) {
		threads[i].finalized = calloc(objects, 1);
		if (!threads[i].finalized || pthread_create(&threads[i].id, NULL, run, &threads[i]))
			return 2;
	}
	for (int i = 0; i < count; i++) {
		pthread_join(threads[i].id, NULL);
		wrong += threads[i].wrong;
	}
	/* Any thread may have run finalizers of any other. */
	for (int i = 0; i < count; i++)
		free(threads[i].finalized);
	ebbgc_stats_get(heap, &stats, sizeof(stats));
	printf("{\"threads\": %d, \"objects\": %lu, \"wrong\": %lu, \"cycles\": %lu, \"finalized\": %lu, "
	       "\"ephemerons_cleared\": %lu, \"check_failures\": %lu, \"pause_max_us\": %.1f}\n",
	       count, objects, wrong, stats.cycles, stats.finalizers_ready,
	       stats.ephemerons_cleared, stats.check_failures, (double)stats.pause_max_ns / 1e3);
	return wrong || stats.check_failures || ebbgc_heap_destroy(heap);
}
