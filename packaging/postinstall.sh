#!/bin/sh
# Runs after units were installed or removed. It enables and starts none: the operator does that, when the conflist is there.
# In a root folder, for example while an image is built, no systemd is running, so nothing is reloaded.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
fi
