/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The transport for a donor, chosen by the form of its address (lib/wire/address.h). */
#ifndef EBB_TRANSPORT_H
#define EBB_TRANSPORT_H

#include "link.h"

const struct transport *transport_for(const struct address *a);
/* Prepares the transport of donors at @a (link.h); 0 or -errno. */
int transport_prepare(struct transport_env *env, const struct address *a, struct error *e);
/* Ends the transports' threads, and with them RDMA connections, at the end of the process. */
void transports_stop(struct transport_env *env);

#endif
