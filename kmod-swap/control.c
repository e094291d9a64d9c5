// SPDX-License-Identifier: GPL-2.0-only
#include <linux/inet.h>
#include <linux/module.h>

#include "commands.h"
#include "netlink.h"

/* One policy per command: rejects attributes that the command does not take. */
#define A(name, kind) [EBB_SWAP_A_##name] = { .type = kind }
#define POLICY(name, ...) \
	static const struct nla_policy name##_policy[EBB_SWAP_ATTRIBUTES] = { __VA_ARGS__ }

POLICY(create, A(DEVICE, NLA_U32), A(SIZE, NLA_U64), A(SLAB_SIZE, NLA_U64), A(QUEUES, NLA_U32),
       A(DEPTH, NLA_U32), A(DEADLINE, NLA_U32), A(POOL, NLA_U64), A(COPIES, NLA_U32),
       A(SEAL, NLA_FLAG),
       [EBB_SWAP_A_BACKUP] = { .type = NLA_NUL_STRING, .len = EBB_SWAP_PATH - 1 },
       [EBB_SWAP_A_KEY] = NLA_POLICY_EXACT_LEN(EBB_SWAP_KEY),
       [EBB_SWAP_A_KEY_NUMBER] = NLA_POLICY_EXACT_LEN(EBB_SWAP_KEY_NUMBER));
POLICY(device, A(DEVICE, NLA_U32));
POLICY(slabs, A(DEVICE, NLA_U32), A(CLASS, NLA_U32));
POLICY(connect, A(DEVICE, NLA_U32), A(PORT, NLA_U16), A(CLASS, NLA_U32),
       [EBB_SWAP_A_ADDRESS] = { .type = NLA_NUL_STRING, .len = INET6_ADDRSTRLEN },
       [EBB_SWAP_A_KEY] = NLA_POLICY_EXACT_LEN(EBB_SWAP_KEY),
       [EBB_SWAP_A_KEY_NUMBER] = NLA_POLICY_EXACT_LEN(EBB_SWAP_KEY_NUMBER));
POLICY(disconnect, A(DEVICE, NLA_U32), A(SESSION, NLA_U32), A(FORCE, NLA_FLAG));
POLICY(map, A(DEVICE, NLA_U32), A(SLAB, NLA_U32), A(SESSION, NLA_U32), A(COPIES, NLA_U32));
POLICY(migrate, A(DEVICE, NLA_U32), A(SLAB, NLA_U32), A(SESSION, NLA_U32), A(FROM, NLA_U32),
       A(CLASS, NLA_U32));
POLICY(drain, A(DEVICE, NLA_U32), A(SESSION, NLA_U32), A(TARGET, NLA_U32));
POLICY(trust, A(DEVICE, NLA_U32), A(SESSION, NLA_U32));
POLICY(unmap, A(DEVICE, NLA_U32), A(SLAB, NLA_U32), A(SESSION, NLA_U32), A(FORCE, NLA_FLAG),
       A(CLASS, NLA_U32));
POLICY(class, A(DEVICE, NLA_U32), A(CLASS, NLA_U32), A(COPIES, NLA_U32), A(SEAL, NLA_FLAG));
POLICY(assign, A(DEVICE, NLA_U32), A(CGROUP, NLA_U64), A(CLASS, NLA_U32));

#define OP(name, call, value, rules) { \
	.cmd = EBB_SWAP_CMD_##name, .call = value, \
	.maxattr = EBB_SWAP_A_MAX, .policy = rules##_policy }

static const struct genl_ops ops[] = {
	OP(CREATE, doit, ebb_do_create, create),
	OP(DESTROY, doit, ebb_do_destroy, device),
	OP(CONNECT, doit, ebb_do_connect, connect),
	OP(DISCONNECT, doit, ebb_do_disconnect, disconnect),
	OP(MAP, doit, ebb_do_map, map),
	OP(UNMAP, doit, ebb_do_unmap, unmap),
	OP(MIGRATE, doit, ebb_do_migrate, migrate),
	OP(DRAIN, doit, ebb_do_drain, drain),
	OP(STATUS, dumpit, ebb_status_dump, device),
	OP(SLABS, dumpit, ebb_status_dump_slabs, slabs),
	OP(CLASS, doit, ebb_do_class, class),
	OP(ASSIGN, doit, ebb_do_assign, assign),
	OP(TRUST, doit, ebb_do_trust, trust),
};

static const struct genl_multicast_group groups[] = {
	{ .name = EBB_SWAP_GROUP, .flags = GENL_MCAST_CAP_SYS_ADMIN },
};

static struct genl_family family = {
	.name = EBB_SWAP_FAMILY,
	.version = EBB_SWAP_VERSION,
	.maxattr = EBB_SWAP_A_MAX,
	.module = THIS_MODULE,
	.ops = ops,
	.n_ops = ARRAY_SIZE(ops),
	.mcgrps = groups,
	.n_mcgrps = ARRAY_SIZE(groups),
	/*
	 * A connect that takes seconds must not block other families: commands hold only
	 * genetlink's cb_lock, for reading.  Registering a family takes cb_lock for writing, so no
	 * command may wait for loading a module that registers one.  Opening the backup in CREATE
	 * could; therefore ebb/swap.h requires that the caller has it open.
	 */
	.parallel_ops = true,
};

int ebb_control_init(void)
{
	return ebb_netlink_register(&family);
}
