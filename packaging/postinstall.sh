#!/bin/sh
# Runs after units were installed or removed. It enables and starts no unit: the operator does that when the conflist is
# there. During the build of an image in a root directory, no systemd runs. Then this script does nothing.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
fi
