// SPDX-License-Identifier: GPL-2.0-only
/* Makes the next calls of one kernel function return an error, after the function has run. */
#include <linux/kprobes.h>
#include <linux/module.h>

static char *function;
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "name of the function, [MODULE:]NAME");
static int error = -ENOMEM;
module_param(error, int, 0444);
MODULE_PARM_DESC(error, "what it returns [-12]");
static atomic_t left = ATOMIC_INIT(0), before = ATOMIC_INIT(0);
static int times = 1, after;
module_param(times, int, 0444);
MODULE_PARM_DESC(times, "how many calls [1]");
module_param(after, int, 0444);
MODULE_PARM_DESC(after, "calls before those, which return what they do [0]");

static int left_get(char *buffer, const struct kernel_param *p)
{
	return sysfs_emit(buffer, "%d\n", max(atomic_read(&left), 0));
}

static const struct kernel_param_ops left_ops = { .get = left_get };
module_param_cb(left, &left_ops, NULL, 0444);
MODULE_PARM_DESC(left, "calls that are yet to fail");

static int returned(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	if (atomic_dec_if_positive(&before) < 0 && atomic_dec_if_positive(&left) >= 0)
		regs_set_return_value(regs, error);
	return 0;
}

static struct kretprobe probe = { .handler = returned, .maxactive = 64 };

static int __init fault_init(void)
{
	if (!function)
		return -EINVAL;
	probe.kp.symbol_name = function;
	atomic_set(&left, times);
	atomic_set(&before, after);
	return register_kretprobe(&probe);
}

static void __exit fault_exit(void)
{
	unregister_kretprobe(&probe);
}

module_init(fault_init);
module_exit(fault_exit);
MODULE_DESCRIPTION("ebb: errors of kernel functions, for tests");
MODULE_LICENSE("GPL");
