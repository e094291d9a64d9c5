// SPDX-License-Identifier: GPL-2.0-or-later
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ebbd/plane/policy_object.h"
#include "lib/base/cleanup.h"
#include "native.h"

int native_trust(int fd, const char *file, struct error *e)
{
	struct stat st;

	if (fstat(fd, &st))
		return fail(e, errno, "%s: %m", file);
	if (!S_ISREG(st.st_mode))
		return fail_exit(e, EXIT_USAGE, EINVAL, "%s: not a file; give a policy compiled natively",
				 file);
	if (st.st_uid != 0 || st.st_mode & S_IWOTH || (st.st_mode & S_IWGRP && st.st_gid != 0))
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "%s: others than root may write it, and it would run as root; "
				 "chown root:root and chmod go-w it", file);
	return 0;
}

int native_open(const char *file, const char *name, uint32_t serial, struct native **out,
		struct error *e)
{
	_cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char path[64], symbol[64];
	struct native *n;
	int r;

	if (fd < 0)
		return fail_exit(e, EXIT_USAGE, errno, "%s: %m; compile the policy natively, see docs/policy.md",
				 file);
	r = native_trust(fd, file, e);
	if (r)
		return r;
	n = calloc(1, sizeof(*n));
	if (!n)
		return fail(e, ENOMEM, "%s: no memory", file);
	/* By descriptor: what was looked at is what is loaded. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	snprintf(symbol, sizeof(symbol), "%s_policy", name);
	n->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!n->handle) {
		r = fail_exit(e, EXIT_USAGE, ENOEXEC, "%s: cannot be loaded: %.200s; compile it again",
			      file, dlerror());
		goto out;
	}
	n->policy = dlsym(n->handle, symbol);
	if (!n->policy) {
		r = fail_exit(e, EXIT_USAGE, ENOEXEC,
			      "%s: does not export %s; compile a policy '%s' to that file name", file,
			      symbol, name);
		goto out;
	}
	n->serial = serial;
	r = policy_info_check(file, n->policy->info, e);
	if (r)
		goto out;
	*out = n;
	return 0;
out:
	native_close(&n);
	return r;
}

void native_close(struct native **pn)
{
	struct native *n = *pn;

	*pn = NULL;
	if (!n)
		return;
	if (n->handle)
		dlclose(n->handle);
	free(n);
}
