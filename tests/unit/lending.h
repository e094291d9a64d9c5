/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Two borrowers that have no connection, for tests of the pool. */
#ifndef EBB_TESTS_LENDING_H
#define EBB_TESTS_LENDING_H

#include "donord/pool/exports.h"

static struct export lending_stream;

static inline void lending_granted(struct borrower *b, const struct wire_frame *request,
				   const struct lend_grant *g)
{
}

static const struct borrower_ops lending_ops = { .granted = lending_granted };
static struct borrower lending_borrowers[] = {
	{ .name = "owner", .recallable = true, .revocable = true, .export = &lending_stream, .ops = &lending_ops },
	{ .name = "other", .recallable = true, .revocable = true, .export = &lending_stream, .ops = &lending_ops },
};

#define OWNER (&lending_borrowers[0])
#define OTHER (&lending_borrowers[1])

static inline enum wire_status lend(struct pool *p, struct borrower *b, uint32_t *slab,
				    uint32_t *generation)
{
	struct wire_frame request = { .op = WIRE_MAP };
	enum wire_status st;

	lending_stream = (struct export){ .ops = &export_stream, .pool = p };
	st = pool_lend(p, b, &request);
	*slab = request.slab;
	*generation = request.generation;
	return st;
}

#endif
