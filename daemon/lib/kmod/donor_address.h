/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Donors of a device of the kernel module: "rdma:HOST[:PORT]", the port being the one
 * at which ebb-donord accepts kernel modules (--rdma-kernel).
 */
#ifndef EBB_KMOD_DONOR_ADDRESS_H
#define EBB_KMOD_DONOR_ADDRESS_H

#include <stdbool.h>

#include "decode.h"
#include "lib/base/error.h"
#include "lib/control/device.h"

#define KMOD_DONOR_TEXT 64

struct kmod_donor {
	char text[KMOD_DONOR_TEXT]; /* "rdma:10.0.0.7:7070", "rdma:[fe80::1]:7070" */
	char ip[KMOD_IP];
	uint16_t port;
};

/*
 * @text with its host resolved, now and for good: who a donor is must not depend on what
 * a name means when it is connected to anew.  -EINVAL, -ENOENT.
 */
int kmod_donor_parse(const char *text, const char *what, struct kmod_donor *d, struct error *e);

/*
 * Those of a device's record ("ADDRESS,..."), at most DEVICE_DONORS; how many.  What is none
 * of ours is left out.
 */
int kmod_donors_of(const char *list, struct kmod_donor *donors);

/*
 * As address_check(), of any kind of address: @to has one text for one place.  Of
 * this kind no name is resolved.
 */
int kmod_donor_check(const char *text, const char *what, char *to, size_t size, struct error *e);

/* Whom @s is, or was, with. */
void kmod_donor_of(const struct kmod_session *s, struct kmod_donor *d);

/* Whether @s is, or was, a session with @d. */
bool kmod_donor_is(const struct kmod_donor *d, const struct kmod_session *s);

#endif
