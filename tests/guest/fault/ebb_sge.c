// SPDX-License-Identifier: GPL-2.0-only
/* Makes a network device offer fewer segments for a work request, as some do, while loaded. */
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static char *device = "rxe0";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "name of the RDMA device [rxe0]");
static int send = 16, read = 16;
module_param(send, int, 0444);
MODULE_PARM_DESC(send, "segments of a SEND or WRITE [16]");
module_param(read, int, 0444);
MODULE_PARM_DESC(read, "segments of a READ [16]");

static struct ib_device *ib;
static int send_before, read_before;

static int __init sge_init(void)
{
	ib = ib_device_get_by_name(device, RDMA_DRIVER_UNKNOWN);
	if (!ib)
		return -ENODEV;
	send_before = ib->attrs.max_send_sge;
	read_before = ib->attrs.max_sge_rd;
	ib->attrs.max_send_sge = send;
	ib->attrs.max_sge_rd = read;
	return 0;
}

static void __exit sge_exit(void)
{
	ib->attrs.max_send_sge = send_before;
	ib->attrs.max_sge_rd = read_before;
	ib_device_put(ib);
}

module_init(sge_init);
module_exit(sge_exit);
MODULE_DESCRIPTION("ebb: network devices that gather little, for tests");
MODULE_LICENSE("GPL");
