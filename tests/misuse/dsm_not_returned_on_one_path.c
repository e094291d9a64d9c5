// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-malloc-leak
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	int *p = ebbdsm_borrow_mut(dsm, box);

	if (!p)
		return 1;
#ifdef MISUSE
	if (*p)
		return 2;
#endif
	*p = 1;
	return ebbdsm_return_mut(dsm, box, p);
}
