// SPDX-License-Identifier: GPL-2.0-or-later
#include "colocate.h"

int colocate_choose(const struct colocate_cpus *c)
{
	int best = -1;

	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, &c->allowed) || CPU_ISSET(i, &c->confined))
			continue;
		if (best < 0 || c->sharers[i] < c->sharers[best] ||
		    (i == c->busiest && c->sharers[i] == c->sharers[best]))
			best = i;
	}
	return best;
}
