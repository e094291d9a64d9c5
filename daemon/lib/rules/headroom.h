/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How much a donor lends: Infiniswap's daemon (NSDI'17, section 4.4).  HeadRoom
 * bytes stay free for the machine's own programs.  Above that, free slabs are
 * allocated before borrowers request them; below it the donor releases memory in
 * two stages: free slabs first, then E mapped ones.  It samples E + E' slabs at
 * random, asks their owners and evicts the E least active ("batched power of many
 * choices").
 *
 * Pure functions over plain structs; `ebb-sim cluster` runs the same ones.
 */
#ifndef EBB_HEADROOM_H
#define EBB_HEADROOM_H

#include <stdbool.h>
#include <stdint.h>

/* U_current = beta * U_measured + (1 - beta) * U_old, once a second. */
#define HEADROOM_BETA 0.2
#define HEADROOM_FREE_SLABS 2 /* least number of free slabs made in advance */
#define HEADROOM_FREE_BYTES (2ull << 30) /* bytes made in advance */
/*
 * E a second at most: figure 8 has E = 10, with slabs of 1 GB.  Smaller slabs go in
 * larger batches, or a machine would wait for its own memory.
 */
#define HEADROOM_EVICT 10
#define HEADROOM_EVICT_BYTES (2ull << 30)
#define HEADROOM_EVICT_MOST 64
#define HEADROOM_PRESSURE 10.0 /* percent */
/*
 * The kernel soon kills programs when less than this part of the machine is available: 1/32, at
 * most 1 GiB and half of HeadRoom.
 */
#define HEADROOM_RESERVE_PART 32
#define HEADROOM_RESERVE_MOST (1ull << 30)
/*
 * Part of its own cgroups' limit that a donor does not lend: buffers of connections and
 * TLS, and page tables.  HeadRoom applies to the machine, not to these cgroups.
 */
#define HEADROOM_SELF (64ull << 20)

struct headroom_rule {
	uint64_t headroom;  /* HeadRoom, bytes; headroom_default() if not configured */
	uint64_t slab_size; /* bytes */
	uint64_t most;      /* bytes to lend at most; 0 = what HeadRoom allows */
	double beta;
	uint32_t free_slabs; /* free slabs to have ready */
	uint32_t evict, extra; /* E at most a round, up to HEADROOM_EVICT_MOST; E', half of E */
};

/* Returns a rule for a machine with @memory bytes. */
struct headroom_rule headroom_rule_default(uint64_t memory, uint64_t slab_size);

/*
 * Returns the bytes that must stay available lest the kernel kill programs; @headroom 0 = a fixed
 * amount is lent.
 */
uint64_t headroom_reserve(uint64_t memory, uint64_t headroom);

/* Returns the larger of 1 GiB and 10 % of @memory. */
uint64_t headroom_default(uint64_t memory);

/* One sample of the machine, per second. */
struct headroom_sample {
	uint64_t memory;    /* MemTotal, bytes */
	uint64_t available; /* MemAvailable, bytes */
	/* Percent of the last 10 s in which some task waited for memory (PSI); 0 if unknown. */
	double pressure;
	/*
	 * The donor's own cgroups, if .limited: bytes of the lowest limit, and still free of all.
	 */
	bool limited;
	uint64_t limit, own;
};

struct headroom {
	uint64_t memory, available; /* of the last sample */
	/*
	 * Bytes in use by others than slabs, smoothed.  If the machine's total use were smoothed,
	 * the donor would see its own releases a few seconds late and release again.
	 */
	double others;
	double pressure;
	bool limited;
	uint64_t allowed; /* if limited: bytes of slabs that the donor's own cgroups allow */
	bool seen; /* a sample has been taken */
	uint32_t pinned;  /* lent slabs that cannot be recalled; set by the caller */
};

/* Actions of one round. */
struct headroom_plan {
	uint32_t allocate; /* free slabs to add */
	uint32_t release;  /* first stage: free slabs to return to the machine */
	uint32_t evict;    /* second stage: E */
};

/*
 * Adds a sample; @slabs of @rule's size are allocated, free and mapped.  If less than
 * half of HeadRoom is available, an increase counts at once, without smoothing.
 */
void headroom_sample(struct headroom *h, const struct headroom_rule *rule,
		     const struct headroom_sample *sample, uint32_t slabs);

/*
 * Returns how many bytes the machine lacks in an emergency, else 0: less than half of @reserve is
 * available, or less than @reserve and tasks wait for memory.
 */
uint64_t headroom_emergency(const struct headroom_sample *s, uint64_t reserve);

/* Returns the number of slabs that leave HeadRoom free; 0 before the first sample. */
uint32_t headroom_slabs(const struct headroom *h, const struct headroom_rule *rule);

/*
 * Plans what a donor with these slabs does; @mapped can be recalled.  A plan never both
 * allocates and releases, and releases only what the last sample required: a short peak
 * costs no slab, but adds none either.
 */
void headroom_plan(const struct headroom *h, const struct headroom_rule *rule,
		   uint32_t free_slabs, uint32_t mapped, struct headroom_plan *plan);

/* Returns E + E', the number of candidates, for E = @evict of @mapped slabs. */
uint32_t headroom_candidates(const struct headroom_rule *rule, uint32_t evict, uint32_t mapped);

/*
 * Samples @n different numbers below @mapped (n <= mapped), each set as likely as
 * any other, and stores them at @sample.  @seed: see draw.h.
 */
void headroom_draw(uint32_t mapped, uint32_t n, uint64_t *seed, uint32_t *sample);

struct headroom_candidate {
	uint32_t slab;   /* the caller's number of the slab */
	double activity; /* as reported by its owner; 0 without an answer */
};

/* Moves the @evict least active of @n candidates to the front, least active first. */
void headroom_least(struct headroom_candidate *candidates, uint32_t n, uint32_t evict);

#endif
