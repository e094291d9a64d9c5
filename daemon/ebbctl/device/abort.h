/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_ABORT_H
#define EBB_DEVICE_ABORT_H

#include "lib/base/error.h"

enum abort_consent {
	ABORT_ASKED,     /* refused; the error names the consequences */
	ABORT_CONFIRMED,
};

/*
 * Fails all I/O of the hung device @name.  *@connection is the number of its FUSE
 * connection, 0 for ublk.
 */
int device_abort(const char *name, enum abort_consent consent, unsigned int *connection,
		 struct error *e);

#endif
