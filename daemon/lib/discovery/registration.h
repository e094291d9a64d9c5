/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A donor's entry in etcd: a key under a lease that a separate thread renews.  Lending
 * does not depend on it: while etcd is unreachable, the thread retries and logs that
 * once.
 */
#ifndef EBB_REGISTRATION_H
#define EBB_REGISTRATION_H

#include "donor_list.h"
#include "etcd.h"
#include "thread.h"

/* Lease time, after which etcd removes a dead donor. */
#define REGISTRATION_TTL_S 10
#define REGISTRATION_PERIOD_S 3 /* interval of lease renewal and of retries */
/* Time for calls in flight and the revocation when a donor stops; etcd usually needs 10 ms. */
#define REGISTRATION_STOP_MS (2 * ETCD_CALL_MS)

struct registration;

enum registration_state {
	REGISTRATION_TRYING,    /* not registered yet, or no longer */
	REGISTRATION_THERE,
	REGISTRATION_WITHDRAWN, /* on request */
};

/*
 * Prepares the registration of @d, whose address is its key below @config's prefix;
 * registration_return() starts it.  The thread has no real-time priority and handles
 * no signals.  Returns -EINVAL, with *@out unchanged, for errors that are known
 * without a request.
 */
int registration_start(struct registration **out, const struct etcd_config *config,
		       const struct donor_entry *d, struct error *e);

/* Neither waits: the thread revokes the lease, or registers again. */
void registration_withdraw(struct registration *r);
void registration_return(struct registration *r);

/* Returns the state; stores the cause of a failure in @cause, else "". */
enum registration_state registration_state(struct registration *r, char *cause, size_t size);
const char *registration_state_text(enum registration_state s);

/*
 * Revokes the lease and ends the thread, within REGISTRATION_STOP_MS and THREAD_END_MS.  For a
 * process that ends: a thread that cannot be interrupted, because it resolves a name, stays, with
 * what it uses.
 */
void registration_stop(struct registration **p);

#endif
