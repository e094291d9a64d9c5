/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Parses the policy and its parameters on the command line. */
#ifndef EBB_SIM_CHOOSE_H
#define EBB_SIM_CHOOSE_H

#include <ebb/policy.h>
#include "lib/base/error.h"

/*
 * @text is NAME or PATH/NAME.so, a policy compiled natively, with ",KEY=NUMBER"
 * for each parameter with another than its initial value.  A loaded file stays loaded.
 */
int sim_choose_policy(const char *text, const struct ebb_policy **policy,
		      struct ebb_params *params, struct error *e);

#endif
