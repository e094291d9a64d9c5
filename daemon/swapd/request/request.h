/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Slots: locked memory for one request each, from its arrival until its pages are no longer
 * needed.  A write keeps its slot until the backup file has it.
 */
#ifndef EBB_REQUEST_H
#define EBB_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/page.h>
#include "lib/base/error.h"
#include "lib/link/link.h"
#include "swapd/page/slab.h"

/* Largest request; ebbctl limits a device's requests to it, and a larger one comes in pieces. */
#define SLOT_BYTES (128u << 10)
#define SLOT_PAGES (SLOT_BYTES / EBB_PAGE)
/*
 * Slots of a device with a backup.  Those that the frontend does not need may hold answered writes
 * that wait for the disk: a slow disk delays writes, never a read.
 */
#define SLOT_COUNT 512
/* Free slots that repair leaves to requests. */
#define SLOTS_RESERVED 64

/*
 * Repair's: RESYNC copies pages to a replica that lacks them; EXCLUSIVE has a slab to itself
 * while a replica of it is released.
 */
enum slot_kind { SLOT_FREE, SLOT_NEW, SLOT_READ, SLOT_WRITE, SLOT_DISCARD, SLOT_RESYNC,
		 SLOT_EXCLUSIVE,
		 SLOT_READING /* a request is being read into it from the kernel */ };

/* RESYNC: the target is the backup, which failed to take pages. */
#define RESYNC_BACKUP PAGE_MAP_BACKUP

/* Event that the next step waits for. */
enum slot_wait {
	WAIT_NONE,
	WAIT_BEGIN,   /* its turn, on the ready list or that of large reads: it has yet to begin */
	WAIT_READY,   /* its turn, on the ready list: it continues */
	WAIT_DONOR,   /* transfers in slot->pending */
	WAIT_SLAB,    /* its slab being mapped; a donor that is away; free capacity */
	WAIT_BACKUP,  /* the backup file */
	WAIT_DONE,    /* WRITE: done at the donors */
};

/* Fate of the slot of an answered request. */
enum slot_after {
	SLOT_DONE, /* free, as soon as the backup does not need it */
	SLOT_KEPT, /* the frontend uses it for the next request */
};

struct slot {
	uint8_t *payload;     /* SLOT_BYTES, page-aligned, after a page of ours for headers */
	/*
	 * A successor trusts the slot according to its kind, which is stored last when a request
	 * begins and first when it ends.  It uses first, count, unique, order, same_filled, sealed,
	 * known and answered, and the payload of a WRITE; of a RESYNC, while fetched is set, also
	 * cursor and run and the payload of that run.
	 */
	uint8_t kind;
	const uint8_t *source; /* READ: location of its pages instead of the payload, or NULL */
	uint8_t wait;
	uint8_t pending;      /* bit per transfer in flight */
	bool blocked;         /* waits for an overlapping request */
	bool answered;
	bool degraded;        /* WRITE: a page reached no donor, so the backup decides */
	bool backing;         /* handed to the backup thread */
	bool fetched;         /* RESYNC: the present run is in the payload */
	uint8_t copy;         /* RESYNC: to be filled, or RESYNC_BACKUP; EXCLUSIVE: to release */
	uint8_t purpose;      /* EXCLUSIVE: enum repair_purpose */
	int backup_result;    /* 0 or -errno, when no longer backing */
	uint32_t first, count; /* pages */
	uint32_t cursor;      /* pages completed */
	uint32_t run;         /* pages of the present transfers */
	uint32_t serial;      /* RESYNC, EXCLUSIVE: of the copy */
	uint64_t same_filled; /* WRITE: a bit for each same-filled page */
	uint64_t unique;      /* the frontend's number of the request; 0: repeated (failover.c) */
	uint64_t order;       /* number in order of arrival */
	uint64_t sealed;      /* WRITE: a bit for each page of the payload that is sealed */
	bool known;           /* WRITE: the page map has it; the payload may change then */
	uint8_t in_window;    /* large READ: index + 1 of the donor it is in flight at; or 0 */
	bool held;            /* waits for a donor that is away: WAIT_SLAB */
	bool gave_up;         /* has waited for long enough */
	uint64_t until;       /* ns: when it gives up; 0 = it has not waited */
	int previous, next;   /* in the list that it is on */
	int active;           /* index in slots.active, or -1 */
	struct transfer transfer[SLAB_COPIES]; /* [i] is for replica i of the slab */
};
_Static_assert(SLOT_PAGES <= 64, "slot.same_filled has a bit per page");

/* Returns whether requests of @kind have their pages to themselves; others share them. */
static inline bool slot_excludes(uint8_t kind)
{
	return kind != SLOT_READ && kind != SLOT_RESYNC;
}

/* A list of slots by index; a slot is on one at a time. */
struct slot_list {
	int head, tail; /* -1 = empty */
};

#define SLOT_LIST_EMPTY ((struct slot_list){ -1, -1 })

struct slots {
	struct slot *slot;
	uint32_t count;        /* at most SLOT_COUNT */
	uint8_t *memory;
	size_t memory_size;
	struct slot_list free;
	uint32_t free_count;
	struct slot_list blocked;  /* in order of arrival */
	struct slot_list ready;    /* may continue, or begin (engine_run()) */
	struct slot_list large;    /* reads that may begin (engine_begin_large()) */
	struct slot_list unanswered; /* writes that wait only for the backlog limit */
	/* Unanswered requests in flight, with their ranges side by side for the scan. */
	uint32_t active_count, active_excluding;
	uint16_t active[SLOT_COUNT];
	struct slot_range { uint32_t first, end; bool excludes; } range[SLOT_COUNT];
};

/* Makes @count slots. */
int slots_init(struct slots *s, uint32_t count, struct error *e);
void slots_free(struct slots *s);

static inline int slot_index(const struct slots *s, const struct slot *slot)
{
	return (int)(slot - s->slot);
}

/* Resets all slots as slots_init(), but keeps slot_restart()'s members; none is on a list. */
void slots_forget(struct slots *s);
/* Keeps the members that a successor uses; resets the others as for a new request. */
void slot_restart(struct slot *slot);

/* Returns NULL when none is free.  The last one freed comes first: its pages are cached. */
struct slot *slot_get(struct slots *s);
void slot_put(struct slots *s, struct slot *slot);
/* Combines slot_put() and slot_get() of one slot. */
void slot_renew(struct slot *slot);

void slot_append(struct slots *s, struct slot_list *list, struct slot *slot);
void slot_remove(struct slots *s, struct slot_list *list, struct slot *slot);

/* Returns the number of replica @copy's transfer, for transfer.number. */
static inline uint32_t transfer_number(const struct slots *s, const struct slot *slot, int copy)
{
	return (uint32_t)(slot_index(s, slot) * SLAB_COPIES + copy);
}

/* Return the request of transfer @number, and its replica. */
static inline struct slot *slot_of_transfer(const struct slots *s, uint32_t number)
{
	return &s->slot[number / SLAB_COPIES];
}

static inline int transfer_copy(uint32_t number)
{
	return (int)(number % SLAB_COPIES);
}

/* Mark a request as in flight, and as ended. */
void slot_activate(struct slots *s, struct slot *slot);
void slot_retire(struct slots *s, struct slot *slot);

/*
 * Returns whether @slot must wait: its pages overlap those of a request in flight, or of one
 * blocked before it, and one of the two excludes others.
 */
bool slot_conflicts(const struct slots *s, const struct slot *slot);

#endif
