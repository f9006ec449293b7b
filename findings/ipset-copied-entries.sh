#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/vishvananda/netlink v1.3.1 (ipset 7.22, Linux 6.18): entries of an ipset are listed, and added to a second set. This is how a program
# fills a new set before it swaps both.
#
# A good guess: the copy has the same members. If the library does not know something of an entry, it returns an error.
#
# What happens: IpsetList drops `nomatch`. In the copy, an exception has become a member: 10.0.0.0/8 without 10.0.1.0/24 becomes 10.0.0.0/8 with
# it. A rule with `! --match-set` now leaves these addresses out. The library drops `physdev:` and `wildcard` of links, too, and the mark that
# an entry sets. A length of 0 is never sent: 0.0.0.0/0 by a link becomes the address 0.0.0.0, so the copy matches no packet by this link.
# IpsetDel does not find this listed entry, nor one with `physdev:`. IpsetAdd sends a protocol with each port, and writes tcp into the caller's entry if it has none.
# A set of type bitmap:port refuses this, so the library can make such a set, except that it can add no port. All other calls
# return nil. For unknown attributes, the library prints a line. The script needs root, Go and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{proc,run,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download ipset=7.22-1+b1 libipset13t64 libc6 libmnl0
for deb in *.deb; do dpkg -x "$deb" root; done
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
printf 'module example.com/sets\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

func main() {
	port := uint16(80)
	entry := netlink.IPSetEntry{Port: &port}
	fmt.Println("bitmap:port, port 80:", netlink.IpsetAdd("ports", &entry), "protocol of the entry:", *entry.Protocol)
	set, _ := netlink.IpsetList("first")
	for _, entry := range set.Entries {
		fmt.Println("add:", netlink.IpsetAdd("second", &entry), "delete:", netlink.IpsetDel("first", &entry))
	}
}
EOF
GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o probe . 2>/dev/null && go list -m github.com/vishvananda/netlink
cases() {
	ipset() { chroot root /usr/sbin/ipset "$@"; }
	copy() { # TYPE OPTION... from standard input: entries, one a line
		ipset create first "$@" && ipset create second "$@"
		while read -r entry; do eval "ipset add first $entry"; done
		show() { echo "$1: $(ipset save "$1" | sed -n 's/^add [^ ]* //p' | LC_ALL=C sort | paste -sd ';')"; }
		show first && ./probe 2>/dev/null | sort | uniq -c && show second
	}
	ipset create ports bitmap:port range 0-100
	copy hash:net skbinfo <<<$'10.0.0.0/8 skbmark 0x80/0xff\n10.0.1.0/24 nomatch' && ipset test second 10.0.1.7 2>&1
	ipset destroy first && ipset destroy second
	copy hash:net,iface <<<$'0.0.0.0/0,ens5\n10.0.0.0/8,physdev:ens6\n10.0.1.0/24,ens5 nomatch\n10.9.0.0/16,eni wildcard'
}
export -f cases && chroot root /usr/sbin/ipset --version >&2 || :
unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
first: 10.0.0.0/8 skbmark 0x80/0xff;10.0.1.0/24 nomatch
      2 add: <nil> delete: <nil>
      1 bitmap:port, port 80: invalid protocol protocol of the entry: 6
second: 10.0.0.0/8;10.0.1.0/24
Warning: 10.0.1.7 is in set second.
first: 0.0.0.0/0,ens5;10.0.0.0/8,physdev:ens6;10.0.1.0/24,ens5 nomatch;10.9.0.0/16,eni wildcard
      2 add: <nil> delete: <nil>
      2 add: <nil> delete: exist
      1 bitmap:port, port 80: invalid protocol protocol of the entry: 6
second: 0.0.0.0,ens5;10.0.0.0/8,ens6;10.0.1.0/24,ens5;10.9.0.0/16,eni
EOF
