#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iptables 1.8.9 (Debian 12) and 1.8.11 (Debian 13), with nftables and legacy, and go-iptables v0.8.0: a rule with `recent` or `connlimit`.
#
# A good guess: `iptables -S` shows a rule in the words that `-C` and `-D` take. After iptables-save and iptables-restore, the rules are the
# same. So AppendUnique of go-iptables does not append the rule again, and DeleteIfExists removes it.
#
# What happens: after a restore, `-C` and `-D` no longer find the rule of the program. AppendUnique appends a second rule. DeleteIfExists
# returns nil, and removes nothing. They do not find the rule in the words of `-S` either, before the restore. Without a mask, iptables sets
# all 16 bytes of the mask. iptables-save writes a mask of 32 bits. Reading it sets 4 bytes, and clears 12. The kernel does not use these 12
# bytes for IPv4, but `-C` and `-D` compare them. With IPv6, or if the program gives a mask, all is well. netfilter-persistent restores
# rules at boot, and an agent then adds its own. The script needs root, Go, and Debian 12 or later.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/matches\n\ngo 1.26\n\nrequire github.com/coreos/go-iptables v0.8.0\n' >go.mod
cat >main.go <<'END'
package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

func main() {
	for program, protocol := range map[string]iptables.Protocol{"iptables": iptables.ProtocolIPv4, "ip6tables": iptables.ProtocolIPv6} {
		ipt, err := iptables.NewWithProtocol(protocol)
		for _, match := range []string{"recent --set --name seen", "connlimit --connlimit-above 9", "connlimit --connlimit-above 9 --connlimit-mask 24"} {
			rule := strings.Fields("-m " + match + " -j DROP")
			rules := func() []string { list, _ := ipt.List("filter", "INPUT"); return list[1:] }
			err = errors.Join(err, ipt.ClearChain("filter", "INPUT"), ipt.AppendUnique("filter", "INPUT", rule...))
			exists, err2 := ipt.Exists("filter", "INPUT", strings.Fields(rules()[0])[2:]...)
			save, restore := exec.Command(program+"-save", "-t", "filter"), exec.Command(program+"-restore")
			restore.Stdin, _ = save.StdoutPipe()
			if err = errors.Join(err, err2, save.Start(), restore.Run()); err != nil {
				panic(err)
			}
			fmt.Printf("%s -m %s: found as shown: %v; restored, ", program, match, exists)
			deleted, left := ipt.DeleteIfExists("filter", "INPUT", rule...), len(rules())
			fmt.Printf("deleted: %v, %d left; appended: %v, %d\n", deleted, left, ipt.AppendUnique("filter", "INPUT", rule...), len(rules()))
		}
	}
}
END
go mod tidy >/dev/null 2>&1 && go list -m all | grep go-iptables && CGO_ENABLED=0 go build -o probe .
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
for release in bookworm:1.8.9-2 trixie:1.8.11-2; do at=$dir/${release%:*} version=${release#*:}
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/{dev,run,usr/{lib,lib64,sbin,bin}}} && touch "$at/root/dev/null" # for chroot
	echo "deb $mirror ${release%:*} main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update && cd "$at" && apt-get "${options[@]}" download {iptables,libip4tc2,libip6tc2,libxtables12}="$version" \
		libmnl0 libnftnl11 libc6 libnetfilter-conntrack3 libnfnetlink0
	for deb in *.deb; do dpkg -x "$deb" root; done && cp ../probe root/
	for top in lib lib64 sbin bin; do # Debian 12 has files in /lib
		cp -rn "root/$top/." "root/usr/$top/" 2>/dev/null || :
		rm -rf "root/$top" && ln -s "usr/$top" "root/$top"
	done
	for backend in nft legacy; do
		for name in ip{,6}tables{,-save,-restore}; do ln -sf "xtables-$backend-multi" "root/usr/sbin/$name"; done
		chroot root /usr/sbin/iptables --version >&2 && PATH=/usr/sbin:/usr/bin unshare --net chroot root /probe
	done
done | sort | uniq -c | sed 's/^ *\([0-9]*\)/\1 times:/' | tee "$dir/seen" # two versions, with two backends
diff - "$dir/seen" <<'END'
4 times: ip6tables -m connlimit --connlimit-above 9 --connlimit-mask 24: found as shown: true; restored, deleted: <nil>, 0 left; appended: <nil>, 1
4 times: ip6tables -m connlimit --connlimit-above 9: found as shown: true; restored, deleted: <nil>, 0 left; appended: <nil>, 1
4 times: ip6tables -m recent --set --name seen: found as shown: true; restored, deleted: <nil>, 0 left; appended: <nil>, 1
4 times: iptables -m connlimit --connlimit-above 9 --connlimit-mask 24: found as shown: true; restored, deleted: <nil>, 0 left; appended: <nil>, 1
4 times: iptables -m connlimit --connlimit-above 9: found as shown: false; restored, deleted: <nil>, 1 left; appended: <nil>, 2
4 times: iptables -m recent --set --name seen: found as shown: false; restored, deleted: <nil>, 1 left; appended: <nil>, 2
END
