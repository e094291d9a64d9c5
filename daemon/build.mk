# SPDX-License-Identifier: GPL-2.0-or-later
# The programs: ebbd, ebb-swapd, ebb-donord, ebbctl.

COMMON := $(wildcard daemon/common/*.c)

include $(wildcard daemon/*/part.mk)
