// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A heap of libebbgc whose far generation is at donors.  They trace it (--jobs on), do not (off),
 * or do unless all memory is mapped (auto).
 *
 *	far_heap [options] GROUPS DONOR...
 *		GROUPS groups of 16 nodes leave; one of every two, and rings, are garbage; a far
 *		cycle; then all that lives is loaded and compared
 *
 * Options: --jobs; --check on|off, of the heap; --cycle full|beside; --links PERCENT, of every
 * fourth node, refer to a random group (100); --nth N: one of every N groups lives (2), so that
 * donors compact if that is more than 2; --kill PID:N: kills the last donor before job message
 * N is sent to it, or, if N is negative, after its reply.  Objects at other donors must then be
 * intact, and the heap must go on.
 *
 * Prints one line of JSON.  Exit status 0; 1: an error; 2: usage.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "userlib/far/client.h"
#include "userlib/far/member.h"
#include "userlib/gc/ebbgc_far.h"

enum { GROUP = 16, SLOT = 64, DONORS = 4 };

struct node {
	ebbgc_ref_t left, right;
	uint64_t value, pad[4];
};

static const struct ebbgc_layout node_layout = {
	.name = "node", .flags = EBBGC_MOVABLE, .size = sizeof(struct node), .bitmap = 3,
};

struct refs {
	uint64_t length;
	ebbgc_ref_t slots[];
};

static const struct ebbgc_run refs_run = { sizeof(struct refs), EBBGC_COUNT_LENGTH, 8 };

static const struct ebbgc_layout refs_layout = {
	.name = "references", .size = sizeof(struct refs), .element_size = 8, .length_width = 8,
	.runs = &refs_run, .run_count = 1,
};

static struct {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[3];	/* heads; temporary ones */
	struct ebbgc_far_donors donors;
	uint64_t bytes[DONORS];	/* that were stored at each */
	uint32_t groups, links, nth;
	uint32_t *right;	/* by node: the one that it refers to, or groups * GROUP */
	bool jobs, check, beside;
	jmp_buf out;
	int error;
	/* Of --kill. */
	pid_t victim;
	long kill_at, message, evacuations;
	bool sent;
} heap;

static void fail_with(const char *what, int r)
{
	fprintf(stderr, "%s: %s\n", what, strerror(-r));
	exit(1);
}

/* --- job messages ----------------------------------------------------------------- */

static bool is_victim(const struct client *c)
{
	return heap.victim && c == &heap.donors.pools[heap.donors.count - 1]->client;
}

static void kill_victim(void)
{
	kill(heap.victim, SIGKILL);
	/* Until its sockets are closed. */
	usleep(50000);
	heap.victim = 0;
}

int __real_client_push(struct client *c, struct wire_frame f, const void *payload,
		       struct client_reply reply);
int __wrap_client_push(struct client *c, struct wire_frame f, const void *payload,
		       struct client_reply reply);
int __real_client_settle(struct client *c);
int __wrap_client_settle(struct client *c);
bool __real_client_go_on(struct client *c);
bool __wrap_client_go_on(struct client *c);

int __wrap_client_push(struct client *c, struct wire_frame f, const void *payload,
		       struct client_reply reply)
{
	bool counts = wire_is_job(&f) &&
		      c == &heap.donors.pools[heap.donors.count - 1]->client;

	heap.message += counts;
	heap.evacuations += counts && f.op == WIRE_JOB_EVACUATE;
	heap.sent |= counts;
	if (counts && is_victim(c) && heap.message == heap.kill_at)
		kill_victim();
	return __real_client_push(c, f, payload, reply);
}

/* The reply is here. */
static void after_reply(const struct client *c)
{
	if (heap.sent && is_victim(c) && !c->count && heap.message == -heap.kill_at)
		kill_victim();
}

int __wrap_client_settle(struct client *c)
{
	int r = __real_client_settle(c);

	after_reply(c);
	return r;
}

bool __wrap_client_go_on(struct client *c)
{
	bool more = __real_client_go_on(c);

	after_reply(c);
	return more;
}

/* --- the heap --------------------------------------------------------------------- */

