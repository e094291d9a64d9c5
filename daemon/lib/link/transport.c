// SPDX-License-Identifier: GPL-2.0-or-later
#include "rdma_connect.h"
#include "transport.h"

const struct transport *transport_for(const struct address *a)
{
	return address_is_local(a) ? &transport_shm :
	       address_is_rdma(a) ? &transport_rdma : &transport_tcp;
}

int transport_prepare(struct transport_env *env, const struct address *a, struct error *e)
{
	const struct transport *t = transport_for(a);

	return t->prepare ? t->prepare(env, e) : 0;
}

void transports_stop(struct transport_env *env)
{
	rdma_links_stop(&env->rdma);
}
