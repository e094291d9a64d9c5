// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-possible-null-dereference
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const int *p = ebbdsm_borrow(dsm, box);
	int x;

#ifndef MISUSE
	if (!p)
		return 1;
#endif
	x = *p;
	ebbdsm_return(dsm, box, p);
	return x;
}
