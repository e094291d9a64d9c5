/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Parts of dsm_bench, which runs one program of workers that share objects, by one of five ways to
 * share them.  Workers are processes, one a machine, or threads of one process.  All end the
 * program with a message if something fails.
 *
 * Objects are written once, by the worker that makes them, and read by any worker that has been
 * sent them.  Cells are shared variables, which any worker reads and overwrites.
 */
#ifndef EBB_DSM_BENCH_H
#define EBB_DSM_BENCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORKERS_MOST = 8, OBJECTS = 1 << 16, CELLS = 4096, CELL = 1000 };

/* Ends the program. */
void give_up(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

struct worker {
	uint32_t rank, workers;
	bool threads;            /* all workers are threads of this process */
	const struct share *share;
	/* Of each machine: its donor, as it is reached from there and over TCP. */
	const char *const *local, *const *remote;
};

/* --- messages (mesh.c) ------------------------------------------------------------ */

/* What a message is about: a request that the share handles, its reply, or the program's. */
enum { KIND_REPLY, KIND_GET, KIND_PUT, KIND_FETCH, KIND_INVALIDATE, KIND_PROGRAM = 16 };

struct message {
	struct message *next;
	uint64_t sent_ns;
	uint32_t from, kind, size, objects; /* objects: of share_send() */
	_Alignas(16) uint8_t bytes[];       /* on the wire after a head of 24 bytes */
};

/* What workers sent and waited for, over all of them. */
struct counts {
	uint64_t messages, message_bytes; /* between workers */
	uint64_t calls;                   /* messages that were waited for, all to one answer */
	uint64_t far_trips, far_messages, far_bytes; /* waits for donors over TCP; sent to them */
};

extern struct counts *counts; /* shared by processes; atomic */

static inline void count(uint64_t *n, uint64_t more)
{
	__atomic_fetch_add(n, more, __ATOMIC_RELAXED);
}

/* Half a round trip between machines, and a round trip to a donor over TCP, last that long. */
extern uint64_t delay_ns;

uint64_t now_ns(void);
void wait_until(uint64_t ns);

void mesh_new(uint32_t workers, bool threads);
/* Returns zeroed memory that processes share. */
void *shared_memory(size_t size);

/* Of a worker that is a process: starts its threads. */
void mesh_join(struct worker *w);
void mesh_leave(struct worker *w);

/* Sends @size bytes; @objects is passed on. */
void tell(struct worker *w, uint32_t to, uint32_t kind, const void *bytes, uint32_t size,
	  uint32_t objects);
/* Waits for the next message of @kind, which is the caller's to free(). */
struct message *hear(struct worker *w, uint32_t kind);
/* Sends a request to each worker of @to, a bit each; waits for the replies, returns the last. */
struct message *call(struct worker *w, uint32_t to, uint32_t kind, const void *bytes,
		     uint32_t size);
void answer(struct worker *w, const struct message *request, const void *bytes, uint32_t size);
void barrier(void);

/* --- ways to share ---------------------------------------------------------------- */

/* May be sent. */
struct object {
	uint64_t at, stamp;
	uint32_t home, number, size; /* home: the rank of its maker */
	uint32_t copy;               /* it came by value: .at is the message */
};

struct share {
	const char *name;
	bool by_value; /* share_send() sends contents */
	void (*join)(struct worker *w);  /* on each process once, by its first worker */
	void (*leave)(struct worker *w);
	/* A copy of @content; the maker is its home. */
	void (*make)(struct worker *w, const void *content, uint32_t size, struct object *o);
	const void *(*read)(struct worker *w, const struct object *o);
	void (*done)(struct worker *w, const struct object *o, const void *content);
	/* Deletes objects; by their maker, when no worker reads them. */
	void (*drop)(struct worker *w, const struct object *o, uint32_t n);
	/* Cells of CELL bytes are at home at worker number % workers, which is the first to put. */
	void (*learn)(struct worker *w, uint32_t cell); /* gets the cell's name, or NULL */
	void (*get)(struct worker *w, uint32_t cell, void *to);
	void (*put)(struct worker *w, uint32_t cell, const void *from);
	void (*handle)(struct worker *w, struct message *request);
};

extern const struct share share_local, share_dsm, share_directory, share_delegation,
	share_messages;

static inline bool is_mine(const struct worker *w, uint32_t home)
{
	return w->threads || home == w->rank;
}

/* Sends objects to a worker, of this and of other makers, as names or, by value, contents. */
void share_send(struct worker *w, uint32_t to, uint32_t kind, const struct object *o, uint32_t n);
/* Returns how many came, at most @most.  They are to be forgotten. */
uint32_t share_receive(struct worker *w, uint32_t kind, struct object *o, uint32_t most);
/* A received object is not read any more. */
void share_forget(struct worker *w, struct object *o);

/* Objects of this process, by maker and number: pointers, or boxes as struct ebbdsm_box. */
struct record {
	uint64_t at, stamp;
};
struct record *record_of(uint32_t home, uint32_t number);
/* Returns a number for a new object of the worker. */
uint32_t record_new(struct worker *w);
void record_free(struct worker *w, uint32_t number);

/* --- programs --------------------------------------------------------------------- */

struct program {
	const char *name;
	void (*load)(struct worker *w, uint64_t size); /* is not measured; NULL = nothing */
	/*
	 * Returns a digest of the worker's part of the results.  Its sum over all workers does not
	 * depend on the way to share.
	 */
	uint64_t (*run)(struct worker *w, uint64_t size);
};

extern const struct program program_matrix, program_group_by, program_social, program_store_a,
	program_store_b, program_store_c, program_store_own;

static inline uint64_t hash(uint64_t x)
{
	x = (x + 0x9e3779b97f4a7c15ull);
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static inline uint64_t hash_bytes(const void *bytes, size_t size)
{
	const uint64_t *words = bytes;
	uint64_t x = size;

	for (size_t i = 0; i < size / sizeof(*words); i++)
		x = hash(x ^ words[i]);
	return x;
}

#endif
