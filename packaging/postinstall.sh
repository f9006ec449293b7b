#!/bin/sh
# Runs after units were installed or removed. It enables and starts no unit. The operator does that when the conflist is there.
# While an image is built in a root directory, no systemd runs there. Then this script does nothing.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
fi
