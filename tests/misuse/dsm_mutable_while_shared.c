// SPDX-License-Identifier: GPL-2.0-or-later
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const int *p = ebbdsm_borrow(dsm, box);
	int *m, x;

	if (!p)
		return 1;
	x = *p;
#ifndef MISUSE
	ebbdsm_return(dsm, box, p);
#endif
	m = ebbdsm_borrow_mut(dsm, box);
	if (m) {
		*m = x + 1;
		ebbdsm_return_mut(dsm, box, m);
	}
#ifdef MISUSE
	ebbdsm_return(dsm, box, p);
#endif
	return x;
}
