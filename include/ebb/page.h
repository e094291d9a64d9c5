/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The size of a page: of the kernel, on the wire and in every file.  amd64 only. */
#ifndef EBB_PAGE_H
#define EBB_PAGE_H

#define EBB_PAGE_SHIFT 12
#define EBB_PAGE (1u << EBB_PAGE_SHIFT) /* bytes */

#endif
