# SPDX-License-Identifier: GPL-2.0-or-later
"""setfattr -n NAME -v VALUE FILE, or -x NAME FILE: the part that the documents' examples use."""
import os
import sys

arguments = sys.argv[1:]
if len(arguments) == 5 and arguments[0] == "-n" and arguments[2] == "-v":
    os.setxattr(arguments[4], arguments[1], arguments[3].encode())
elif len(arguments) == 3 and arguments[0] == "-x":
    os.removexattr(arguments[2], arguments[1])
else:
    sys.exit(f"setfattr {' '.join(arguments)}: not among what the examples may ask")
