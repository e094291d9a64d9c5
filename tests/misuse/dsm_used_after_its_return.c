// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-use-after-free
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, const struct ebbdsm_view *view);

int f(ebbdsm_t *dsm, const struct ebbdsm_view *view)
{
	const int *p = ebbdsm_borrow_view(dsm, view, NULL);
	int x;

	if (!p)
		return 1;
	x = *p;
	ebbdsm_return_view(dsm, view, p);
#ifdef MISUSE
	x += *p;
#endif
	return x;
}
