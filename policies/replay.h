/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Temporal replay: a log of the faults of each thread, an index from a page to its
 * newest log position, and a cursor that follows an old part of the log while the
 * program repeats it.  The log-plus-index form is that of temporal
 * memory streaming (Wenisch et al., "Practical Off-chip Meta-data for Temporal
 * Memory Streaming", HPCA 2009), on pages and faults.
 *
 * The log consists of chunks, each written by one thread, linked in the sequence in
 * which that thread filled them, and reused oldest first.  A chunk links to a younger
 * chunk, so all chunks reachable by links are in sequence.  The index has positions
 * only; the log has their process and page.
 *
 * Log and index have lanes, which attached cgroups take as their logs grow: one alone
 * takes all, several take equal shares.  So one that misses all the time does not
 * overwrite what the others repeat.  A cgroup without a lane, because as many others
 * have one each, logs nothing until a lane is idle.
 *
 * A resident page causes no fault, so one pass of a loop logs other pages than the
 * next.  A thread whose cursor passes entries copies them into its new log, up to
 * `keep` passes in a row: the log holds the pages that the program accesses, not
 * only the swapped-out ones.
 *
 * All state is in tables, without locks: concurrent faults of a process are all
 * logged.  A thread's entry is one of the REPLAY_WAYS of its set, which attached
 * cgroups share as they share the lanes.  A thread that finds no entry is ignored.
 */
#ifndef EBB_REPLAY_H
#define EBB_REPLAY_H

#include <ebb/policy.h>

#define REPLAY_ENTRIES 62               /* per chunk of 512 bytes */
#define REPLAY_CHUNKS 16384             /* 8 MiB, 1,015,808 faults */
#define REPLAY_BUCKETS (512 * 1024)     /* 4 MiB, two positions each */
#define REPLAY_THREADS 4096             /* 416 KiB */
#define REPLAY_WAYS 4                   /* entries in which a thread may be; a power of two */
#define REPLAY_THREAD_IDLE 10000000000ULL /* ns without a fault after which others may take it */
#define REPLAY_LANES 64                 /* at most: a set of lanes has a bit for each */
#define REPLAY_LANE_CHUNKS (REPLAY_CHUNKS / REPLAY_LANES)
#define REPLAY_LANE_BUCKETS (REPLAY_BUCKETS / REPLAY_LANES)
#define REPLAY_LANE_IDLE 60000000000ULL /* ns without a fault after which others may take it */
#define REPLAY_TICK 32                  /* log2 ns: how often a thread looks at the lanes again */

#define REPLAY_REACH 32                 /* entries ahead that are searched for a fault */
#define REPLAY_NEAR 8                   /* entries ahead within which a match adds trust */
#define REPLAY_TRUSTED 3                /* trust needed for a request */
#define REPLAY_TRUST_MAX 16             /* consecutive strays that can end a cursor */
#define REPLAY_CAUTION_MAX 6
#define REPLAY_SAMPLE 4                 /* one in this many foreseen faults is indexed */
#define REPLAY_IDLE 64                  /* after this many faults without a cursor, */
#define REPLAY_REST 16                  /* one in this many is looked up */
#define REPLAY_START 32                 /* first and least distance, entries */
#define REPLAY_LOST 8                   /* consecutive misses on pages requested too late */

/* An entry: page in the low bits; in the high bits, passes that carried it without a fault. */
#define REPLAY_PAGE (EBB_VPN_END - 1)
#define REPLAY_TURN EBB_VPN_END
#define REPLAY_KEEP_MAX 7

/*
 * A position is chunk << 6 | entry + 1; 0 is none.  The entry field is thus
 * also the number of the entry that follows.
 */
#define REPLAY_SHIFT 6
#define REPLAY_ENTRY ((1u << REPLAY_SHIFT) - 1)
#define REPLAY_NOWHERE (~0u)            /* no position: its cgroup has no lane */

/*
 * Lane i of the log has part i * REPLAY_SPREAD mod REPLAY_LANES of the index: lanes taken in
 * sequence are far apart there, so that a cgroup's parts divide the others' about equally.
 */
#define REPLAY_SPREAD 39

struct replay_chunk {
	__u64 owner;                    /* exec << 32 | tgid of the process */
	__u32 used;                     /* entries written */
	__u32 next;                     /* 1 + the writer's next chunk; 0 = none yet */
	__u64 entry[REPLAY_ENTRIES];
};

/* Positions of pages with one hash, newest first. */
struct replay_bucket {
	__u32 at[2];
};

/* A part of the log. */
struct replay_lane {
	__u64 tenant;                   /* replay_tenant(); 0 = never taken */
	__u64 begun;                    /* number of the pass that fills it; the latest is active */
	__u64 time_ns;                  /* of a fault of its cgroup, the newest or a tick older */
	__u32 taken;                    /* chunks of this pass */
	__u32 pad;
};

struct replay_thread {
	__u64 owner;
	__u64 tenant;
	__u64 time_ns;                  /* newest fault */
	__u64 parts;                    /* of the index, a bit each: those of its cgroup's lanes */
	__u64 last;                     /* page of the newest fault */
	__u64 window[2];                /* newest misses with which the kernel read more pages */
	__u32 tid;
	__u32 head;                     /* position written last; REPLAY_NOWHERE = logs nothing */
	__u32 cursor;                   /* old position of the previous fault, if repeated */
	__u32 frontier;                 /* position requested last */
	__u32 trial;                    /* another cursor, which may replace this one */
	__u32 behind;                   /* where the cursor was 8 to 15 faults ago */
	__u32 mark;                     /* where the cursor was 0 to 7 faults ago */
	__u32 run;                      /* faults that the cursor foresaw */
	__u32 lost;                     /* requested pages that missed since the last hit */
	__u16 since;                    /* part of `run` since the distance last grew; saturates */
	__u16 unfound;                  /* faults without any cursor */
	__u16 ahead;                    /* entries from the cursor to the frontier */
	__u16 distance;                 /* entries to request ahead; 0 = unknown */
	__u8 trust;                     /* in the cursor, 0..REPLAY_TRUST_MAX */
	__u8 trial_trust;
	__u8 caution;                   /* log2 of the least ratio of run to distance */
	__u8 foreseen;                  /* a trusted cursor predicted this fault */
};

EBB_TABLE(replay_log, struct replay_chunk, REPLAY_CHUNKS)
EBB_TABLE(replay_index, struct replay_bucket, REPLAY_BUCKETS)
EBB_TABLE(replay_threads, struct replay_thread, REPLAY_THREADS)
EBB_TABLE(replay_lanes, struct replay_lane, REPLAY_LANES)
EBB_TABLE(replay_clock, __u64, 1)       /* passes begun so far */

static __always_inline __u64 replay_owner(const struct ebb_fault *f)
{
	return (__u64)f->exec << 32 | f->tgid;
}

/* Whose lanes the fault uses: its attached cgroup's. */
static __always_inline __u64 replay_tenant(const struct ebb_fault *f)
{
	return f->owner + 1;
}

/* Returns the part of the index that has a lane's positions. */
static __always_inline __u32 replay_part(__u32 lane)
{
	return lane * REPLAY_SPREAD & (REPLAY_LANES - 1);
}

/*
 * Returns the part of the index in which a cgroup with `parts` has the positions of a lane's pages:
 * the lane's own, unless another cgroup has it, else the next of its parts; REPLAY_LANES = none.
 */
EBB_SUBPROGRAM __u32 replay_choose_part(__u32 lane, __u64 parts, __u64 tenant)
{
	__u32 part = replay_part(lane);
	const struct replay_lane *l = replay_lanes_at(lane);
	__u64 next;

	if (l && (!l->tenant || l->tenant == tenant))
		return part;
	if (!parts)
		return REPLAY_LANES;
	next = parts >> part | parts << (-part & (REPLAY_LANES - 1));
	/* Its lowest bit; BPF has no instruction for it. */
	EBB_ROLLED
	for (__u32 half = REPLAY_LANES / 2; half; half /= 2) {
		if (next & ((1ULL << half) - 1))
			continue;
		next >>= half;
		part += half;
	}
	return part & (REPLAY_LANES - 1);
}

/* Returns where the index has the positions of a page; NULL = nowhere. */
static __always_inline struct replay_bucket *replay_bucket(__u64 owner, __u64 vpn, __u64 parts,
							   __u64 tenant)
{
	__u64 hash = ((vpn ^ owner << 36) * 0x9e3779b97f4a7c15ULL) >> 44;
	__u64 lane = hash / REPLAY_LANE_BUCKETS & (REPLAY_LANES - 1);
	__u64 part = replay_choose_part(lane, parts, tenant);

	if (part >= REPLAY_LANES)
		return NULL;
	return replay_index_at(part * REPLAY_LANE_BUCKETS + (hash & (REPLAY_LANE_BUCKETS - 1)));
}

/* Advances *at and returns the entry there; 0 at the end of the log. */
static __always_inline __u64 replay_next(__u64 owner, __u32 *at)
{
	__u32 chunk = *at >> REPLAY_SHIFT, i = *at & REPLAY_ENTRY;
	struct replay_chunk *c = replay_log_at(chunk);

	if (!c || c->owner != owner)
		return 0;
	if (i >= REPLAY_ENTRIES) {
		chunk = c->next - 1;
		if (!c->next)
			return 0;
		c = replay_log_at(chunk);
		if (!c || c->owner != owner)
			return 0;
		i = 0;
	}
	if (i >= c->used || i >= REPLAY_ENTRIES)
		return 0;
	*at = chunk << REPLAY_SHIFT | (i + 1);
	return c->entry[i];
}

/*
 * Returns the number of entries from `at` to the page in the low half and its
 * position in the high half; 0 = not within reach (<= REPLAY_REACH).
 */
EBB_SUBPROGRAM __u64 replay_match(__u64 owner, __u64 vpn, __u32 at, __u32 reach)
{
	EBB_ROLLED
	for (__u32 n = 1; n <= REPLAY_REACH; n++) {
		__u64 entry = replay_next(owner, &at);

		if (!entry || n > reach)
			break;
		if ((entry & REPLAY_PAGE) == vpn)
			return (__u64)at << 32 | n;
	}
	return 0;
}

/* Returns whether the log has the page at a position. */
static __always_inline int replay_holds(__u64 owner, __u64 vpn, __u32 at)
{
	struct replay_chunk *c = replay_log_at(at >> REPLAY_SHIFT);
	__u32 i = (at & REPLAY_ENTRY) - 1;

	return c && c->owner == owner && i < c->used && i < REPLAY_ENTRIES &&
	       (c->entry[i] & REPLAY_PAGE) == vpn;
}

/* Returns the newest position of the page that is still in the log; 0 = none. */
EBB_SUBPROGRAM __u64 replay_find(__u64 owner, __u64 vpn, __u64 parts, __u64 tenant)
{
	struct replay_bucket *b = replay_bucket(owner, vpn, parts, tenant);
	__u32 newest, older;

	if (!b)
		return 0;
	newest = b->at[0];
	older = b->at[1];
	if (newest && replay_holds(owner, vpn, newest))
		return newest;
	return older && replay_holds(owner, vpn, older) ? older : 0;
}

/* Returns how many lanes a cgroup has. */
EBB_SUBPROGRAM __u32 replay_count(__u64 tenant)
{
	__u32 n = 0;

	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_LANES; i++) {
		const struct replay_lane *l = replay_lanes_at(i);

		n += l && l->tenant == tenant;
	}
	return n;
}

