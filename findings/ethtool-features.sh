#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/safchain/ethtool v0.7.0 (Linux 6.18): features and settings of a pod's link. For comparison: the tool ethtool 6.1.
#
# A good guess: Change returns an error if the feature does not change, so an agent that turns checksum offload off can rely on nil.
# GetLinkSettings exchanges all link modes with the kernel, and prints nothing. A name that is too long for a link is an error.
#
# What happens: Change returns nil if a feature is fixed, and if it needs another feature that is off. For both, the ioctl returns a positive
# number without errno, and the library drops it. The tool fails: "Could not change any device features". The kernel keeps the second wish:
# it turns segmentation on when another program turns checksums on. GetLinkSettings has room for 96 link modes. This kernel has more, and
# answers that it needs 4 words: -4. The library does not ask again. It uses the old call, which has 32 modes, and prints a warning to
# stdout. The stdout of a CNI plugin is its result. SetLinkSettings always fails. The alternative name of a link can have more than
# 15 characters. The library cuts this name, and so changes another link. The script needs root, and Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq -o APT::Sandbox::User=root download ethtool=1:6.1-1 && dpkg -x ethtool_*.deb root
printf 'module example.com/features\n\ngo 1.26\n\nrequire github.com/safchain/ethtool v0.7.0\n' >go.mod
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"

	"github.com/safchain/ethtool"
)

func main() {
	e, err := ethtool.NewEthtool()
	if err != nil {
		panic(err)
	}
	if len(os.Args) > 3 {
		fmt.Printf("library %v; ", e.Change(os.Args[1], map[string]bool{os.Args[2]: os.Args[3] == "on"}))
		return
	}
	s, err := e.GetLinkSettings(os.Args[1])
	fmt.Println("get:", s.Source, err)
	fmt.Println("set:", e.SetLinkSettings(os.Args[1], s))
}
END
go mod tidy >/dev/null 2>&1 && go list -m github.com/safchain/ethtool && go build -o probe .
cases() {
	show() { root/sbin/ethtool -k "$1" | grep -E "$2:" | tr -d '\t'; }
	change() { echo "$*: $(./probe "$@")$(show "$1" "$2"); $(root/sbin/ethtool -K "$@" >/dev/null 2>&1 || echo "tool status $?")"; }
	ip link add veth0 type veth peer name veth1 && ip link add enp9s0f0np0-hos type veth peer name veth2
	ip link property add dev veth0 altname enp9s0f0np0-host-network
	change lo tx-checksum-ip-generic off
	change veth0 hw-tc-offload on
	change veth0 tx-checksum-ip-generic off
	change veth0 tx-tcp-segmentation on
	change veth0 tx-checksum-ip-generic on && show veth0 tx-tcp-segmentation
	ip link show enp9s0f0np0-host-network | grep -o ' veth0@'
	./probe enp9s0f0np0-host-network tx-checksum-ip-generic off
	for link in veth0 enp9s0f0np0-hos; do echo "$link $(show $link tx-checksum-ip-generic)"; done
	./probe veth0
}
export -f cases
unshare --net bash -euo pipefail -c cases | sed 's/;\? *$//' | tee seen
diff - seen <<'END'
lo tx-checksum-ip-generic off: library <nil>; tx-checksum-ip-generic: on [fixed]; tool status 1
veth0 hw-tc-offload on: library <nil>; hw-tc-offload: off [fixed]; tool status 1
veth0 tx-checksum-ip-generic off: library <nil>; tx-checksum-ip-generic: off
veth0 tx-tcp-segmentation on: library <nil>; tx-tcp-segmentation: off [requested on]; tool status 1
veth0 tx-checksum-ip-generic on: library <nil>; tx-checksum-ip-generic: on
tx-tcp-segmentation: on
 veth0@
library <nil>; veth0 tx-checksum-ip-generic: on
enp9s0f0np0-hos tx-checksum-ip-generic: off
Warning: GLINKSETTINGS succeeded but returned invalid nwords (-4), attempting fallback to GSET
get: GSET <nil>
set: ETHTOOL_GLINKSETTINGS check succeeded but returned invalid nwords: -4
END
