/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The list of donors of this machine's devices, kept current by a separate thread: from the
 * configuration, or from etcd, where donors register.  Devices that follow the list, by their
 * record, get it through their control sockets when it changes, and periodically, because a server
 * may have restarted.  A donor that the configuration omits is drained; one that etcd lacks gets
 * nothing new, for its slabs may be its only ones and etcd may be wrong.
 *
 * Page I/O never waits for this thread; without etcd the list stays unchanged.
 */
#ifndef EBB_DISCOVERY_H
#define EBB_DISCOVERY_H

#include "donor_list.h"
#include "etcd.h"

#define DISCOVERY_PERIOD_MS 2000
/* Interrupted calls take 1 s, and so does resolving names; a device may be told meanwhile. */
#define DISCOVERY_STOP_MS 5000
/* Time that etcd, while it answers, must lack a donor before it is no longer listed. */
#define DISCOVERY_GRACE_MS 60000

/* Exactly one source, or none: etcd.endpoints or list.n. */
struct donors_config {
	struct etcd_config etcd;
	struct donor_list list;
	uint32_t grace_ms;
};

void donors_config_defaults(struct donors_config *c);
void donors_config_free(struct donors_config *c);
/* Fails with EXIT_USAGE for both sources at once and for errors of etcd_config_check(). */
int donors_config_check(const struct donors_config *c, struct error *e);

struct discovery;

/* Takes the contents of @c.  *@out is untouched on failure. */
int discovery_start(struct discovery **out, struct donors_config *c, struct error *e);

/*
 * Switches to configuration @c, whose contents it takes, without waiting.  The list is then what
 * etcd has, however many donors are missing there; if etcd has none, the list is frozen.
 */
int discovery_configure(struct discovery *d, struct donors_config *c, struct error *e);

/* Sends the list to a new device soon. */
void discovery_refresh(struct discovery *d);

/*
 * Returns the known donors, owned by the caller: "source" ("etcd", "list" or "none"),
 * "error" (of etcd, or null), "frozen" (donor_list_frozen()), "donors" with "address",
 * "slab", "total" (bytes, 0 = unknown) and "missing" (no longer in etcd).
 */
struct json_object *discovery_json(struct discovery *d);

/* Returns "known" and "missing", the numbers of donors, and "frozen". */
struct json_object *discovery_summary(struct discovery *d);

/*
 * Ends the thread within DISCOVERY_STOP_MS.  For a process that ends: a thread that cannot be
 * interrupted, because it resolves a name, stays, with what it uses.
 */
void discovery_stop(struct discovery **p);

#endif