/* Returns a lane that no other cgroup uses; REPLAY_LANES = none. */
EBB_SUBPROGRAM __u32 replay_idle(__u64 tenant, __u64 now)
{
	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_LANES; i++) {
		const struct replay_lane *l = replay_lanes_at(i);

		if (!l || l->tenant == tenant)
			continue;
		if (!l->tenant || l->time_ns + REPLAY_LANE_IDLE < now)
			return i;
	}
	return REPLAY_LANES;
}

/* Returns the lane that is filled by a pass; REPLAY_LANES = none. */
EBB_SUBPROGRAM __u32 replay_filled_by(__u64 pass)
{
	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_LANES; i++) {
		const struct replay_lane *l = replay_lanes_at(i);

		if (l && l->begun == pass)
			return i;
	}
	return REPLAY_LANES;
}

/*
 * Returns the lane that a cgroup fills once its active one is full: an idle one, the oldest one of
 * the cgroup that has most and at least two more, or its own oldest one.  REPLAY_LANES = none: each
 * lane is another cgroup's only one.
 */
EBB_SUBPROGRAM __u32 replay_choose(__u64 tenant, __u64 now)
{
	__u32 idle = replay_idle(tenant, now), own, most;
	__u64 oldest = ~0ULL;

	if (idle < REPLAY_LANES)
		return idle;
	own = replay_count(tenant);
	most = own + 1;
	/* It keeps the pass, not the lane: the verifier would follow each lane separately. */
	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_LANES; i++) {
		const struct replay_lane *l = replay_lanes_at(i);
		__u32 n = own + 1;

		if (!l)
			break;
		if (l->tenant != tenant) {
			n = replay_count(l->tenant);
			if (n <= own + 1)
				continue;
		}
		if (n > most || (n == most && l->begun < oldest)) {
			most = n;
			oldest = l->begun;
		}
	}
	return replay_filled_by(oldest);
}

