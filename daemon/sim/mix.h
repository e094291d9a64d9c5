/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Mixes of programs that start and exit on machines with little local memory, and what a scheduler
 * makes of them.  Programs, sizes, run times, machines and the rules of admission are those of
 * FineMem's evaluation (OSDI'25, section 6.3, figure 16) and of the simulator that its authors
 * released (applications/Swap_FineMem_Sim, itself that of Fastswap, EuroSys'20).
 *
 * A mix has 200 programs of three kinds, whose weights are uniform in [1, 4.5]; they arrive
 * uniformly within 200 s.  A machine that is short of local memory keeps the rest of its programs'
 * memory away, each program in proportion to what it can spare.
 *
 * Differences: steps of a second; run times are interpolated linearly; programs are shrunk in
 * proportion, not by an optimizer.
 */
#ifndef EBB_SIM_MIX_H
#define EBB_SIM_MIX_H

#include <stdbool.h>
#include <stdint.h>

#define MIX_PROGRAMS 200
#define MIX_NODES 5
#define MIX_CPUS 64
#define MIX_LOCAL (80ull << 30)
#define MIX_SHARE (32ull << 30) /* memory at donors, of each machine */
#define MIX_LENT (MIX_NODES * MIX_SHARE)
#define MIX_ARRIVE 200 /* seconds */
#define MIX_KINDS 3

struct mix_kind {
	const char *name;
	uint64_t bytes; /* memory that it uses */
	double least;   /* part of it that must be local */
	uint32_t cpus;
	/* Run time in seconds with all, nine tenths, eight tenths, ... of its memory local. */
	double seconds[7];
};

extern const struct mix_kind mix_kinds[MIX_KINDS];

/* Returns the run time with @ratio of the memory local. */
double mix_seconds(const struct mix_kind *kind, double ratio);

enum mix_state { MIX_COMING, MIX_WAITING, MIX_RUNNING, MIX_ENDED };

struct mix_program {
	const struct mix_kind *kind;
	enum mix_state state;
	double arrives;  /* seconds */
	double progress; /* 0 to 1 */
	double ratio;    /* part of its memory that is local */
	uint64_t away;   /* bytes that are not */
	uint32_t node;   /* if running */
};

struct mix_node {
	uint64_t bytes, least; /* of its programs: memory, and what must be local */
	uint32_t cpus;         /* in use */
};

struct mix {
	struct mix_program programs[MIX_PROGRAMS]; /* by arrival */
	uint32_t count;                            /* of programs */
	struct mix_node nodes[MIX_NODES];
	uint32_t ended;
	bool shares;  /* the scheduler counts a fixed share for each machine, not all together */
	bool refused; /* a program fitted but for the memory away, at least once */
};

/* Makes the mix of @seed, which is not 0. */
void mix_make(struct mix *m, uint64_t seed, bool shares);

/* Returns the bytes that @node keeps away. */
uint64_t mix_away(const struct mix_node *node);

/*
 * Advances to second @now: programs that have ended leave first, then
 * those that wait start if they fit.  Sets .ratio and .away of all.
 */
void mix_second(struct mix *m, uint32_t now);

#endif
