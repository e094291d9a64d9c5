/* SPDX-License-Identifier: GPL-2.0-only */
/* The generic netlink family "ebb_swap"; ebb/swap.h documents it. */
#ifndef EBB_CONTROL_H
#define EBB_CONTROL_H

/* With the module. */
int ebb_control_init(void);
void ebb_control_exit(void);

#endif