/* Returns the lane that a cgroup began last; REPLAY_LANES = none. */
EBB_SUBPROGRAM __u32 replay_latest(__u64 tenant)
{
	__u32 at = REPLAY_LANES;
	__u64 latest = 0;

	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_LANES; i++) {
		const struct replay_lane *l = replay_lanes_at(i);

		if (l && l->tenant == tenant && l->begun >= latest) {
			latest = l->begun;
			at = i;
		}
	}
	return at;
}

/* Returns the lane in which a cgroup takes its next chunk; REPLAY_LANES = none. */
EBB_SUBPROGRAM __u32 replay_active(__u64 tenant, __u64 now)
{
	__u32 at = replay_latest(tenant);
	struct replay_lane *l = at < REPLAY_LANES ? replay_lanes_at(at) : NULL;
	__u64 *clock = replay_clock_at(0), begun, pass;

	if (l && l->taken < REPLAY_LANE_CHUNKS)
		return at;
	at = replay_choose(tenant, now);
	l = at < REPLAY_LANES ? replay_lanes_at(at) : NULL;
	if (!l || !clock)
		return REPLAY_LANES;
	begun = l->begun;
	/* Of several CPUs, one begins the pass; the others take one chunk of it. */
	pass = __sync_fetch_and_add(clock, 1) + 1;
	if (__sync_val_compare_and_swap(&l->begun, begun, pass) == begun) {
		l->time_ns = now;
		l->tenant = tenant;
		l->taken = 0;
	}
	return at;
}

