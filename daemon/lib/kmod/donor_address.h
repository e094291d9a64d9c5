/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Addresses of donors of the kernel module: "rdma:HOST[:PORT]", with the port of
 * ebb-donord --rdma-kernel.
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
 * Parses @text and resolves its host, once: a reconnect must reach the same donor even if the name
 * changes.  -EINVAL, -ENOENT.
 */
int kmod_donor_parse(const char *text, const char *what, struct kmod_donor *d, struct error *e);

/*
 * Reads the donors of a device's record ("ADDRESS,...") and returns how many, at most
 * DEVICE_DONORS.  Skips addresses of other transports.
 */
int kmod_donors_of(const char *list, struct kmod_donor *donors);

/*
 * As address_check(), but accepts "rdma:" addresses, too, without resolving them.  @to gets the
 * canonical text.
 */
int kmod_donor_check(const char *text, const char *what, char *to, size_t size, struct error *e);

/* Sets @d to the donor of @s, which may have ended. */
void kmod_donor_of(const struct kmod_session *s, struct kmod_donor *d);

/* Returns whether @s, which may have ended, is a session with @d. */
bool kmod_donor_is(const struct kmod_donor *d, const struct kmod_session *s);

/* Returns the index of the donor of @s among @n @donors; -1: none of them. */
int kmod_donor_find(const struct kmod_donor *donors, int n, const struct kmod_session *s);

#endif
