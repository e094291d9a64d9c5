// SPDX-License-Identifier: GPL-2.0-only
/* ebb_swap.ko: swap in the memory of other machines, by one-sided RDMA. */
#include <linux/module.h>

#include "commands.h"
#include "create.h"
#include "netlink.h"

static int __init ebb_swap_init(void)
{
	int r = ebb_session_init();

	if (r)
		return r;
	r = ebb_device_register();
	if (r)
		goto exit_sessions;
	r = ebb_control_init();
	if (r)
		goto unregister_device;
	return 0;
unregister_device:
	ebb_device_unregister();
exit_sessions:
	ebb_session_exit();
	return r;
}

/* No device is left: each one pins the module. */
static void __exit ebb_swap_exit(void)
{
	ebb_netlink_unregister();
	ebb_device_unregister();
	ebb_session_exit();
}

module_init(ebb_swap_init);
module_exit(ebb_swap_exit);
MODULE_DESCRIPTION("ebb: swap in the memory of other machines");
MODULE_LICENSE("GPL");