/* Returns the parts of the index of a cgroup's lanes, a bit each; its lanes are not idle now. */
EBB_SUBPROGRAM __u64 replay_parts(__u64 tenant, __u64 now)
{
	__u64 parts = 0;

	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_LANES; i++) {
		struct replay_lane *l = replay_lanes_at(i);

		if (l && l->tenant == tenant) {
			l->time_ns = now;
			parts |= 1ULL << replay_part(i);
		}
	}
	return parts;
}

/* Takes a chunk for a thread whose last one is full, reused, or missing; REPLAY_NOWHERE = none. */
static __always_inline __u32 replay_take(struct replay_thread *t, struct replay_chunk *full)
{
	__u32 lane = replay_active(t->tenant, t->time_ns), chunk;
	struct replay_lane *l = lane < REPLAY_LANES ? replay_lanes_at(lane) : NULL;
	struct replay_chunk *c;

	if (!l)
		return REPLAY_NOWHERE;
	chunk = __sync_fetch_and_add(&l->taken, 1) & (REPLAY_LANE_CHUNKS - 1);
	chunk += lane * REPLAY_LANE_CHUNKS;
	t->parts = replay_parts(t->tenant, t->time_ns);
	c = replay_log_at(chunk);
	if (!c)
		return REPLAY_NOWHERE;
	c->used = 0;
	c->next = 0;
	c->owner = t->owner;
	if (full)
		full->next = chunk + 1;
	return chunk << REPLAY_SHIFT;
}

/* Logs one entry and moves the thread's head to it. */
EBB_SUBPROGRAM int replay_append(struct replay_thread *t, __u64 entry)
{
	struct replay_chunk *c;
	__u64 owner;
	__u32 at, i;

	if (!t)
		return 0;
	owner = t->owner;
	at = t->head;
	if (at == REPLAY_NOWHERE)
		return 0;
	i = at & REPLAY_ENTRY;
	c = replay_log_at(at >> REPLAY_SHIFT);
	if (!c)
		return 0;
	/* Another thread may have reused the chunk of one that slept for long. */
	if (!at || c->owner != owner || c->used != i)
		c = NULL;
	if (!c || i >= REPLAY_ENTRIES) {
		at = replay_take(t, c);
		if (at == REPLAY_NOWHERE) {
			t->head = at;
			return 0;
		}
		i = 0;
		c = replay_log_at(at >> REPLAY_SHIFT);
		if (!c)
			return 0;
	}
	if (i >= REPLAY_ENTRIES)
		return 0;
	c->entry[i] = entry;
	c->used = i + 1;
	t->head = (at & ~REPLAY_ENTRY) | (i + 1);
	return 0;
}

