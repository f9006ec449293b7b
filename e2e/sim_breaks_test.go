// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestSimBreaks types the commands of a person who tries faults in make sim. Pods call each other by name. They also
// call a Service, and a pod of the other node. EC2 throttles and denies calls, and another program changes ENIs. The
// programs must report the faults. After the end of the faults, everything must work. Each line of the script must
// succeed.
func TestSimBreaks(t *testing.T) {
	nltest.Need(t, "root", "nftables")
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) {
			script := simCalls
			if path == "ipvlan" {
				nltest.Need(t, "ipvlan")
				script += simBreaks // faults of EC2 affect both data paths alike, so one data path is enough
			}
			c := sim(t, script, "-datapath", path)
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v (without programs, run make build and make %s/cnitool): %s", err, peers, out)
			}
		})
	}
}

const simCalls = `set -ex
address() { cni-tool status | awk -v pod="default/$1" '$3 == pod {print $1}'; }
fails() { if "$@"; then exit 1; fi; }
said() { grep -q "$1" /run/said || { cat /run/said; exit 1; }; }

pod add cart
pod add till
cni-tool doctor
test "$(pod exec cart call till)" = "$(address cart)"
test "$(pod exec cart call web)" = "$(address cart)"
test "$(call cart)" = 10.0.0.4
test "$(pod exec cart call host)" = "$(address cart)"

test "$(on node2 pod exec web call cart)" = "$(getent hosts web | cut -d' ' -f1)"
on node2 cni-tool status | grep -w default/web
test "$(on node2 readlink /proc/self/ns/net)" != "$(readlink /proc/self/ns/net)"
test "$(echo word | on node2 cat)" = word
on node2 sh -c 'exit 7' || test $? = 7
fails on node3 true
on node2 pod add far
test "$(pod exec cart call far)" = "$(address cart)"
on node2 pod del far
fails getent hosts far

service add web
test "$(pod exec cart call 172.20.0.11:80)" = "$(address cart)"
fails service add till
service del
fails pod exec cart call 172.20.0.11:80
`

const simBreaks = `
a=$(address till)
sleep 31 # until then, EC2 may not show the address yet
ec2 unassign $a
fails cni-tool status --diff >/run/said
said "$a: default/till has this address, but in EC2 the address is on no ENI"
ec2 undo
cni-tool status --diff

eni=$(cni-tool status | awk '$3 == "default/cart" {print $5}')
ec2 detach $eni
fails pod exec cart call web
fails cni-tool doctor
cni-tool status >/run/said
said "$eni has no link on this node"
ec2 undo
ec2 enis | grep "^$eni .* device 1 "
for name in cart till; do pod del $name; pod add $name; done
test "$(pod exec cart call web)" = "$(address cart)"

ec2 deny AssignPrivateIpAddresses
ec2 throttle CreateNetworkInterface
ec2 list | grep '^1  deny AssignPrivateIpAddresses$'
fails pod add late 2>/run/said
said "UnauthorizedOperation"
fails ec2 deny Everything
ec2 undo
ec2 undo 1
test -z "$(ec2 list)"
fails ec2 undo
ec2 calls | grep 'AssignPrivateIpAddresses UnauthorizedOperation'

pod del cart
fails getent hosts cart
`
