// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-malloc-leak
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const int *p = ebbdsm_borrow(dsm, box);
	int x;

	if (!p)
		return 1;
	x = *p;
#ifndef MISUSE
	ebbdsm_return(dsm, box, p);
#endif
	return x;
}