static int counted_alloc(void *arg, size_t bytes, struct ebbgc_far_place *place)
{
	int r = ebbgc_far_donors_alloc(arg, bytes, place);

	if (!r)
		heap.bytes[ebbgc_far_donors_number(place)] += bytes;
	return r;
}

static enum ebbgc_far_verdict failed(void *arg, ebbgc_heap_t *h, int error)
{
	heap.error = error;
	longjmp(heap.out, 1);
}

static void open_donors(char **addresses, int n)
{
	for (int i = 0; i < n; i++) {
		struct ebbfar_options o = {
			.size = sizeof(o), .donor = addresses[i], .pool = "heap",
			.flags = EBBFAR_CREATE | (heap.jobs ? EBBFAR_JOBS : 0),
			.timeout_ms = 5000, .resume_ms = 300 };

		ebbfar_t **pool = &heap.donors.pools[heap.donors.count];
		int r = i == DONORS ? -EINVAL : ebbfar_open(&o, pool);

		/* A donor that runs no jobs is as good for the rest. */
		if (r == -EOPNOTSUPP) {
			o.flags &= ~EBBFAR_JOBS;
			r = ebbfar_open(&o, pool);
		}
		if (r) {
			fprintf(stderr, "%s\n", o.error);
			exit(1);
		}
		heap.donors.count++;
	}
}

static void make_heap(void)
{
	struct ebbgc_far_options o;
	struct ebbgc_far_store store;
	struct ebbgc_options go;
	int r;

	ebbgc_options_init(&go);
	go.max_bytes = (size_t)1 << 30;
	go.check = heap.check;
	r = ebbgc_heap_create(&go, &heap.heap);
	if (r)
		fail_with("heap", r);
	r = ebbgc_far_donors(&store, &heap.donors);
	if (r)
		fail_with("donors", r);
	store.alloc = counted_alloc;
	ebbgc_far_options_init(&o);
	o.local_bytes = (size_t)64 << 20;
	o.failed = failed;
	r = ebbgc_far_attach(heap.heap, &store, &o);
	if (!r)
		r = ebbgc_type_register(heap.heap, &node_layout, &heap.node);
	if (!r)
		r = ebbgc_type_register(heap.heap, &refs_layout, &heap.refs);
	if (!r)
		r = ebbgc_attach(heap.heap, &heap.m);
	if (r)
		fail_with("heap", r);
	ebbgc_frame_push(heap.m, &heap.frame, heap.roots, 3);
}

static struct node *node_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

static ebbgc_ref_t *head_of(uint32_t group)
{
	return &((struct refs *)ebbgc_ptr(heap.roots[0]))->slots[group];
}

static ebbgc_ref_t new_node(uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(heap.m, heap.node);

	if (ebbgc_is_null(r))
		fail_with("a node", -ENOMEM);
	node_of(r)->value = value;
	return r;
}

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

/* Only a group's head is known here: the others are reached where they lie. */
static void fill(void)
{
	uint32_t nodes = heap.groups * GROUP;
	uint64_t seed = 11;

	heap.right = malloc(nodes * sizeof(*heap.right));
	heap.roots[0] = ebbgc_alloc_length(heap.m, heap.refs, heap.groups);
	for (uint32_t g = 0; g < heap.groups; g++) {
		for (uint32_t i = 0; i < GROUP; i++) {
			uint32_t n = g * GROUP + i, other = (uint32_t)(next(&seed) % heap.groups);
			ebbgc_ref_t r = new_node(n), head = ebbgc_load(heap.m, heap.roots[0],
								       head_of(g));

			if (i)
				ebbgc_store(heap.m, r, &node_of(r)->left, head);
			heap.right[n] = nodes;
			/* Live ones refer to live ones, at any donor. */
			if (i % 4 == 1 && next(&seed) % 100 < heap.links && other < g &&
			    other % heap.nth == 0) {
				heap.roots[1] = r;
				head = ebbgc_load(heap.m, heap.roots[0], head_of(other));
				r = heap.roots[1];
				ebbgc_store(heap.m, r, &node_of(r)->right, head);
				heap.right[n] = other * GROUP + GROUP - 1;
			}
			ebbgc_store(heap.m, heap.roots[0], head_of(g), r);
		}
	}
	/* Most groups are garbage soon, some in rings over many regions. */
	for (uint32_t g = 1; g < heap.groups; g += 2) {
		ebbgc_ref_t r = ebbgc_load(heap.m, heap.roots[0], head_of(g));
		uint32_t to = (g + heap.groups / 2) % heap.groups | 1;

		heap.roots[1] = r;
		heap.roots[2] = ebbgc_load(heap.m, heap.roots[0], head_of(to % heap.groups));
		r = heap.roots[1];
		ebbgc_store(heap.m, r, &node_of(r)->right, heap.roots[2]);
	}
	heap.roots[1] = heap.roots[2] = EBBGC_NULL;
}

