/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Loads, replaces and removes policies while they are attached. */
#ifndef EBB_POLICY_REPLACE_H
#define EBB_POLICY_REPLACE_H

#include "ebbd/plane/policy_store.h"
#include "table.h"

/*
 * Loads @file as policies_load() does.  Attachments of a replaced policy keep the values of
 * parameters that it still has and whose range allows them.
 */
int policy_replace(struct attachments *a, const char *file, struct policy_change *change,
		   struct error *e);

/* EXIT_REFUSED while the policy is attached, and for policies of ebb. */
int policy_remove(struct attachments *a, const char *name, struct error *e);

#endif
