#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints PATH without the folders that have a program: path_without.sh PROGRAM
IFS=:
kept=
for folder in $PATH; do
  [ -x "$folder/$1" ] || kept="$kept${kept:+:}$folder"
done
printf '%s\n' "$kept"
