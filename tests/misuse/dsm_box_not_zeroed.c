// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wmaybe-uninitialized
#include <ebbdsm.h>

int f(ebbdsm_t *dsm);

int f(ebbdsm_t *dsm)
{
#ifdef MISUSE
	struct ebbdsm_box box;
#else
	struct ebbdsm_box box = { 0, 0 };
#endif
	int r = ebbdsm_new(dsm, "content", 8, &box);

	return r ? r : ebbdsm_drop(dsm, &box);
}
