#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/aws/amazon-vpc-cni-k8s v1.23.2, packages datastore and networkutils (Linux 6.18): policy rules when the daemon starts again.
#
# A good guess: at a start, the daemon brings each pod's own rule up to date: the rule from the pod's address with the priority 1536. A rule
# that an administrator added stays as it is: its source is a subnet, or it has other conditions and another priority.
#
# What happens: for each pod, the daemon takes all rules whose source starts at the pod's IPv4 address. It ignores the length of the prefix, the
# priority, and all other conditions. It deletes these rules, and adds one rule for the pod, with the table of the last of them. With delegated
# prefixes, the first pod has the first address of a /28. So an administrator's rule for the whole prefix counts as a rule of this pod, and is
# deleted. The other addresses of the prefix lose it. The pod gets its table if its priority is above 1536, or if the pod is on the primary
# ENI, where it has no rule of its own. A rule with a mark is deleted, too. All this happens at each start, as in an update, without an error.
# The script calls what the daemon calls. It needs root, Go, ip and iptables. A first build takes two minutes.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/rules\n\ngo 1.26\n\nrequire github.com/aws/amazon-vpc-cni-k8s v1.23.2\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"

	"github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/networkutils"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/utils/logger"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	log := logger.New(&logger.Configuration{LogLevel: "ERROR", LogLocation: "/dev/null"})
	ds := datastore.NewDataStore(log, datastore.NewTestCheckpoint(nil), true, 0)
	check(ds.AddENI("eni-1", 1, false, false, false, 2, "subnet-1"))
	check(ds.AddIPv4CidrToStore("eni-1", net.IPNet{IP: net.IPv4(10, 0, 1, 16), Mask: net.CIDRMask(28, 32)}, true))
	_, _, _, err := ds.AssignPodIPv4Address(datastore.IPAMKey{ContainerID: "pod"}, datastore.IPAMMetadata{})
	check(err)
	n, err := networkutils.New()
	check(err)
	rules, err := n.GetRuleList(false)
	check(err)
	for _, pod := range ds.AllocatedIPs() {
		fmt.Print(pod.IP)
		check(n.UpdateRuleListBySrc(rules, net.IPNet{IP: net.ParseIP(pod.IP), Mask: net.CIDRMask(32, 32)}))
	}
}
EOF
GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o start . 2>/dev/null && go list -m github.com/aws/amazon-vpc-cni-k8s && uname -r >&2
export AWS_VPC_K8S_CNI_LOG_FILE=stderr # and no file in /host
cases() { # RULES: the administrator's, then the pod's, as the plugin makes it
	for rule in "$@"; do xargs ip rule add <<<"$rule"; done
	echo "pod $(./start); $1 and ${2:-none for the pod}; after a start: $(ip rule | grep -F 10.0 | tr '\t' ' ' | xargs -d '\n')"
}
export -f cases
for rule in 'pref 1000 from 10.0.1.16/28' 'pref 2000 from 10.0.1.16/28' 'pref 1000 from 10.0.1.0/24' 'pref 1000 from 10.0.1.16 fwmark 0x200'; do
	unshare --net bash -euo pipefail -c "cases '$rule lookup 7' 'pref 1536 from 10.0.1.16 lookup 2'" 2>/dev/null
done | tee seen
unshare --net bash -euo pipefail -c "cases 'pref 1000 from 10.0.1.16/28 lookup 7'" 2>/dev/null | tee -a seen
diff - seen <<'EOF'
pod 10.0.1.16; pref 1000 from 10.0.1.16/28 lookup 7 and pref 1536 from 10.0.1.16 lookup 2; after a start: 1536: from 10.0.1.16 lookup 2
pod 10.0.1.16; pref 2000 from 10.0.1.16/28 lookup 7 and pref 1536 from 10.0.1.16 lookup 2; after a start: 1536: from 10.0.1.16 lookup 7
pod 10.0.1.16; pref 1000 from 10.0.1.0/24 lookup 7 and pref 1536 from 10.0.1.16 lookup 2; after a start: 1000: from 10.0.1.0/24 lookup 7 1536: from 10.0.1.16 lookup 2
pod 10.0.1.16; pref 1000 from 10.0.1.16 fwmark 0x200 lookup 7 and pref 1536 from 10.0.1.16 lookup 2; after a start: 1536: from 10.0.1.16 lookup 2
pod 10.0.1.16; pref 1000 from 10.0.1.16/28 lookup 7 and none for the pod; after a start: 1536: from 10.0.1.16 lookup 7
EOF
