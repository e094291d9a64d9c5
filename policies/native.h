/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * All policies, compiled natively, for programs that run them outside the kernel.
 * Link with $(NATIVE_POLICIES) (policies/build.mk); the table is generated from the
 * files, sorted by name.
 */
#ifndef EBB_POLICIES_NATIVE_H
#define EBB_POLICIES_NATIVE_H

#include <ebb/policy.h>

extern const struct ebb_policy *const ebb_policies[];   /* NULL-terminated */

/* Returns NULL if there is no policy of that name. */
static inline const struct ebb_policy *ebb_policy_find(const char *name)
{
	for (const struct ebb_policy *const *p = ebb_policies; *p; p++)
		if (!strcmp((*p)->info->name, name))
			return *p;
	return NULL;
}

#endif
