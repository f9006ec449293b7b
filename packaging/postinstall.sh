#!/bin/sh
# After units have come or gone. None is enabled or started: that is the operator's to do, when the conflist is there.
# In a root folder, as when an image is built, no systemd runs that could be told.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
fi
