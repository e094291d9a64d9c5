/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Seals: AES-256-GCM encryption with replay protection, before a page leaves the borrower; counter
 * and tag stay here, 24 bytes a page.  A donor or disk that has a page can neither read it nor
 * change a bit of it, nor return another page or an older content for it.
 *
 * The key is random, made with the table, and is stored nowhere else.
 *
 * Nonce: 96 bits, the page's number (32) and a counter (64).  The counter is
 * that of the table, not of the page: it goes up before its number is used and
 * never down, so no two sealings under one key have the same, whichever page
 * they are of and whichever thread or process does them.  It ends at
 * SEAL_MOST: a million pages a second take nine years to get there, and what can
 * be told from so many blocks under one key is bounded by 2^-17.  Only a snapshot of a virtual
 * machine's memory, restored, would repeat counters.
 * Associated data: the device's number (64) and the page's (64).
 *
 * All that has to outlive a process that seals is one piece of memory without
 * pointers, shared and locked: a process that inherits the mapping goes on with it.
 *
 * Nothing is allocated after sealer_init().
 */
#ifndef EBB_SEAL_H
#define EBB_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include <ebb/page.h>
#include "lib/base/error.h"

#define SEAL_KEY 32
#define SEAL_TAG 16
#define SEAL_MOST (1ull << 48)

/* Seal of the page's newest content. */
struct seal {
	uint64_t counter; /* 0 = never sealed, or forgotten: nothing opens */
	uint8_t tag[SEAL_TAG];
};

struct seal_memory {
	uint64_t device;  /* random: number of the device */
	uint64_t writes;  /* counters given out: the last one's value */
	uint8_t key[SEAL_KEY];
	struct seal seal[];
};
_Static_assert(sizeof(struct seal) == 24, "locked memory: 6 MiB per GiB of device");

struct seal_table {
	struct seal_memory *memory; /* owned */
	uint32_t pages;
};

/* A thread's contexts to seal and open. */
struct sealer {
	struct seal_table *table;
	struct evp_cipher_ctx_st *seal, *open;
	uint8_t scratch[EBB_PAGE];
};

/* Returns the bytes of memory for a table of @pages. */
size_t seal_bytes(uint32_t pages);

/*
 * Makes the table of @pages pages and its key, in locked memory that children share.  -ENOMEM or
 * -EPERM when it cannot be locked.
 */
int seal_table_init(struct seal_table *t, uint32_t pages, struct error *e);

/* Forgets key and seals; shared memory is erased for all processes. */
void seal_table_free(struct seal_table *t);

/* @t must stay where it is until sealer_free(). */
int sealer_init(struct sealer *s, struct seal_table *t, struct error *e);
void sealer_free(struct sealer *s);

/*
 * Seals the page at @from into @to: the newest content of the device's page @page.  A process that
 * dies before the end leaves the page in clear at @from.  Returns 0; -ERANGE, with nothing done,
 * for a page that the device does not have; -EKEYEXPIRED at the counter's end.  Two threads must
 * not seal one page at once.
 */
int seal_page(struct sealer *s, uint32_t page, const void *from, void *to);

/*
 * Opens the @count pages at @payload.  Returns 0, or -EBADMSG when one is not the newest content of
 * its page: *@bad (may be NULL) is then its number.  Pages before it are open, it is wiped, and
 * pages behind it are unchanged.  -ERANGE as above.
 *
 * @payload must be memory that no other process writes: not a donor's.
 */
int seal_open(struct sealer *s, uint32_t first, uint32_t count, void *payload, uint32_t *bad);

/*
 * Checks whether seal_open() would open the pages, which stay sealed, to pass them on.  Returns 0,
 * -EBADMSG with *@bad, or -ERANGE.
 */
int seal_check(struct sealer *s, uint32_t first, uint32_t count, const void *payload,
	       uint32_t *bad);

/* Makes earlier seals of these pages invalid until they are sealed again. */
void seal_forget(struct seal_table *t, uint32_t first, uint32_t count);

#endif
