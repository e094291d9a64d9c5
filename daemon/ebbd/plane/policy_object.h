/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The file of a policy, NAME.bpf.o: read once, and checked by its description before
 * the kernel loads it.  The bytes that are checked are loaded and stored.
 */
#ifndef EBB_POLICY_OBJECT_H
#define EBB_POLICY_OBJECT_H

#include <stddef.h>

#include <ebb/abi.h>
#include "lib/base/error.h"

#define POLICY_OBJECT_MAX (8u << 20) /* bytes; ebb's policies have some 50 KiB */

struct policy_object {
	void *data;                  /* malloc'ed */
	size_t size;
	struct ebb_policy_info info;
};

/*
 * Reads and checks @file, a regular one.  EXIT_USAGE: no such file, not an
 * object for BPF, no policy in it, another ABI, no license that the kernel
 * takes for GPL-compatible, no BTF, or a description that contradicts itself.
 * EXIT_REFUSED: it has loops that the verifier does not bound.
 */
int policy_object_read(const char *file, struct policy_object *o, struct error *e);
void policy_object_free(struct policy_object *o);

/* Checks @size bytes in memory; @file is for messages. */
int policy_object_check(const char *file, const void *data, size_t size,
			struct ebb_policy_info *info, struct error *e);

/* Returns the parameter @name of a checked @info, or NULL. */
const struct ebb_param_info *policy_param(const struct ebb_policy_info *info, const char *name);

/* Sets @params to the initial values of a checked @info. */
void policy_defaults(const struct ebb_policy_info *info, struct ebb_params *params);

#endif