static void drop(void)
{
	for (uint32_t g = 0; g < heap.groups; g++)
		if (g % heap.nth)
			ebbgc_store(heap.m, heap.roots[0], head_of(g), EBBGC_NULL);
}

static struct ebbgc_stats stats(void)
{
	struct ebbgc_stats s;

	ebbgc_stats_get(heap.heap, &s, sizeof(s));
	return s;
}

static void far_cycle(void)
{
	uint64_t before = stats().far_cycles + stats().far_abandoned;
	int r = heap.beside ? 0 : ebbgc_collect(heap.m);

	if (r)
		fail_with("collect", r);
	if (!heap.beside)
		return;
	ebbgc_collect_start(heap.m);
	while (stats().far_cycles + stats().far_abandoned == before) {
		ebbgc_poll(heap.m);
		usleep(500);
	}
	ebbgc_cycles_suspend(heap.m);
	ebbgc_cycles_resume(heap.m);
}

static void wrong(const char *what, uint32_t node)
{
	fprintf(stderr, "node %u: %s\n", node, what);
	exit(1);
}

/* Returns how many nodes of the group can be loaded; others are at a donor that is lost. */
static uint32_t check_group(uint32_t g, bool lost)
{
	volatile uint32_t done = 0;
	ebbgc_ref_t r;

	if (setjmp(heap.out)) {
		if (!lost || heap.error == -EBADMSG || heap.error == -EINVAL ||
		    heap.error == -ESTALE)
			fail_with("a load", heap.error);
		return done;
	}
	r = ebbgc_load(heap.m, heap.roots[0], head_of(g));
	for (uint32_t i = GROUP; i--; done++) {
		uint32_t n = g * GROUP + i, to = heap.right[n];

		if (node_of(r)->value != n)
			wrong("another value", n);
		if (to < heap.groups * GROUP) {
			ebbgc_ref_t right = ebbgc_load(heap.m, r, &node_of(r)->right);

			if (node_of(right)->value != to)
				wrong("another reference", n);
		}
		r = ebbgc_load(heap.m, r, &node_of(r)->left);
		if (ebbgc_is_null(r) != !i)
			wrong("a list of another length", n);
	}
	return done;
}

/* Of every @nth live group. */
static uint64_t check_all(uint32_t nth, bool lost)
{
	uint64_t done = 0;

	for (uint32_t g = 0; g < heap.groups; g += heap.nth * nth) {
		done += check_group(g, lost);
		ebbgc_poll(heap.m);
	}
	return done;
}

/* New nodes, which leave, and a cycle. */
static void go_on(void)
{
	uint32_t more = heap.groups / 2;
	struct refs *refs;
	int r;

	heap.roots[1] = ebbgc_alloc_length(heap.m, heap.refs, more);
	/* The type does not move. */
	refs = ebbgc_ptr(heap.roots[1]);
	for (uint32_t i = 0; i < more; i++)
		ebbgc_store(heap.m, heap.roots[1], &refs->slots[i], new_node(i));
	r = ebbgc_far_evict(heap.m);
	if (r)
		fail_with("evict", r);
	r = ebbgc_collect(heap.m);
	if (r)
		fail_with("collect", r);
	for (uint32_t i = 0; i < more; i++)
		if (node_of(ebbgc_load(heap.m, heap.roots[1], &refs->slots[i]))->value != i)
			wrong("a new node", i);
}

