#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# hpcc.sh: HPC Challenge on one process, with its own example of an input, made larger.
set -e
example=/usr/share/doc/hpcc/examples/_hpccinf.txt
if [ -e $example.gz ]; then gunzip -c $example.gz; else cat $example; fi |
	sed -E 's/^[0-9.]+( +Ns *)$/2000\1/; s/^[0-9.]+( +(Ps|Qs) *)$/1\1/' >hpccinf.txt
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OPENBLAS_NUM_THREADS=1
hpcc
cat hpccoutf.txt
