// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wmismatched-dealloc
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	int *p = ebbdsm_borrow_mut(dsm, box);

	if (!p)
		return 1;
#ifdef MISUSE
	return ebbdsm_return(dsm, box, p);
#else
	return ebbdsm_return_mut(dsm, box, p);
#endif
}
