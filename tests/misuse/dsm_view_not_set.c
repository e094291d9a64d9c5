// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wmaybe-uninitialized
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	struct ebbdsm_view view;
	const int *p;
	int x;

#ifndef MISUSE
	view = ebbdsm_lend(box);
#endif
	p = ebbdsm_borrow_view(dsm, &view, NULL);
	if (!p)
		return 1;
	x = *p;
	ebbdsm_return_view(dsm, &view, p);
	ebbdsm_drop(dsm, box);
	return x;
}
