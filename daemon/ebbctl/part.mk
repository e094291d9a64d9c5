# SPDX-License-Identifier: GPL-2.0-or-later
$(eval $(call program,ebbctl,$(call own,ebbctl) userlib/far/client.c userlib/far/connect.c,\
	-lbpf -lsystemd -ljson-c -lssl -lcrypto -lcgroup -luring -lmnl -lncursesw -ltinfo -lm))
# ebbctl runs ebb-sim to analyse recordings.
$(B)/bin/ebbctl: | $(B)/bin/ebb-sim
