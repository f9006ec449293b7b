#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# conntrack 1.4.8 (Debian 13): `conntrack -L -o save`, and `conntrack -R FILE`.
#
# A good guess: the two commands are like save and restore of ipset or iptables. They keep all that the table has of a connection: tuples,
# zones, status, mark, timeout. After a flush and a restore, the table is what it was.
#
# What happens: zones, status and timeouts are kept. Marks are lost: no line of the file has a mark, although -m is an option of the
# command. So all connections have the mark 0 after the restore, and no message says so. A node with several ENIs can have rules that
# restore a connection's mark, to send answers by the ENI on which the connection began. After a restore of the table, these rules send the
# answers by the main table. The script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{proc,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download conntrack=1:1.4.8-2 libc6 libmnl0 libnfnetlink0 libnetfilter-conntrack3
for deb in *.deb; do dpkg -x "$deb" root; done
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
cases() {
	mount -t proc none root/proc
	ct() { chroot root /usr/sbin/conntrack "$@" 2>>messages; }
	tcp() { ct -I -p tcp -s 192.0.2.1 -d 192.0.2.2 --dport 80 --state ESTABLISHED -t 600 -u SEEN_REPLY,ASSURED "$@"; }
	# look WHAT: the port, the mark and the zone of each connection.
	look() { echo "$1: $(ct -L | sed -E 's/.*src=192.0.2.1 dst=192.0.2.2 sport=([0-9]+).* (\[[A-Z]*\] )?(mark=[0-9]+)( zone=[0-9]+)?.*/\1 \3\4,/' | sort | tr '\n' ' ')"; }
	tcp --sport 1001 -m 0x33 && tcp --sport 1002 -m 0x34 -w 7 && tcp --sport 1003
	look made
	ct -L -o save >root/tmp/saved && echo "lines with a mark: $(grep -cE -- ' (-m|--mark) ' root/tmp/saved || :) of $(wc -l <root/tmp/saved)"
	ct -F && ct -R /tmp/saved && look restored
}
export -f cases
chroot root /usr/sbin/conntrack --version
unshare --net --mount bash -euo pipefail -c cases | sed 's/, $//' | tee seen
diff - seen <<'EOF'
made: 1001 mark=51, 1002 mark=52 zone=7, 1003 mark=0
lines with a mark: 0 of 3
restored: 1001 mark=0, 1002 mark=0 zone=7, 1003 mark=0
EOF
