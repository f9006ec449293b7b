#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/hashicorp/go-sockaddr v1.0.7, the library behind the address templates of Consul, Nomad and Vault: a node with secondary
# addresses on its first ENI, a second ENI, a bridge of containers, and a link that is down.
#
# A good guess: GetPrivateIP is the address from which the node talks by its default route, however many secondary addresses the ENI has.
# `include` and `exclude` divide a list in two, also for several values with the sign | between them, as the documentation says. The flag "down"
# selects the links that are down. "forwardable|up" selects addresses that are forwardable and on a link that is up.
#
# What happens: the library sorts the addresses with a sort that is not stable. A dozen addresses in the whole node stay in order. With more,
# GetPrivateIP is one of the secondary addresses, for instance that of a pod, and so a server binds to it or announces it. `exclude` of two
# types or networks removes nothing: an address stays if one of the two values does not match, and may stay twice. The flag "down"
# matches each link, so `exclude "flag" "down"` is always empty. With "forwardable|up", one of the two suffices: link-local addresses, and
# addresses of a link that is down, are in the list. No function returns an error. The script needs root, and Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/templates\n\ngo 1.26\n\nrequire github.com/hashicorp/go-sockaddr v1.0.7\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/go-sockaddr/template"
)

func main() {
	for _, t := range os.Args[1:] {
		out, err := template.Parse("{{" + t + "}}")
		fmt.Println(t+":", out, err)
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/hashicorp/go-sockaddr && CGO_ENABLED=0 go build -trimpath -o probe .

# node SECONDARY: in a namespace of its own, a node whose ENI has so many secondary addresses.
node() {
	sysctl -qw net.ipv6.conf.all.disable_ipv6=1
	for name in ens5 ens6 docker0 ens7; do ip link add $name type veth peer name peer-$name && ip link set peer-$name up && ip link set $name up; done
	ip addr add 10.0.1.5/24 dev ens5 && ip addr add 169.254.20.10/32 dev ens5 && ip addr add 10.0.2.5/24 dev ens6
	ip addr add 172.17.0.1/16 dev docker0 && ip addr add 10.0.3.5/24 dev ens7 && ip link set ens7 down
	for ((i = 0; i < $1; i++)); do ip addr add 10.0.1.$((20 + i))/24 dev ens5; done
	ip route add default via 10.0.1.1 dev ens5
	./probe GetPrivateIP >out
	echo "$1 secondary addresses: the source of the default route is $(ip route get 8.8.8.8 | grep -oP 'src \K\S+'). $(cat out)"
	if [ "$1" = 0 ]; then
		./probe 'GetAllInterfaces | include "flag" "down" | join "address" " "' 'GetAllInterfaces | exclude "flag" "down" | join "address" " "' \
			'GetAllInterfaces | include "flag" "forwardable|up" | join "address" " "' \
			'GetAllInterfaces | exclude "type" "ipv4|ipv6" | join "address" " "' \
			'GetAllInterfaces | exclude "network" "10.0.1.0/24|10.0.2.0/24" | join "address" " "'
	fi
}
export -f node
for secondary in 0 5 10 14 29; do unshare -n bash -euo pipefail -c "node $secondary"; done | tee seen
# Which of the secondary addresses it is depends on the sort of this Go.
sed -E 's/GetPrivateIP: 10\.0\.1\.[2-4][0-9] /GetPrivateIP: a secondary address /' seen | diff - /dev/fd/3 3<<'EOF'
0 secondary addresses: the source of the default route is 10.0.1.5. GetPrivateIP: 10.0.1.5 <nil>
GetAllInterfaces | include "flag" "down" | join "address" " ": 10.0.1.5 169.254.20.10 10.0.2.5 172.17.0.1 10.0.3.5 <nil>
GetAllInterfaces | exclude "flag" "down" | join "address" " ":  <nil>
GetAllInterfaces | include "flag" "forwardable|up" | join "address" " ": 10.0.1.5 169.254.20.10 10.0.2.5 172.17.0.1 10.0.3.5 <nil>
GetAllInterfaces | exclude "type" "ipv4|ipv6" | join "address" " ": 10.0.1.5 169.254.20.10 10.0.2.5 172.17.0.1 10.0.3.5 <nil>
GetAllInterfaces | exclude "network" "10.0.1.0/24|10.0.2.0/24" | join "address" " ": 169.254.20.10 10.0.2.5 172.17.0.1 10.0.3.5 10.0.1.5 169.254.20.10 172.17.0.1 10.0.3.5 <nil>
5 secondary addresses: the source of the default route is 10.0.1.5. GetPrivateIP: 10.0.1.5 <nil>
10 secondary addresses: the source of the default route is 10.0.1.5. GetPrivateIP: a secondary address <nil>
14 secondary addresses: the source of the default route is 10.0.1.5. GetPrivateIP: a secondary address <nil>
29 secondary addresses: the source of the default route is 10.0.1.5. GetPrivateIP: a secondary address <nil>
EOF
