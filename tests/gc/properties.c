// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Properties of -n objects in a side table of ephemerons, as JavaScript's WeakMap or an inspector
 * has.  Each of -r operations per object updates a random object's property or, one time in four,
 * replaces the object, whose ephemeron dies.  The table has twice as many places, which are used in
 * turn: a property that was pushed out is created again.  Needs libebbgc.
 */
#include "system.h"

#define REPLACED 4		/* one operation in so many */
#define PAYLOAD 48

struct object {
	ref payload;
	uint64_t number, place;
};

struct property {
	ref next, owner;		/* of an ephemeron's value; it may lead to the key */
	uint64_t number, updates;
};

static struct type object_type = { .name = "object", .size = sizeof(struct object), .bitmap = 1 };
static struct type property_type = {
	.name = "property", .size = sizeof(struct property), .bitmap = 3,
};

struct map {
	ref roots[4];		/* objects, ephemerons, then for temporary use */
	uint64_t n, next, numbers;
};

enum { OBJECTS, TABLE, OBJECT, PROPERTY };

/* Gives the object in its root a property at the table's next place. */
static void property_new(ctx c, struct map *m)
{
	struct property *p;
	struct object *o;
	ref ephemeron;

	m->roots[PROPERTY] = object_new(c, &property_type);
	p = PTR(m->roots[PROPERTY]);
	o = PTR(m->roots[OBJECT]);
	o->place = m->next++ % (2 * m->n);
	p->number = o->number;
	INIT(&p->owner, m->roots[OBJECT]);
	ephemeron = checked(ebbgc_ephemeron_new(c, m->roots[OBJECT], m->roots[PROPERTY]));
	parts_put(c, m->roots[TABLE], o->place, ephemeron);
}

static void object_put(ctx c, struct map *m, uint64_t i)
{
	ref payload;
	struct object *o;

	m->roots[OBJECT] = object_new(c, &object_type);
	payload = leaf_new(c, PAYLOAD);
	o = PTR(m->roots[OBJECT]);
	o->number = m->numbers++;
	STORE(c, m->roots[OBJECT], &o->payload, payload);
	property_new(c, m);
	parts_put(c, m->roots[OBJECTS], i, m->roots[OBJECT]);
}

/* Returns the updates of an object's property so far. */
static uint64_t property_update(ctx c, struct map *m, uint64_t i)
{
	struct property *p;
	ref ephemeron;

	m->roots[OBJECT] = parts_at(c, m->roots[OBJECTS], i);
	ephemeron = parts_at(c, m->roots[TABLE], ((struct object *)PTR(m->roots[OBJECT]))->place);
	if (ebbgc_same(ebbgc_ephemeron_key(c, ephemeron), m->roots[OBJECT]))
		m->roots[PROPERTY] = ebbgc_ephemeron_value(c, ephemeron);
	else
		property_new(c, m);
	p = PTR(m->roots[PROPERTY]);
	expect(p->number == ((struct object *)PTR(m->roots[OBJECT]))->number,
	       "a property is another object's");
	expect(ebbgc_same(LOAD(c, m->roots[PROPERTY], &p->owner), m->roots[OBJECT]),
	       "a property has another owner");
	return ++p->updates;
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 88172645463325252u + thread * 1000003u, operations;
	struct map m = { .n = size / threads };
	double sum = 0;

	ROOTS(c, m.roots, 4);
	m.roots[OBJECTS] = parts_new(c, m.n);
	m.roots[TABLE] = parts_new(c, 2 * m.n);
	for (uint64_t i = 0; i < m.n; i++)
		object_put(c, &m, i);
	built(c);
	operations = operations_of(m.n);
	for (uint64_t i = 0; i < operations; i++) {
		uint64_t at = next_random(&seed) % m.n;

		if (next_random(&seed) % REPLACED)
			sum += (double)property_update(c, &m, at);
		else
			object_put(c, &m, at);
		POLL(c);
	}
	UNROOT(c);
	return sum;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &object_type, &property_type, NULL };
	struct program p = {
		.name = "properties", .types = types, .size = 100000, .rounds = 4, .work = work,
	};

	return program_main(&p, argc, argv);
}
