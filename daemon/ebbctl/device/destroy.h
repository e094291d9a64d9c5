/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_DESTROY_H
#define EBB_DEVICE_DESTROY_H

#include "lib/base/error.h"
#include "swapoff.h"

enum destroy_mode {
	DESTROY_POLITE, /* refused while the swapped-out pages do not fit elsewhere */
	DESTROY_FORCED,
	DESTROY_PATIENT, /* as DESTROY_POLITE, but not interrupted by ^C */
};

/* Switches the swap off and removes the device; swapoff may take @timeout_ms. */
int device_destroy(const char *name, enum destroy_mode mode, int timeout_ms,
		   enum swapoff_show show, struct error *e);

#endif
