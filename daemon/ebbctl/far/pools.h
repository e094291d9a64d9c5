/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pools of far memory at a donor, as a member of the protocol sees them: those of one key, or, at a
 * unix socket and at a donor without keys, those of no key.
 *
 * Functions return 0 or -errno with a text; -ETIMEDOUT: the donor does not reply.  A struct
 * far_donor is used by one thread.
 */
#ifndef EBB_EBBCTL_POOLS_H
#define EBB_EBBCTL_POOLS_H

#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/far_count.h"
#include "userlib/dsm/desk.h"
#include "userlib/far/client.h"

struct far_donor {
	const char *address, *key; /* the caller's; key NULL = none */
	uint64_t arena;            /* bytes */
	struct client client;
};

/* Fills in @d.  far_donor_close() once that has succeeded. */
int far_donor_open(struct far_donor *d, const char *address, const char *key, struct error *e);
void far_donor_close(struct far_donor *d);

/* Creates pool @name; @flags are enum wire_far_pool_flags. */
int far_pool_create(struct far_donor *d, const char *name, uint32_t flags, struct error *e);
/* Stores the pools and their number. */
int far_pool_list(struct far_donor *d, struct wire_far_listed list[static WIRE_FAR_POOLS],
		  uint32_t *n, struct error *e);
/* Finds pool @name and stores it in *@l; fails without one. */
int far_pool_find(struct far_donor *d, const char *name, struct wire_far_listed *l,
		  struct error *e);

struct far_contents {
	uint32_t self; /* this process's number, while it reads */
	uint8_t state[EBB_FAR_MEMBERS + 1]; /* enum ebb_far_member_state, by number */
	struct far_count members[EBB_FAR_MEMBERS + 1];
};

/*
 * Reads what each member has in pool @name, as a member of it.  Words change meanwhile.  Without an
 * arena, no member is known by number.  @d can only be closed after that.
 */
int far_pool_read(struct far_donor *d, const char *name, struct far_contents *contents,
		  struct error *e);

/* A process of libebbdsm, as its desk shows it. */
struct far_desk {
	uint32_t member;
	struct desk desk; /* DESK_SHOWN bytes; texts are printable */
};

struct far_desks {
	uint64_t total, free, pool; /* bytes that the donor lends, has left, and the pool has */
	uint32_t n;
	struct far_desk desks[EBB_FAR_MEMBERS];
};

/*
 * Reads the desks of the processes whose home is this donor, as a member of pool @name.  @d can
 * only be closed after that.
 */
int far_pool_desks(struct far_donor *d, const char *name, struct far_desks *desks,
		   struct error *e);

enum far_force { FAR_UNUSED_ONLY, FAR_END_MEMBERS };
/*
 * Destroys pool @name at @address.  Waits up to 3 s until dead members are recovered.  Refuses a
 * pool with live members; FAR_END_MEMBERS ends them first, and adds their number to *@ended.
 */
int far_pool_destroy(const char *address, const char *key, const char *name, enum far_force force,
		     uint32_t *ended, struct error *e);

#endif
