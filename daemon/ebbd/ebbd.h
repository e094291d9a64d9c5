/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The state of the daemon; subsystems reach each other through it. */
#ifndef EBB_EBBD_H
#define EBB_EBBD_H

#include "config.h"
#include "ebbd/attach/attachment.h"
#include "ebbd/attach/declared.h"
#include "ebbd/prefetch/executor.h"
#include "lib/control/control_server.h"
#include "recording.h"

struct ebbd {
	struct config config;
	struct plane plane;
	struct budget_table *budgets;
	struct attachments attachments;
	struct executor *executor;
	struct offload *offload;
	struct colocation *colocation;
	struct benefit *benefit;
	struct recordings *recordings;
	struct declared *declared;
	struct discovery *discovery;
	struct kmod_manager *kmod;
	struct scopes *scopes;
	uint64_t started_ns;
	int control;            /* listening socket */
	struct control_server *server;
	struct control_rules rules;
	const char *config_file;
};

#endif
