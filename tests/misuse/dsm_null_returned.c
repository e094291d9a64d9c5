// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-possible-null-argument
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, struct ebbdsm_box *box);

int f(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	void *p = ebbdsm_borrow_mut(dsm, box);

#ifndef MISUSE
	if (!p)
		return 1;
#endif
	return ebbdsm_return_mut(dsm, box, p);
}
