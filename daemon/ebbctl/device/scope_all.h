/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_SCOPE_ALL_H
#define EBB_SCOPE_ALL_H

/* scope_apply() for every device of that scope; prints what fails. */
void scope_apply_all(const char *extra);

#endif
