// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wunused-result
// clang: -Wunused-result
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
#ifdef MISUSE
	ebbdsm_borrow(dsm, box);
#endif
	return ebbdsm_drop(dsm, box);
}