/* Logs the entry after `from` again, unless it was carried too often; returns its position. */
EBB_SUBPROGRAM __u32 replay_carry(struct replay_thread *t, __u32 from, __u64 keep)
{
	__u64 entry;

	if (!t)
		return 0;
	entry = replay_next(t->owner, &from) + REPLAY_TURN;
	if (entry / REPLAY_TURN <= keep)
		replay_append(t, entry);
	return from;
}

/* Logs an entry for the page, and before it the skipped ones after `from`. */
static __always_inline void replay_record(struct replay_thread *t, __u64 vpn, __u64 entry,
					  __u32 from, __u32 skipped, __u64 keep)
{
	struct replay_bucket *b;

	EBB_ROLLED
	for (__u32 n = 0; n < REPLAY_REACH; n++) {
		if (n >= skipped)
			break;
		from = replay_carry(t, from, keep);
	}
	replay_append(t, entry);
	/* The index has an older position; indexing some pages suffices to resume. */
	if (t->head == REPLAY_NOWHERE || (t->foreseen && t->run % REPLAY_SAMPLE))
		return;
	b = replay_bucket(t->owner, vpn, t->parts, t->tenant);
	if (b) {
		b->at[1] = b->at[0];
		b->at[0] = t->head;
	}
}

/* Drops a cursor that was wrong: its requests are wasted. */
static __always_inline void replay_break(struct replay_thread *t)
{
	if (4 * (__u32)t->ahead > t->run) {
		if (t->caution < REPLAY_CAUTION_MAX)
			t->caution++;
	} else if (t->run > 4 * REPLAY_START) {
		t->caution /= 2;
	}
	t->cursor = 0;
	t->behind = 0;
	t->mark = 0;
	t->frontier = 0;
	t->ahead = 0;
	t->run = 0;
	t->trust = 0;
}

/* Handles a fault n entries ahead on the cursor's path. */
static __always_inline void replay_advance(const struct ebb_fault *f, struct replay_thread *t,
					   __u32 n, __u64 max)
{
	t->foreseen = t->trust >= REPLAY_TRUSTED;
	if (n <= REPLAY_NEAR && t->trust < REPLAY_TRUST_MAX)
		t->trust++;
	if (!(t->run++ & 7)) {
		t->behind = t->mark;
		t->mark = t->cursor;
	}
	if (t->since <= t->distance)
		t->since++;
	/*
	 * Too many misses for lateness alone: requests are dropped, or their
	 * pages are evicted before use.  Pause, and retry later.
	 */
	if (t->lost > max && ++t->lost > 16 * max)
		t->lost = 0;
	if (t->ahead < n) {
		t->frontier = t->cursor;
		t->ahead = 0;
		return;
	}
	t->ahead -= n;
	if (f->kind == EBB_HIT) {
		t->lost = 0;
		return;
	}
	/*
	 * A single missed page was resident when requested and evicted since: the
	 * request was too early.  Consecutive misses and late prefetches mean too
	 * late.  Requests from before the distance grew do not count.
	 */
	if (f->kind == EBB_MISS && ++t->lost < REPLAY_LOST) {
		if (t->distance > REPLAY_START)
			t->distance -= t->distance / 64 + 1;
	} else if (t->since > t->distance && t->distance < max) {
		t->distance *= 2;
		t->since = 0;
	}
}

/*
 * Returns whether the cursor has just passed the fault's entry: two faults swapped
 * places, which does not count against the cursor.
 */
static __always_inline int replay_passed(const struct replay_thread *t, __u64 vpn)
{
	return t->behind && replay_match(t->owner, vpn, t->behind, REPLAY_REACH);
}

/*
 * Returns the position at which a trial begins; 0 = none.  For a thread without
 * repetition so far, it looks up only some faults.
 */
static __always_inline __u32 replay_seek(struct replay_thread *t, __u64 owner, __u64 vpn)
{
	if (!t->cursor && t->unfound++ >= REPLAY_IDLE && t->unfound % REPLAY_REST)
		return 0;
	return replay_find(owner, vpn, t->parts, t->tenant);
}

