// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "epoch.h"

void epoch_open(struct epoch *e, const uint64_t *shared)
{
	*e = (struct epoch){
		.source = shared ? EBBGC_EPOCH_EBBD : EBBGC_EPOCH_OWN, .shared = shared,
	};
}

void epoch_churn(struct epoch *e, uint64_t changed, uint64_t pages, unsigned int percent)
{
	uint64_t length = pages * percent / 100;

	e->churn += changed;
	if (!length || e->churn <= length)
		return;
	__atomic_fetch_add(&e->own, e->churn / length, __ATOMIC_RELAXED);
	e->churn %= length;
}
