/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A donor's entry in etcd: a key that lives as long as the donor keeps its lease
 * alive, in a thread of its own.  Lending does not depend on it: while etcd cannot
 * be reached the thread tries again, and says so once.
 */
#ifndef EBB_REGISTRATION_H
#define EBB_REGISTRATION_H

#include "donor_list.h"
#include "etcd.h"

/* Lease: etcd removes a donor that died after this time. */
#define REGISTRATION_TTL_S 10
#define REGISTRATION_PERIOD_S 3 /* interval of lease renewal and of retries */

struct registration;

enum registration_state {
	REGISTRATION_TRYING,    /* not there yet, or no longer */
	REGISTRATION_THERE,
	REGISTRATION_WITHDRAWN, /* on request */
};

/*
 * Gets ready to register @d, whose address is its key below @config's prefix, as
 * soon as registration_return() says so: withdrawn at first.  The thread has no
 * real-time priority and takes no signals.  -EINVAL for what can be known to be
 * wrong before asking etcd; *@out is untouched then.
 */
int registration_start(struct registration **out, const struct etcd_config *config,
		       const struct donor_entry *d, struct error *e);

/* Neither waits: the thread revokes the lease, or registers again. */
void registration_withdraw(struct registration *r);
void registration_return(struct registration *r);

/* How it is; @cause gets what stands in the way, "" when nothing does. */
enum registration_state registration_state(struct registration *r, char *cause, size_t size);
const char *registration_state_text(enum registration_state s);

/*
 * Revokes the lease and ends the thread, within twice ETCD_CALL_MS for each endpoint.
 */
void registration_stop(struct registration **p);

#endif
