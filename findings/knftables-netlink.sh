#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# sigs.k8s.io/knftables v0.0.22: List and ListAll with its new option UseNetlink, and without it by nft(8) (Linux 6.18).
#
# A good guess: the option is a faster way to the same lists. Both ways say IsNotFound if the table is missing. A sync can delete each chain
# and set that is listed and that it does not know.
#
# What happens: with UseNetlink, the lists have the anonymous sets, maps and chains of rules, such as __set0. A transaction that deletes one
# of them fails as a whole. A map of counters is in the list of sets. If the table has a limit, the lists of counters and of all objects
# fail: "malformed stateful object". If the table is missing, the lists of chains and counters are empty, without an error. The other lists
# fail, but IsNotFound says false. So a program that looks for its table cannot tell a new node from a broken one. The script needs root, Go
# and nft(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT && cd "$dir"
printf 'module example.com/lists\n\ngo 1.26\n\nrequire sigs.k8s.io/knftables v0.0.22\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	nft "sigs.k8s.io/knftables"
)

func say(what string, list any, err error) {
	if err != nil {
		list = map[bool]string{true: "not found", false: "other error"}[nft.IsNotFound(err)]
	}
	fmt.Printf("; %s: %v", what, list)
}

func main() {
	ctx := context.Background()
	for _, table := range []string{"t", "absent", "limited"} {
		for name, options := range map[string][]nft.Option{"nft": nil, "netlink": {nft.UseNetlink}} {
			i, err := nft.New(nft.IPv4Family, table, options...)
			if err != nil {
				panic(err)
			}
			fmt.Printf("%s by %s", table, name)
			for _, kind := range []string{"chains", "sets", "maps", "counters"} {
				list, err := i.List(ctx, kind)
				say(kind, list, err)
			}
			all, err := i.ListAll(ctx)
			say("all", len(all), err)
			fmt.Println()
		}
	}
	i, _ := nft.New(nft.IPv4Family, "t")
	tx := i.NewTransaction()
	tx.Delete(&nft.Set{Name: "__set0"})
	fmt.Println("t, delete __set0: error", i.Run(ctx, tx) != nil)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m sigs.k8s.io/knftables && CGO_ENABLED=0 go build -o probe . && nft --version
cat >rules <<'EOF'
table ip t {
	counter c { }; set known { type ipv4_addr; }
	map verdicts { type ipv4_addr : verdict; }
	map counted { type ipv4_addr : counter; }
	chain one { ip saddr { 192.0.2.1, 192.0.2.2 } tcp dport vmap { 1 : drop, 2 : accept } jump { counter; }; }
}
table ip limited { counter c { }; limit l { rate 10/second; }; }
EOF
unshare --net bash -c 'nft -f rules && ./probe' | LC_ALL=C sort | sed 's/__chain[0-9]*/__chain0/' | tee seen
diff - seen <<'EOF'
absent by netlink; chains: []; sets: other error; maps: other error; counters: []; all: other error
absent by nft; chains: not found; sets: not found; maps: not found; counters: not found; all: not found
limited by netlink; chains: []; sets: []; maps: []; counters: other error; all: other error
limited by nft; chains: []; sets: []; maps: []; counters: [c]; all: 3
t by netlink; chains: [one __chain0]; sets: [known counted __set0]; maps: [verdicts __map0]; counters: [c]; all: 5
t by nft; chains: [one]; sets: [known]; maps: [verdicts counted]; counters: [c]; all: 5
t, delete __set0: error true
EOF
