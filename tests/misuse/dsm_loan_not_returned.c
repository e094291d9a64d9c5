// SPDX-License-Identifier: GPL-2.0-or-later
// gcc: -Wanalyzer-malloc-leak
// clang: -Wthread-safety-analysis
#include <ebbdsm.h>

int f(ebbdsm_t *dsm, const struct ebbdsm_loan *loan);

int f(ebbdsm_t *dsm, const struct ebbdsm_loan *loan)
{
	int *p = ebbdsm_borrow_loan(dsm, loan, NULL);

	if (!p)
		return 1;
	*p = 1;
#ifdef MISUSE
	return 0;
#else
	return ebbdsm_return_loan(dsm, loan, p);
#endif
}
