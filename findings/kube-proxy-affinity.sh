#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# k8s.io/kubernetes v1.37.2, kube-proxy's modes iptables and nftables, with a service of `sessionAffinity: ClientIP`. Linux 6.18.
#
# A good guess: a client reaches the same pod for three hours, or for `timeoutSeconds`, in both modes and with any number of clients.
#
# What happens: in the mode iptables, the rules use the match `recent`, with one list for each pod. The kernel keeps 100 clients in a list
# (ip_list_tot of xt_recent), and drops the oldest without an error. kube-proxy neither sets nor checks this number. So with two pods and
# 300 clients, about half of the clients reach another pod at once. In the mode nftables, no client does. A node has lists of its own for
# all that it sends to the service. The script needs root, Go, nft, iptables-nft, ip and Python 3. It builds a part of Kubernetes, which
# takes one or two minutes.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && printf 'module example.com/affinity\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.37.2\n' >go.mod
go mod download -json k8s.io/kubernetes@v1.37.2 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p' | xargs grep -oP '^\s*k8s.io/\K\S+(?= =>)' |
	sed 's#.*#replace k8s.io/& => k8s.io/& v0.37.2#' >>go.mod
cat >main.go <<'END'
package main
import (
	"context"
	"os"
	"time"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	"k8s.io/kubernetes/pkg/proxy/util"
	tables "k8s.io/kubernetes/pkg/util/iptables"
)
func main() { // with the mode: iptables or nftables
	bit, no, port, seconds, tcp, name := int32(14), false, int32(80), int32(10800), v1.ProtocolTCP, ""
	settings, p := &config.KubeProxyConfiguration{SyncPeriod: meta.Duration{Duration: time.Hour}}, proxy.Provider(nil)
	settings.IPTables = config.KubeProxyIPTablesConfiguration{MasqueradeBit: &bit, LocalhostNodePorts: &no}
	settings.NFTables.MasqueradeBit = &bit
	if os.Args[1] == "iptables" {
		p, _ = iptables.NewProxier(context.Background(), settings, v1.IPv4Protocol, tables.New(tables.ProtocolIPv4), sysctl.New(), util.NewNoOpLocalDetector(), "n", nil, nil, nil, false)
	} else {
		p, _ = nftables.NewProxier(context.Background(), settings, v1.IPv4Protocol, util.NewNoOpLocalDetector(), "n", nil, nil, nil, false)
	}
	p.OnServiceAdd(&v1.Service{ObjectMeta: meta.ObjectMeta{Name: "a", Namespace: "x"}, Spec: v1.ServiceSpec{ClusterIP: "172.30.0.1",
		ClusterIPs: []string{"172.30.0.1"}, Ports: []v1.ServicePort{{Port: port, Protocol: tcp}}, SessionAffinity: v1.ServiceAffinityClientIP,
		SessionAffinityConfig: &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}}})
	p.OnEndpointSliceAdd(&discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4,
		ObjectMeta: meta.ObjectMeta{Name: "a-1", Namespace: "x", Labels: map[string]string{discovery.LabelServiceName: "a"}},
		Endpoints:  []discovery.Endpoint{{Addresses: []string{"10.0.0.20"}}, {Addresses: []string{"10.0.0.21"}}},
		Ports:      []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}}})
	go p.SyncLoop()
	p.OnServiceSynced(); p.OnEndpointSlicesSynced()
	time.Sleep(3 * time.Second)
}
END
cat >ask.py <<'END'
import re, socket, sys
def pods(clients): # the pod that each client reaches by a new connection
    ports, peers = {}, [socket.socket() for _ in range(clients)]
    for client, peer in enumerate(peers):
        peer.bind(("10.1.%d.%d" % divmod(client, 256), 0)), peer.setblocking(False), peer.connect_ex(("172.30.0.1", 80))
        ports[peer.getsockname()[1], peer.getsockname()[0]] = client
    flows = re.findall(r"src=(\S+) dst=172.30.0.1 sport=(\d+) .*?src=(\S+)", open("/proc/net/nf_conntrack").read())
    return {ports[int(port), client]: pod for client, port, pod in flows if (int(port), client) in ports}
first, second = pods(int(sys.argv[1])), pods(int(sys.argv[1]))
print(len(second), "clients,", sum(first[client] != pod for client, pod in second.items()), "changed pods")
END
GOFLAGS=-mod=mod go build -o probe . 2>/dev/null && go list -m k8s.io/kubernetes
cases() {
	ip link set lo up && ip link add eth0 type veth peer name peer0 && ip link set peer0 up && ip link set eth0 up arp off
	ip addr add 10.0.0.2/24 dev eth0 && ip route add default dev eth0 && ip route add local 10.1.0.0/16 dev lo
	./probe "$1" 2>/dev/null && for clients in 50 300; do echo "$1: $(python3 ask.py $clients)"; done
}
export -f cases
for mode in iptables nftables; do unshare --net --mount bash -euo pipefail -c "mount -t tmpfs none /run; cases $mode"; done | tee seen
awk '{ print $1, $2, ($4 < $2 / 4 ? "less" : "more") }' seen | diff - <(printf '%s\n' 'iptables: 50 less' 'iptables: 300 more' 'nftables: 50 less' 'nftables: 300 less')
