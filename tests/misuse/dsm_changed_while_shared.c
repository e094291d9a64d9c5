// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wdiscarded-qualifiers
// clang: -Wincompatible-pointer-types-discards-qualifiers
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
#ifdef MISUSE
	int *p = ebbdsm_borrow(dsm, box);
#else
	int *p = ebbdsm_borrow_mut(dsm, box);
#endif

	if (!p)
		return 1;
	*p = 1;
#ifdef MISUSE
	return ebbdsm_return(dsm, box, p);
#else
	return ebbdsm_return_mut(dsm, box, p);
#endif
}
