// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-use-after-free
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, const struct ebbdsm_loan *loan);

int f(ebbdsm_t *dsm, const struct ebbdsm_loan *loan)
{
	int *p = ebbdsm_borrow_loan(dsm, loan, NULL), r;

	if (!p)
		return 1;
	*p = 1;
	r = ebbdsm_return_loan(dsm, loan, p);
#ifdef MISUSE
	*p = 2;
#endif
	return r;
}
