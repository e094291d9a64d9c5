// SPDX-License-Identifier: GPL-2.0-or-later
#include "ebbctl/verbs/verbs.h"

int main(int argc, char **argv)
{
	return ebbctl(argc, argv);
}
