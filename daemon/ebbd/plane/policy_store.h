/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Policies: those that come with ebb, and those that `ebbctl policy load` adds.
 *
 * A loaded policy is stored atomically in ebb_loaded_policy_dir() and is loaded again
 * after a restart and a reboot, until it is unloaded.  A policy has a slot, its index
 * in maps/policies, as long as it is loaded; free slots are reused.
 */
#ifndef EBB_POLICIES_H
#define EBB_POLICIES_H

#include "plane.h"

/*
 * Limits of `load`: a fault that waits for the device takes some 50 us, and most hits
 * wait for nothing.  No path is longer than the instructions that the verifier
 * processed; a function that it checks separately counts once, however often it is
 * called.
 */
#define POLICY_MAX_NS 10000
#define POLICY_MAX_VERIFIED 750000

/*
 * Finds every NAME.bpf.o of @dir, which are loaded at first use, and loads the stored
 * policies; logs those that fail.
 */
int policies_open(struct plane *p, const char *dir, struct error *e);
void policies_close(struct plane *p);

/* Returns whether policy @name is stored but unusable: of another ABI, or native as in 0.1.0. */
bool policies_unusable(const struct plane *p, const char *name);

struct policy_change {
	const struct policy *policy;
	enum { POLICY_NEW, POLICY_REPLACED } what;
	char dropped[128];      /* current parameters that the new version does not accept */
};

/* The attachments of policies, for policies_load() and policies_unload(). */
struct policy_users {
	void *data;
	/* Between these two calls no policy is attached or detached. */
	void (*lock)(void *data);
	void (*unlock)(void *data);
	/*
	 * Returns the number of cgroups with @policy; stores their names in @text, comma-separated.
	 */
	uint32_t (*name)(void *data, const struct policy *policy, char *text, size_t size);
	/* @policy is about to become @to: names parameters that do not fit in @dropped. */
	void (*translate)(void *data, const struct policy *policy,
			  const struct ebb_policy_info *to, char *dropped, size_t size);
};

/*
 * Loads @file, NAME.bpf.o, or replaces the loaded policy of that name wherever it is attached.  A
 * failure changes nothing.
 */
int policies_load(struct plane *p, const struct policy_users *users, const char *file,
		  struct policy_change *change, struct error *e);

/* EXIT_REFUSED while it is attached, and for policies of ebb. */
int policies_unload(struct plane *p, const struct policy_users *users, const char *name,
		    struct error *e);

/*
 * Loads the program of a policy of ebb at its first use: the verifier takes up to a fifth of a
 * second for each.
 */
int policies_need(struct plane *p, const struct policy *policy, struct error *e);

/* Measures the cost of a call, once; stores it in the policy. */
int policies_measure(struct plane *p, const struct policy *policy);

#endif
