/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ebb.conf: INI with drop-ins, EBB_CONF and then EBB_CONF_DIR/\*.conf in name
 * order; later values win.  A missing file is no error; an unknown key or a bad
 * value is an error with file and line.
 */
#ifndef EBB_CONFIG_H
#define EBB_CONFIG_H

#include "ebbd/attach/declaration.h"
#include "ebbd/prefetch/executor.h"
#include "lib/base/error.h"
#include "lib/discovery/discovery.h"

#define CONFIG_DECLARATIONS 256

struct config {
	uint32_t epoch_percent;           /* [epochs] percent */
	uint32_t hooks;                   /* [bpf] hooks: enum hooks_wish */
	struct executor_config executor;  /* [prefetch] */
	struct donors_config donors;      /* [donors] list, etcd, ... */
	/*
	 * [cgroup "/path/glob"] policy, run and parameters; the last section that matches a cgroup
	 * applies as a whole.
	 */
	struct declarations declared;
};

void config_defaults(struct config *c);

/* Reads @file, or the standard files if it is NULL. */
int config_load(struct config *c, const char *file, struct error *e);

/* Frees the declarations and the donors. */
void config_free(struct config *c);

/*
 * Checks the [cgroup] sections without loading anything, for --check-config: the files
 * that ebbd would load must have each policy and its parameters.
 */
int config_check_policies(const struct config *c, const char *policy_dir, struct error *e);

#endif
