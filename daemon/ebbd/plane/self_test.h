/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Verifies at start that the BPF programs read what they mean: CO-RE finds a field by its name,
 * even if it holds something else in a newer kernel.
 */
#ifndef EBB_SELF_TEST_H
#define EBB_SELF_TEST_H

#include <stddef.h>

/*
 * Compares what BPF reads of pages of the calling process with what is known of them.  Returns 0,
 * -EILSEQ with the misread function and its effect in @text, or -errno of a test that was not
 * possible, likewise explained.
 */
int self_test(char *text, size_t size);

#endif