/* Handles a fault off the cursor's path: it follows the trial cursor or starts a new trial. */
static __always_inline void replay_stray(struct replay_thread *t, __u64 owner, __u64 vpn)
{
	__u32 trial = t->trial;
	__u64 match = trial ? replay_match(owner, vpn, trial, REPLAY_NEAR) : 0;

	if (t->cursor && (t->trust <= REPLAY_TRUSTED || !--t->trust))
		replay_break(t);

	if (match) {
		trial = match >> 32;
		t->trial_trust++;
		t->unfound = 0;
	} else {
		trial = replay_seek(t, owner, vpn);
		t->trial_trust = 0;
	}
	t->trial = trial;
	if (t->trial_trust > !!t->cursor) {
		if (t->cursor)
			replay_break(t);
		t->cursor = trial;
		t->behind = trial;
		t->mark = trial;
		t->frontier = trial;
		t->trust = t->trial_trust;
		t->trial = 0;
		t->trial_trust = 0;
	}
}

/*
 * Returns whether a miss continues where the kernel's readahead stopped: two steps of
 * a sequence, which the readahead covers.  Pages prefetched here would only keep the
 * kernel from reading the next window.
 */
static __always_inline int replay_leave(const struct ebb_fault *f, struct replay_thread *t)
{
	__u64 near = 2 * (__u64)f->cluster, vpn = f->vpn;

	if (vpn - t->window[0] + near <= 2 * near) {
		t->window[0] = vpn;
		return 1;
	}
	if (vpn - t->window[1] + near <= 2 * near) {
		t->window[1] = vpn;
		return 1;
	}
	t->window[1] = t->window[0];
	t->window[0] = vpn;
	return 0;
}

/* Returns the first entry in which a thread may be. */
static __always_inline __u32 replay_set(__u32 tid)
{
	return tid * REPLAY_WAYS & (REPLAY_THREADS - 1);
}

/* Returns the entry of a thread; REPLAY_THREADS = none. */
EBB_SUBPROGRAM __u32 replay_slot(__u32 tid, __u64 owner)
{
	__u32 first = replay_set(tid);

	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_WAYS; i++) {
		const struct replay_thread *t = replay_threads_at(first + i);

		if (t && t->tid == tid && t->owner == owner)
			return first + i;
	}
	return REPLAY_THREADS;
}

/* Returns how many entries of a set a cgroup has. */
EBB_SUBPROGRAM __u32 replay_slots(__u32 first, __u64 tenant)
{
	__u32 n = 0;

	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_WAYS; i++) {
		const struct replay_thread *t = replay_threads_at(first + i);

		n += t && t->tenant == tenant;
	}
	return n;
}

/*
 * Returns the entry that a new thread takes: an unused or idle one, the oldest one of the cgroup
 * that has most of the set and at least two more than its own, or the oldest one of its own cgroup.
 * REPLAY_THREADS = none.
 */
EBB_SUBPROGRAM __u32 replay_take_slot(__u32 tid, __u64 tenant, __u64 now)
{
	__u32 first = replay_set(tid), own = replay_slots(first, tenant), most = own + 1;
	__u32 at = REPLAY_THREADS;
	__u64 oldest = ~0ULL;

	EBB_ROLLED
	for (__u32 i = 0; i < REPLAY_WAYS; i++) {
		const struct replay_thread *t = replay_threads_at(first + i);
		__u32 n = own + 1;

		if (!t)
			break;
		/* An entry of its own id is of a thread that has ended or called exec. */
		if (!t->tid || t->tid == tid || t->time_ns + REPLAY_THREAD_IDLE < now)
			return first + i;
		if (t->tenant != tenant) {
			n = replay_slots(first, t->tenant);
			if (n <= own + 1)
				continue;
		}
		if (n > most || (n == most && t->time_ns < oldest)) {
			most = n;
			oldest = t->time_ns;
			at = first + i;
		}
	}
	return at;
}

/* Returns the new entry of a thread, cleared; REPLAY_THREADS = none. */
EBB_SUBPROGRAM __u32 replay_enter(__u32 tid, __u64 owner, __u64 tenant, __u64 now)
{
	__u32 at = replay_take_slot(tid, tenant, now);
	struct replay_thread *t = at < REPLAY_THREADS ? replay_threads_at(at) : NULL;

	if (!t)
		return REPLAY_THREADS;
	__builtin_memset(t, 0, sizeof(*t));
	t->tid = tid;
	t->owner = owner;
	return at;
}

