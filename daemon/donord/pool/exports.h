/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two stateless exports: READ and WRITE over a stream, which the donor serves, and a shared
 * mapping, whose memfd goes with the reply.
 */
#ifndef EBB_EXPORTS_H
#define EBB_EXPORTS_H

#include "pool.h"

extern const struct export_ops export_stream, export_shared;

#endif