static void run(void)
{
	struct ebbgc_stats first, last;
	long messages, evacuations;
	uint64_t loaded;
	bool lost;
	int r;

	make_heap();
	fill();
	r = ebbgc_far_evict(heap.m);
	if (r)
		fail_with("evict", r);
	drop();
	far_cycle();
	first = stats();
	messages = heap.message;
	evacuations = heap.evacuations;
	lost = heap.kill_at && !heap.victim;
	if (setjmp(heap.out))
		fail_with("a new node", heap.error);
	if (lost)
		go_on();
	/* What came back, and what did not, lives in one more. */
	check_all(3, lost);
	r = ebbgc_collect(heap.m);
	if (r)
		fail_with("collect", r);
	loaded = check_all(1, lost);
	r = ebbgc_collect(heap.m);
	if (r)
		fail_with("collect", r);
	if (check_all(1, lost) != loaded)
		fail_with("nodes are lost", -EBADMSG);
	last = stats();
	printf("{\"messages\": %ld, \"live\": %u, \"loaded\": %llu, \"at\": [%llu, %llu], "
	       "\"cycles\": %llu, \"abandoned\": %llu, \"donor_cycles\": %llu, "
	       "\"donor_failures\": %llu, \"donor_objects\": %llu, \"read_objects\": %llu, "
	       "\"read_bytes\": %llu, \"freed\": %llu, \"cpu_us\": %llu, \"faults\": %llu, "
	       "\"last_donor_cycles\": %llu, \"last_freed\": %llu, \"lost\": %llu, "
	       "\"evacuations\": %ld, \"compacted\": %llu, \"homed\": %llu, \"stored\": %llu}\n",
	       messages, (heap.groups + heap.nth - 1) / heap.nth * GROUP,
	       (unsigned long long)loaded,
	       (unsigned long long)heap.bytes[0], (unsigned long long)heap.bytes[1],
	       (unsigned long long)first.far_cycles, (unsigned long long)first.far_abandoned,
	       (unsigned long long)first.far_donor_cycles,
	       (unsigned long long)first.far_donor_failures,
	       (unsigned long long)first.far_donor_objects,
	       (unsigned long long)first.far_read_objects,
	       (unsigned long long)first.far_read_bytes, (unsigned long long)first.far_freed_bytes,
	       (unsigned long long)first.far_cpu_ns / 1000,
	       (unsigned long long)last.check_failures, (unsigned long long)last.far_donor_cycles,
	       (unsigned long long)last.far_freed_bytes, (unsigned long long)last.far_lost_bytes,
	       evacuations, (unsigned long long)first.far_compacted_regions,
	       (unsigned long long)first.homed_objects, (unsigned long long)first.far_bytes);
}

int main(int argc, char **argv)
{
	int at = 1;

	heap.jobs = heap.donors.trace_mapped = true;
	heap.links = 100;
	heap.nth = 2;
	for (; at + 1 < argc && !strncmp(argv[at], "--", 2); at += 2) {
		const char *value = argv[at + 1];

		if (!strcmp(argv[at], "--jobs")) {
			heap.jobs = strcmp(value, "off");
			heap.donors.trace_mapped = !strcmp(value, "on");
		} else if (!strcmp(argv[at], "--check"))
			heap.check = !strcmp(value, "on");
		else if (!strcmp(argv[at], "--links"))
			heap.links = (uint32_t)atoi(value);
		else if (!strcmp(argv[at], "--nth"))
			heap.nth = (uint32_t)atoi(value);
		else if (!strcmp(argv[at], "--cycle"))
			heap.beside = !strcmp(value, "beside");
		else if (strcmp(argv[at], "--kill") ||
			 sscanf(value, "%d:%ld", &heap.victim, &heap.kill_at) != 2)
			return 2;
	}
	if (argc - at < 2 || !heap.nth)
		return 2;
	heap.groups = (uint32_t)atoi(argv[at]);
	open_donors(argv + at + 1, argc - at - 1);
	run();
	ebbgc_detach(heap.m);
	if (ebbgc_heap_destroy(heap.heap))
		return 1;
	ebbgc_far_donors_end(&heap.donors);
	for (uint32_t i = 0; i < heap.donors.count; i++)
		ebbfar_close(heap.donors.pools[i]);
	free(heap.right);
	return 0;
}
