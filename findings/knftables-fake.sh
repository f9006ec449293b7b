#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# sigs.k8s.io/knftables v0.0.22: its Fake, with which kube-proxy and other programs test their rules, and Linux 6.18 by nft(8).
#
# A good guess: the Fake is simpler, but refuses what breaks references, as the kernel does. What both accept leads to the same objects.
#
# What happens: Flush of the table removes its chains, sets, maps and counters from the Fake. In the kernel, only the rules go. The Fake
# deletes a chain that a rule jumps to, and gives an element of a map another value. It takes overlapping elements of an interval set. The
# kernel refuses these three. An element in two spellings is two elements of the Fake, and one of the kernel. ListCounters of the Fake
# returns nil pointers first, as many as there are counters. So a program passes its tests, and the same sync fails on a node, or leaves
# other rules there. The script needs root, Go and nft(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT && cd "$dir"
printf 'module example.com/fake\n\ngo 1.26\n\nrequire sigs.k8s.io/knftables v0.0.22\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	nft "sigs.k8s.io/knftables"
)

func try(what string, change func(*nft.Transaction)) {
	ctx := context.Background()
	real, err := nft.New(nft.IPv4Family, "t")
	fmt.Print(what)
	for n, i := range []nft.Interface{real, nft.NewFake(nft.IPv4Family, "t")} {
		tx := i.NewTransaction()
		tx.Add(&nft.Table{})
		tx.Delete(&nft.Table{}) // begins with no table
		for _, o := range []nft.Object{&nft.Table{}, &nft.Chain{Name: "one"}, &nft.Chain{Name: "two"}, &nft.Map{Name: "verdicts", Type: "ipv4_addr : verdict"},
			&nft.Set{Name: "subnets", Type: "ipv4_addr", Flags: []nft.SetFlag{nft.IntervalFlag}}, &nft.Rule{Chain: "one", Rule: "ip saddr @subnets jump two"},
			&nft.Element{Set: "subnets", Key: []string{"192.0.2.0/24"}}, &nft.Element{Map: "verdicts", Key: []string{"192.0.2.1"}, Value: []string{"drop"}},
			&nft.Counter{Name: "count"}} {
			tx.Add(o)
		}
		if err = i.Run(ctx, tx); err != nil {
			panic(err)
		}
		tx = i.NewTransaction()
		change(tx)
		err = i.Run(ctx, tx)
		all, _ := i.ListAll(ctx)
		subnets, _ := i.ListElements(ctx, "set", "subnets")
		verdicts, _ := i.ListElements(ctx, "map", "verdicts")
		counters, _ := i.ListCounters(ctx)
		fmt.Printf("; %s: error %t, %d chains, %d subnets", []string{"kernel", "fake"}[n], err != nil, len(all["chain"]), len(subnets))
		for _, v := range verdicts {
			fmt.Printf(", %v", v.Value)
		}
		for _, c := range counters {
			fmt.Print(map[bool]string{true: ", nil", false: ", counter"}[c == nil])
		}
	}
	fmt.Println()
}

func main() {
	try("flush table", func(tx *nft.Transaction) { tx.Flush(&nft.Table{}) })
	try("delete chain", func(tx *nft.Transaction) { tx.Delete(&nft.Chain{Name: "two"}) })
	try("other verdict", func(tx *nft.Transaction) { tx.Add(&nft.Element{Map: "verdicts", Key: []string{"192.0.2.1"}, Value: []string{"accept"}}) })
	try("part of subnet", func(tx *nft.Transaction) { tx.Add(&nft.Element{Set: "subnets", Key: []string{"192.0.2.7"}}) })
	try("other spelling", func(tx *nft.Transaction) { tx.Add(&nft.Element{Set: "subnets", Key: []string{"192.0.2.0-192.0.2.255"}}) })
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m sigs.k8s.io/knftables && CGO_ENABLED=0 go build -o probe . && nft --version
unshare --net ./probe | tee seen
diff - seen <<'EOF'
flush table; kernel: error false, 2 chains, 1 subnets, [drop], counter; fake: error false, 0 chains, 0 subnets
delete chain; kernel: error true, 2 chains, 1 subnets, [drop], counter; fake: error false, 1 chains, 1 subnets, [drop], nil, counter
other verdict; kernel: error true, 2 chains, 1 subnets, [drop], counter; fake: error false, 2 chains, 1 subnets, [accept], nil, counter
part of subnet; kernel: error true, 2 chains, 1 subnets, [drop], counter; fake: error false, 2 chains, 2 subnets, [drop], nil, counter
other spelling; kernel: error false, 2 chains, 1 subnets, [drop], counter; fake: error false, 2 chains, 2 subnets, [drop], nil, counter
EOF
