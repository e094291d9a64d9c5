/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two exports without state: READ and WRITE over a stream, which the donor serves, and a shared
 * mapping: the reply passes the memfd.
 */
#ifndef EBB_EXPORTS_H
#define EBB_EXPORTS_H

#include "pool.h"

extern const struct export_ops export_stream, export_shared;

#endif
