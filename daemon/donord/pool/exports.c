// SPDX-License-Identifier: GPL-2.0-or-later
#include "exports.h"

static enum wire_status grant_stream(struct export *x, struct borrower *b,
				     const struct wire_frame *request)
{
	pool_granted(x->pool, request, &(struct lend_grant){ .fd = -1 });
	return WIRE_OK;
}

static enum wire_status grant_shared(struct export *x, struct borrower *b,
				     const struct wire_frame *request)
{
	const struct lend_grant g = { .fd = pool_hand_over(x->pool, request->slab) };

	pool_granted(x->pool, request, &g);
	return WIRE_OK;
}

const struct export_ops export_stream = { .grant = grant_stream };
const struct export_ops export_shared = { .grant = grant_shared };
