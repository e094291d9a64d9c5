/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Policies: those that come with ebb, and those that `ebbctl policy load` adds.
 *
 * A loaded policy is kept in ebb_loaded_policy_dir(), whole or not at all, and
 * is there again after a restart and a reboot, until it is unloaded.  A policy
 * has a slot, its index in maps/policies, for as long as it is loaded; free
 * slots are used again.
 */
#ifndef EBB_POLICIES_H
#define EBB_POLICIES_H

#include "plane.h"

/*
 * A policy that costs more is refused by `load`: a fault that waits for the
 * device takes some 50 us, and most hits come without any wait.  The verifier
 * knows no longer path than what it processed; functions that it checks by themselves
 * count once, however often they are called.
 */
#define POLICY_MAX_NS 10000
#define POLICY_MAX_VERIFIED 750000

/*
 * Finds every NAME.bpf.o of @dir, whose programs are loaded when they are first
 * needed, and loads what was loaded before; one that fails is logged.
 */
int policies_open(struct plane *p, const char *dir, struct error *e);
void policies_close(struct plane *p);

struct policy_change {
	const struct policy *policy;
	enum { POLICY_NEW, POLICY_REPLACED } what;
	char dropped[128];      /* parameters in force that the new one has no use for */
};

/* The users of policies, as policies_load() and policies_unload() need to know. */
struct policy_users {
	void *data;
	/* Between the two no policy is attached or detached. */
	void (*lock)(void *data);
	void (*unlock)(void *data);
	/* How many cgroups have @policy; their names go to @text, ", " between them. */
	uint32_t (*name)(void *data, const struct policy *policy, char *text, size_t size);
	/* @policy is about to be as @to says: parameters that do not fit are named in @dropped. */
	void (*translate)(void *data, const struct policy *policy,
			  const struct ebb_policy_info *to, char *dropped, size_t size);
};

/*
 * Loads @file, NAME.bpf.o, or swaps it for the loaded policy of that name, wherever that is
 * attached.  On failure nothing has changed.
 */
int policies_load(struct plane *p, const struct policy_users *users, const char *file,
		  struct policy_change *change, struct error *e);

/* EXIT_REFUSED while it is attached, and for policies of ebb. */
int policies_unload(struct plane *p, const struct policy_users *users, const char *name,
		    struct error *e);

/*
 * Loads the program of a policy that comes with ebb, if that has not been needed
 * before: the verifier takes up to a fifth of a second for each.
 */
int policies_need(struct plane *p, const struct policy *policy, struct error *e);

/* Measures what a call costs, once; the result is in its cost. */
int policies_measure(struct plane *p, const struct policy *policy);

#endif
