/* SPDX-License-Identifier: GPL-2.0-only */
/* <endian.h> for daemon/lib/wire, which uses plain integer types. */
#ifndef EBB_SWAP_ENDIAN_H
#define EBB_SWAP_ENDIAN_H

#include <asm/byteorder.h>

#define htole16(v) ((__force u16)cpu_to_le16(v))
#define htole32(v) ((__force u32)cpu_to_le32(v))
#define htole64(v) ((__force u64)cpu_to_le64(v))
#define le16toh(v) le16_to_cpu((__force __le16)(v))
#define le32toh(v) le32_to_cpu((__force __le32)(v))
#define le64toh(v) le64_to_cpu((__force __le64)(v))

#endif
