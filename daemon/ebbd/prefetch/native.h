/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Policies compiled natively, NAME.so, for run=daemon.
 *
 * The code becomes part of ebbd: what crashes there takes ebbd with it, and
 * what is written there runs as root.  So only files are loaded that nobody
 * but root can have written.
 */
#ifndef EBB_NATIVE_H
#define EBB_NATIVE_H

#include <stdint.h>

#include <ebb/policy.h>
#include "lib/base/error.h"

struct native {
	void *handle;
	const struct ebb_policy *policy;
	uint32_t serial;   /* no two are alike: tells state of one from that of another */
};

/*
 * Opens @file, which exports NAME_policy.  EXIT_REFUSED when somebody else may
 * have written it, EXIT_USAGE when it is no policy, or one of another ABI.
 */
int native_open(const char *file, const char *name, uint32_t serial, struct native **n,
		struct error *e);
void native_close(struct native **n);

/* Why @fd, called @file, is not to be trusted: 0, or -EPERM with EXIT_REFUSED. */
int native_trust(int fd, const char *file, struct error *e);

#endif
