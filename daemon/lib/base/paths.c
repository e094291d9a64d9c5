// SPDX-License-Identifier: GPL-2.0-or-later
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "paths.h"

#ifndef EBB_LIBDIR
#define EBB_LIBDIR "/usr/lib/ebb"
#endif

const char *ebb_run_dir(void)
{
	const char *dir = getenv("EBB_RUN_DIR");

	return dir && *dir ? dir : "/run/ebb";
}

const char *ebb_control_socket(void)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/control.sock", ebb_run_dir());
	return path;
}

const char *ebb_donor_socket(void)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/donord.sock", ebb_run_dir());
	return path;
}

const char *ebb_device_dir(void)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/devices", ebb_run_dir());
	return path;
}

const char *ebb_device_record(const char *name)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/devices/%s.json", ebb_run_dir(), name);
	return path;
}

const char *ebb_device_socket(const char *name)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/devices/%s.sock", ebb_run_dir(), name);
	return path;
}

const char *ebb_state_dir(void)
{
	const char *dir = getenv("EBB_STATE_DIR");

	return dir && *dir ? dir : "/var/lib/ebb";
}

const char *ebb_loaded_policy_dir(void)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/policies", ebb_state_dir());
	return path;
}

/* Directory of the running program, without a trailing slash; "" on failure. */
static void program_dir(char *dir, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", dir, size - 1);
	char *slash;

	dir[n > 0 ? n : 0] = '\0';
	slash = strrchr(dir, '/');
	if (slash)
		*slash = '\0';
}

/*
 * Installed programs find their own policies: `make install` may have another PREFIX than the build
 * had.  The second place is the build tree.
 */
const char *ebb_policy_dir(void)
{
	static const char *const places[] = { "lib/ebb/policies", "policies" };
	static _Thread_local char path[PATH_MAX];
	const char *dir = getenv("EBB_POLICY_DIR");
	char prefix[PATH_MAX / 2], *slash;

	if (dir && *dir)
		return dir;
	program_dir(prefix, sizeof(prefix));
	slash = strrchr(prefix, '/');
	for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
		*slash = '\0';
		snprintf(path, sizeof(path), "%s/%s", prefix, places[i]);
		if (access(path, R_OK) == 0)
			return path;
	}
	return EBB_LIBDIR "/policies";
}

const char *ebb_program(const char *name)
{
	static _Thread_local char path[PATH_MAX];
	char here[PATH_MAX / 2];

	program_dir(here, sizeof(here));
	snprintf(path, sizeof(path), "%s/%s", here, name);
	if (access(path, X_OK) == 0)
		return path;
	/* ebbctl is in sbin, ebb-sim in bin. */
	snprintf(path, sizeof(path), "%s/../bin/%s", here, name);
	return access(path, X_OK) == 0 ? path : name;
}
