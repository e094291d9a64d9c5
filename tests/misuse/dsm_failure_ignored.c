// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wunused-result
// clang: -Wunused-result
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, const struct ebbdsm_parcel *parcel, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, const struct ebbdsm_parcel *parcel, struct ebbdsm_box *box)
{
#ifdef MISUSE
	ebbdsm_accept(dsm, parcel, box);
	return 0;
#else
	return ebbdsm_accept(dsm, parcel, box);
#endif
}
