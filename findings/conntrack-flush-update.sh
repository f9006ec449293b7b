#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# conntrack 1.4.8 (Debian 13, Linux 6.18): `conntrack -F -f ipv4`, and `conntrack -U` of connections in zones.
#
# A good guess: -F with a family flushes this family, as -D with a family deletes it. If -F has no filters, it refuses all of them. -U
# changes the connections that match, and the count says how many these are.
#
# What happens: -F refuses a zone, a mark, a protocol and a source. It takes -f, and then empties the table of both families. -U finds the
# connections of all zones, but sends the update without the zone. So three connections with equal addresses and ports in the zones 0, 7 and
# 8 are "3 flow entries have been updated": the one in zone 0 was updated three times, the others never. If only zone 7 has the connection,
# -U updates none, and fails. -U -w is refused. -D deletes by the zone. Nodes with several ENIs route by these marks, and zones keep pods
# with equal addresses apart. The script needs root, and Debian.
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
	ct() { chroot root /usr/sbin/conntrack "$@" 2>messages || echo "exit $?"; }
	tcp() { ct -I -p tcp -s 192.0.2.1 -d 192.0.2.2 --dport 80 --state ESTABLISHED -t 600 "$@" >/dev/null; }
	# try ARGUMENTS: five connections are made, then conntrack runs. Prints what it says, and what is left.
	try() {
		ct -F
		tcp --sport 1001 -m 1 && tcp --sport 1001 -m 7 -w 7 && tcp --sport 1001 -m 8 -w 8 && tcp --sport 1002 -m 2 -w 7
		ct -I -p udp -s 2001:db8::1 -d 2001:db8::2 --sport 1003 --dport 53 -t 60 -m 3 >/dev/null
		echo "$*: $(ct "$@" | grep exit || :) $(grep -oE '[0-9]+ flow.*|connection tracking.*|Illegal.*' messages)"
		echo -n '   left: '
		ct -L | sed -nE 's/.* sport=(100.).* mark=([0-9]+)( zone=[0-9])?.*/\1 mark=\2\3/p' | LC_ALL=C sort | tr '\n' ';' | grep . || echo nothing
	}
	try -F -f ipv4 && try -F -w 7 && try -D -f ipv4
	try -U -s 192.0.2.1 -m 85 && try -U -p tcp --sport 1002 -m 85 && try -U -w 7 -m 85 && try -D -w 7
}
export -f cases
chroot root /usr/sbin/conntrack --version
unshare --net --mount bash -euo pipefail -c cases | sed 's/:  */: /; s/; *$//' | tee seen
diff - seen <<'EOF'
-F -f ipv4: connection tracking table has been emptied.
   left: nothing
-F -w 7: exit 2 Illegal option `--zone' with this command
   left: 1001 mark=1;1001 mark=7 zone=7;1001 mark=8 zone=8;1002 mark=2 zone=7;1003 mark=3
-D -f ipv4: 4 flow entries have been deleted.
   left: 1003 mark=3
-U -s 192.0.2.1 -m 85: 3 flow entries have been updated.
   left: 1001 mark=7 zone=7;1001 mark=8 zone=8;1001 mark=85;1002 mark=2 zone=7;1003 mark=3
-U -p tcp --sport 1002 -m 85: exit 1 0 flow entries have been updated.
   left: 1001 mark=1;1001 mark=7 zone=7;1001 mark=8 zone=8;1002 mark=2 zone=7;1003 mark=3
-U -w 7 -m 85: exit 2 Illegal option `--zone' with this command
   left: 1001 mark=1;1001 mark=7 zone=7;1001 mark=8 zone=8;1002 mark=2 zone=7;1003 mark=3
-D -w 7: 2 flow entries have been deleted.
   left: 1001 mark=1;1001 mark=8 zone=8;1003 mark=3
EOF