/*
 * Learns from a fault and follows it: keeps an entry for at most `keep` passes
 * (<= REPLAY_KEEP_MAX) without a fault, and requests at most `max` entries ahead
 * (<= 16384).  Returns the thread, or NULL for an ignored fault; its `foreseen` says
 * whether a trusted cursor predicted the fault.
 */
static __always_inline struct replay_thread *replay_observe(const struct ebb_fault *f, __u64 keep,
							    __u64 max)
{
	__u64 owner = replay_owner(f), tenant = replay_tenant(f), vpn = f->vpn, entry = vpn;
	__u32 at = replay_slot(f->tid, owner), from, n = 0;
	struct replay_thread *t;

	if (!vpn || vpn >= EBB_VPN_END)
		return NULL;
	if (at >= REPLAY_THREADS)
		at = replay_enter(f->tid, owner, tenant, f->time_ns);
	t = at < REPLAY_THREADS ? replay_threads_at(at) : NULL;
	if (!t)
		return NULL;
	if (t->tenant != tenant || t->time_ns >> REPLAY_TICK != f->time_ns >> REPLAY_TICK) {
		t->tenant = tenant;
		t->parts = replay_parts(tenant, f->time_ns);
		if (t->head == REPLAY_NOWHERE)
			t->head = 0;
	}
	t->time_ns = f->time_ns;
	if (vpn == t->last || (f->kind == EBB_MISS && f->cluster > 1 && replay_leave(f, t)))
		return NULL;
	t->last = vpn;
	t->foreseen = 0;
	if (!t->distance)
		t->distance = REPLAY_START;

	from = t->cursor;
	if (from) {
		__u64 match = replay_match(owner, vpn, from, REPLAY_REACH);

		n = (__u32)match;
		if (n)
			t->cursor = match >> 32;
	}
	if (n)
		replay_advance(f, t, n, max);
	else if (t->trust >= REPLAY_TRUSTED)
		entry += keep * REPLAY_TURN;
	if (!n && !replay_passed(t, vpn))
		replay_stray(t, owner, vpn);
	replay_record(t, vpn, entry, from, n ? n - 1 : 0, keep);
	/*
	 * Accesses to pages that the kernel reads with a miss are not seen.
	 * Once that miss is a hit, the kernel reads no further page, and the
	 * next page misses: request that one, once.
	 */
	if (f->kind == EBB_MISS && f->cluster > 1 && vpn + 1 < EBB_VPN_END)
		replay_append(t, vpn + 1 + keep * REPLAY_TURN);
	return t;
}

struct replay_list {
	__u64 page[EBB_LIST_MAX];
};

/* Lists the next entries from the frontier on and advances it; returns their number. */
EBB_SUBPROGRAM __u32 replay_collect(struct replay_thread *t, struct replay_list *list, __u32 due)
{
	__u32 at, count = 0;
	__u64 owner;

	if (!t || !list)
		return 0;
	at = t->frontier;
	owner = t->owner;
	EBB_ROLLED
	for (__u32 i = 0; i < EBB_LIST_MAX; i++) {
		__u64 entry;

		if (i >= due)
			break;
		entry = replay_next(owner, &at);
		if (!entry)
			break;
		list->page[i] = entry & REPLAY_PAGE;
		count++;
	}
	t->frontier = at;
	t->ahead += count;
	return count;
}

/*
 * Requests the entries ahead of the cursor once a full request is due.  A run must be
 * 2^caution times as long as the distance: a program that repeats only short patterns
 * gets no requests.
 */
static __always_inline void replay_ask(const struct ebb_fault *f, struct replay_thread *t,
				       __u64 max)
{
	struct replay_list list = { 0 };
	__u32 limit = t->distance, due;

	if (t->trust < REPLAY_TRUSTED || !t->cursor || t->lost > max)
		return;
	/* It keeps its place, and requests from there when the pause ends. */
	if (ebb_paused(f, EBB_SOURCE_REPLAY))
		return;
	if (limit > max)
		limit = max;
	if (f->room && limit > f->room)
		limit = f->room;
	if (limit > t->run >> t->caution)
		limit = t->run >> t->caution;
	due = limit / 2 < EBB_LIST_MAX ? limit / 2 : EBB_LIST_MAX;
	if (!due || t->ahead + due > limit)
		return;
	/* A dropped request is not repeated: its pages become misses. */
	ebb_prefetch_list_from(f, EBB_SOURCE_REPLAY, list.page, replay_collect(t, &list, due));
}

#endif
