#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# k8s.io/kubernetes v1.37.2, package pkg/proxy/conntrack: which UDP flows kube-proxy deletes after a change of endpoints. Linux 6.18.
#
# A good guess: when an endpoint of a UDP service goes, kube-proxy deletes the connections to it: by the ClusterIP, and by the node port.
# It does so too if it was the last endpoint, or if the service goes with it. It leaves connections that are of no service.
#
# What happens: CleanStaleEntries goes through the services that are left. A deleted service is not among them, so its connections stay.
# Connections by a node port are found by this port alone, whatever the address. So a pod's connection to another host goes as well, if the
# far port is a node port of the cluster. With masquerading, its next packet can have another source port. For this reason, v1.37 skips the
# node ports of a service without endpoints. So connections by such a node port stay. A sender that needs no reply keeps its connection
# alive, and sends to the old pod's address, without any rule. In a VPC, this can soon be another pod's. The script needs root, Go, nft
# and ip. It builds a part of Kubernetes, which takes one or two minutes.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && printf 'module example.com/flows\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.37.2\n' >go.mod
for name in $(go mod download -json k8s.io/kubernetes@v1.37.2 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p' | xargs grep -oP '^\s*k8s.io/\K\S+(?= =>)'); do
	echo "replace k8s.io/$name => k8s.io/$name v0.37.2" >>go.mod
done
cat >main.go <<'END'
package main

import (
	"os"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/conntrack"
)

func main() { // with the next endpoint, or "none", or "none deleted": the service goes, too
	port, udp, name, labels := int32(53), v1.ProtocolUDP, "", map[string]string{discovery.LabelServiceName: "a"}
	service := &v1.Service{ObjectMeta: meta.ObjectMeta{Name: "a", Namespace: "x"}, Spec: v1.ServiceSpec{ClusterIP: "172.30.0.1",
		Ports: []v1.ServicePort{{Port: port, NodePort: 32000, Protocol: udp}}}}
	services, serviceChanges := proxy.ServicePortMap{}, proxy.NewServiceChangeTracker(v1.IPv4Protocol, nil, nil)
	endpoints, endpointChanges := proxy.EndpointsMap{}, proxy.NewEndpointsChangeTracker(v1.IPv4Protocol, "node", nil, nil)
	change := func(address string) bool {
		endpointChanges.EndpointSliceUpdate(&discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4,
			ObjectMeta: meta.ObjectMeta{Name: "a-1", Namespace: "x", Labels: labels}, Endpoints: []discovery.Endpoint{{Addresses: []string{address}}},
			Ports: []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &udp}}}, address == "none")
		services.Update(serviceChanges)
		return endpoints.Update(endpointChanges).ConntrackCleanupRequired
	}
	serviceChanges.Update(nil, service)
	_ = change("10.0.0.20")
	serviceChanges.Update(service, map[bool]*v1.Service{false: service}[len(os.Args) > 2]) // the same service, or none
	if change(os.Args[1]) {
		conntrack.CleanStaleEntries(conntrack.New(), v1.IPv4Protocol, services, endpoints)
	}
}
END
GOFLAGS=-mod=mod go build -o probe . 2>/dev/null && go list -m k8s.io/kubernetes
cases() {
	ip link set lo up && ip link add eth0 type veth peer name peer0 && ip link set peer0 up && ip link set eth0 up arp off
	ip addr add 10.0.0.2/24 dev eth0 && ip route add default dev eth0
	nft 'table ip t { set seen { type ipv4_addr . inet_service; flags dynamic; }
		chain seen { type filter hook postrouting priority 0; ct state new,established update @seen { ip daddr . udp dport }; }
		chain services { type nat hook output priority -100; }; }'
	nft 'add rule ip t services ip daddr . udp dport { 172.30.0.1 . 53, 10.0.0.2 . 32000 } dnat to 10.0.0.20:53'
	exec 3<>/dev/udp/172.30.0.1/53 4<>/dev/udp/10.0.0.2/32000 5<>/dev/udp/198.51.100.1/32000 && echo >&3 && echo >&4 && echo >&5
	nft flush chain ip t services && ./probe "$@" && echo -n "then $*:" # it writes its rules first
	while read -r flow to port name; do
		echo -n " $name $(grep -c " dst=$to sport=.* dport=$port " /proc/net/nf_conntrack || :) left,"
		nft flush set ip t seen && { echo >&"$flow" || :; }
		echo -n " next to $(nft list set ip t seen | grep -oE '[0-9.]+ \. [0-9]+');"
	done <<<$'3 172.30.0.1 53 ClusterIP\n4 10.0.0.2 32000 node port\n5 198.51.100.1 32000 outside' && echo
}
export -f cases
for change in 10.0.0.21 none 'none deleted'; do unshare --net bash -euo pipefail -c "cases $change"; done | sed 's/ \. /:/g' | tee seen
diff - seen <<'END'
then 10.0.0.21: ClusterIP 0 left, next to 172.30.0.1:53; node port 0 left, next to 10.0.0.2:32000; outside 0 left, next to 198.51.100.1:32000;
then none: ClusterIP 0 left, next to 172.30.0.1:53; node port 1 left, next to 10.0.0.20:53; outside 1 left, next to 198.51.100.1:32000;
then none deleted: ClusterIP 1 left, next to 10.0.0.20:53; node port 1 left, next to 10.0.0.20:53; outside 1 left, next to 198.51.100.1:32000;
END
