/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The address of a donor and the reach of a listening socket; functions are in address.h. */
#ifndef EBB_SOCKET_ADDRESS_H
#define EBB_SOCKET_ADDRESS_H

#include <sys/socket.h>

struct address {
	struct sockaddr_storage sa;
	socklen_t len;
	char text[128]; /* as given */
};

/* Which peers a listening socket accepts: those of this machine, or all. */
enum address_reach { ADDRESS_LOOPBACK, ADDRESS_EVERYWHERE };

#endif
