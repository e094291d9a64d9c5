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

/* Runs a command about a device. */
static int defer(struct sk_buff *skb, struct genl_info *info)
{
	static int (*const run[EBB_SWAP_CMDS])(struct sk_buff *, struct genl_info *) = {
		[EBB_SWAP_CMD_DESTROY] = ebb_do_destroy,
		[EBB_SWAP_CMD_CONNECT] = ebb_do_connect,
		[EBB_SWAP_CMD_DISCONNECT] = ebb_do_disconnect,
		[EBB_SWAP_CMD_MAP] = ebb_do_map,
		[EBB_SWAP_CMD_UNMAP] = ebb_do_unmap,
		[EBB_SWAP_CMD_MIGRATE] = ebb_do_migrate,
		[EBB_SWAP_CMD_DRAIN] = ebb_do_drain,
		[EBB_SWAP_CMD_CLASS] = ebb_do_class,
		[EBB_SWAP_CMD_ASSIGN] = ebb_do_assign,
		[EBB_SWAP_CMD_TRUST] = ebb_do_trust,
	};

	return ebb_netlink_defer(skb, info, run[info->genlhdr->cmd]);
}

#define OP(name, call, value, rules, ...) { \
	.cmd = EBB_SWAP_CMD_##name, .call = value, \
	.maxattr = EBB_SWAP_A_MAX, .policy = rules##_policy, ##__VA_ARGS__ }

static const struct genl_ops ops[] = {
	OP(CREATE, doit, ebb_do_create, create),
	OP(DESTROY, doit, defer, device),
	OP(CONNECT, doit, defer, connect),
	OP(DISCONNECT, doit, defer, disconnect),
	OP(MAP, doit, defer, map),
	OP(UNMAP, doit, defer, unmap),
	OP(MIGRATE, doit, defer, migrate),
	OP(DRAIN, doit, defer, drain),
	OP(STATUS, dumpit, ebb_status_dump, device, .start = ebb_status_start),
	OP(SLABS, dumpit, ebb_status_dump_slabs, slabs),
	OP(CLASS, doit, defer, class),
	OP(ASSIGN, doit, defer, assign),
	OP(TRUST, doit, defer, trust),
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
	 * Commands hold only genetlink's cb_lock, for reading: CREATE until it is done, those about
	 * a device until they are queued.  Registering a family takes cb_lock for writing, so
	 * CREATE must not wait for loading a module that registers one.  Opening the backup could;
	 * therefore ebb/swap.h requires that the caller has it open.
	 */
	.parallel_ops = true,
};

int ebb_control_init(void)
{
	return ebb_netlink_register(&family);
}
