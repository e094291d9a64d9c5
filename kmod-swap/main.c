// SPDX-License-Identifier: GPL-2.0-only
/* ebb_swap.ko: swap in the memory of other machines, by one-sided RDMA. */
#include <linux/module.h>

#include "internal.h"

struct workqueue_struct *ebb_closing;

static int __init ebb_swap_init(void)
{
	int r;

	ebb_closing = alloc_workqueue("ebb_closing", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (!ebb_closing)
		return -ENOMEM;
	r = device_major_register();
	if (r)
		goto free_queue;
	r = control_init();
	if (r)
		goto free_major;
	return 0;
free_major:
	device_major_unregister();
free_queue:
	destroy_workqueue(ebb_closing);
	return r;
}

/* Every device holds the module, so there is none left, and none is made any more. */
static void __exit ebb_swap_exit(void)
{
	control_exit();
	device_major_unregister();
	destroy_workqueue(ebb_closing);
}

module_init(ebb_swap_init);
module_exit(ebb_swap_exit);
MODULE_DESCRIPTION("ebb: swap in the memory of other machines");
MODULE_LICENSE("GPL");
