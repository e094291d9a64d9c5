// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wnonnull
// clang: -Wnonnull
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
#ifdef MISUSE
	return ebbdsm_drop(dsm, NULL);
#else
	return ebbdsm_drop(dsm, box);
#endif
}
