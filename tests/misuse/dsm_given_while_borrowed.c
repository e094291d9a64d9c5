// SPDX-License-Identifier: GPL-2.0-or-later
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const int *p = ebbdsm_borrow(dsm, box);
	struct ebbdsm_parcel parcel;
	int x, r;

	if (!p)
		return 1;
	x = *p;
#ifdef MISUSE
	r = ebbdsm_give(dsm, box, &parcel);
	ebbdsm_return(dsm, box, p);
#else
	ebbdsm_return(dsm, box, p);
	r = ebbdsm_give(dsm, box, &parcel);
#endif
	return r ? r : x;
}
