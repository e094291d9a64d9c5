/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Verifies at start that the fields which the BPF programs read have the expected meaning: CO-RE
 * finds a field by its name, even if a newer kernel stores something else in it.
 */
#ifndef EBB_SELF_TEST_H
#define EBB_SELF_TEST_H

#include <stddef.h>

/*
 * Compares the fields that BPF reads from pages of the calling process with the values that it
 * knows.  Returns 0, -EILSEQ with the misread function and its effect in @text, or -errno of a
 * test that was not possible, likewise explained.
 */
int self_test(char *text, size_t size);

#endif
