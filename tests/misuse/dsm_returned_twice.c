// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-double-free
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const int *p = ebbdsm_borrow(dsm, box);

	if (!p)
		return 1;
#ifdef MISUSE
	ebbdsm_return(dsm, box, p);
#endif
	return ebbdsm_return(dsm, box, p);
}
