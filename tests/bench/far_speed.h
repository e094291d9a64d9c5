/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Parts of far_speed, which makes one measurement of `make bench-far` and prints it as a line of
 * JSON.  All end the program with a message if something fails.
 */
#ifndef EBB_FAR_SPEED_H
#define EBB_FAR_SPEED_H

#include <stddef.h>
#include <stdint.h>

#include "ebbfar.h"

/* Ends the program with "far_speed: TEXT". */
void give_up(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

double now_s(void);

/* Opens pool "bench" of @donor, and creates it if there is none. */
ebbfar_t *open_pool(const char *donor);

/* --- workers: processes, or threads of one --------------------------------------- */

enum { WORKERS_MOST = 64, RING = 64 };

enum kind { PROCESSES, THREADS };

/* What one worker hands over to another, in the order of handing over. */
struct offer {
	struct ebbfar_extent x;
	void *memory;
	uint32_t owner;
};

/* What workers share. */
struct run {
	uint32_t workers, ready, go, stop;
	double since; /* of .go; of now_s() */
	struct worker {
		_Alignas(64) uint64_t done; /* what is counted; set at the end */
		double seconds;             /* ... and how long it took */
		_Alignas(64) uint64_t put;  /* offers for this worker: how many were stored, */
		_Alignas(64) uint64_t taken; /* and how many of these it has taken */
		struct offer offers[RING];
	} worker[WORKERS_MOST];
};

struct job {
	struct run *run;
	uint32_t number; /* of the worker, from 0 */
	const void *data;
};

/* Their rates, each in its own time, together are .done in .seconds. */
struct timing {
	uint64_t done; /* by all workers */
	double seconds;
};

/* Has @work(job) run in @n workers for @seconds. */
struct timing run_workers(enum kind kind, uint32_t n, double seconds, void (*work)(struct job *),
			  const void *data);

/* Of a worker: it is prepared; returns when all are. */
void worker_begin(struct run *run);

/* It has done its last operation of @done. */
void worker_end(struct job *j, uint64_t done);

static inline int worker_stops(const struct run *run)
{
	return (int)__atomic_load_n(&run->stop, __ATOMIC_RELAXED);
}

/* --- what is measured ------------------------------------------------------------- */

/*
 * Allocates and frees in @workers workers: @on is a donor's address, or "malloc".  Loops: "pairs",
 * "replace", "threadtest", "larson", "handover".
 */
struct timing measure_loop(const char *on, const char *loop, enum kind kind, uint32_t workers,
			   double seconds);

/*
 * Exchanges @out bytes for @in with a server process, over TCP on loopback or a unix socket; each
 * worker is a process with a connection.  @server: "threads", one for each connection, or "epoll",
 * one for all.  The server runs on @cpu, or anywhere if it is -1.
 */
struct timing measure_exchange(const char *family, const char *server, uint32_t workers,
			       uint32_t out, uint32_t in, int cpu, double seconds);

#endif
